"""Points: register tiles, blocking, unrolling and local copies for the roles of a nest, by cost.

In: `Facts` and a `Nest`. Out: `Candidate`s, the best guess first. One enumeration for all nests and
one cost: the penalty of the roles times cycles per useful element of the register tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from luminal.ir.expr import Var
from luminal.ir.term import Term
from luminal.search.facts import Facts
from luminal.search.nest import Candidate, Keep, Nest, Point, Step
from luminal.search.roles import Roles, all_roles, waste

__all__ = ["Tile", "options", "register_tiles"]

MAX_ROWS = 16
FMA_PIPES = 2
FMA_LATENCY = 4
TILES_KEPT = 6
BODY_LIMIT = 224
CACHE_WAYS = 8
DOT_UNROLL = 32
K_BLOCK = 512
ROW_BLOCK = 256
PANEL_ROWS = 192
COLUMN_BLOCK = 512
LOCAL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x `vectors` accumulators per reduction; `cost` is relative time per useful element."""

    rows: int
    vectors: int
    cost: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """The parameters of one point.

    `unroll` steps of the innermost sum; `block` of it at a time, partial sums waiting in memory
    (0: all at once); `copies` are operands (loads or terms) that are computed into local memory
    per block of rows, `panels` those per vector tile.
    """

    roles: Roles
    tile: Tile
    unroll: int = 1
    block: int = 0
    copies: tuple[Term, ...] = ()
    panels: tuple[Term, ...] = ()
    extra: float = 0.0

    @property
    def cost(self) -> float:
        """Relative time by the model."""
        return self.roles.penalty * (self.tile.cost + self.extra)

    @property
    def by_rows(self) -> bool:
        """True if blocks of rows are the outer loops."""
        return bool(self.block and self.roles.reuse) or bool(self.copies)

    @property
    def width(self) -> int:
        """Elements of the lanes' axis in one register tile."""
        return self.roles.lanes * (self.unroll if self.roles.across else self.tile.vectors)


def options(facts: Facts, nest: Nest, limit: int | None = None) -> list[Candidate]:
    """The `limit` best candidates for a nest, best guess first."""
    found: list[tuple[Facts, _Choice]] = []
    for roles in all_roles(facts, nest):
        fresh = facts.with_layouts(dict(roles.layouts)) if roles.layouts else facts
        for rank, tile in enumerate(_tiles(facts, nest, roles)):
            choices = _choices(facts, nest, roles, tile, rank) if roles.sums else [
                _Choice(roles, tile)]  # fmt: skip
            found += [(fresh, c) for c in choices]
    found.sort(key=lambda f: f[1].cost)
    if not found:
        steps: tuple[Step, ...] = tuple((a, 1) for a in nest.free if a not in dict(nest.rows))
        bound = tuple((k, 1) for k in facts.bound(*nest.values))
        point = Point((*nest.rows, *steps, *bound), nest.rows or steps)
        return [Candidate(point.schedule(facts, nest), {}, 16.0)]
    return [
        Candidate(_point(fresh, nest, c).schedule(fresh, nest), dict(c.roles.layouts), c.cost)
        for fresh, c in found[:limit]
    ]


# ---- register tiles


@lru_cache(maxsize=4096)
def register_tiles(
    rows: int, columns: int, lanes: int, registers: int, accumulators: int = 1,
    streams: int = 1, window: tuple[int, int] = (1, 1), row_loads: int = 1,
) -> tuple[Tile, ...]:  # fmt: skip
    """Legal tiles for `rows` x `columns` results of `accumulators` reductions, best first.

    Accumulators and live operands together must not exceed the registers. `streams` vector
    operands are loaded per step. `window` (step, size): a window of `size` unrolled taps slides
    over the rows by `step`, so distinct row operands stay alive together. `row_loads` scalar
    operands are broadcast for each row; without any, the taps are kept in registers.
    """
    found: list[Tile] = []
    step, taps = window
    for vectors in range(1, min(12, -(-columns // lanes)) + 1):
        for count in range(1, min(MAX_ROWS, rows) + 1):
            live_rows = (count - 1) * step + taps if taps > 1 else 1
            sums = count * vectors * accumulators
            live = sums + vectors * streams + live_rows * max(1, row_loads)
            kept = count * vectors + min(taps, 9) * vectors if not row_loads else 0
            if max(live, kept) <= registers:
                cycles = _cycles(sums, vectors * streams, count * max(1, row_loads))
                padding = waste(rows, count) * waste(columns, vectors * lanes)
                found.append(Tile(count, vectors, cycles * FMA_PIPES / sums * padding))
    found.sort(key=lambda t: (t.cost, -t.rows * t.vectors, t.vectors))
    return tuple(found) or (Tile(1, 1, 9.0),)


def _cycles(sums: int, vector_loads: int, broadcasts: int) -> float:
    """Cycles of one step of a register tile: arithmetic, loads, latency or issue, and memory."""
    loads = (vector_loads + broadcasts) / 2
    bound = max(sums / FMA_PIPES, loads, FMA_LATENCY, (sums + 2 * loads + 1) / 4)
    return bound + 0.2 * vector_loads + 0.15 * broadcasts


def _tiles(facts: Facts, nest: Nest, roles: Roles) -> list[Tile]:
    """Register tiles to try, best first."""
    rows = facts.extent(roles.rows) if roles.rows is not None else 1
    registers, columns = facts.target.vector_registers, facts.extent(roles.lane)
    if roles.dots:
        return _dot_tiles(registers, rows, columns, roles)
    if roles.across:
        most = 4 if roles.reuse else 1
        return [Tile(r, 1, 1.0 + 0.1 * (4 // r)) for r in (4, 2, 1) if r <= min(rows, most)]
    for a in roles.scalars:  # a group of columns shares it: stay inside one
        columns = min(columns, *facts.breaks(a, roles.lane), columns)
    if roles.lane in dict(nest.rows):
        return [Tile(1, dict(nest.rows)[roles.lane] // roles.lanes, 1.0)]
    if not roles.sums and roles.rows is not None:
        return [Tile(roles.lanes, 1, 1.0)]
    if not roles.reuse:
        most = max(1, min(8, registers // 3 // max(1, roles.sums), -(-columns // roles.lanes)))
        wide = roles.sums and columns >= 4 * facts.target.cores * 8 * roles.lanes
        order = (8, 4, 2, 1) if wide else (4, 2, 1, 8) if roles.sums else (4, 2, 8, 1)
        return [Tile(1, v, 1.2 + 0.1 * n) for n, v in enumerate(order) if v <= most]
    found = register_tiles(
        rows, columns, roles.lanes, registers, roles.sums, min(2, len(roles.vectors)),
        _window_step(facts, roles), min(2, len(roles.scalars)),
    )  # fmt: skip
    tall = 0.10 if _rows_collide(facts, roles) else 0.06
    moved = [replace(t, cost=t.cost + tall * (t.rows > CACHE_WAYS)) for t in found]
    return sorted(moved, key=lambda t: t.cost)[:TILES_KEPT]


def _dot_tiles(registers: int, rows: int, columns: int, roles: Roles) -> list[Tile]:
    """Tiles whose sums, in both dtypes, fit the registers."""
    found = [
        Tile(r, v, waste(rows, r) * (1 / r + 1 / v))
        for r in (1, 2, 3, 4, 6, 8) for v in (1, 2, 4)
        if r <= rows and v * roles.lanes <= columns and r * v * roles.sums + v + 2 <= registers
    ]  # fmt: skip
    return sorted(found, key=lambda t: (t.cost, t.rows, t.vectors))[:4] or [Tile(1, 1, 1.0)]


def _window_step(facts: Facts, roles: Roles) -> tuple[int, int]:
    """How far the unrolled window moves from row to row, and how many taps it has."""
    taps = 1
    for k in roles.unrolled:
        taps *= facts.extent(k)
    for e in (e for a in (*roles.scalars, *roles.vectors) for e in a.index):
        if roles.rows in e.variables() and not e.variables().isdisjoint(roles.unrolled):
            assert roles.rows is not None
            slope = e.coefficient(roles.rows)
            return (slope.value if slope is not None and slope.value else 1), taps
    return 1, taps


def _rows_collide(facts: Facts, roles: Roles) -> bool:
    """True if neighbouring rows lie a multiple of a page apart, so that few fit the L1 cache."""
    assert roles.rows is not None
    sizes = [facts.buffers[a.buffer].dtype.itemsize for a in roles.scalars]
    steps = [(facts.stride(a, roles.rows) or 0) * s for a, s in zip(roles.scalars, sizes)]
    return any(step and step % 2048 == 0 for step in steps)


# ---- variants of a tile


def _choices(facts: Facts, nest: Nest, roles: Roles, tile: Tile, rank: int) -> Iterator[_Choice]:
    """Parameters to try for a register tile of sums."""
    if roles.dots:
        yield _Choice(roles, tile, DOT_UNROLL)
        return
    body, unroll = tile.rows * tile.vectors * roles.sums * _window_step(facts, roles)[1], 4
    while unroll > 1 and unroll * body > BODY_LIMIT:
        unroll //= 2
    copies, made = _producers(facts, nest, roles)
    many = roles.rows is not None and facts.extent(roles.rows) >= 32
    panels = (*roles.packed, *made) if many else roles.packed
    first = _Choice(roles, tile, unroll, 0, copies, panels)
    found = [first]
    if rank == 0:
        found.append(replace(first, unroll=unroll * 2, extra=0.02))
        found += [replace(first, copies=(), extra=0.3)] if copies else []
        found += [replace(first, panels=roles.packed, extra=0.1)] if panels != roles.packed else []
    for choice in (*found, *_blocked(facts, nest, first, rank)):
        fits = _fits(facts, choice)
        yield choice if fits else replace(choice, copies=(), panels=(), extra=choice.extra + 4.0)


def _blocked(facts: Facts, nest: Nest, base: _Choice, rank: int) -> Iterator[_Choice]:
    """Variants whose partial sums wait in the output."""
    roles = base.roles
    if not _can_block(facts, nest, roles):
        return
    depth = facts.extent(roles.deep[0])
    rows = facts.extent(roles.rows) if roles.rows is not None else 1
    if not roles.reuse:
        packed = {b for b, _ in roles.layouts}
        strided = all(
            (facts.stride(a, roles.deep[0]) or 0) * 4 >= 1024 and a.buffer not in packed
            for a in roles.vectors
        )
        if depth > 8:
            gain = -0.3 if strided and depth >= 64 else 0.3
            yield replace(base, unroll=8, block=8, copies=(), panels=(), extra=gain)
        return
    loads = [a.term for a in roles.scalars
             if a.term is not None and {roles.rows, roles.deep[0]} <= a.axes]  # fmt: skip
    for block in (b for b in (K_BLOCK, K_BLOCK // 2) if depth > b):
        deep_enough = depth >= 4 * K_BLOCK and rows >= 64 and block == K_BLOCK
        extra = -0.06 if deep_enough else 0.03
        yield replace(base, block=block, extra=extra)
        if rows >= 64 and rank < 2 and loads and not base.copies:
            yield replace(base, block=block, copies=(loads[0],), extra=extra + 0.02)


def _can_block(facts: Facts, nest: Nest, roles: Roles) -> bool:
    """True if partial sums may wait in the output: one wide float store of one sum of one axis."""
    if len(nest.stores) != 1 or roles.window or len(roles.deep) != 1 or roles.across:
        return False
    (sum_, *others), stored = facts.tops(*nest.values), facts.buffers[nest.stores[0].buffer]
    wide = stored.dtype.is_float and stored.dtype.bits >= 32 and stored.dtype == sum_.dtype
    reread = any(a.buffer == stored.name for a in facts.loads(*nest.values))
    return wide and not others and sum_.op == "sum" and not reread and not stored.alias


def _producers(facts: Facts, nest: Nest, roles: Roles) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Computed operands worth keeping in local memory: (of the rows, of the lanes)."""
    copies: dict[Term, None] = {}
    panels: dict[Term, None] = {}
    if roles.across or roles.window or roles.masked or len(roles.deep) != 1:
        return (), ()

    def visit(t: Term) -> None:
        if t in facts.staged or roles.deep[0] not in t.free:
            return
        work = any(x.op not in ("load", "const", "cast", "index") for x in facts.walk(t))
        if work and roles.lane not in t.free:
            copies[t] = None
        elif work and roles.rows not in t.free:
            panels[t] = None
        elif t.op == "mul":
            for a in t.args:
                visit(a)

    for r in facts.tops(*nest.values):
        for a in r.args if not facts.tops(*r.args) else ():
            visit(a)
    return tuple(copies), tuple(panels)


def _fits(facts: Facts, choice: _Choice) -> bool:
    """True if the local copies are bounded and small enough for L2."""
    total = 0
    for terms, tile in ((choice.copies, ROW_BLOCK), (choice.panels, choice.width)):
        for t in terms:
            size = tile
            for k in (*choice.roles.deep, *choice.roles.window):
                if k in t.free:
                    size *= min(facts.largest(k), choice.block or (1 << 40))
            total += size * 4
    return total <= facts.target.l2_bytes * LOCAL_SHARE


# ---- from a choice to its steps


def _point(facts: Facts, nest: Nest, choice: _Choice) -> Point:
    """The steps of a choice, from the outermost in."""
    r, tile = choice.roles, choice.tile
    outer, inner = ([(a, 1) for a in axes] for axes in (r.outer, r.inner))
    lane: list[Step | Keep] = [] if r.across or r.lane in dict(nest.rows) else [
        (r.lane, choice.width), *(_panel(facts, choice, t) for t in choice.panels)]  # fmt: skip
    rows = [(r.rows, tile.rows)] if r.rows is not None else []
    block = [(r.deep[0], choice.block)] if choice.block else []
    steps: list[Step | Keep]
    if choice.by_rows:
        around = [(a, max(1, ROW_BLOCK // size) * size) for a, size in rows]
        copies = [_copy(facts, choice, t) for t in choice.copies]
        steps = [*outer, *inner, *block, *around, *copies, *lane, *rows]
    else:
        steps = [*block, *nest.rows, *outer, *lane, *inner, *rows]
    grid = nest.rows or _grid(facts, nest, choice, steps)
    steps += [_bytes(t, k, r.lanes, facts) for t, k in r.kept]
    steps += _summed(facts, nest, choice)
    role = "acc" if r.across else "unroll"
    return Point(tuple(steps), tuple(grid), r.lane, r.lanes, role, r.dots, r.masked)


def _grid(facts: Facts, nest: Nest, choice: _Choice, steps: list[Step | Keep]) -> list[Step]:
    """What grid loops may cut: blocks of rows and columns; masked axes are cut by serial loops."""
    roles = choice.roles
    sizes = dict(s for s in steps if isinstance(s, tuple) and s[0] in nest.free)
    coarse = [(a, s) for a, s in sizes.items() if a not in roles.masked or s == 1]
    if not choice.by_rows:
        rare = PANEL_ROWS if choice.panels else 1  # every block of rows makes the panels again
        return [(a, max(s, rare // s * s)) if a == roles.rows else (a, s) for a, s in coarse]
    columns = COLUMN_BLOCK
    while True:  # smaller blocks until every core has some
        blocks, chunks = {roles.rows: ROW_BLOCK, roles.lane: columns}, 1
        found = [(a, max(s, blocks.get(a, s) // s * s)) for a, s in coarse]
        for axis, size in found:
            chunks *= -(-facts.extent(axis) // size)
        if chunks >= 4 * facts.target.cores or columns < 2 * choice.width:
            return found
        columns //= 2


def _copy(facts: Facts, choice: _Choice, t: Term) -> Keep:
    """An operand of a block of rows."""
    roles, rows, deep = choice.roles, choice.roles.rows, choice.roles.deep[0]
    if t.op == "load" and rows is not None:
        size = choice.tile.rows
        return Keep(t, ((rows, size), (deep, 8)), levels=((rows, size), (deep, 1), (rows, 1)))
    free = (*roles.outer, *roles.inner, *((rows,) if rows is not None else ()))
    around = tuple((a, 1) for a in free if a in t.free and facts.extent(a) > 1)
    return Keep(t, (*around, (deep, roles.lanes * 4)), deep, roles.lanes)


def _panel(facts: Facts, choice: _Choice, t: Term) -> Keep:
    """An operand of a tile of lanes, contiguous along them: transposed where it was dense along
    a summed axis."""
    v, lanes = choice.roles.lane, choice.roles.lanes
    axes = [k for k in (*choice.roles.deep, *choice.roles.window) if k in t.free]
    found = facts.loads(t)
    straight = all(facts.stride(a, v, lanes) in (0, 1) for a in found)
    dense = [] if straight else [k for k in axes if any(facts.stride(a, k) == 1 for a in found)]
    steps: list[Step] = [(v, lanes)]
    if axes:
        last, size = (dense[0], lanes) if dense else (axes[-1], 4)
        cuts = sorted({c for a in found for c in facts.breaks(a, last)}, reverse=True)
        steps = [*((k, 1) for k in axes if k != last), *steps,
                 *((last, c) for c in cuts if c > size), (last, size)]  # fmt: skip
    levels = ((v, choice.width), *((k, 1) for k in axes), (v, 1))
    return Keep(t, tuple(steps), v, lanes, levels)


def _bytes(term: Term, k: Var, lanes: int, facts: Facts) -> Keep:
    """A factor as bytes in local memory, neighbours of the sum together."""
    fixed = {*facts.kernel.dims(), k, *(a for a in term.free if facts.extent(a) == 1)}
    around = tuple((a, 1) for a in sorted(term.free - fixed, key=lambda a: a.name))
    step = 2 * lanes if facts.extent(k) > lanes else lanes
    return Keep(term, (*around, (k, step)), k, lanes, ((k, 1),))


def _summed(facts: Facts, nest: Nest, choice: _Choice) -> list[Step]:
    """Steps over what is summed: blocks of divided axes, windows, then the unrolled axis."""
    roles, loads = choice.roles, facts.loads(*facts.tops(*nest.values))
    windows = [(k, 1) for k in roles.window if k not in roles.unrolled]
    steps: list[Step] = [(k, facts.extent(k)) for k in reversed(roles.unrolled)]
    for k in roles.deep:
        if k in roles.dots:
            steps.append((k, min(choice.unroll, facts.extent(k))))
            continue
        lane = k == roles.lane
        step = choice.width if lane else 1
        if k == roles.deep[-1] and not lane:
            step = choice.unroll
        span = min(facts.extent(k), choice.block or (1 << 40))
        cuts = sorted({c for a in loads for c in facts.breaks(a, k) if 1 < c < span}, reverse=True)
        while step > 1 and any(c % step for c in cuts) and not lane:
            step //= 2
        steps += [(k, c) for i, c in enumerate(cuts)
                  if c != step and (i == 0 or cuts[i - 1] % c == 0)]  # fmt: skip
        steps += windows if k == roles.deep[-1] else []
        steps.append((k, step))
    return steps if roles.deep else [*steps, *windows]
