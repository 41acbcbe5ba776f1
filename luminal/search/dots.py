"""Schedules of integer sums that a dot-product instruction can do: 4 bytes per lane at once.

In: `Facts` and a `Nest`. Out: `Option`s with the role 'dot', or none. Structure: every innermost
sum is an i32 sum of products of 8-bit or 4-bit loads, one of them a constant that may be packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luminal.ir.dtype import f32, i8, i32
from luminal.ir.expr import Var
from luminal.ir.layout import Layout
from luminal.ir.plan import Item, Loop, Reg, Stage
from luminal.ir.term import REDUCTIONS, Term
from luminal.search.contract_shape import blocked
from luminal.search.facts import Access, Facts
from luminal.search.nest import Nest, Option, assign_grid, serial_loops, vector_regs

__all__ = ["dots"]

_Product = tuple[Term, Term, Term]
GROUP = 4
UNROLLED = 32


@dataclass(frozen=True, slots=True)
class _Shape:
    """`lanes` of `vector`; `sums` dot products over `inner`, inside sums over `outer`; `rows` is
    replicated; `layouts` is what constants must look like; `copies` are factors (and their summed
    axis) to compute into local memory first."""

    vector: Var
    lanes: int
    rows: Var | None
    inner: tuple[Var, ...]
    outer: tuple[Var, ...]
    sums: int
    layouts: dict[str, Layout]
    copies: tuple[tuple[Term, Var], ...]


def dots(facts: Facts, nest: Nest) -> list[Option]:
    """Options for a nest whose innermost sums are byte products, best guess first."""
    products = _products(facts, nest)
    if not products:
        return []
    for vector in nest.free:
        shape = _shape(facts, nest, products, vector)
        if shape is not None:
            return [
                _build(facts, nest, shape, r, v, n) for n, (r, v) in enumerate(_tiles(facts, shape))
            ]
    return []


def _products(facts: Facts, nest: Nest) -> list[_Product]:
    """Every innermost sum with its two factors; empty if one has another form."""
    found: list[_Product] = []
    reductions = [t for t in facts.walk(*nest.values) if t.op in REDUCTIONS]
    for r in reductions:
        if facts.tops(*r.args):
            if r.op != "sum":
                return []
            continue
        body = r.args[0]
        if r.op != "sum" or r.dtype != i32 or len(r.axes) != 1 or body.op != "mul":
            return []
        factors = [a.args[0] for a in body.args if a.op == "cast"]
        if len(factors) != 2 or any(x.dtype.bits > 8 or not x.dtype.is_int for x in factors):
            return []
        found.append((r, factors[0], factors[1]))
    return found


def _shape(facts: Facts, nest: Nest, products: Sequence[_Product], vector: Var) -> _Shape | None:
    """The roles of the axes if `vector` carries the lanes; None if that does not work."""
    lanes = facts.lanes(f32)
    if not facts.is_static(vector) or facts.extent(vector) < lanes or vector.name in nest.ordered:
        return None
    layouts: dict[str, Layout] = {}
    packed: set[Var] = set()
    copies: dict[Term, Var] = {}
    for r, a, b in products:
        (k,) = r.axes
        weights, other = (a, b) if vector in a.free else (b, a)
        if weights.op != "load" or vector in other.free or other.dtype != i8:
            return None
        if not facts.is_static(k) or facts.extent(k) % GROUP:
            return None
        access = facts.access(weights.buffer, weights.indices, weights)
        layout = _grouped(facts, access, vector, k, lanes)
        if layout is None:
            return None
        if other.op != "load" or any(facts.stride(a, k) != 1 for a in facts.loads(other)):
            copies[other] = k
        layouts[weights.buffer] = layout
        packed |= access.axes
    for access in facts.loads(*nest.values):
        place = _dimension(access, vector)
        if (
            access.buffer in facts.free_layout
            and access.buffer not in layouts
            and place is not None
        ):
            layouts[access.buffer] = blocked(len(access.index), place, lanes, ())
    inner = tuple(dict.fromkeys(r.axes[0] for r, _, _ in products))
    outer = tuple(a for a in facts.bound(*nest.values) if a not in inner)
    rows = [a for a in nest.free if a not in packed and a is not vector]
    rows = [a for a in rows if a.name not in nest.ordered]
    return _Shape(vector, lanes, rows[-1] if rows else None, inner, outer, len(products), layouts,
                  tuple(copies.items()))  # fmt: skip


def _dimension(access: Access, axis: Var) -> int | None:
    """The one dimension that the axis walks through in steps of 1."""
    places = [d for d, e in enumerate(access.index) if axis in e.variables()]
    if len(places) != 1 or access.index[places[0]].coefficient(axis) != 1:
        return None
    return places[0]


def _grouped(facts: Facts, access: Access, vector: Var, k: Var, lanes: int) -> Layout | None:
    """The layout with 4 neighbours along `k` for each of `lanes` neighbours along `vector`."""
    row, column = _dimension(access, vector), _dimension(access, k)
    if row is None or column is None or row == column:
        return None
    middle = ((d, GROUP if d == column else 1) for d in range(len(access.index)) if d != row)
    wanted = ((row, lanes), *middle, (row, 1), (column, 1))
    free = access.buffer in facts.free_layout
    return wanted if free or facts.layout(access.buffer) == wanted else None


def _tiles(facts: Facts, shape: _Shape) -> list[tuple[int, int]]:
    """(rows, vectors) whose sums, in both dtypes, fit the registers, best first."""
    registers = facts.target.vector_registers
    most = facts.extent(shape.rows) if shape.rows is not None else 1
    found: list[tuple[float, int, int]] = []
    for rows in (1, 2, 3, 4, 6, 8):
        for vectors in (1, 2, 4):
            live = (2 if shape.outer else 1) * rows * vectors * shape.sums + vectors + 2
            fits = rows <= most and vectors * shape.lanes <= facts.extent(shape.vector)
            if fits and live <= registers:
                waste = -(-most // rows) * rows / most
                found.append((waste * (1 / rows + 1 / vectors), rows, vectors))
    return [(r, v) for _, r, v in sorted(found)[:4]] or [(1, 1)]


def _copy(facts: Facts, around: Sequence[Item], term: Term, k: Var, lanes: int) -> Stage:
    """A factor as bytes in local memory, four neighbours of the sum together."""
    layout = facts.local_layout(term, around, [(k, 1)])
    fixed = {*facts.kernel.dims(), k, *(a for a in term.free if facts.extent(a) == 1)}
    others = sorted(term.free - fixed, key=lambda a: a.name)
    regs = vector_regs(k, lanes, 2 if facts.extent(k) > lanes else 1)
    step = 2 * lanes if len(regs) > 1 else lanes
    nest = (*(Loop(a.name, 1) for a in others), Loop(k.name, step))
    return Stage(facts.subterm(term), nest, tuple(regs), layout)


def _build(facts: Facts, nest: Nest, shape: _Shape, rows: int, vectors: int, rank: int) -> Option:
    """Loops and registers for one tile."""
    tiled = (shape.vector, shape.rows)
    steps = [(a, 1) for a in nest.free if a not in tiled]
    steps.append((shape.vector, vectors * shape.lanes))
    if shape.rows is not None:
        steps.append((shape.rows, rows))
    grid, left = assign_grid(facts, nest, steps)
    items: list[Item] = [*grid, *serial_loops(facts, steps, left, frozenset(), shape.vector)]
    items += [_copy(facts, items, term, k, shape.lanes) for term, k in shape.copies]
    items += [Loop(a.name, 1) for a in shape.outer]
    items += [Loop(k.name, UNROLLED) for k in shape.inner if facts.extent(k) > UNROLLED]
    regs: list[Reg] = []
    for k in shape.inner:
        regs += [Reg(k.name, GROUP, "unroll"), Reg(k.name, 1, "dot")]
    if shape.rows is not None and rows > 1:
        regs.append(Reg(shape.rows.name, 1, "unroll"))
    regs += vector_regs(shape.vector, shape.lanes, vectors)
    return Option(tuple(items), tuple(regs), 0.5 + 0.01 * rank, shape.layouts)
