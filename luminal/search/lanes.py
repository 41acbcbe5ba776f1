"""Schedules for GPUs: which axes become blocks, which are dealt to the threads of a block.

In: `Facts` and a `Nest`, as for CPUs. Out: `Candidate`s, best guess first. Rows of statistics
become blocks, and all threads of a block compute a statistic together; what is left goes to
neighbouring threads in the order of memory, or a sum to the lanes of a warp. Knows no operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from luminal.ir import REDUCTIONS, Item, Loop, Schedule, Stage, Term, Var
from luminal.search.facts import Facts
from luminal.search.nest import Candidate, Nest

THREADS = 256
ROW_LIMIT = 4096
"""The longest row of values that a block keeps in its memory."""
WIDE = 64
"""From so many steps on, a sum is worth the lanes of a warp."""


def lane_candidates(facts: Facts, nest: Nest) -> list[Candidate]:
    """Distinct schedules, best guess first; the last is that of a single thread."""
    found: dict[Schedule, Candidate] = {}
    for threads in (THREADS, 128, 1024, 32):
        for schedule, cost in _schedules(facts, nest, threads):
            found.setdefault(schedule, Candidate(schedule, {}, cost))
    best = sorted(found.values(), key=lambda c: c.cost)
    return [*best, Candidate(Schedule(), {}, 1e6)]


def _schedules(facts: Facts, nest: Nest, threads: int) -> Iterator[tuple[Schedule, float]]:
    away = abs(threads - THREADS) / 1e4
    free = tuple(a for a in nest.free if a.name not in nest.ordered)
    wide = [r for r in facts.tops(*nest.values) if set(nest.free) <= r.free]
    rows, stages, after = _statistics(facts, nest, threads)
    rest = _by_memory(facts, nest, [a for a in free if a not in rows])
    grid = [Loop(a.name, 1, grid=True) for a in rows]
    summed = [a for a in after.bound(*nest.values) if facts.extent(a) > 1]
    across = prod(map(facts.extent, summed)) >= WIDE and (bool(wide) or not rest)
    if across and not nest.ordered:
        yield (
            _across(facts, grid, stages, rest, summed, threads),
            away + (0.0 if _along(facts, nest, rest, summed) else 2.0),
        )
    loops, lanes = deal(facts, rest, threads)
    yield Schedule((*grid, *loops, *stages, *lanes)), away + 1.0


def deal(facts: Facts, axes: Sequence[Var], threads: int) -> tuple[list[Loop], list[Loop]]:
    """Grid and lane loops over axes from the outermost to the innermost in memory, the innermost
    for the nearest threads."""
    grid, lanes, left = list[Loop](), list[Loop](), threads
    for a in reversed(axes):
        count = min(left, _power(facts.extent(a)))
        left //= count
        if count > 1:
            lanes.insert(0, Loop(a.name, 1, lanes=count))
        if facts.largest(a) > count:
            grid.insert(0, Loop(a.name, count, grid=True))
    return grid, lanes


def _across(
    facts: Facts, grid: Sequence[Loop], stages: Sequence[Stage], rest: Sequence[Var],
    summed: Sequence[Var], threads: int,
) -> Schedule:  # fmt: skip
    """A sum for every warp, or for every block if there are few, its steps dealt to lanes."""
    few = prod(map(facts.extent, rest)) < 4 * facts.target.cores
    lanes = threads if few and not stages else facts.target.warp
    lanes = min(lanes, max(facts.target.warp, _power(facts.extent(summed[-1]))))
    loops, rows = deal(facts, rest, threads // lanes)
    inner = [*(Loop(a.name, 1) for a in summed[:-1]), Loop(summed[-1].name, 1, lanes=lanes)]
    return Schedule((*grid, *loops, *stages, *rows, *inner))


def _along(facts: Facts, nest: Nest, rest: Sequence[Var], summed: Sequence[Var]) -> bool:
    """Whether more operands are contiguous along the sum than along the results, or the results
    alone do not fill the machine."""
    loads = facts.loads(*nest.values)
    if prod(map(facts.extent, rest)) < 32 * facts.target.cores:
        return True
    near = [sum(facts.stride(x, a) == 1 for x in loads) for a in (summed[-1], *rest[-1:])]
    return len(near) < 2 or near[0] > near[1]


def _statistics(
    facts: Facts, nest: Nest, threads: int
) -> tuple[list[Var], list[Stage], Facts]:  # fmt: skip
    """The axes of rows, stages of what all threads compute for a row, and the facts behind them:
    reductions over fewer axes than the kernel has, and long rows of reductions inside those."""
    known = {*facts.kernel.axes, *facts.kernel.dims()}
    whole = facts.kernel.subterms()
    narrow = [t for t in facts.walk(*nest.values) if t.op in REDUCTIONS and t in whole
              and not set(nest.free) <= t.free and t.free <= known]  # fmt: skip
    rows = [a for a in nest.free if any(a in r.free for r in narrow)]
    if any(a.name in nest.ordered for a in rows):
        return [], [], facts
    stages: list[Stage] = []
    after = facts
    for t in (*_kept_rows(facts, nest, rows), *narrow):
        if t not in after.staged:
            inner = after.within(dict.fromkeys(rows, 1))
            stages.append(_stage(inner, t, rows, threads))
            after = after.after(t)
    return rows, stages, after


def _kept_rows(facts: Facts, nest: Nest, rows: Sequence[Var]) -> Iterator[Term]:
    """Reductions inside others, one value for every step of the outer: a row of a block."""
    for outer in facts.tops(*nest.values):
        for t in facts.walk(*outer.args):
            inside = [a for a in t.free if a not in rows and a in outer.axes]
            others = t.free - set(rows) - set(outer.axes) - set(facts.kernel.dims())
            if t.op in REDUCTIONS and inside and not others:
                if prod(facts.largest(a) for a in inside) <= ROW_LIMIT:
                    yield t


def _stage(facts: Facts, t: Term, rows: Sequence[Var], threads: int) -> Stage:
    """The stage that all threads of a block compute `t` in."""
    items: list[Item] = []
    own = [a for a in facts.kernel.all_axes() if a in t.free and a not in rows
           and a not in facts.kernel.dims()]  # fmt: skip
    if own:
        left = threads
        for a in reversed(own):
            count = min(left, _power(facts.extent(a)))
            left //= count
            items.insert(0, Loop(a.name, 1, lanes=count) if count > 1 else Loop(a.name, 1))
    else:
        axes = [a for a in t.axes if facts.largest(a) > 1] or list(t.axes)
        lanes = min(threads, max(facts.target.warp, _power(facts.extent(axes[-1]))))
        items = [*(Loop(a.name, 1) for a in axes[:-1]), Loop(axes[-1].name, 1, lanes=lanes)]
    return Stage(facts.kernel.subterms().index(t), tuple(items))


def _by_memory(facts: Facts, nest: Nest, axes: Sequence[Var]) -> list[Var]:
    """Axes by how far apart their neighbours are stored, the farthest first."""

    def stride(a: Var) -> tuple[bool, int]:
        steps = [facts.stride(s, a) for s in nest.stores]
        return (steps[0] is None if steps else False, -abs((steps[0] if steps else 0) or 0))

    return sorted(axes, key=stride)


def _power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
