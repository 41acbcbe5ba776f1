"""Programs and helpers of the rewriting tests: random graphs, plans checked against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from luminal.frontend.tensor import Tensor, to_graph
from luminal.frontend.views import expand, flip, pad, permute, reshape, slice_, unfold
from luminal.ir.dtype import boolean, by_name, f32, i64
from luminal.ir.expr import Expr, ExprLike, Var, const, to_expr
from luminal.ir.graph import Edge, Graph, Output
from luminal.ir.interp import run_graph, run_plan
from luminal.ir.plan import Plan
from luminal.ir.target import Target
from luminal.ir.verify import verify_graph, verify_plan
from luminal.ir.view import View, axes_of
from luminal.rewrite import rewrite
from luminal.search.extract import extract
from tests.graph_builder import GraphBuilder

TARGET = Target(gflops=100.0, bandwidth_gbs=15.0, cores=2)
Spec = tuple[tuple[ExprLike, ...], str]


def plans_of(
    graph: Graph, hints: Mapping[str, int] | None = None, k: int = 4, numerics: str = "exact"
) -> list[Plan]:
    """The best k plans, each verified."""
    verify_graph(graph)
    plans = extract(rewrite(graph, numerics=numerics), TARGET, hints=dict(hints or {}), k=k)
    for plan in plans:
        verify_plan(plan)
    return plans


def check_graph(
    graph: Graph, feed: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None,
    tolerance: float = 2e-4, k: int = 4, numerics: str = "exact",
) -> list[Plan]:  # fmt: skip
    """Every plan computes what the graph does."""
    plans = plans_of(graph, dims, k, numerics)
    wanted = run_graph(graph, feed, dims)
    for plan in plans:
        for a, b in zip(wanted, run_plan(plan, feed, dims), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(
                b.astype(np.float64), a.astype(np.float64), rtol=tolerance, atol=tolerance
            )
    return plans


def graph_of(fn: Callable[..., Any], *specs: Spec) -> Graph:
    """The graph of a function of lazy inputs x0, x1, ... with these shapes and dtypes."""
    inputs = [Tensor.from_input(f"x{n}", s, by_name(d)) for n, (s, d) in enumerate(specs)]
    out = fn(*inputs)
    return to_graph(list(out) if isinstance(out, tuple | list) else [out], inputs)


def random_feed(
    graph: Graph, dims: Mapping[str, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Inputs of a graph; integers are small and never negative."""
    feed: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if node.op == "Input":
            shape = tuple(e.evaluate(dims) for e in node.shape)
            if node.dtype == boolean:
                feed[node.name] = rng.random(shape) > 0.4
            elif node.dtype.is_float:
                feed[node.name] = rng.standard_normal(shape).astype(node.dtype.np)
            else:
                feed[node.name] = rng.integers(0, 3, shape).astype(node.dtype.np)
    return feed


def check(
    fn: Callable[..., Any], *specs: Spec, dims: Mapping[str, int] | None = None,
    tolerance: float = 2e-4, numerics: str = "exact",
) -> list[Plan]:  # fmt: skip
    """`check_graph` for a function of lazy tensors on random inputs."""
    graph = graph_of(fn, *specs)
    feed = random_feed(graph, dims or {}, np.random.default_rng(0))
    return check_graph(graph, feed, dims, tolerance, numerics=numerics)


class RandomGraph:
    """Grows a random graph of all primitives and views from a seed."""

    def __init__(self, seed: int, size: int = 14, symbolic: bool = False):
        self.rng = np.random.default_rng(seed)
        self.symbol = to_expr(Var("n", 1, 8)) if symbolic else None
        self.g = GraphBuilder()
        self.floats = [self.g.input("a", self._shape(), f32), self.g.input("b", self._shape(), f32)]
        self.g.input("unused", (const(3),), f32)
        self.index = self.g.input("n", (const(3),), i64)
        for _ in range(size):
            self._step()

    def _shape(self) -> tuple[Expr, ...]:
        rank = int(self.rng.integers(1, 4))
        sizes = [const(int(n)) for n in self.rng.choice([1, 2, 3, 4, 6], rank)]
        if self.symbol is not None and self.rng.random() < 0.6:
            sizes[int(self.rng.integers(rank))] = self.symbol
        return tuple(sizes)

    def _pick(self) -> Edge:
        recent = self.floats[-6:]
        return recent[int(self.rng.integers(len(recent)))]

    def _axis(self, x: Edge) -> int:
        return int(self.rng.integers(len(x.view.shape)))

    def _step(self) -> None:
        kinds = [self._unary, self._binary, self._binary, self._reduce, self._view, self._view]
        kinds += [self._where, self._gather, self._scatter, self._broadcast, self._product]
        made = kinds[int(self.rng.integers(len(kinds)))]()
        if made is not None:
            self.floats.append(made)

    def _bounded(self, x: Edge) -> Edge:
        """x / (1 + x²): keeps numbers small and any division away from 0."""
        one = self._scalar(1.0, x)
        below = self.g.op("Add", (self.g.op("Mul", (x, x)), one))
        return self.g.op("Mul", (x, self.g.op("Recip", (below,))))

    def _scalar(self, value: float, like: Edge) -> Edge:
        return self.g.view(self.g.scalar(value, f32), View(like.view.shape, (), ()))

    def _unary(self) -> Edge:
        x = self._bounded(self._pick())
        op = str(self.rng.choice(["Exp2", "Sin", "Exp2"]))
        return self.g.op(op, (x,))

    def _binary(self) -> Edge:
        x, y = self._pick(), self._pick()
        if x.view.shape != y.view.shape:
            y = self._scalar(float(self.rng.choice([0.5, -1.0, 2.0])), x)
        return self.g.op(str(self.rng.choice(["Add", "Mul"])), (x, y))

    def _reduce(self) -> Edge | None:
        x = self._pick()
        if not x.view.shape:
            return None
        op = str(self.rng.choice(["SumReduce", "MaxReduce"]))
        out = self.g.reduce(op, x, self._axis(x))
        return out if out.view.shape else None

    def _broadcast(self) -> Edge:
        x = self._pick()
        new = (*(const(int(n)) for n in self.rng.choice([2, 3], 1)), *x.view.shape)
        return self.g.view(x, expand(x.view.shape, new)) if len(new) < 5 else x

    def _product(self) -> Edge:
        """A matrix product of two views of the same things."""
        x, y = self._pick(), self._pick()
        x, y = self._flat(x), self._flat(y)
        (k,), (n,) = x.view.shape, y.view.shape
        both = (n, k)
        axes = axes_of(both)
        left = self.g.view(x, View(both, (k,), (to_expr(axes[1]),)))
        right = self.g.view(y, View(both, (n,), (to_expr(axes[0]),)))
        return self.g.reduce("SumReduce", self.g.op("Mul", (left, right)), 1)

    def _flat(self, x: Edge) -> Edge:
        total = const(1)
        for e in x.view.shape:
            total = total * e
        return self.g.view(x, reshape(x.view.shape, (total,)))

    def _view(self) -> Edge:
        x = self._pick()
        shape, axis = x.view.shape, self._axis(x)
        size = shape[axis].value or 1
        kind = int(self.rng.integers(6))
        if kind == 0:
            order = tuple(int(p) for p in self.rng.permutation(len(shape)))
            return self.g.view(x, permute(shape, order))
        if kind == 1:
            start = int(self.rng.integers(size))
            return self.g.view(x, slice_(shape, axis, start, size - start))
        if kind == 2:
            fill = float(self.rng.choice([0.0, -1.0]))
            return self.g.view(x, pad(shape, axis, 1, int(self.rng.integers(2)), fill))
        if kind == 3:
            return self.g.view(x, flip(shape, axis))
        if kind == 4 and size >= 2 and len(shape) < 4:
            return self.g.view(x, unfold(shape, axis, 2, 1))
        return self._flat(x)

    def _where(self) -> Edge:
        """where(x < y, x, -1) as a gather from a stack."""
        x = self._pick()
        y = self._scalar(0.1, x)
        chosen = self.g.op("LessThan", (x, y))
        lead = (const(1), *x.view.shape)
        parts = [self.g.view(e, expand(x.view.shape, lead)) for e in (self._scalar(-1.0, x), x)]
        padded = [self.g.view(p, pad(lead, 0, n, 1 - n, -0.0)) for n, p in enumerate(parts)]
        stack = self.g.op("Add", tuple(padded))
        from_index = self.g.cast(self.g.view(chosen, expand(x.view.shape, lead)), i64)
        out = self.g.gather(stack, from_index, 0)
        return self.g.view(out, reshape(lead, x.view.shape))

    def _indexed(self, shape: tuple[Expr, ...], axis: int) -> tuple[Edge, tuple[Expr, ...]]:
        new = (*shape[:axis], const(3), *shape[axis + 1 :])
        at = to_expr(axes_of(new)[axis])
        return self.g.view(self.index, View(new, (const(3),), (at,))), new

    def _gather(self) -> Edge | None:
        x = self._pick()
        axis = self._axis(x)
        if (x.view.shape[axis].value or 0) < 3:
            return None
        index, _ = self._indexed(x.view.shape, axis)
        return self.g.gather(x, index, axis)

    def _scatter(self) -> Edge | None:
        x = self._pick()
        axis = self._axis(x)
        if (x.view.shape[axis].value or 0) < 3:
            return None
        index, new = self._indexed(x.view.shape, axis)
        source = self.g.op("Mul", (self.g.gather(x, index, axis), self._scalar(2.0, index)))
        return self.g.scatter(x, index, source, axis) if source.view.shape == new else None

    def finish(self) -> Graph:
        """The graph; its last values are the outputs, one of them twice and transposed."""
        last = self.floats[-3:]
        outputs = [Output(f"o{n}", e) for n, e in enumerate(last)]
        shape = last[-1].view.shape
        turned = self.g.view(last[-1], permute(shape, tuple(reversed(range(len(shape))))))
        return self.g.finish((*outputs, Output("turned", turned), Output("again", last[0])))
