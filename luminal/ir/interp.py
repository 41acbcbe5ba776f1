"""The NumPy oracle: runs graphs, plans and terms literally. Slow, simple, the reference.

In: a Graph or Plan, arrays by input name (bits as buffers hold them), sizes of the symbolic dims.
Out: arrays. Every backend and every rule is tested against this file; it must not be clever."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from luminal.errors import OutOfRangeError
from luminal.ir.dtype import DType, accumulator, boolean, i64
from luminal.ir.expr import Expr, Var
from luminal.ir.graph import ConstantData, Edge, Graph, Node
from luminal.ir.numeric import apply, cast, decode, encode, full, lowest, value_dtype
from luminal.ir.ops import PRIMITIVES
from luminal.ir.plan import Kernel, Plan
from luminal.ir.term import REDUCTIONS, Data, Term, data_atoms
from luminal.ir.view import axes_of

Sizes = Mapping[str, int]
Arrays = Mapping[str, np.ndarray]
Stack = list[tuple[str, np.ndarray]]


def _stack(axes: tuple[Var, ...], ranges: Iterable[np.ndarray]) -> Stack:
    return [(a.name, r) for a, r in zip(axes, ranges, strict=True)]


def _sizes(shape: Sequence[Expr], dims: Sizes) -> tuple[int, ...]:
    return tuple(max(0, e.evaluate(dims)) for e in shape)


def _grids(ranges: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every range along a dimension of its own."""
    rank = len(ranges)
    return [r.reshape([-1 if p == d else 1 for p in range(rank)]) for d, r in enumerate(ranges)]


def _read(source: np.ndarray, index: Sequence[np.ndarray]) -> np.ndarray:
    """source[index] with indices clipped into range: what is out of range must be masked later."""
    shape = np.broadcast_shapes(*(i.shape for i in index)) if index else ()
    if source.size == 0 and math.prod(shape):
        return np.zeros(shape, source.dtype)
    return source[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, source.shape, strict=True))]


def _write(target: np.ndarray, index: Sequence[np.ndarray], value: np.ndarray) -> None:
    """target[index] = value in row-major order: the last of duplicates wins."""
    flat = tuple(np.broadcast_to(i, value.shape).reshape(-1) for i in index)
    target[flat] = value.reshape(-1) if flat else value


def _check(index: np.ndarray, extent: int, where: np.ndarray) -> None:
    bad = ((index < 0) | (index >= extent)) & where
    if np.any(bad):
        first = np.broadcast_to(index, bad.shape)[bad].reshape(-1)[0]
        raise OutOfRangeError(f"[gather] index {first} is out of range for size {extent}.")


def _round(x: np.ndarray, dtype: DType) -> np.ndarray:
    return cast(x, accumulator(dtype), dtype)


def _sum(x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype == boolean:
        return np.any(x, axis=axes)
    total = np.sum(x, axis=axes, dtype=np.float64 if dtype.is_float else value_dtype(dtype))
    return _round(total.astype(value_dtype(dtype)), dtype)


def _max(x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
    return np.max(x, axis=axes, initial=lowest(dtype)) if dtype != boolean else np.any(x, axis=axes)


def run_graph(graph: Graph, inputs: Arrays, dims: Sizes | None = None) -> list[np.ndarray]:
    """The outputs of a graph, in order, as bits of their dtypes.

    `inputs` holds the bits of every Input node by name. OutOfRangeError on a bad index."""
    run = GraphRun(graph, inputs, dims or {})
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            run.values.append(run.node(node, [run.edge(e) for e in node.inputs]))
        return [encode(run.edge(o.edge), run.dtype(o.edge)) for o in graph.outputs]


class GraphRun:
    """A graph as it is evaluated: `values` of the nodes so far, as `numeric.decode` gives them."""

    def __init__(self, graph: Graph, inputs: Arrays, dims: Sizes) -> None:
        self.graph, self.inputs, self.dims = graph, inputs, dims
        self.values: list[np.ndarray] = []

    def dtype(self, edge: Edge) -> DType:
        return self.graph.nodes[edge.node].dtype

    def edge(self, edge: Edge) -> np.ndarray:
        view, source = edge.view, self.values[edge.node]
        if view.is_identity:
            return source
        sizes = _sizes(view.shape, self.dims)
        grids = _grids([np.arange(n) for n in sizes])
        env = {**self.dims, **{a.name: g for a, g in zip(axes_of(view.shape), grids, strict=True)}}
        out = _read(source, [np.asarray(e.evaluate(env)) for e in view.index])
        for e in view.valid:
            out = np.where(e.evaluate(env) >= 0, out, full(view.fill, self.dtype(edge)))
        return np.broadcast_to(out, sizes)

    def node(self, node: Node, args: list[np.ndarray]) -> np.ndarray:
        match node.op:
            case "Input":
                return decode(np.asarray(self.inputs[node.name]), node.dtype)
            case "Constant":
                if isinstance(node.value, ConstantData):
                    return decode(node.value.array, node.dtype)
                return full(node.value or 0, node.dtype)
            case "Iota":
                return cast(np.arange(_sizes(node.shape, self.dims)[0]), i64, node.dtype)
            case "Cast":
                return cast(args[0], self.dtype(node.inputs[0]), node.dtype)
            case "SumReduce":
                return _sum(args[0], (node.axis,), node.dtype)
            case "MaxReduce":
                return _max(args[0], (node.axis,), node.dtype)
            case "Gather" | "Scatter":
                source, index = args[0], args[1]
                _check(index, source.shape[node.axis], np.asarray(True))
                place = _grids([np.arange(n) for n in index.shape])
                place[node.axis] = index.astype(np.int64)
                if node.op == "Gather":
                    return _read(source, place)
                out = source.copy()
                _write(out, place, args[2])
                return out
        return apply(PRIMITIVES[node.op].term, self.dtype(node.inputs[0]), *args)


class _Terms:
    """Values of terms over a stack of axes: dimension p of every array is axis p of the stack.
    `mask` says where index data must be in range."""

    def __init__(
        self, buffers: Arrays, dims: Sizes, axes: Stack, mask: np.ndarray | None = None
    ) -> None:
        self.buffers, self.dims, self.axes = buffers, dims, axes
        self.mask = np.ones((1,) * len(axes), bool) if mask is None else mask
        grids = _grids([values for _, values in axes])
        self.env: dict[Any, Any] = {**dims, **{n: g for (n, _), g in zip(axes, grids, strict=True)}}
        self.memo: dict[tuple[Term, int], tuple[np.ndarray, np.ndarray]] = {}
        self.inner: dict[object, tuple[_Terms, np.ndarray]] = {}

    def expr(self, e: Expr, mask: np.ndarray) -> np.ndarray:
        return np.asarray(e.evaluate(self.env | {d: self.data(d, mask) for d in data_atoms(e)}))

    def data(self, atom: Data, mask: np.ndarray) -> np.ndarray:
        index = self.value(atom.term, mask).astype(np.int64)
        if atom.extent is not None:
            _check(index, int(self.expr(atom.extent, mask)), mask)
        return np.clip(index, atom.lo, atom.hi)

    def value(self, term: Term, mask: np.ndarray) -> np.ndarray:
        key = term, id(mask)
        if key not in self.memo:
            value = np.asarray(self._value(term, mask))
            self.memo[key] = value.reshape(value.shape or (1,) * mask.ndim), mask
        return self.memo[key][0]

    def _value(self, t: Term, mask: np.ndarray) -> np.ndarray:
        match t.op:
            case "const":
                return full(t.payload, t.dtype)
            case "index":
                return self.expr(t.expr, mask).astype(t.dtype.np)
            case "cond":
                return self.expr(t.expr, mask) >= 0
            case "load":
                return _read(self.buffers[t.buffer], [self.expr(e, mask) for e in t.indices])
            case "select":
                c = self.value(t.args[0], mask)
                yes, no = self.value(t.args[1], mask & c), self.value(t.args[2], mask & ~c)
                return np.where(c, yes, no)
            case "cast":
                return cast(self.value(t.args[0], mask), t.args[0].dtype, t.dtype)
        if t.op in REDUCTIONS:
            return self._reduce(t, mask)
        return apply(t.op, t.args[0].dtype, *(self.value(a, mask) for a in t.args))

    def _inside(self, axes: tuple[Var, ...], mask: np.ndarray) -> _Terms:
        """The evaluator inside a reduction over more axes; shared, so that values are too."""
        key = axes, id(mask)
        if key not in self.inner:
            sizes = _sizes([a.extent for a in axes], self.dims)
            stack = _stack(axes, map(np.arange, sizes))
            wide = mask.reshape(*mask.shape, *(1 for _ in axes))
            self.inner[key] = _Terms(self.buffers, self.dims, self.axes + stack, wide), mask
        return self.inner[key][0]

    def _reduce(self, t: Term, mask: np.ndarray) -> np.ndarray:
        inner, depth = self._inside(t.axes, mask), len(self.axes)
        sizes = tuple(len(values) for _, values in inner.axes[depth:])
        last = tuple(range(depth, len(inner.axes)))

        def whole(x: np.ndarray) -> np.ndarray:
            return np.broadcast_to(x, (*x.shape[:depth], *sizes))

        products = t.op in ("sum", "rsum") and t.dtype.is_float
        parts = _factors(t.args[-1]) if products else t.args[-1:]
        factors = [inner.value(f, inner.mask) for f in parts]
        match t.op:
            case "rsum":
                x = whole(inner.value(t.args[0], inner.mask))
                top = np.max(x, axis=last, keepdims=True, initial=np.finfo(x.dtype).min)
                scale = math.prod(inner.value(s, inner.mask) for s in t.args[1:-1])
                factors.append(np.exp2(scale * (x - top)))
            case "rmax":
                return _max(whole(factors[0]), last, t.dtype)
            case "wsum":
                x = whole(factors[0]).astype(np.float64)
                total = ((x - x.mean(axis=last, keepdims=True)) ** 2).sum(axis=last)
                return _round(total.astype(value_dtype(t.dtype)), t.dtype)
        if len(factors) == 1:
            return _sum(whole(factors[0]), last, t.dtype)
        return _round(_contract(factors, sizes).astype(value_dtype(t.dtype)), t.dtype)


def _contract(factors: list[np.ndarray], sizes: tuple[int, ...]) -> np.ndarray:
    """The sum of a product over the last axes, of these sizes, without forming the product."""
    shape = np.broadcast_shapes(*(x.shape for x in factors))
    depth = len(shape) - len(sizes)
    kept = [[d for d, n in enumerate(x.shape) if n != 1] for x in factors]
    small = [x.reshape([x.shape[d] for d in k]) for x, k in zip(factors, kept, strict=True)]
    operands: list[Any] = [part for pair in zip(small, kept, strict=True) for part in pair]
    out = [d for d in range(depth) if shape[d] != 1]
    total = np.einsum(*operands, out, optimize=True)
    unseen = math.prod(n for n, seen in zip(sizes, shape[depth:], strict=True) if seen == 1)
    return np.asarray(total * unseen).reshape(shape[:depth])


def _factors(term: Term) -> tuple[Term, ...]:
    if term.op != "mul" or accumulator(term.dtype) != term.dtype:
        return (term,)
    return _factors(term.args[0]) + _factors(term.args[1])


def eval_term(
    term: Term, axes: tuple[Var, ...], buffers: Arrays, dims: Sizes | None = None
) -> np.ndarray:
    """Values of a term for every point of `axes`; `buffers` hold decoded values."""
    sizes = _sizes([a.extent for a in axes], dims or {})
    terms = _Terms(buffers, dims or {}, _stack(axes, map(np.arange, sizes)))
    with np.errstate(all="ignore"):
        return np.broadcast_to(terms.value(term, terms.mask), sizes)


@dataclass(frozen=True, slots=True)
class Points:
    """Sampled results: `value[p]` belongs at `buffer[index[0][p], ...]`; all are broadcast."""

    buffer: str
    index: tuple[np.ndarray, ...]
    value: np.ndarray


def _stored(kernel: Kernel, buffers: Arrays, dims: Sizes, ranges: list[np.ndarray]) -> list[Points]:
    """What a kernel stores for these ranges of its axes."""
    terms, points = _Terms(buffers, dims, _stack(kernel.axes, ranges)), list[Points]()
    whole = partial(np.broadcast_to, shape=tuple(map(len, ranges)))
    with np.errstate(all="ignore"):
        for s in kernel.stores:
            index = tuple(whole(terms.expr(e, terms.mask)) for e in s.index)
            points.append(Points(s.buffer, index, whole(terms.value(s.value, terms.mask))))
    return points


def sample_kernel(
    kernel: Kernel, buffers: Arrays, dims: Sizes, rng: np.random.Generator, budget: int = 4096
) -> list[Points]:
    """What a kernel stores at some points of its axes: both ends and random values of each."""
    sizes = _sizes([a.extent for a in kernel.axes], dims)
    count = max(3, int(budget ** (1 / max(1, sum(n > 1 for n in sizes)))))
    chosen = [np.arange(n) if n <= count else np.unique(
        np.concatenate(([0, n - 1], rng.integers(0, n, count - 2)))) for n in sizes]  # fmt: skip
    return _stored(kernel, buffers, dims, chosen)


def run_kernel(kernel: Kernel, buffers: dict[str, np.ndarray], dims: Sizes) -> None:
    """Runs one kernel on decoded value arrays, in place."""
    ranges = [np.arange(n) for n in _sizes([a.extent for a in kernel.axes], dims)]
    order = [p for p, a in enumerate(kernel.axes) if a.name in kernel.ordered]
    order += [p for p in range(len(ranges)) if p not in order]
    for points in _stored(kernel, buffers, dims, ranges):
        index = [i.transpose(order) for i in points.index]
        _write(buffers[points.buffer], index, points.value.transpose(order))


def run_plan(plan: Plan, inputs: Arrays, dims: Sizes | None = None) -> list[np.ndarray]:
    """The outputs of a plan (schedules and layouts do not matter here). Inputs stay unchanged."""
    dims = dims or {}
    values: dict[str, np.ndarray] = {}
    for b in plan.buffers:
        if b.kind == "constant" and b.data is not None:
            values[b.name] = decode(b.data.array, b.dtype)
        elif b.kind == "input":
            values[b.name] = decode(np.asarray(inputs[b.name]), b.dtype).copy()
        elif not b.alias:
            values[b.name] = np.zeros(_sizes(b.shape, dims), value_dtype(b.dtype))
    for b in plan.buffers:
        root = b
        while root.alias:
            root = plan.buffer(root.alias)
        values[b.name] = values[root.name]
    for kernel in plan.kernels:
        run_kernel(kernel, values, dims)
    return [encode(values[name], plan.buffer(name).dtype) for name in plan.outputs]
