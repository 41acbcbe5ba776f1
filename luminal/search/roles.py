"""Roles: which axis of a nest carries the lanes, which are replicated, summed, slid along.

In: `Facts` and a `Nest`. Out: `Roles`, the least penalty first. One analysis for contractions,
windows, plain sums, sums of byte products and elementwise work: strides and masks decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from luminal.ir import REDUCTIONS, ZERO, Layout, Term, Var, const, data_atoms, i8, i32
from luminal.search.facts import Access, Facts
from luminal.search.nest import GROUP, Nest

WINDOW_LIMIT = 16
STRIDED = 5.0
"""Penalty of an operand that lanes gather one by one."""


@dataclass(frozen=True, slots=True)
class Roles:
    """One way to see a nest.

    `lane` is a free axis, or a summed one if `across`; `rows` is replicated in registers, `outer`
    and `inner` are the free axes around the lanes and inside. Summed axes are `deep` (long) or
    `window` (short, sliding along a free axis; `unrolled` of those in registers); `dots` of the
    deep ones take four bytes at once. `packed` operands are not contiguous along the lanes,
    `kept` ones are to be computed first; `layouts` is what buffers should look like. `vectors`
    are the operands that vary along the lanes, `scalars` those that are broadcast; they feed
    `sums` reductions."""

    lane: Var
    lanes: int
    penalty: float
    across: bool = False
    rows: Var | None = None
    outer: tuple[Var, ...] = ()
    inner: tuple[Var, ...] = ()
    deep: tuple[Var, ...] = ()
    window: tuple[Var, ...] = ()
    unrolled: tuple[Var, ...] = ()
    dots: tuple[Var, ...] = ()
    masked: frozenset[Var] = frozenset()
    packed: tuple[Term, ...] = ()
    kept: tuple[tuple[Term, Var], ...] = ()
    layouts: tuple[tuple[str, Layout], ...] = ()
    vectors: tuple[Access, ...] = ()
    scalars: tuple[Access, ...] = ()
    sums: int = 0

    @property
    def reuse(self) -> bool:
        """True if replicating over the rows saves loads."""
        return self.rows is not None and any(
            self.rows not in a.axes for a in (*self.vectors, *self.scalars)
        )


def waste(extent: int, tile: int) -> float:
    """Work done over work needed when `extent` is covered by whole tiles."""
    return -(-extent // tile) * tile / extent


def all_roles(facts: Facts, nest: Nest) -> list[Roles]:
    """The possible roles, the least penalty first; empty if nothing can be vectorised."""
    analysis = _Analysis(facts, nest)
    fixed = dict(nest.rows)
    wide = [a for a in fixed if fixed[a] > 1] or [a for a in nest.free if a not in fixed]
    found = [analysis.free_lane(v) for v in wide if v.name not in nest.ordered]
    dots = [d for r in found if (d := analysis.dots(r)) is not None][:1]
    for k in analysis.sums[0].axes if analysis.sums else ():
        found += analysis.summed_lane(k)
    found.sort(key=lambda r: r.penalty)
    return [*dots, *(r for r in found[:3] if r.penalty <= 2.5 * found[0].penalty + 0.5)]


def _blocked(rank: int, dimension: int, tile: int, outer: Iterable[int]) -> Layout:
    """`dimension` in tiles innermost; the dimensions `outer` stay outside of its blocks."""
    around = tuple((d, 1) for d in outer)
    rest = ((d, 1) for d in range(rank) if d != dimension and (d, 1) not in around)
    return (*around, (dimension, tile), *rest, (dimension, 1))


class _Analysis:
    """The structure of one nest. Its `loads` are those of its sums, if it has any."""

    def __init__(self, facts: Facts, nest: Nest) -> None:
        self.facts, self.nest = facts, nest
        self.sums, self.bound = facts.tops(*nest.values), facts.bound(*nest.values)
        terms = self.sums or nest.values
        self.loads, self.masks = facts.loads(*terms), facts.masks(*terms)
        types = [t.dtype for t in self.sums[:1] or nest.values]
        types += [] if self.sums else [a.buffer.dtype for a in self.loads]
        self.lanes = min(map(facts.lanes, types))

    def free_lane(self, v: Var) -> Roles:
        """Lanes along a free axis: what each operand costs, and how it should lie in memory."""
        facts, nest, lanes = self.facts, self.nest, self.lanes
        penalty, packed, layouts = 0.0, list[Term](), dict[str, Layout]()
        rows: list[Var] = []
        others, points = set(nest.free) - {v}, prod(map(facts.extent, nest.free))
        kept = any(a.buffer.layout and facts.stride(a, v, lanes) == 1 for a in self.loads)
        free = facts.free_layout if self.sums or kept else ()  # results lie as operands do
        for a in self.loads:
            step, d, name = facts.stride(a, v, lanes), a.dimension(v), a.buffer.name
            step = 1 if step == 8 and a.buffer.dtype.bits == 4 else step  # a word for each lane
            if step == 0:
                continue
            if name in free and a.buffer.kind != "temp" and d is not None:
                batch = [n for n, e in enumerate(a.index) if n != d
                         and (e.variables() & others or any(data_atoms(e)))]  # fmt: skip
                words = self._words(a, v) if not batch else ()
                layouts[name] = words or _blocked(len(a.index), d, lanes, batch)
            elif step is not None and a.term is not None and self._worth_packing(a, v, step):
                packed.append(a.term)
                penalty += 0.05 if step == 1 else 0.6
            elif step != 1:
                dense = [] if self.sums or step is None else self._dense(a, v)
                rows += dense
                often = prod(map(facts.extent, a.axes)) / points if not self.sums else 1
                penalty += (1.5 if dense else STRIDED) * min(1, often)
        for s in (s for s in nest.stores if facts.stride(s, v, lanes) != 1):
            name, d = s.buffer.name, s.dimension(v)
            if name in free and d is not None:
                layouts[name] = _blocked(len(s.index), d, lanes, range(d))
            else:
                penalty += 0.1 + lanes / prod(map(facts.extent, self.bound))
        penalty = (1 + penalty) * waste(facts.extent(v), lanes)
        penalty += 4 * bool(self.sums and not any(v in a.axes for a in self.loads))
        roles = Roles(v, lanes, penalty, packed=tuple(packed), layouts=(*sorted(layouts.items()),))
        return self._around(roles) if self.sums else self._stream(roles, rows)

    def _words(self, a: Access, v: Var) -> Layout:
        """A layout of small integers in which every lane has a 32-bit word of neighbours along a
        summed axis; () if there is none."""
        dtype, term = a.buffer.dtype, a.term
        for k in self.bound if dtype.bits == 4 and dtype.is_int else ():
            layout = self._grouped(term, v, k, 8) if term is not None else None
            if term is not None and layout is not None:
                (new,) = self.facts.with_layouts({a.buffer.name: layout}).loads(term)
                if self.facts.stride(new, k, 8) == 1:
                    return layout
        return ()

    def _dense(self, a: Access, v: Var) -> list[Var]:
        """Axes along which a strided load is contiguous, so that tiles of it are transposed."""
        fixed = {v.name, *self.nest.ordered, *(x.name for x, _ in self.nest.rows)}
        return [x for x in self.nest.free if x.name not in fixed
                and self.facts.stride(a, x, self.lanes) == 1
                and self.facts.extent(x) >= self.lanes // 2]  # fmt: skip

    def _worth_packing(self, a: Access, v: Var, step: int) -> bool:
        """True if a copy of the operand, contiguous along the lanes, would be used repeatedly; it
        must be used often where it is contiguous already, but its rows lie far apart."""
        slides = any(self._slides(k, x, (a,)) for k in self.bound for x in self.nest.free)
        if not self.sums or self.masks or slides or any(data_atoms(a.flat)):
            return False
        others = [x for x in self.nest.free if x not in {v, *a.axes}]
        used = max(map(self.facts.extent, others), default=1)
        jumps = [abs(self.facts.stride(a, k) or 0) for k in self.bound if k in a.axes]
        far = min(jumps, default=0) * a.buffer.dtype.itemsize >= 1024
        return used >= 48 and far if step == 1 else used >= 8

    def summed_lane(self, k: Var) -> list[Roles]:
        """Lanes along a summed axis; none if the operands are not evenly spaced there."""
        facts = self.facts
        mine = [a for a in self.loads if k in a.axes]
        steps = [facts.stride(a, k, self.lanes) for a in mine]
        if not mine or None in steps or any(k not in r.axes for r in self.sums):
            return []
        size = facts.extent(k)
        many = [x for x in self.nest.free
                if facts.extent(x) > 4 and any(x not in a.axes for a in mine)]  # fmt: skip
        penalty = (1.35 + 10 / -(-size // self.lanes)) * waste(size, self.lanes)
        penalty += any(k in e.variables() for e in self.masks) + 1.5 * (len(many) > 1)
        penalty += 4.0 * sum(step != 1 for step in steps)
        return [self._around(Roles(k, self.lanes, penalty, True))]

    def _stream(self, roles: Roles, rows: list[Var]) -> Roles:
        """Elementwise work: the other axes in order of their stride in the result."""
        nest, across = self.nest, rows[0] if rows else None
        flat = nest.stores[0].flat if nest.stores and not rows else ZERO
        ends = (flat.substitute({roles.lane: const(n)}) for n in (self.lanes, 0))
        jump = (next(ends) - next(ends)).value or 0  # from one block of lanes to the next

        def key(axis: Var) -> tuple[bool, int]:
            step = self.facts.stride(nest.stores[0], axis) if nest.stores else 0
            step = jump if axis == roles.lane else step
            return (axis.name not in nest.ordered, -(abs(step) if step is not None else 1 << 40))

        apart = {across, *(a for a, _ in nest.rows if a != roles.lane)}
        order = sorted((a for a in nest.free if a not in apart), key=key)
        cut = order.index(roles.lane)
        masked = frozenset(v for e in self.masks for v in e.variables())
        return replace(roles, rows=across, outer=(*order[:cut],), inner=(*order[cut + 1 :],),
                       masked=masked)  # fmt: skip

    def _around(self, roles: Roles) -> Roles:
        """The roles of the other axes of a reduction nest: rows, batches, windows and masks."""
        v, facts = roles.lane, self.facts
        free = tuple(a for a in self.nest.free if a != v)
        vectors = tuple(a for a in self.loads if facts.stride(a, v, roles.lanes) != 0)
        scalars = tuple(a for a in self.loads if facts.stride(a, v, roles.lanes) == 0)
        rows = self._row_axis(free, vectors, scalars)
        window = tuple(
            k for k in self.bound
            if k != v and facts.is_static(k) and facts.extent(k) <= WINDOW_LIMIT
            and any(self._slides(k, x, self.loads) for x in self.nest.free)
        )  # fmt: skip
        near = [x for x in (v, rows) if x is not None]
        unrolled = tuple(
            k for k in window if not scalars or any(self._slides(k, x, self.loads) for x in near)
        )
        looped = frozenset(window) - frozenset(unrolled)
        masked = [e.variables() & looped or e.variables() for e in self.masks]  # loops cut those
        other = tuple(a for a in free if a != rows)
        batch = tuple(a for a in other if vectors and all(a in x.axes for x in vectors))
        return replace(
            roles, rows=rows, outer=batch, inner=tuple(a for a in other if a not in batch),
            deep=tuple(k for k in self.bound if k not in window), window=window,
            unrolled=unrolled, masked=frozenset().union(*masked), vectors=vectors,
            scalars=scalars, sums=len(self.sums),
        )  # fmt: skip

    def _row_axis(
        self, free: tuple[Var, ...], vectors: tuple[Access, ...], scalars: tuple[Access, ...]
    ) -> Var | None:
        """The free axis to replicate over: reuses vector operands, is dense in the others."""

        def key(axis: Var) -> tuple[bool, bool, int, int]:
            reuse = any(axis not in a.axes for a in vectors)
            steps = [self.facts.stride(a, axis) for a in (scalars or vectors)]
            dense = min((abs(s) for s in steps if s), default=1 << 40)
            extent = self.facts.extent(axis)
            return (not reuse, extent < 4, dense, -extent)

        able = [a for a in free if self.facts.extent(a) > 1 and a.name not in self.nest.ordered]
        return min(able, key=key, default=None)

    def _slides(self, k: Var, x: Var, loads: Iterable[Access]) -> bool:
        """True if windows along k at neighbouring x overlap."""
        for e in (e for a in loads for e in a.index if {k, x} <= e.variables()):
            slopes = e.coefficient(x), e.coefficient(k)
            step, tap = (s.value if s is not None else None for s in slopes)
            if step and tap and abs(step) < abs(tap) * self.facts.extent(k):
                return True
        return False

    def dots(self, roles: Roles) -> Roles | None:
        """The same lanes where every innermost sum is an i32 sum of products of bytes or nibbles,
        one of them a constant that can lie in groups of four; None for other sums."""
        lane, lanes, kept = roles.lane, roles.lanes, dict[Term, Var]()
        layouts, dots, count = dict(roles.layouts), dict[Var, None](), 0
        loads = self.facts.loads
        if not self.sums or lane.bound is not None or self.facts.extent(lane) < lanes:
            return None
        for r in (t for t in self.facts.walk(*self.nest.values) if t.op in REDUCTIONS):
            body, k = r.args[0], r.axes[0]
            if r.op == "sum" and self.facts.tops(body):
                continue
            factors = [a.args[0] for a in body.args if a.op == "cast"]
            if (r.op, r.dtype, body.op, len(factors), len(r.axes)) != ("sum", i32, "mul", 2, 1):
                return None
            weights, other = sorted(factors, key=lambda f: lane not in f.free)
            small = weights.dtype.bits <= 8 and weights.dtype.is_int and other.dtype == i8
            layout = self._grouped(weights, lane, k) if weights.op == "load" else None
            if layout is None or not small or lane in other.free or self.facts.extent(k) % GROUP:
                return None
            layouts[weights.buffer] = layout
            dots[k], count = None, count + 1
            if other.op != "load" or any(self.facts.stride(a, k) != 1 for a in loads(other)):
                kept[other] = k
        count *= 1 + any(k not in dots for k in roles.deep)  # of both dtypes
        return replace(roles, penalty=0.2, dots=tuple(dots), kept=tuple(kept.items()), packed=(),
                       layouts=tuple(layouts.items()), sums=count)  # fmt: skip

    def _grouped(self, weights: Term, lane: Var, k: Var, count: int = GROUP) -> Layout | None:
        """The layout with some neighbours along `k` for each of some along `lane`."""
        a = next(iter(self.facts.loads(weights)), None)
        row, column = (a.dimension(lane), a.dimension(k)) if a is not None else (None, None)
        if a is None or row is None or column is None or row == column or k.bound is not None:
            return None
        middle = ((d, count if d == column else 1) for d in range(len(a.index)) if d != row)
        wanted = ((row, self.lanes), *middle, (row, 1), (column, 1))
        free = a.buffer.name in self.facts.free_layout
        return wanted if free or wanted == a.buffer.layout else None
