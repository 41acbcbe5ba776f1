"""Schedules of a kernel: the default one, and the candidates that are worth measuring.

In: a Kernel, its buffers, a Target, hints for symbolic dimensions and the buffers whose layout is
still free. Out: `Candidate`s, best guess first. Structure alone decides: which axes occur where,
with which strides, under which masks and reductions. Knows no operator, measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from luminal.ir.expr import Var, to_expr
from luminal.ir.layout import Layout
from luminal.ir.plan import Buffer, Item, Kernel, Loop, Reg, Schedule, Stage
from luminal.ir.target import Target
from luminal.ir.term import REDUCTIONS, Term, substitute
from luminal.search.contract import contractions
from luminal.search.dots import dots
from luminal.search.facts import Facts
from luminal.search.nest import Nest, Option, assign_grid, serial_loops
from luminal.search.online import rescalables
from luminal.search.stream import streams

__all__ = ["Candidate", "candidates", "default"]

LOCAL_ROW_LIMIT = 1 << 16
MAIN_ROWS = 64
LANE_VECTORS = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule, the layouts of buffers that it wants changed, and a relative cost."""

    schedule: Schedule
    layouts: dict[str, Layout] = field(default_factory=dict)
    cost: float = 1.0


def default(
    kernel: Kernel, buffers: Mapping[str, Buffer], target: Target,
    hints: Mapping[str, int] | None = None, free_layout: frozenset[str] = frozenset(),
) -> Candidate:  # fmt: skip
    """The schedule that is used without measuring."""
    return candidates(kernel, buffers, target, hints, free_layout, 1)[0]


def candidates(
    kernel: Kernel, buffers: Mapping[str, Buffer], target: Target,
    hints: Mapping[str, int] | None = None, free_layout: frozenset[str] = frozenset(),
    limit: int | None = None,
) -> list[Candidate]:  # fmt: skip
    """Distinct schedules in a fixed order, best guess first; the plain loop nest is the last.

    With `limit` only about so many of the best are made.
    """
    facts = Facts(kernel, buffers, target, hints or {}, {}, free_layout)
    found: dict[Schedule, Candidate] = {}
    for option in _options(facts, limit):
        schedule = option.schedule()
        if schedule not in found:
            layouts = {b: x for b, x in option.layouts.items() if x != buffers[b].layout}
            found[schedule] = Candidate(schedule, layouts, option.cost)
    plain = Schedule()
    found.setdefault(plain, Candidate(plain, {}, 50.0))
    return list(found.values())


def _options(facts: Facts, limit: int | None) -> list[Option]:
    kernel = facts.kernel
    free = tuple(a for a in kernel.axes if facts.largest(a) > 1)
    values = tuple(s.value for s in kernel.stores)
    stores = tuple(facts.store(s) for s in kernel.stores)
    nest = Nest(free, values, stores, not kernel.ordered, kernel.ordered)
    online = rescalables(facts, nest, limit)
    if online:
        return online
    statistics = _statistics(facts, nest)
    if statistics:
        return _with_statistics(facts, nest, statistics, limit)
    if facts.tops(*values):
        return [*dots(facts, nest), *contractions(facts, nest, limit)]
    return streams(facts, nest)


def _statistics(facts: Facts, nest: Nest) -> list[Term]:
    """Reductions over fewer axes than the kernel has, or inside others; what others need first."""
    free = set(nest.free)
    main = [r for r in facts.tops(*nest.values) if free <= r.free]
    known = {*facts.kernel.axes, *facts.kernel.dims()}
    return [
        t for t in facts.walk(*nest.values)
        if t.op in REDUCTIONS and t not in main and t.free <= known
    ]  # fmt: skip


def _largest_hoisted(facts: Facts, nest: Nest, r: Term) -> Term:
    """The biggest term around a statistic that needs no further axis and no other statistic."""
    inside = set(facts.walk(r))
    best = r
    for t in facts.walk(*nest.values):
        within = set(facts.walk(t))
        others = any(x.op in REDUCTIONS and x not in inside for x in within)
        if r in within and not others and t.free <= r.free and t.dtype == r.dtype:
            best = t if t not in nest.values else best
    return best


def _with_statistics(
    facts: Facts, nest: Nest, statistics: list[Term], limit: int | None
) -> list[Option]:
    """Statistics of rows go to local memory as soon as their rows are fixed."""
    rows = {a for r in statistics for a in r.free} & set(nest.free)
    main = facts.after(*statistics).tops(*nest.values)
    lane = None if main else _lane_of_rows(facts, nest, rows)
    tiles = {a: MAIN_ROWS if main else LANE_VECTORS * facts.lanes(nest.values[0].dtype)
             if a is lane else 1 for a in rows}  # fmt: skip
    after = facts
    stages: list[tuple[Stage, frozenset[Var]]] = []
    for r in statistics:
        if any(r in set(facts.walk(t)) for t in after.staged - {r}) and r in after.staged:
            continue
        stage, after = _statistic_stage(after, nest, r, tiles)
        stages.append((stage, r.free & frozenset(nest.free)))
    if main:
        inner = [*dots(after, nest), *contractions(after, nest, limit)]
        return [replace(o, items=_insert(facts, o.items, stages)) for o in inner]
    rest = tuple(a for a in nest.free if a not in rows)
    order = [(a, tiles[a]) for a in nest.free if a in rows]
    grid, left = assign_grid(facts, nest, order)
    head = (*grid, *serial_loops(facts, order, left, frozenset(), lane))
    shared = tuple(s for s, _ in stages)
    if lane is None:
        shared, after = _shared_row(after, nest, rest, statistics, shared)
        inner = streams(after, replace(nest, free=rest, parallel=False))
    else:
        inside = after.within({lane: tiles[lane]})
        inner = streams(inside, replace(nest, free=(*rest, lane), parallel=False))
    return [replace(o, items=(*head, *shared, *o.items)) for o in inner]


def _lane_of_rows(facts: Facts, nest: Nest, rows: set[Var]) -> Var | None:
    """The axis of the rows along which the result is contiguous, if the row itself is not."""
    lanes = facts.lanes(nest.values[0].dtype)
    able = [a for a in nest.free if a in rows and facts.extent(a) >= lanes // 2
            and a.name not in nest.ordered]  # fmt: skip
    return next((a for a in able if facts.stride(nest.stores[0], a, lanes) == 1), None)


def _statistic_stage(
    facts: Facts, nest: Nest, r: Term, tiles: Mapping[Var, int]
) -> tuple[Stage, Facts]:
    """The stage that computes one statistic for a tile of rows, and the facts behind it."""
    whole = _largest_hoisted(facts, nest, r)
    rows = tuple(a for a in nest.free if a in r.free)
    wide = tuple(a for a in rows if tiles[a] > 1)
    options = contractions(facts.within(tiles), Nest(wide, (r,), (), False), 1)
    body = options[0] if options else Option((), (), 1.0)
    items = (*(Loop(a.name, 1) for a in rows if a not in wide), *body.items)
    return Stage(facts.subterm(whole), items, body.regs), facts.after(whole, r)


def _insert(
    facts: Facts, items: tuple[Item, ...], stages: list[tuple[Stage, frozenset[Var]]]
) -> tuple[Item, ...]:
    """Stages placed after the last loop over their axes, but before what needs them."""
    subterms = facts.kernel.subterms()
    out = list(items)
    place = 0
    for stage, axes in stages:
        names = {a.name for a in axes}
        own = [n + 1 for n, i in enumerate(out)
               if isinstance(i, Loop) and (i.axis in names or i.grid)]  # fmt: skip
        users = [n for n, i in enumerate(out) if isinstance(i, Stage)
                 and subterms[stage.term] in set(facts.walk(subterms[i.term]))]  # fmt: skip
        summed = {a.name for t in facts.walk(subterms[stage.term]) for a in t.axes}
        parted = [n for n, i in enumerate(out) if isinstance(i, Loop) and i.axis in summed]
        place = max([place, *own])
        place = min([place, *users, *parted])  # a loop over what it sums would leave it a part
        out.insert(place, stage)
        place += 1
    return tuple(out)


def _shared_row(
    facts: Facts, nest: Nest, rest: tuple[Var, ...], statistics: list[Term],
    stages: tuple[Stage, ...],
) -> tuple[tuple[Stage, ...], Facts]:  # fmt: skip
    """Keep a costly value that both a statistic and the result need, instead of making it twice."""
    if len(rest) != 1:
        return stages, facts
    j = rest[0]
    if facts.largest(j) > LOCAL_ROW_LIMIT:
        return stages, facts
    for position, r in enumerate(statistics):
        if r.op != "sum" or len(r.axes) != 1 or r.axes[0].extent != j.extent:
            continue
        body = r.args[0]
        twin = substitute(body, {r.axes[0]: to_expr(j)})
        if twin in set(facts.walk(*nest.values)) and any(
            t.op in ("exp2", "log2", "sin") for t in facts.walk(twin)
        ):
            lanes = facts.lanes(twin.dtype)
            nest_items = (Loop(j.name, lanes * 4),)
            regs = (Reg(j.name, lanes, "unroll"), Reg(j.name, 1, "vector"))
            stage = Stage(facts.subterm(twin), nest_items, regs, (), (facts.subterm(body),))
            return (*stages[:position], stage, *stages[position:]), facts.after(twin)
    return stages, facts
