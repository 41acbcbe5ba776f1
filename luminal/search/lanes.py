"""Schedules for GPUs: which axes become blocks, which are dealt to the threads of a block.

In: `Facts` and a `Nest`, as for CPUs. Out: `Candidate`s, best guess first. Rows of statistics
become blocks, and all threads of a block compute a statistic together; what is left goes to
neighbouring threads in the order of memory, or a sum to the lanes of a warp. Knows no operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from luminal.ir import REDUCTIONS, Loop, Online, Schedule, Stage, Term, Var, accumulator, f32
from luminal.ir.plan import Item, Reg
from luminal.search.facts import Access, Facts
from luminal.search.nest import Candidate, Nest

THREADS = 256
KEYS = 64
"""Keys of one step of a sum in one pass by matrix instructions on halves."""
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
    for schedule, cost in _online(facts, nest):
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
            _across(facts, nest, grid, stages, rest, summed, threads),
            away + (0.0 if _along(facts, nest, rest, summed) else 2.0),
        )
    if threads == THREADS and not stages and not nest.ordered:
        yield from _tiled(facts, nest, wide, rest, summed)
    for width in dict.fromkeys((_neighbours(facts, nest, rest), 1)):
        loops, lanes = deal(facts, rest, threads, width)
        regs = (Reg(rest[-1].name, 1, "vector"),) if width > 1 else ()
        yield Schedule((*grid, *loops, *stages, *lanes), regs), away + 1.0 - 0.1 * (width > 1)


def deal(
    facts: Facts, axes: Sequence[Var], threads: int, width: int = 1
) -> tuple[list[Loop], list[Loop]]:  # fmt: skip
    """Grid and lane loops over axes from the outermost to the innermost in memory, the innermost
    for the nearest threads, `width` neighbours for each."""
    grid, lanes, left = list[Loop](), list[Loop](), threads
    for a in reversed(axes):
        count = min(left, _power(-(-facts.extent(a) // width)))
        left //= count
        if count * width > 1:
            lanes.insert(0, Loop(a.name, width, lanes=count))
        if facts.largest(a) > count * width:
            grid.insert(0, Loop(a.name, count * width, grid=True))
        width = 1
    return grid, lanes


def _neighbours(facts: Facts, nest: Nest, rest: Sequence[Var]) -> int:
    """How many neighbours along the innermost axis make an access of 16 bytes, if they always
    lie together."""
    if not rest or nest.ordered or not nest.stores:
        return 1
    width = _whole(rest[-1], nest.stores[0].buffer.dtype.bits)
    able = all(facts.stride(s, rest[-1]) == 1 for s in nest.stores)
    return width if able and facts.extent(rest[-1]) >= 32 * width else 1


def _whole(axis: Var, bits: int) -> int:
    """The elements of 16 bytes if an axis is made of such groups; else 1."""
    width = 128 // max(bits, 8)
    return width if axis.extent % width == 0 else 1


def _online(facts: Facts, nest: Nest) -> Iterator[tuple[Schedule, float]]:
    """A row of rescalable sums for every thread: one pass over the keys, which all threads of a
    block read together, the sums and a tile of weights in registers."""
    found = [t for t in facts.tops(*nest.values) if t.op == "rsum" and len(t.axes) == 1]
    main = [t for t in found if set(nest.free) & t.args[-1].free - t.args[0].free]
    if not main or nest.ordered:
        return
    (j,), x, v = main[0].axes, main[0].args[0], main[0].args[-1]
    columns = [a for a in nest.free if a in v.free and a not in x.free]
    rows = [a for a in nest.free if a in x.free and a not in v.free]
    same = all((t.axes, t.args[:-1]) == ((j,), main[0].args[:-1]) for t in found)
    inner = [a for a in facts.bound(x) if facts.extent(a) > 1]
    fits = len(columns) == 1 and columns[0].extent % 4 == 0 and facts.largest(columns[0]) <= 128
    if not rows or not same or not fits or len(inner) > 1:
        return
    row = max(rows, key=facts.extent)
    yield from _matrix_online(facts, nest, main[0], row, columns[0], inner)
    threads = min(128, max(32, _power(facts.extent(row))))
    grid = [Loop(a.name, threads if a is row else 1, grid=True)
            for a in nest.free if a not in columns]  # fmt: skip
    wide, keys, unrolled = (Reg(columns[0].name, 1, "vector"),), 4, Reg(j.name, 1, "unroll")
    keys = 4 if facts.largest(columns[0]) <= 64 else 8  # neither spills registers
    each = (Reg(columns[0].name, 4, "unroll"), *wide)
    deep = [Loop(d.name, 4 if d.extent % 4 == 0 else 1) for d in inner]
    logits = Schedule(
        tuple(deep), (unrolled, *(Reg(d.axis, 1, "vector") for d in deep if d.tile == 4))
    )
    online = Online(j.name, keys, logits, Schedule((), (unrolled,)),
                    Schedule((), (unrolled, *each)))  # fmt: skip
    items = (*grid, Loop(row.name, 1, lanes=threads), online)
    yield Schedule(items, each), -2.0 if facts.extent(row) >= 32 else 3.0


def _read(t: Term) -> Term:
    """What is read as a factor."""
    return t.args[0] if t.op == "cast" else t


def _matrix_online(
    facts: Facts, nest: Nest, main: Term, row: Var, column: Var, inner: Sequence[Var]
) -> Iterator[tuple[Schedule, float]]:  # fmt: skip
    """The same by matrix instructions: each warp has 16 rows, whose scores and sums stay in
    registers; keys and values go to the memory of the block, which all of its warps read."""
    (j,), x, v = main.axes, main.args[0], main.args[-1]
    products = [t for t in facts.walk(x) if t.op == "sum" and t.args[0].op == "mul"]
    if len(products) != 1 or len(inner) != 1 or facts.extent(row) < 8:
        return
    (d,), subterms, warp = inner, facts.kernel.subterms(), facts.target.warp
    q, k = sorted(products[0].args[0].args, key=lambda t: j in t.free)
    fits = row in q.free and j not in q.free and j in k.free and row not in k.free
    loads = {_read(t) for t in (q, k, v)}
    kinds = {t.dtype if t.op == "load" else None for t in loads}
    able = {m.operand for m in facts.target.matrix if m.result == f32}
    wide = all(a.extent % 8 == 0 and facts.largest(a) <= 128 for a in (d, column))
    if not fits or len(kinds) != 1 or not kinds <= able or not wide or not facts.is_static(d):
        return
    bits = next(t.dtype.bits for t in loads)
    warps = 4 if facts.extent(row) >= 48 else 1
    grid = [Loop(a.name, 16 * warps if a is row else 1, grid=True)
            for a in nest.free if a is not column]  # fmt: skip
    m, threads = Reg(row.name, 1, "m"), warps * warp

    def role(a: Var, name: str) -> Reg:
        return Reg(a.name, 1, name)

    def stage(t: Term, near: Var, far: Var, keys_near: bool) -> Stage:
        load, width = _read(t), 128 // bits if facts.stride(facts.loads(t)[0], near) == 1 else 1
        a, b = Loop(near.name, width, lanes=8), Loop(far.name, 1, lanes=threads // 8)
        a, b = (replace(a, lanes=threads // 32), replace(b, lanes=32)) if keys_near else (b, a)
        regs = (role(near, "vector"),) if width > 1 else ()
        return Stage(subterms.index(load), (a, b), regs)

    first = Stage(subterms.index(_read(q)), (), (m, role(d, "n")))
    logits = Schedule((stage(k, d, j, False),), (m, role(j, "n"), role(d, "k")))
    values = Schedule((stage(v, column, j, True),), (m, role(column, "n"), role(j, "k")))
    online = Online(j.name, KEYS * 16 // bits, logits, Schedule((), (m, role(j, "n"))), values)
    items = (*grid, Loop(row.name, 16, lanes=warps), first, online)
    yield Schedule(items, (m, role(column, "n"))), -3.0


@dataclass(frozen=True, slots=True)
class _Operand:
    """A factor of a contraction, the free axis that it has of its own, and whether it is
    contiguous along that one rather than along the sum."""

    term: Term
    axis: Var
    along: bool

    def stage(self, facts: Facts, k: Var, block: int, depth: int) -> Stage:
        """A tile of it in the memory of the block, the sum's steps outermost."""
        wide = (self.axis, min(block, THREADS))
        deep = (k, min(depth, THREADS))
        near, far = (wide, deep) if self.along else (deep, wide)
        far = (far[0], min(far[1], THREADS // near[1]))
        items = tuple(Loop(a.name, 1, lanes=n) for a, n in (far, near) if n > 1)
        subterms = facts.kernel.subterms()
        return Stage(subterms.index(self.term), items, (), ((1, 1), (0, 1)))

    def rows(self, facts: Facts, k: Var, block: int, depth: int, threads: int) -> Stage:
        """A tile of it for matrix instructions: the steps of the sum lie together."""
        term = _read(self.term)
        loads = facts.loads(term)
        near = self.axis if self.along else k
        width = min((_whole(near, a.buffer.dtype.bits) for a in loads), default=1)
        most = {self.axis: block, k: depth}
        width, items, left = min(width, most[near]), list[Loop](), threads
        for a, tile in (
            (k, 1 if near is not k else width),
            (self.axis, width if near is not k else 1),
        ):
            count = min(left, most[a] // tile)
            left //= count
            items.insert(0, Loop(a.name, tile, lanes=count))
        regs = (Reg(near.name, 1, "vector"),) if width > 1 else ()
        return Stage(facts.kernel.subterms().index(term), tuple(items), regs)


def _tiled(
    facts: Facts, nest: Nest, wide: Sequence[Term], rest: Sequence[Var], summed: Sequence[Var]
) -> Iterator[tuple[Schedule, float]]:  # fmt: skip
    """A product of two operands over a long sum: tiles of both go to shared memory, each thread
    keeps a square of results in registers."""
    r = wide[0] if len(wide) == 1 else None
    if r is None or r.op != "sum" or r.args[0].op != "mul" or not summed:
        return
    k = max(summed, key=facts.extent)
    operands = [_operand(facts, t, r.args[0].args[1 - n], rest, k)
                for n, t in enumerate(r.args[0].args)]  # fmt: skip
    a, b = operands
    if a is None or b is None or facts.extent(k) < 8:
        return
    rows, columns = (a, b) if rest.index(a.axis) < rest.index(b.axis) else (b, a)
    least = min(facts.extent(rows.axis), facts.extent(columns.axis))
    others = [x for x in rest if x not in (rows.axis, columns.axis)]
    outer = [Loop(x.name, 1) for x in summed if x is not k]
    yield from _matrices(facts, r, rest, others, outer, k, rows, columns)
    for block, tile, depth in ((128, 8, 8), (64, 4, 16), (32, 2, 16)):
        if least * 4 < block * 3:
            continue
        blocks = prod(-(-facts.extent(x) // (1 if x in others else block)) for x in rest)
        grid = [Loop(x.name, 1 if x in others else block, grid=True) for x in rest]
        lanes = [Loop(o.axis.name, tile, lanes=block // tile) for o in (rows, columns)]
        stages = [o.stage(facts, k, block, depth) for o in (rows, columns)]
        role = "vector" if columns.axis.extent % tile == 0 else "unroll"
        regs = (Reg(rows.axis.name, 1, "unroll"), Reg(columns.axis.name, 1, role))
        steps = Loop(k.name, depth, ahead=_ahead(facts))
        items = (*grid, *lanes, *outer, steps, *stages, Loop(k.name, 1))
        filled = blocks >= facts.target.cores
        yield Schedule(items, regs), 1.0 / tile - 1.0 if filled else 0.1 * tile - 0.4


def _ahead(facts: Facts) -> int:
    """How many steps before its turn a tile is copied: where copies go on while threads do."""
    return int(facts.target.kind == "cuda" and bool(facts.target.matrix))


def _matrices(
    facts: Facts, r: Term, rest: Sequence[Var], others: Sequence[Var], outer: Sequence[Loop],
    k: Var, rows: _Operand, columns: _Operand,
) -> Iterator[tuple[Schedule, float]]:  # fmt: skip
    """The same by the target's matrix instructions, if one takes the factors as they are: each warp
    has a rectangle of the block's results."""
    held = {t.args[0].dtype if t.op == "cast" else t.dtype for t in r.args[0].args}
    fits = (
        m for m in facts.target.matrix if {m.operand} == held and m.result == accumulator(r.dtype)
    )
    matrix, warp = next(fits, None), facts.target.warp
    for tiles, warps in (((128, 128), (2, 4)), ((64, 64), (2, 2)), ((32, 64), (1, 4)),
                         ((16, 64), (1, 4)), ((16, 32), (1, 4)), ((16, 8), (1, 1))):  # fmt: skip
        size = dict(zip((rows.axis, columns.axis), tiles))
        small = any(facts.extent(a) * 4 < n * 3 for a, n in size.items() if n > 16)
        if matrix is None or small or facts.extent(columns.axis) < 8:
            continue
        depth, threads = 512 // matrix.operand.bits, warp * prod(warps)
        blocks = prod(-(-facts.extent(x) // size.get(x, 1)) for x in rest)
        grid = [Loop(x.name, 1 if x in others else size[x], grid=True) for x in rest]
        lanes = [Loop(a.name, n // w, lanes=w) for (a, n), w in zip(size.items(), warps) if w > 1]
        stages = [o.rows(facts, k, size[o.axis], depth, threads) for o in (rows, columns)]
        regs = (Reg(rows.axis.name, 1, "m"), Reg(columns.axis.name, 1, "n"), Reg(k.name, 1, "k"))
        steps = Loop(k.name, depth, ahead=_ahead(facts))
        filled = blocks >= facts.target.cores
        cost = -1.5 - 0.5 * prod(tiles) / 16384 if filled else -1.5 + prod(tiles) / 16384
        yield Schedule((*grid, *lanes, *outer, steps, *stages), regs), cost


def _operand(
    facts: Facts, t: Term, other: Term, rest: Sequence[Var], k: Var
) -> _Operand | None:  # fmt: skip
    """A factor that can be staged: without reductions, and with an axis that the other lacks."""
    own = [x for x in rest if x in t.free and x not in other.free and facts.extent(x) > 1]
    if not own or k not in t.free or any(x.op in REDUCTIONS for x in facts.walk(t)):
        return None
    axis = max(own, key=facts.extent)
    near = [a for a in facts.loads(t) if facts.stride(a, axis) == 1]
    return _Operand(t, axis, bool(near))


def _across(
    facts: Facts, nest: Nest, grid: Sequence[Loop], stages: Sequence[Stage], rest: Sequence[Var],
    summed: Sequence[Var], threads: int,
) -> Schedule:  # fmt: skip
    """A sum for every warp, or for every block if there are few, its steps dealt to lanes. Of sums
    inside sums the outer one is, and neighbours of the inner are read at once."""
    few = prod(map(facts.extent, rest)) < 4 * facts.target.cores
    warp = facts.target.warp
    outer = {a for r in facts.tops(*nest.values) for a in r.axes if facts.extent(a) >= warp} & {
        *summed
    }
    inner = [a for a in summed if a not in outer] if outer else []
    last = max((a for a in summed if a in outer), key=facts.extent) if inner else summed[-1]
    lanes = threads if few and not stages else warp
    lanes = min(lanes, max(warp, _power(facts.extent(last))))
    wide, width = inner[-1] if inner else last, 1
    near = [a for a in facts.loads(*nest.values) if facts.stride(a, wide) == 1]
    if near and (inner or facts.extent(last) >= 4 * lanes):
        width = _whole(wide, min(a.buffer.dtype.bits for a in near))
    each = _together(facts, near and facts.loads(*nest.values), rest, threads // lanes)
    loops, rows = deal(facts, rest, threads // lanes, each)
    steps = [Loop(a.name, 1) for a in summed if a not in (last, wide)]
    steps.append(Loop(last.name, width if wide is last else 1, lanes=lanes))
    steps += [Loop(wide.name, width)] if wide is not last else []
    regs = (Reg(rest[-1].name, 1, "unroll"),) if each > 1 else ()
    regs += (Reg(wide.name, 1, "vector"),) if width > 1 else ()
    return Schedule((*grid, *loops, *stages, *rows, *steps), regs)


def _together(facts: Facts, loads: Sequence[Access], rest: Sequence[Var], rows: int) -> int:
    """How many neighbouring results a thread makes: what they share is read once for them."""
    if not rest or all(rest[-1] in a.axes for a in loads):
        return 1
    most = prod(map(facts.extent, rest)) // (rows * facts.target.cores)
    return next((n for n in (4, 2) if n <= most and rest[-1].extent % (n * rows) == 0), 1)


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
