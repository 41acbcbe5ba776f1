"""Roles: which axis of a nest carries the lanes, which are replicated, summed, slid along.

In: `Facts` and a `Nest`. Out: `Roles`, the least penalty first. One analysis for contractions,
windows, plain sums, sums of byte products and elementwise work: strides and masks decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from luminal.ir.dtype import f32, i8, i32
from luminal.ir.expr import Var
from luminal.ir.layout import Layout
from luminal.ir.term import REDUCTIONS, Term
from luminal.search.facts import Access, Facts, has_data
from luminal.search.nest import GROUP, Nest

__all__ = ["Roles", "all_roles", "waste"]

WINDOW_LIMIT = 16
STRIDED = 5.0
"""Penalty of an operand that lanes gather one by one."""


@dataclass(frozen=True, slots=True)
class Roles:
    """One way to see a nest.

    `lane` is a free axis, or a summed one if `across`; `rows` is replicated in registers, `outer`
    and `inner` are the free axes around the lanes and inside. Summed axes are `deep` (long) or
    `window` (short, sliding along a free axis; `unrolled` of those in registers) or `dots` (four
    bytes at once). `packed` operands are not contiguous along the lanes, `kept` ones are to be
    computed first; `layouts` is what buffers should look like. `vectors` are the operands that
    vary along the lanes, `scalars` those that are broadcast; they feed `sums` reductions.
    """

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
    sums = facts.tops(*nest.values)
    types = [a.term.dtype for a in facts.loads(*nest.values) if a.term is not None]
    lanes = min(facts.lanes(t) for t in ([sums[0].dtype] if sums else
                                         [*types, *(t.dtype for t in nest.values)]))  # fmt: skip
    wide = [a for a, size in nest.rows if size > 1]
    fixed = {a for a, _ in nest.rows}
    found = [
        _free_lane(facts, nest, v, lanes, sums)
        for v in wide or [a for a in nest.free if a not in fixed]
        if v.name not in nest.ordered
    ]
    for k in sums[0].axes if sums else ():
        cost = _summed_lane(facts, nest, k, lanes, sums)
        if cost is not None:
            found.append(_around(facts, nest, Roles(k, lanes, cost, True), sums))
    found.sort(key=lambda r: r.penalty)
    dots = _dots(facts, nest)
    near = [r for r in found if r.penalty <= 2.5 * found[0].penalty + 0.5][:3]
    return [*dots, *near]


def _dimension(access: Access, axis: Var) -> int | None:
    """The only dimension that `axis` walks through, in steps of 1."""
    places = [d for d, e in enumerate(access.index) if axis in e.variables()]
    slope = access.index[places[0]].coefficient(axis) if len(places) == 1 else None
    return places[0] if slope is not None and slope.value == 1 else None


def _blocked(rank: int, dimension: int, tile: int, outer: Sequence[int]) -> Layout:
    """`dimension` in tiles innermost; the dimensions `outer` stay outside of its blocks."""
    rest = [d for d in range(rank) if d != dimension and d not in outer]
    return (*((d, 1) for d in outer), (dimension, tile), *((d, 1) for d in rest), (dimension, 1))


def _free_lane(facts: Facts, nest: Nest, v: Var, lanes: int, sums: tuple[Term, ...]) -> Roles:
    """Lanes along a free axis: what each operand costs, and how it should lie in memory."""
    loads, bound = facts.loads(*(sums or nest.values)), facts.bound(*nest.values)
    penalty, packed, rows = 0.0, list[Term](), None
    layouts: dict[str, Layout] = {}
    for a in loads:
        step, d = facts.stride(a, v, lanes), _dimension(a, v)
        constant = facts.buffers[a.buffer].kind != "temp" and a.buffer in facts.free_layout
        if step == 0:
            continue
        if sums and constant and d is not None:
            others = set(nest.free) - {v}
            batch = [e for e, i in enumerate(a.index) if i.variables() & others or has_data(i)]
            layouts[a.buffer] = _blocked(len(a.index), d, lanes, [e for e in batch if e != d])
        elif step == 1 and not (sums and _is_spread(facts, nest, a, v, bound)):
            continue
        elif sums and step is not None and _is_packable(facts, nest, a, v, bound, sums):
            packed += [a.term] if a.term is not None else []
            penalty += 0.05 if step == 1 else 0.6
        elif step != 1:
            dense = [] if sums or step is None else _dense(facts, nest, a, v, lanes)
            rows = rows or next(iter(dense), None)
            penalty += 1.5 if dense else STRIDED
    length = 1
    for k in bound:
        length *= facts.extent(k)
    for s in nest.stores:
        d = _dimension(s, v)
        if facts.stride(s, v, lanes) == 1:
            continue
        if sums and s.buffer in facts.free_layout and d is not None:
            layouts[s.buffer] = _blocked(len(s.index), d, lanes, range(d))
        else:
            penalty += 0.1 + lanes / length
    penalty = (1 + penalty) * waste(facts.extent(v), lanes)
    penalty += 4 * bool(sums and not any(v in a.axes for a in loads))
    roles = Roles(v, lanes, penalty, packed=tuple(packed), layouts=tuple(sorted(layouts.items())))
    return _around(facts, nest, roles, sums) if sums else _stream(facts, nest, roles, rows)


def _dense(facts: Facts, nest: Nest, a: Access, v: Var, lanes: int) -> list[Var]:
    """Axes along which a strided load is contiguous, so that tiles of it can be transposed."""
    fixed = {x for x, _ in nest.rows}
    return [x for x in nest.free if x != v and x.name not in nest.ordered and x not in fixed
            and facts.stride(a, x, lanes) == 1 and facts.extent(x) >= lanes // 2]  # fmt: skip


def _is_spread(facts: Facts, nest: Nest, a: Access, v: Var, bound: tuple[Var, ...]) -> bool:
    """True if steps of the sum jump far, and many rows would pay for a dense copy."""
    many = any(x != v and x not in a.axes and facts.extent(x) >= 48 for x in nest.free)
    size = facts.buffers[a.buffer].dtype.itemsize
    steps = [abs(facts.stride(a, k) or 0) * size for k in bound if k in a.axes]
    return many and min(steps, default=0) >= 1024


def _is_packable(
    facts: Facts, nest: Nest, a: Access, v: Var, bound: tuple[Var, ...], sums: tuple[Term, ...]
) -> bool:
    """True if a copy of the operand, contiguous along the lanes, would be used repeatedly."""
    reused = any(x != v and x not in a.axes and facts.extent(x) >= 8 for x in nest.free)
    slides = any(_slides(facts, k, x, (a,)) for k in bound for x in nest.free)
    return reused and not slides and not has_data(a.flat) and not facts.masks(*sums)


def _summed_lane(
    facts: Facts, nest: Nest, k: Var, lanes: int, sums: tuple[Term, ...]
) -> float | None:
    """Penalty for lanes along a summed axis; None if the operands are not evenly spaced there."""
    mine = [a for a in facts.loads(*sums) if k in a.axes]
    steps = [facts.stride(a, k, lanes) for a in mine]
    if not mine or None in steps or any(k not in r.axes for r in sums):
        return None
    gathered = 4.0 * sum(step != 1 for step in steps)
    size = facts.extent(k)
    masked = any(k in e.variables() for e in facts.masks(*sums))
    many = [x for x in nest.free if facts.extent(x) > 4 and any(x not in a.axes for a in mine)]
    reread = 1.5 * (len(many) > 1)
    return (1.35 + 10 / -(-size // lanes)) * waste(size, lanes) + masked + reread + gathered


def _stream(facts: Facts, nest: Nest, roles: Roles, rows: Var | None) -> Roles:
    """Elementwise work: the other axes in order of their stride in the result."""

    def key(axis: Var) -> tuple[bool, int]:
        step = facts.stride(nest.stores[0], axis) if nest.stores else 0
        return (axis.name not in nest.ordered, -(abs(step) if step is not None else 1 << 40))

    apart = {roles.lane, rows, *(a for a, _ in nest.rows)}
    outer = tuple(a for a in sorted(nest.free, key=key) if a not in apart)
    masked = frozenset(v for e in facts.masks(*nest.values) for v in e.variables())
    return replace(roles, rows=rows, outer=outer, masked=masked)


def _around(facts: Facts, nest: Nest, roles: Roles, sums: tuple[Term, ...]) -> Roles:
    """The roles of the other axes of a reduction nest: rows, batches, windows and masks."""
    v, loads, bound = roles.lane, facts.loads(*sums), facts.bound(*nest.values)
    free = tuple(a for a in nest.free if a != v)
    vectors = tuple(a for a in loads if facts.stride(a, v, roles.lanes) != 0)
    scalars = tuple(a for a in loads if facts.stride(a, v, roles.lanes) == 0)
    rows = _row_axis(facts, nest, free, vectors, scalars)
    window = tuple(
        k for k in bound
        if k != v and facts.is_static(k) and facts.extent(k) <= WINDOW_LIMIT
        and any(_slides(facts, k, x, loads) for x in nest.free)
    )  # fmt: skip
    unrolled = tuple(
        k for k in window
        if not scalars or any(_slides(facts, k, x, loads) for x in (v, rows) if x is not None)
    )  # fmt: skip
    looped = frozenset(window) - frozenset(unrolled)
    masked: frozenset[Var] = frozenset()
    for e in facts.masks(*sums):  # a loop over a window restricts its range by itself
        masked |= e.variables() & looped or e.variables()
    batch = tuple(a for a in free if a != rows and vectors and all(a in x.axes for x in vectors))
    return replace(
        roles, rows=rows, outer=batch, inner=tuple(a for a in free if a not in (rows, *batch)),
        deep=tuple(k for k in bound if k not in window), window=window, unrolled=unrolled,
        masked=masked, vectors=vectors, scalars=scalars, sums=len(sums),
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
    return min(able, key=key, default=None)


def _slides(facts: Facts, k: Var, x: Var, loads: tuple[Access, ...]) -> bool:
    """True if windows along k at neighbouring x overlap."""
    for e in (e for a in loads for e in a.index if {k, x} <= e.variables()):
        step, tap = e.coefficient(x), e.coefficient(k)
        if step is not None and tap is not None and step.value and tap.value:
            if abs(step.value) < abs(tap.value) * facts.extent(k):
                return True
    return False


def _dots(facts: Facts, nest: Nest) -> list[Roles]:
    """Roles for a nest whose innermost sums are all i32 sums of products of bytes or nibbles."""
    products: list[tuple[Var, Term, Term]] = []
    for r in (t for t in facts.walk(*nest.values) if t.op in REDUCTIONS):
        body = r.args[0]
        if r.op != "sum":
            return []
        if facts.tops(body):
            continue
        factors = [a.args[0] for a in body.args if a.op == "cast"] if body.op == "mul" else []
        bytes_ = all(x.dtype.bits <= 8 and x.dtype.is_int for x in factors)
        if r.dtype != i32 or len(r.axes) != 1 or len(factors) != 2 or not bytes_:
            return []
        products.append((r.axes[0], *factors))
    found = (_dot_roles(facts, nest, products, v) for v in nest.free) if products else ()
    return [r for r in found if r is not None][:1]


def _dot_roles(
    facts: Facts, nest: Nest, products: Sequence[tuple[Var, Term, Term]], lane: Var
) -> Roles | None:
    """The roles if `lane` carries the lanes; one factor must be a constant that can be grouped."""
    lanes = facts.lanes(f32)
    if not facts.is_static(lane) or facts.extent(lane) < lanes or lane.name in nest.ordered:
        return None
    layouts: dict[str, Layout] = {}
    kept: dict[Term, Var] = {}
    packed: set[Var] = {lane}
    for k, a, b in products:
        weights, other = (a, b) if lane in a.free else (b, a)
        plain = weights.op == "load" and lane not in other.free and other.dtype == i8
        if not plain or not facts.is_static(k) or facts.extent(k) % GROUP:
            return None
        access = facts.access(weights.buffer, weights.indices, weights)
        layout = _grouped(facts, access, lane, k, lanes)
        if layout is None:
            return None
        if other.op != "load" or any(facts.stride(x, k) != 1 for x in facts.loads(other)):
            kept[other] = k
        layouts[weights.buffer] = layout
        packed |= access.axes
    for a in facts.loads(*nest.values):
        d = _dimension(a, lane)
        if a.buffer in facts.free_layout and a.buffer not in layouts and d is not None:
            layouts[a.buffer] = _blocked(len(a.index), d, lanes, ())
    dots = tuple(dict.fromkeys(k for k, _, _ in products))
    outer = tuple(a for a in facts.bound(*nest.values) if a not in dots)
    rows = [a for a in nest.free if a not in packed and a.name not in nest.ordered]
    last = rows[-1] if rows else None
    return Roles(
        lane, lanes, 0.2, rows=last, outer=tuple(a for a in nest.free if a not in (lane, last)),
        deep=(*outer, *dots), dots=dots, kept=tuple(kept.items()),
        layouts=tuple(layouts.items()), sums=len(products) * (2 if outer else 1),
    )  # fmt: skip


def _grouped(facts: Facts, access: Access, lane: Var, k: Var, lanes: int) -> Layout | None:
    """The layout with 4 neighbours along `k` for each of `lanes` neighbours along `lane`."""
    row, column = _dimension(access, lane), _dimension(access, k)
    if row is None or column is None or row == column:
        return None
    middle = ((d, GROUP if d == column else 1) for d in range(len(access.index)) if d != row)
    wanted = ((row, lanes), *middle, (row, 1), (column, 1))
    free = access.buffer in facts.free_layout
    return wanted if free or facts.layout(access.buffer) == wanted else None
