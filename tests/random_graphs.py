"""Random small graphs over all primitives and views, as text.

In: a function that picks integers (hypothesis or a seeded generator). Out: a `Case`. Floats that
feed a comparison, a remainder or a conversion to integers are small multiples of powers of two, so
that no rounding can turn them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luminal.frontend import views as views
from luminal.ir.dtype import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from luminal.ir.expr import Expr, Var, const, prod, to_expr
from luminal.ir.graph import ConstantData, Edge, Graph, Output
from luminal.ir.text import graph_text
from luminal.ir.view import Shape, identity
from tests.graph_builder import GraphBuilder
from tests.random_cases import Case, Pick
from tests.random_views import ViewDraw

__all__ = ["Draw", "random_case"]

MANTISSA = {f64: 52, f32: 23, f16: 10, bf16: 7}
LIMIT = 3000
FLOATS = (f32, f32, f32, f32, f16, bf16, f64)
ALL_DTYPES = (*dict.fromkeys(FLOATS), i32, i64, i8, u8, i16, boolean)


@dataclass(frozen=True)
class Draw:
    """An edge that later steps may use. Exact values are multiples of 2**grain below 2**top."""

    edge: Edge
    dtype: DType
    exact: bool = True
    grain: int = 0
    top: int = 4

    @property
    def shape(self) -> Shape:
        """The shape of the edge."""
        return self.edge.view.shape


class Builder(ViewDraw):
    """Draws one graph step by step."""

    def __init__(self, pick: Pick):
        self.pick = pick
        self.g = GraphBuilder()
        top = self.one_of((70, 1 << 20))
        self.n, self.m = Var("n", self.one_of((0, 1)), top), Var("m", 2, self.one_of((40, 4096)))
        self.pool: list[Draw] = []
        self.names = 0
        self.special = pick(0, 3) == 3

    def one_of(self, options: Any) -> Any:
        """One of a sequence; the first is the simplest."""
        return options[self.pick(0, len(options) - 1)]

    def size(self) -> Expr:
        """A dimension."""
        return to_expr(self.one_of((3, 2, 1, 5, 8, 17, 0, 33, self.n, self.m)))

    def shape(self, rank: int | None = None) -> Shape:
        """A shape that is not too large."""
        rank = self.one_of((1, 2, 2, 3, 0, 4)) if rank is None else rank
        dims: list[Expr] = []
        for _ in range(rank):
            size = self.size()
            dims.append(size if self.small((*dims, size)) else const(2))
        return tuple(dims)

    def small(self, shape: Shape) -> bool:
        """True if a tensor of this shape is small for every value of the dims."""
        return prod(shape).evaluate({"n": 33, "m": 17}) <= LIMIT

    def name(self, prefix: str) -> str:
        """A fresh name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def leaf(self, shape: Shape, dtype: DType) -> Draw:
        """An input or a constant."""
        kind = self.pick(0, 7)
        fixed = all(d.value is not None for d in shape)
        fresh = Draw(Edge(0, identity(())), dtype, grain=-2 if dtype.is_float else 0, top=2)
        if kind == 7 and fixed:
            sizes = tuple(d.value or 0 for d in shape)
            data = ConstantData(self.name("c"), np.zeros(sizes, dtype.np))
            return replace(fresh, edge=self.g.tensor(data, shape, dtype))
        if kind >= 5:
            return self.scalar(shape, dtype)
        special = self.special and dtype.is_float and kind >= 2
        name = self.name("special" if special else "x")
        return replace(fresh, edge=self.g.input(name, shape, dtype))

    def scalar(self, shape: Shape, dtype: DType, options: tuple = (2, 1, 0, 3, -1)) -> Draw:
        """A scalar seen as a tensor of `shape`."""
        value = self.one_of(options)
        if dtype.is_float:
            value = float(value) * self.one_of((1.0, 0.5))
        elif dtype == boolean:
            value = bool(value)
        elif dtype.kind == "u":
            value = abs(value)
        edge = self.g.scalar(value, dtype)
        wide = self.g.view(edge, views.expand((), shape))
        return Draw(wide, dtype, True, -1 if dtype.is_float else 0, 2)

    def any_draw(self, wanted: Callable[[Draw], bool] = lambda d: True) -> Draw | None:
        """One of the pool, more often a late one."""
        fitting = [d for d in self.pool if wanted(d)]
        if not fitting:
            return None
        place = min(self.pick(0, len(fitting) - 1), self.pick(0, len(fitting) - 1))
        return fitting[len(fitting) - 1 - place]

    def partner(self, x: Draw) -> Draw:
        """Another operand of x's dtype and shape."""

        def fits(d: Draw) -> bool:
            if d.dtype != x.dtype or len(d.shape) > len(x.shape):
                return False
            tail = x.shape[len(x.shape) - len(d.shape) :]
            return all(a == b or a.value == 1 for a, b in zip(d.shape, tail, strict=True))

        if self.pick(0, 3):
            found = self.any_draw(fits)
            if found is not None:
                return replace(
                    found, edge=self.g.view(found.edge, views.expand(found.shape, x.shape))
                )
        shape = list(x.shape)
        if shape and self.pick(0, 1):
            shape[self.pick(0, len(shape) - 1)] = const(1)
        leaf = self.leaf(tuple(shape), x.dtype)
        return replace(leaf, edge=self.g.view(leaf.edge, views.expand(leaf.shape, x.shape)))

    def push(self, draw: Draw) -> None:
        """Keeps an edge if it is small."""
        limit = 22 if draw.dtype.is_int else MANTISSA.get(draw.dtype, 99)
        if draw.dtype.is_float and draw.top - draw.grain > limit:
            draw = replace(draw, exact=False)
        if self.small(draw.shape):
            self.pool.append(draw)

    # Steps.

    def step(self) -> None:
        """One more node or view."""
        x = self.any_draw()
        steps = (self.binary, self.view, self.unary, self.reduce, self.binary, self.contract,
                 self.view, self.cast, self.softmax, self.gather, self.scatter, self.compare,
                 self.iota, self.leaf_step, self.variance, self.choose, self.mod)  # fmt: skip
        self.one_of(steps)(x)

    def leaf_step(self, x: Draw) -> None:
        self.push(self.leaf(self.shape(), self.one_of((f32, *ALL_DTYPES))))

    def unary(self, x: Draw) -> None:
        if not x.dtype.is_float:
            return
        op = self.one_of(("Exp2", "Sqrt", "Sin", "Log2", "Recip"))
        edge = x.edge
        if op == "Recip":  # no zero whose sign rounding or order could change
            offset = self.g.view(self.g.scalar(0.3, x.dtype), views.expand((), x.shape))
            edge = self.g.op("Add", (edge, offset))
        self.push(Draw(self.g.op(op, (edge,)), x.dtype, False))

    def binary(self, x: Draw) -> None:
        y = self.partner(x)
        op = self.one_of(("Add", "Mul"))
        made = self.g.op(op, (x.edge, y.edge) if self.pick(0, 1) else (y.edge, x.edge))
        grain = min(x.grain, y.grain) if op == "Add" else x.grain + y.grain
        top = max(x.top, y.top) + 1 if op == "Add" else x.top + y.top
        self.push(Draw(made, x.dtype, x.exact and y.exact, grain, top))

    def compare(self, x: Draw) -> None:
        y = self.partner(x)
        if x.exact and y.exact:
            self.push(Draw(self.g.op("LessThan", (x.edge, y.edge)), boolean, True, 0, 1))

    def mod(self, x: Draw) -> None:
        y = self.partner(x) if x.dtype != boolean else x
        if x.exact and y.exact and x.dtype != boolean:
            grain, top = min(x.grain, y.grain), max(x.top, y.top)
            self.push(Draw(self.g.op("Mod", (x.edge, y.edge)), x.dtype, True, grain, top))

    def reduce(self, x: Draw) -> None:
        if not x.shape:
            return
        axis = self.pick(0, len(x.shape) - 1)
        op = self.one_of(("SumReduce", "MaxReduce"))
        bits = 6 if op == "SumReduce" else 0
        self.push(Draw(self.g.reduce(op, x.edge, axis), x.dtype, x.exact, x.grain, x.top + bits))

    def contract(self, x: Draw) -> None:
        """Σ_k a[i, k] b[k, j]."""
        if len(x.shape) != 2 or x.dtype == boolean:
            return
        rows, inner = x.shape
        y = self.any_draw(
            lambda d: d.dtype == x.dtype and len(d.shape) == 2 and d.shape[0] == inner
        )
        y = y or self.leaf((inner, self.size()), x.dtype)
        full = (rows, inner, y.shape[1])
        if prod(full).evaluate({"n": 33, "m": 17}) > 40000:
            return
        left = self.g.view(x.edge, views.expand((rows, inner), (rows, inner)))
        left = self.g.view(left, views.reshape((rows, inner), (rows, inner, const(1))))
        left = self.g.view(left, views.expand((rows, inner, const(1)), full))
        right = self.g.view(y.edge, views.expand(y.shape, full))
        product = self.g.op("Mul", (left, right))
        made = self.g.reduce("SumReduce", product, 1)
        self.push(Draw(made, x.dtype, x.exact and y.exact, x.grain + y.grain, x.top + y.top + 6))

    def softmax(self, x: Draw) -> None:
        """exp2(x - max x) over an axis, perhaps divided by its sum."""
        if not x.shape or not x.dtype.is_float:
            return
        axis = self.pick(0, len(x.shape) - 1)
        ones = x.shape[:axis] + (const(1),) + x.shape[axis + 1 :]

        def back(edge: Edge) -> Edge:
            shape = edge.view.shape
            return self.g.view(
                self.g.view(edge, views.reshape(shape, ones)), views.expand(ones, x.shape)
            )

        minus = self.g.view(self.g.scalar(-1.0, x.dtype), views.expand((), x.shape))
        top = back(self.g.reduce("MaxReduce", x.edge, axis))
        power = self.g.op("Exp2", (self.g.op("Add", (x.edge, self.g.op("Mul", (top, minus)))),))
        total = self.g.reduce("SumReduce", power, axis)
        if self.pick(0, 1):
            self.push(Draw(total, x.dtype, False))
        inverse = back(self.g.op("Recip", (total,)))
        self.push(Draw(self.g.op("Mul", (power, inverse)), x.dtype, False))

    def variance(self, x: Draw) -> None:
        """Σ (x - Σ x / n)² over a fixed axis."""
        fixed = [a for a, d in enumerate(x.shape) if d.value]
        if not fixed or not x.dtype.is_float:
            return
        axis = self.one_of(fixed)
        ones = x.shape[:axis] + (const(1),) + x.shape[axis + 1 :]
        count = x.shape[axis].value or 1
        total = self.g.reduce("SumReduce", x.edge, axis)
        scale = self.g.view(
            self.g.scalar(-1.0 / count, x.dtype), views.expand((), total.view.shape)
        )
        mean = self.g.op("Mul", (total, scale))
        wide = self.g.view(self.g.view(mean, views.reshape(mean.view.shape, ones)),
                           views.expand(ones, x.shape))  # fmt: skip
        centred = self.g.op("Add", (x.edge, wide))
        square = self.g.op("Mul", (centred, centred))
        self.push(Draw(self.g.reduce("SumReduce", square, axis), x.dtype, False))
        self.push(Draw(centred, x.dtype, False))

    def choose(self, x: Draw) -> None:
        """where(c, a, b) as frontends spell it: a gather along a new axis of a stack."""
        c = self.any_draw(lambda d: d.dtype == boolean)
        if c is None:
            return
        a = self.partner(replace(c, dtype=x.dtype))
        b = self.partner(replace(c, dtype=x.dtype))
        fill = -0.0 if x.dtype.is_float else False if x.dtype == boolean else 0
        lead = (const(1), *c.shape)
        first, second = (
            self.g.view(self.g.view(e.edge, views.reshape(c.shape, lead)),
                        views.pad(lead, 0, p, 1 - p, fill))
            for p, e in enumerate((b, a))
        )  # fmt: skip
        stack = self.g.op("Add", (first, second))
        index = self.g.view(self.g.cast(c.edge, i32), views.reshape(c.shape, lead))
        made = self.g.gather(stack, index, 0)
        out = self.g.view(made, views.reshape(lead, c.shape))
        self.push(Draw(out, x.dtype, a.exact and b.exact, min(a.grain, b.grain), max(a.top, b.top)))

    def cast(self, x: Draw) -> None:
        to = self.one_of((f32, *ALL_DTYPES))
        if not to.is_float and not x.exact:
            return
        if to.is_int and x.grain < 0 and x.dtype.is_float:
            return self.push(Draw(self.g.cast(x.edge, to), to, True, 0, x.top))
        self.push(Draw(self.g.cast(x.edge, to), to, x.exact, x.grain, x.top))

    def iota(self, x: Draw) -> None:
        size = self.size()
        dtype = self.one_of((i64, i32, f32, f16, bf16))
        self.push(Draw(self.g.iota(size, dtype), dtype, True, 0, 7))

    def index(self, shape: Shape) -> Edge:
        """Input indices."""
        return self.g.input(self.name("index"), shape, self.one_of((i64, i32)))

    def gather(self, x: Draw) -> None:
        if not x.shape:
            return
        axis = self.pick(0, len(x.shape) - 1)
        shape = (*x.shape[:axis], self.size(), *x.shape[axis + 1 :])
        if x.shape[axis].lo == 0 or not self.small(shape):
            return
        flat = self.pick(0, 1)
        index = self.index((shape[axis],) if flat else shape)
        if flat:
            ones = tuple(d if p == axis else const(1) for p, d in enumerate(shape))
            index = self.g.view(self.g.view(index, views.reshape((shape[axis],), ones)),
                                views.expand(ones, shape))  # fmt: skip
        self.push(replace(x, edge=self.g.gather(x.edge, index, axis)))

    def scatter(self, x: Draw) -> None:
        if not x.shape:
            return
        axis = self.pick(0, len(x.shape) - 1)
        shape = (*x.shape[:axis], self.size(), *x.shape[axis + 1 :])
        if x.shape[axis].lo == 0 or not self.small(shape):
            return
        index = self.index(shape)
        src = self.partner(replace(x, edge=index))
        made = self.g.scatter(x.edge, index, src.edge, axis)
        self.push(replace(x, edge=made, exact=x.exact and src.exact, grain=min(x.grain, src.grain),
                          top=max(x.top, src.top)))  # fmt: skip

    def view(self, x: Draw) -> None:
        """One more view of x."""
        view = self.random_view(x.shape, x.dtype)
        if view is not None and self.small(view.shape):
            self.push(replace(x, edge=self.g.view(x.edge, view)))


def random_case(pick: Pick, steps: int = 8) -> Case:
    """A random graph of about so many steps."""
    b = Builder(pick)
    for _ in range(1 + pick(0, 2)):
        b.push(b.leaf(b.shape(), b.one_of(FLOATS) if pick(0, 3) else b.one_of(ALL_DTYPES)))
    if not b.pool:
        b.push(b.leaf((const(3),), f32))
    for _ in range(1 + pick(0, steps)):
        b.step()
    outputs = [Output("y0", b.pool[-1].edge)]
    for number in range(1, 1 + pick(0, 2)):
        draw = b.any_draw()
        outputs.append(Output(f"y{number}", draw.edge if draw else b.pool[-1].edge))
    outputs += _updates(b, outputs)
    graph = b.g.finish(tuple(outputs))
    used = {v for node in graph.nodes for d in node.shape for v in d.variables()}
    used |= {v for e in _edges(graph) for d in e.view.shape for v in d.variables()}
    graph = replace(graph, dims=tuple(sorted(used, key=lambda v: v.name)))
    runs = []
    for _ in range(2 if used else 1):
        sizes = {"n": max(b.n.lo, b.one_of((3, 1, 33, 16, 0, 7))), "m": b.one_of((3, 17, 2, 16))}
        runs.append(tuple((v.name, sizes[v.name]) for v in graph.dims))
    wild = pick(0, 9) == 9
    return Case(graph_text(graph), tuple(dict.fromkeys(runs)), pick(0, 99), wild)


def _edges(graph: Graph) -> list[Edge]:
    return [e for n in graph.nodes for e in n.inputs] + [o.edge for o in graph.outputs]


def _updates(b: Builder, outputs: list[Output]) -> list[Output]:
    """Perhaps one output that overwrites an input."""
    if b.pick(0, 3) != 3:
        return []
    shown = {o.edge.node for o in outputs}
    for number, node in enumerate(b.g.nodes):
        if node.op != "Input" or number in shown or node.name.startswith("index"):
            continue
        for d in reversed(b.pool):
            same = d.dtype == node.dtype and d.shape == node.shape and d.edge.node != number
            if same and node.shape:
                return [Output("updated", d.edge, node.name)]
    return []
