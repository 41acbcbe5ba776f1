"""The structure of a reduction nest: vector axis, row axis, windows, what must be packed.

In: `Facts` and a `Nest` whose values contain reductions. Out: `Shape`s, least penalty first.
"""

from __future__ import annotations

from dataclasses import dataclass

from luminal.ir.expr import Var
from luminal.ir.layout import Layout
from luminal.ir.term import Term
from luminal.search.facts import Access, Facts, has_data
from luminal.search.nest import Nest
from luminal.search.tiles import waste

__all__ = ["Shape", "blocked", "shapes", "window_step"]

WINDOW_LIMIT = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to see a reduction nest.

    `vector` carries the lanes (a summed axis if `horizontal`), `rows` is replicated in registers.
    Summed axes are `deep` (long) or `window` (short, sliding along a free axis; `unrolled` of
    those in registers). `packed` operands are not contiguous along the lanes; `layouts` is what
    constants should look like. `streams` vector and `scalars` broadcast operands feed `sums`.
    """

    vector: Var
    lanes: int
    rows: Var | None
    free: tuple[Var, ...]
    deep: tuple[Var, ...]
    window: tuple[Var, ...]
    unrolled: tuple[Var, ...]
    masked: frozenset[Var]
    packed: tuple[Access, ...]
    layouts: tuple[tuple[str, Layout], ...]
    vector_loads: tuple[Access, ...]
    scalar_loads: tuple[Access, ...]
    sums: int
    penalty: float
    horizontal: bool = False

    @property
    def reuse(self) -> bool:
        """True if replicating over the rows saves loads."""
        return self.rows is not None and any(
            self.rows not in a.axes for a in (*self.vector_loads, *self.scalar_loads)
        )


def blocked(rank: int, dimension: int, tile: int, outer: tuple[int, ...]) -> Layout:
    """`dimension` in tiles innermost; the dimensions `outer` stay outside of its blocks."""
    rest = [d for d in range(rank) if d != dimension and d not in outer]
    return (*((d, 1) for d in outer), (dimension, tile), *((d, 1) for d in rest), (dimension, 1))


def shapes(facts: Facts, nest: Nest) -> list[Shape]:
    """The possible structures, the least penalty first; empty if nothing can be vectorised."""
    reductions = facts.tops(*nest.values)
    lanes = facts.lanes(reductions[0].dtype)
    loads = facts.loads(*reductions)
    found: list[Shape] = []
    for v in nest.free:
        if v.name not in nest.ordered:
            penalty, packed, layouts = _free_vector(facts, nest, v, lanes, loads, reductions)
            found.append(_shape(facts, nest, v, lanes, penalty, packed, layouts, False))
    for k in reductions[0].axes:
        cost = _bound_vector(facts, nest, k, lanes, loads, reductions)
        if cost is not None:
            found.append(_shape(facts, nest, k, lanes, cost, (), {}, True))
    found.sort(key=lambda s: s.penalty)
    return [s for s in found if s.penalty <= 2.5 * found[0].penalty + 0.5][:3]


def _dimension_of(access: Access, axis: Var) -> int | None:
    """The only dimension that `axis` indexes, with coefficient 1."""
    places = [d for d, e in enumerate(access.index) if axis in e.variables()]
    if len(places) != 1:
        return None
    slope = access.index[places[0]].coefficient(axis)
    return places[0] if slope is not None and slope.value == 1 else None


def _free_vector(
    facts: Facts, nest: Nest, v: Var, lanes: int, loads: tuple[Access, ...],
    reductions: tuple[Term, ...],
) -> tuple[float, tuple[Access, ...], dict[str, Layout]]:  # fmt: skip
    """Penalty, operands to pack and layouts for lanes along a free axis."""
    bound = facts.bound(*nest.values)
    penalty, packed, layouts = 0.0, [], dict[str, Layout]()
    for a in loads:
        if facts.stride(a, v, lanes) == 0:
            continue
        d = _dimension_of(a, v)
        constant = facts.buffers[a.buffer].kind != "temp"
        if constant and a.buffer in facts.free_layout and d is not None:
            layouts[a.buffer] = _constant_layout(nest, a, d, v, lanes)
            continue
        step = facts.stride(a, v, lanes)
        if step == 1:
            if _is_spread(facts, nest, a, v, bound) and _is_packable(
                facts, nest, a, v, bound, reductions
            ):
                packed.append(a)
                penalty += 0.05
            continue
        if step is not None and _is_packable(facts, nest, a, v, bound, reductions):
            packed.append(a)
            penalty += 0.6
        else:
            penalty += 5.0
    for s in nest.stores:
        if facts.stride(s, v, lanes) != 1:
            d = _dimension_of(s, v)
            if s.buffer in facts.free_layout and d is not None:
                layouts[s.buffer] = blocked(len(s.index), d, lanes, tuple(range(d)))
            else:
                length = 1
                for k in bound:
                    length *= facts.extent(k)
                penalty += 0.1 + lanes / length
    penalty = (1 + penalty) * waste(facts.extent(v), lanes)
    if not any(v in a.axes for a in loads):
        penalty += 4
    return penalty, tuple(packed), layouts


def _is_spread(facts: Facts, nest: Nest, a: Access, v: Var, bound: tuple[Var, ...]) -> bool:
    """True if steps of the sum jump far, and many rows would pay for a dense copy."""
    many = any(x is not v and x not in a.axes and facts.extent(x) >= 48 for x in nest.free)
    size = facts.buffers[a.buffer].dtype.itemsize
    steps = [abs(facts.stride(a, k) or 0) * size for k in bound if k in a.axes]
    return many and min(steps, default=0) >= 1024


def _is_packable(
    facts: Facts, nest: Nest, a: Access, v: Var, bound: tuple[Var, ...],
    reductions: tuple[Term, ...],
) -> bool:  # fmt: skip
    """True if a copy of the operand, contiguous along the lanes, would be used repeatedly."""
    reused = any(x is not v and x not in a.axes and facts.extent(x) >= 8 for x in nest.free)
    slides = any(_slides(facts, k, x, (a,)) for k in bound for x in nest.free)
    return reused and not slides and not has_data(a.flat) and not facts.masks(*reductions)


def _constant_layout(nest: Nest, a: Access, d: int, v: Var, lanes: int) -> Layout:
    """Panels of `lanes` neighbours, batch dimensions outside."""
    batch = tuple(
        e for e, index in enumerate(a.index)
        if e != d and (index.variables() & set(nest.free) - {v} or has_data(index))
    )  # fmt: skip
    return blocked(len(a.index), d, lanes, batch)


def _bound_vector(
    facts: Facts, nest: Nest, k: Var, lanes: int, loads: tuple[Access, ...],
    reductions: tuple[Term, ...],
) -> float | None:  # fmt: skip
    """Penalty for lanes along a summed axis; None if the operands are not evenly spaced there."""
    mine = [a for a in loads if k in a.axes]
    steps = [facts.stride(a, k, lanes) for a in mine]
    if not mine or None in steps or any(k not in r.axes for r in reductions):
        return None
    gathered = 4.0 * sum(step != 1 for step in steps)
    size = facts.extent(k)
    masked = any(k in e.variables() for e in facts.masks(*reductions))
    many = [x for x in nest.free if facts.extent(x) > 4 and any(x not in a.axes for a in mine)]
    reread = 1.5 * (len(many) > 1)
    return (1.35 + 10 / -(-size // lanes)) * waste(size, lanes) + masked + reread + gathered


def _shape(
    facts: Facts, nest: Nest, v: Var, lanes: int, penalty: float, packed: tuple[Access, ...],
    layouts: dict[str, Layout], horizontal: bool,
) -> Shape:  # fmt: skip
    """The shape for a vector axis: row axis, windows and masks."""
    reductions = facts.tops(*nest.values)
    loads, bound = facts.loads(*reductions), facts.bound(*nest.values)
    free = tuple(a for a in nest.free if a is not v)
    vectors = tuple(a for a in loads if facts.stride(a, v, lanes) != 0)
    scalars = tuple(a for a in loads if facts.stride(a, v, lanes) == 0)
    rows = _row_axis(facts, nest, free, vectors, scalars)
    window = tuple(
        k for k in bound
        if k is not v and facts.is_static(k) and facts.extent(k) <= WINDOW_LIMIT
        and any(_slides(facts, k, x, loads) for x in nest.free)
    )  # fmt: skip
    unrolled = tuple(
        k for k in window
        if not scalars or any(_slides(facts, k, x, loads) for x in (v, rows) if x is not None)
    )  # fmt: skip
    deep = tuple(k for k in bound if k not in window)
    looped = frozenset(window) - frozenset(unrolled)
    masked: frozenset[Var] = frozenset()
    for e in facts.masks(*reductions):  # a loop over a window restricts its range by itself
        masked |= e.variables() & looped or e.variables()
    return Shape(
        v, lanes, rows, free, deep, window, unrolled, masked, packed,
        tuple(sorted(layouts.items())), vectors, scalars, len(reductions), penalty, horizontal,
    )  # fmt: skip


def _row_axis(
    facts: Facts, nest: Nest, free: tuple[Var, ...], vectors: tuple[Access, ...],
    scalars: tuple[Access, ...],
) -> Var | None:  # fmt: skip
    """The free axis to replicate over: reuses vector operands, and is dense in the others."""

    def key(axis: Var) -> tuple[bool, bool, int, int]:
        reuse = any(axis not in a.axes for a in vectors)
        steps = [facts.stride(a, axis) for a in (scalars or vectors) if axis in a.axes]
        dense = min((abs(s) for s in steps if s), default=1 << 40)
        return (not reuse, facts.extent(axis) < 4, dense, -facts.extent(axis))

    able = [a for a in free if facts.extent(a) > 1 and a.name not in nest.ordered]
    return min(able, key=key) if able else None


def _slides(facts: Facts, k: Var, x: Var, loads: tuple[Access, ...]) -> bool:
    """True if windows along k at neighbouring x overlap."""
    for a in loads:
        for e in a.index:
            if {k, x} <= e.variables():
                step, tap = e.coefficient(x), e.coefficient(k)
                if step is not None and tap is not None and step.value and tap.value:
                    if abs(step.value) < abs(tap.value) * facts.extent(k):
                        return True
    return False


def window_step(facts: Facts, shape: Shape) -> tuple[int, int]:
    """How far the unrolled window moves from row to row, and how many taps it has."""
    taps = 1
    for k in shape.unrolled:
        taps *= facts.extent(k)
    for a in (*shape.scalar_loads, *shape.vector_loads):
        for e in a.index:
            slides = shape.rows in e.variables() and not e.variables().isdisjoint(shape.unrolled)
            if shape.rows is not None and slides:
                slope = e.coefficient(shape.rows)
                return (slope.value if slope is not None and slope.value else 1), taps
    return 1, taps
