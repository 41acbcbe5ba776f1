"""Points: register tiles, blocking, unrolling and local copies for the roles of a nest, by cost.

In: `Facts` and a `Nest`. Out: `Candidate`s, the best guess first. One enumeration for all nests and
one cost: the penalty of the roles times cycles per useful element of the register tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from luminal.ir import Term, Var
from luminal.search.facts import Facts
from luminal.search.nest import Candidate, Keep, Nest, Point, Step
from luminal.search.roles import Roles, all_roles, waste

MAX_ROWS = 16
FMA_PIPES = 2
FMA_LATENCY = 4
TILES_KEPT = 6
BODY_LIMIT = 224
CACHE_WAYS = 8
DOT_UNROLL = 32
K_BLOCK = 512
PANEL_BLOCK = 2048
ROW_BLOCK = 256
PANEL_ROWS = 192
COLUMN_BLOCK = 2048
LOCAL_SHARE = 0.5
STEPS_AHEAD = 8
STREAMED = -0.2


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x `vectors` accumulators per reduction; `cost` is relative time per useful element."""

    rows: int
    vectors: int
    cost: float


def options(facts: Facts, nest: Nest, limit: int | None = None) -> list[Candidate]:
    """The `limit` best candidates for a nest, best guess first."""
    found: list[_Choice] = []
    for roles in all_roles(facts, nest):
        fresh = facts.with_layouts(dict(roles.layouts))
        for rank, tile in enumerate(_tiles(facts, nest, roles)):
            found += _Choice(fresh, nest, roles, tile).variants(rank)
    found.sort(key=lambda c: c.cost)
    if not found:
        free = tuple((a, 1) for a in nest.free if a not in dict(nest.rows))
        bound = tuple((k, 1) for k in facts.bound(*nest.values))
        point = Point((*nest.rows, *free, *bound), nest.rows or free)
        return [Candidate(point.schedule(facts, nest), {}, 16.0)]
    return [
        Candidate(c.point().schedule(c.facts, nest), dict(c.roles.layouts), c.cost)
        for c in found[:limit]
    ]


# ---- register tiles


@lru_cache(maxsize=4096)
def register_tiles(
    rows: int, columns: int, lanes: int, registers: int, accumulators: int = 1,
    streams: int = 1, window: tuple[int, int] = (1, 1), row_loads: int = 1, widest: int = 12,
) -> tuple[Tile, ...]:  # fmt: skip
    """Legal tiles for `rows` x `columns` results of `accumulators` reductions, best first.

    Accumulators and live operands together must not exceed the registers. `streams` vector
    operands are loaded per step. `window` (step, size): a window of `size` unrolled taps slides
    over the rows by `step`, so distinct row operands stay alive together. `row_loads` scalar
    operands are broadcast for each row; without any, the taps are kept in registers. At most
    `widest` vectors."""
    found: list[Tile] = []
    step, taps = window
    for vectors in range(1, min(widest, -(-columns // lanes)) + 1):
        for count in range(1, min(MAX_ROWS, rows) + 1):
            live_rows = (count - 1) * step + taps if taps > 1 else 1
            sums = count * vectors * accumulators
            live = sums + vectors * streams + live_rows * max(1, row_loads)
            kept = count * vectors + min(taps, 9) * vectors if not row_loads else 0
            if max(live, kept) <= registers:
                loads, spread = vectors * streams, count * max(1, row_loads)
                bounds = sums / FMA_PIPES, (loads + spread) / 2, (sums + loads + spread + 1) / 4
                cycles = max(*bounds, FMA_LATENCY) + 0.2 * loads + 0.15 * spread
                padding = waste(rows, count) * waste(columns, vectors * lanes)
                tall = 0.06 * (count > CACHE_WAYS)
                found.append(Tile(count, vectors, cycles * FMA_PIPES / sums * padding + tall))
    found.sort(key=lambda t: (t.cost, -t.rows * t.vectors, t.vectors))
    return tuple(found[:TILES_KEPT]) or (Tile(1, 1, 9.0),)


def _tiles(facts: Facts, nest: Nest, roles: Roles) -> Sequence[Tile]:
    """Register tiles to try, best first."""
    rows = facts.extent(roles.rows) if roles.rows is not None else 1
    registers, columns = facts.target.vector_registers, facts.extent(roles.lane)
    if roles.across:
        most = 4 if roles.reuse else 1
        return [Tile(r, 1, 1.0 + 0.1 * (4 // r)) for r in (4, 2, 1) if r <= min(rows, most)]
    if roles.lane in dict(nest.rows):
        return [Tile(1, dict(nest.rows)[roles.lane] // roles.lanes, 1.0)]
    if not roles.sums and roles.rows is not None:
        return [Tile(roles.lanes, 1, 1.0)]
    for a in roles.scalars:  # a group of columns shares it: stay inside one
        columns = min(columns, *a.breaks(roles.lane), columns)
    if not roles.reuse and not roles.dots:
        most = max(1, min(8, registers // 3 // max(1, roles.sums), -(-columns // roles.lanes)))
        wide = roles.sums and columns >= 4 * facts.target.cores * 8 * roles.lanes
        order = (8, 4, 2, 1) if wide else (4, 2, 8, 1)
        return [Tile(1, v, 1.2 + 0.1 * n) for n, v in enumerate(order) if v <= most]
    loads, widest = [roles.vectors, roles.scalars], 12
    if roles.dots:  # only those of the innermost sums count, and bytes need registers on their way
        loads = [[a for a in x if a.axes & set(roles.dots)] for x in loads]
        registers, widest = registers - registers // 16, 4  # more streams than are prefetched
    return register_tiles(
        rows, columns, roles.lanes, registers, roles.sums, min(2, len(loads[0])),
        _window(facts, roles), min(2, len(loads[1])), widest,
    )  # fmt: skip


def _window(facts: Facts, roles: Roles) -> tuple[int, int]:
    """How far the unrolled window moves from row to row, and how many taps it has."""
    taps = prod(map(facts.extent, roles.unrolled))
    for e in (e for a in (*roles.scalars, *roles.vectors) for e in a.index):
        if roles.rows in e.variables() and not e.variables().isdisjoint(roles.unrolled):
            slope = e.coefficient(roles.rows) if roles.rows is not None else None
            return (slope and slope.value) or 1, taps
    return 1, taps


# ---- variants of a tile, and the steps of each


@dataclass(frozen=True, slots=True)
class _Choice:
    """One point of the space.

    `unroll` steps of the innermost sum; `block` of it at a time, partial sums waiting in memory
    (0: all at once); `copies` are operands (and their summed axis) that are computed into local
    memory per block of rows, `panels` those per vector tile. Axes look `ahead` by so many tiles."""

    facts: Facts
    nest: Nest
    roles: Roles
    tile: Tile
    unroll: int = 1
    block: int = 0
    copies: tuple[tuple[Term, Var], ...] = ()
    panels: tuple[Term, ...] = ()
    ahead: tuple[Step, ...] = ()
    extra: float = 0.0

    @property
    def cost(self) -> float:
        """Relative time by the model."""
        return self.roles.penalty * (self.tile.cost + self.extra)

    @property
    def by_rows(self) -> bool:
        """True if blocks of rows are the outer loops."""
        return bool(self.copies) or (self.roles.reuse and 0 < self.block <= K_BLOCK)

    @property
    def width(self) -> int:
        """Elements of the lanes' axis in one register tile."""
        return self.roles.lanes * (self.unroll if self.roles.across else self.tile.vectors)

    def variants(self, rank: int) -> Iterator[_Choice]:
        """Parameters to try for a register tile."""
        facts, roles, tile = self.facts, self.roles, self.tile
        if roles.dots or not roles.sums:
            yield (made := replace(self, unroll=DOT_UNROLL, copies=roles.kept))
            if rank == 0 and roles.sums:
                yield made._streamed(0.01)
            return
        body, unroll = tile.rows * tile.vectors * roles.sums * _window(facts, roles)[1], 4
        while unroll > 1 and unroll * body > BODY_LIMIT:
            unroll //= 2
        copies, made = self._producers()
        rows = facts.extent(roles.rows) if roles.rows is not None else 1
        panels = (*roles.packed, *made) if rows >= 32 else roles.packed
        first = replace(self, unroll=unroll, copies=copies, panels=panels)
        found: list[_Choice] = [first]
        if rank == 0:
            found.append(replace(first, unroll=unroll * 2, extra=0.02))
            found += [first._streamed(0.02)] if roles.deep else []
            found += [replace(first, copies=(), extra=0.3)] if copies else []
            found += [replace(first, panels=roles.packed, extra=0.1)] if made else []
        for most in (K_BLOCK,) if copies else (K_BLOCK, PANEL_BLOCK):
            if self._can_block(most):  # in blocks of rows, or inside of a panel of lanes
                long, few = facts.extent(roles.deep[0]), rows < 128 or bool(copies)
                spills = long * self.width * 4 > facts.target.l2_bytes * LOCAL_SHARE
                pays = few and long >= 4 * K_BLOCK if most == K_BLOCK else spills and not few
                extra = -0.06 if pays and rows >= 64 else 0.03
                block = -(-long // -(-long // most) // 16) * 16
                found.append(replace(first, block=block, extra=extra))
                if most == K_BLOCK:
                    shared = rows > tile.rows and not roles.inner  # a block serves several tiles
                    gain = STREAMED if long > PANEL_BLOCK else -0.05
                    found.append(found[-1]._streamed(gain if shared else 0.05))
        for c in found:
            yield c if c._fits() else replace(c, copies=(), panels=(), extra=c.extra + 4.0)

    def _streamed(self, extra: float) -> _Choice:
        """The same with prefetches: of the next tiles where rows share what is read, else of what
        a sum reads later. Operands of blocks of rows are copied, so that they lie together."""
        roles, facts, copies = self.roles, self.facts, self.copies
        if roles.rows is None or facts.extent(roles.rows) <= self.tile.rows:
            ahead = tuple((k, STEPS_AHEAD) for k in roles.deep)
            return replace(self, ahead=ahead, extra=self.extra + extra)
        plain = [a for a in roles.scalars if a.term is not None and roles.rows in a.axes]
        dense = all(facts.stride(a, roles.deep[0]) == 1 for a in plain)
        if self.by_rows and dense and not (copies or self.panels or roles.masked or roles.outer):
            copies = tuple((a.term, roles.deep[0]) for a in plain if a.term is not None)
        body = self.unroll * self.tile.rows * self.tile.vectors * roles.sums
        return replace(self, copies=copies, ahead=((roles.lane, 1), (roles.rows, 1)),
                       unroll=self.unroll * (1 + (2 * body <= BODY_LIMIT)),
                       extra=self.extra + extra + self.width / 800)  # fmt: skip

    def _can_block(self, most: int) -> bool:
        """True if partial sums of `most` may wait in the output: a wide float store of one sum."""
        roles, sums, stores = self.roles, self.facts.tops(*self.nest.values), self.nest.stores
        if len(stores) != 1 or len(sums) != 1 or roles.window or len(roles.deep) != 1:
            return False
        stored, long = stores[0].buffer, self.facts.extent(roles.deep[0]) > most
        wide = stored.dtype.is_float and stored.dtype.bits >= 32 and stored.dtype == sums[0].dtype
        reread = any(a.buffer == stored for a in self.facts.loads(*self.nest.values))
        alone = sums[0].op == "sum" and not reread and not stored.alias and not roles.across
        return wide and alone and roles.reuse and long

    def _producers(self) -> tuple[tuple[tuple[Term, Var], ...], tuple[Term, ...]]:
        """Computed operands worth keeping in local memory: (of the rows, of the lanes)."""
        facts, roles = self.facts, self.roles
        copies, panels = dict[Term, Var](), dict[Term, None]()
        if roles.across or roles.window or roles.masked or len(roles.deep) != 1:
            return (), ()

        def visit(t: Term) -> None:
            if t in facts.staged or roles.deep[0] not in t.free:
                return
            work = any(x.op not in ("load", "const", "cast", "index") for x in facts.walk(t))
            if work and roles.lane not in t.free:
                copies[t] = roles.deep[0]
            elif work and roles.rows not in t.free:
                panels[t] = None
            elif t.op == "mul":
                for a in t.args:
                    visit(a)

        for r in facts.tops(*self.nest.values):
            for a in r.args if not facts.tops(*r.args) else ():
                visit(a)
        return tuple(copies.items()), tuple(panels)

    def _fits(self) -> bool:
        """True if the local copies are bounded and small enough for L2."""
        total, summed = 0, (*self.roles.deep, *self.roles.window)
        copies = tuple(t for t, _ in self.copies)
        for terms, tile in ((copies, ROW_BLOCK), (self.panels, self.width)):
            for t in terms:
                sizes = [min(self.facts.largest(k), self.block or (1 << 40))
                         for k in summed if k in t.free]  # fmt: skip
                total += tile * prod(sizes) * 4
        return total <= self.facts.target.l2_bytes * LOCAL_SHARE

    def point(self) -> Point:
        """The steps of this choice, from the outermost in."""
        r, nest = self.roles, self.nest
        outer, inner = ([(a, 1) for a in axes] for axes in (r.outer, r.inner))
        lane: list[Step | Keep] = []
        if not r.across and r.lane not in dict(nest.rows):
            lane = [(r.lane, self.width)]
        panels = [*map(self._panel, self.panels)] if lane else []
        rows = [(r.rows, self.tile.rows)] if r.rows is not None else []
        block = [(r.deep[0], self.block)] if self.block else []
        if self.by_rows:
            around = [(a, -(-ROW_BLOCK // size) * size) for a, size in rows]
            copies = [self._copy(t, k) for t, k in self.copies]
            steps = [*outer, *inner, *block, *around, *copies, *lane, *panels, *rows]
        else:
            steps = [*nest.rows, *outer, *lane, *block, *panels, *inner, *rows]
        grid = nest.rows or self._grid(steps)
        steps += self._summed()
        own = (r.lane,) if r.across else ()
        return Point(tuple(steps), tuple(grid), r.lane, r.lanes, own, r.dots, r.masked, self.ahead)

    def _grid(self, steps: list[Step | Keep]) -> list[Step]:
        """What grid loops may cut: blocks of rows and lanes; serial loops cut masked axes."""
        roles, rows, columns = self.roles, PANEL_ROWS if self.panels else 1, 1
        sizes = dict(s for s in steps if isinstance(s, tuple) and s[0] in self.nest.free)
        coarse = [(a, s) for a, s in sizes.items() if a not in roles.masked or s == 1]
        if self.by_rows:
            rows, columns = ROW_BLOCK, COLUMN_BLOCK
        while True:  # smaller blocks until every core has some
            blocks = {roles.rows: rows, roles.lane: columns}
            found = [(a, -(-blocks.get(a, s) // s) * s) for a, s in coarse]
            chunks = prod(-(-self.facts.extent(axis) // size) for axis, size in found)
            if chunks >= 4 * self.facts.target.cores or columns < 2 * self.width:
                return found
            columns //= 2

    def _copy(self, t: Term, k: Var) -> Keep:
        """An operand that does not vary along the lanes, the summed axis `k` innermost."""
        facts, lanes, free = self.facts, self.roles.lanes, (*self.nest.free, *self.roles.deep)
        around = tuple((a, 1) for a in free if a in t.free and a != k and facts.extent(a) > 1)
        step = lanes * max(1, min(4, facts.extent(k) // lanes))
        return Keep(t, (*around, (k, step)), k, lanes, ((k, 1),))

    def _panel(self, t: Term) -> Keep:
        """An operand of a tile of lanes, contiguous along them: transposed where it was dense
        along a summed axis."""
        facts, v, lanes = self.facts, self.roles.lane, self.roles.lanes
        axes = [k for k in (*self.roles.deep, *self.roles.window) if k in t.free]
        found = facts.loads(t)
        straight = all(facts.stride(a, v, lanes) in (0, 1) for a in found)
        dense = [] if straight else [k for k in axes if any(facts.stride(a, k) == 1 for a in found)]
        steps: list[Step] = [(v, lanes)]
        if axes:
            last, size = (dense[0], lanes) if dense else (axes[-1], 4)
            cuts = sorted({c for a in found for c in a.breaks(last)}, reverse=True)
            steps = [*((k, 1) for k in axes if k != last), *steps,
                     *((last, c) for c in cuts if c > size), (last, size)]  # fmt: skip
        levels = ((v, self.width), *((k, 1) for k in axes), (v, 1))
        return Keep(t, tuple(steps), v, lanes, levels)

    def _summed(self) -> list[Step]:
        """Steps over what is summed: blocks of divided axes, windows, then the unrolled axis."""
        roles, facts = self.roles, self.facts
        loads = facts.loads(*facts.tops(*self.nest.values))
        windows = [(k, 1) for k in roles.window if k not in roles.unrolled]
        steps: list[Step] = [(k, facts.extent(k)) for k in reversed(roles.unrolled)]
        for k in roles.deep:
            span = min(facts.extent(k), self.block or (1 << 40))
            cuts = {c for a in loads for c in a.breaks(k) if 1 < c < span and k not in roles.dots}
            step = self.width if k == roles.lane else 1
            if k in roles.dots:
                step = min(self.unroll, span)
            elif k == roles.deep[-1] and k != roles.lane:
                small = any(a.buffer.dtype.bits == 4 and a.breaks(k) for a in loads)
                step = max(self.unroll, 8 * small)  # all of a word at once
                while step > 1 and any(c % step for c in cuts):
                    step //= 2
            falling = sorted(cuts, reverse=True)
            steps += [(k, c) for i, c in enumerate(falling)
                      if c != step and (i == 0 or falling[i - 1] % c == 0)]  # fmt: skip
            steps += windows if k == roles.deep[-1] else []
            steps.append((k, step))
        return steps if roles.deep else [*steps, *windows]
