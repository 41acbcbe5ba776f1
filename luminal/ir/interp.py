"""The NumPy oracle: runs graphs, plans and terms literally. Slow, simple, the reference.

In: a Graph or Plan, arrays by input name (bits as buffers hold them), sizes of the symbolic dims.
Out: arrays. Every backend and every rule is tested against this file; it must not be clever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from luminal.errors import InternalError, OutOfRangeError
from luminal.ir.dtype import DType, accumulator, boolean, i64
from luminal.ir.expr import Atom, Div, Expr, MaxOf, MinOf, Mod, Var
from luminal.ir.graph import ConstantData, Edge, Graph, Node
from luminal.ir.numeric import apply, cast, decode, encode, full, lowest, value_dtype
from luminal.ir.plan import Kernel, Plan
from luminal.ir.term import Data, Term
from luminal.ir.view import axes_of

__all__ = [
    "Points", "eval_expr", "eval_term", "run_graph", "run_kernel", "run_plan", "sample_kernel",
]  # fmt: skip

CHUNK = 1 << 24
_OPS = {"Log2": "log2", "Exp2": "exp2", "Sin": "sin", "Sqrt": "sqrt", "Recip": "recip",
        "Add": "add", "Mul": "mul", "Mod": "mod", "LessThan": "lt"}  # fmt: skip
Env = Mapping[str, "np.ndarray | int"]


def eval_expr(e: Expr, env: Env, data: Callable[[Data], np.ndarray] | None = None) -> np.ndarray:
    """An integer expression with variables bound to integers or integer arrays."""

    def atom(a: Atom) -> np.ndarray | int:
        match a:
            case Var():
                return env[a.name]
            case Div():
                return eval_expr(a.a, env, data) // eval_expr(a.b, env, data)
            case Mod():
                return eval_expr(a.a, env, data) % eval_expr(a.b, env, data)
            case MinOf():
                return np.minimum(eval_expr(a.a, env, data), eval_expr(a.b, env, data))
            case MaxOf():
                return np.maximum(eval_expr(a.a, env, data), eval_expr(a.b, env, data))
            case Data() if data is not None:
                return data(a)
        raise InternalError(f"[interp] cannot evaluate {a!r} here.")

    total = np.asarray(0, np.int64)
    for monomial, coef in e.terms:
        value = np.asarray(coef, np.int64)
        for a in monomial:
            value = value * atom(a)
        total = total + value
    return total


def _sizes(shape: tuple[Expr, ...], dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(max(0, e.evaluate(dims)) for e in shape)


def _grids(sizes: tuple[int, ...]) -> list[np.ndarray]:
    rank = len(sizes)
    return [
        np.arange(n).reshape([-1 if p == d else 1 for p in range(rank)])
        for d, n in enumerate(sizes)
    ]


def _read(source: np.ndarray, index: list[np.ndarray]) -> np.ndarray:
    """source[index] with indices clipped into range: what is out of range must be masked later."""
    shape = np.broadcast_shapes(*(i.shape for i in index)) if index else ()
    if source.size == 0 and math.prod(shape):
        return np.zeros(shape, source.dtype)
    return source[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, source.shape, strict=True))]


def run_graph(
    graph: Graph, inputs: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The outputs of a graph, in order, as bits of their dtypes.

    `inputs` holds the bits of every Input node by name. OutOfRangeError on a bad index.
    """
    dims = dims or {}
    values: list[np.ndarray] = []
    for node in graph.nodes:
        args = [_edge(values, e, graph, dims) for e in node.inputs]
        values.append(_node(node, args, inputs, dims, graph))
    return [
        encode(_edge(values, o.edge, graph, dims), graph.nodes[o.edge.node].dtype)
        for o in graph.outputs
    ]


def _edge(
    values: list[np.ndarray], edge: Edge, graph: Graph, dims: Mapping[str, int]
) -> np.ndarray:
    view, source = edge.view, values[edge.node]
    if view.is_identity:
        return source
    sizes = _sizes(view.shape, dims)
    names = [a.name for a in axes_of(view.shape)]
    env = {**dims, **dict(zip(names, _grids(sizes), strict=True))}
    out = _read(source, [eval_expr(e, env) for e in view.index])
    for e in view.valid:
        keep = eval_expr(e, env) >= 0
        out = np.where(keep, out, full(view.fill, graph.nodes[edge.node].dtype))
    return np.broadcast_to(out, sizes)


def _node(
    node: Node, args: list[np.ndarray], inputs: Mapping[str, np.ndarray], dims: Mapping[str, int],
    graph: Graph,
) -> np.ndarray:  # fmt: skip
    sizes = _sizes(node.shape, dims)
    match node.op:
        case "Input":
            return decode(np.asarray(inputs[node.name]), node.dtype)
        case "Constant":
            if isinstance(node.value, ConstantData):
                return decode(node.value.array, node.dtype)
            return full(node.value or 0, node.dtype)
        case "Iota":
            return cast(np.arange(sizes[0]), i64, node.dtype)
        case "Cast":
            return cast(args[0], graph.nodes[node.inputs[0].node].dtype, node.dtype)
        case "SumReduce":
            return _sum(args[0], (node.axis,), node.dtype)
        case "MaxReduce":
            return _max(args[0], (node.axis,), node.dtype)
        case "Gather":
            return _gather(args[0], args[1], node.axis)
        case "Scatter":
            return _scatter(args[0], args[1], args[2], node.axis)
    dtype = graph.nodes[node.inputs[0].node].dtype
    return apply(_OPS[node.op], dtype, *args)


def _round(x: np.ndarray, dtype: DType) -> np.ndarray:
    return cast(x, accumulator(dtype), dtype) if accumulator(dtype) != dtype else x


def _sum(x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype == boolean:
        return np.any(x, axis=axes)
    wide = np.float64 if dtype.is_float else value_dtype(dtype)
    with np.errstate(all="ignore"):
        total = np.sum(x, axis=axes, dtype=wide).astype(value_dtype(dtype))
    return _round(total, dtype)


def _max(x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
    return np.max(x, axis=axes, initial=lowest(dtype)) if dtype != boolean else np.any(x, axis=axes)


def _check(index: np.ndarray, extent: int, where: np.ndarray | bool = True) -> None:
    bad = ((index < 0) | (index >= extent)) & where
    if np.any(bad):
        first = np.broadcast_to(index, bad.shape)[bad].reshape(-1)[0]
        raise OutOfRangeError(f"[gather] index {first} is out of range for size {extent}.")


def _gather(source: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    _check(index, source.shape[axis])
    grid = list(_grids(index.shape))
    grid[axis] = index.astype(np.int64)
    return _read(source, grid)


def _scatter(dest: np.ndarray, index: np.ndarray, source: np.ndarray, axis: int) -> np.ndarray:
    _check(index, dest.shape[axis])
    out = dest.copy()
    grid = list(_grids(index.shape))
    for position in range(index.shape[axis]):  # in index order: the last of duplicates wins
        at = [slice(None)] * index.ndim
        at[axis] = slice(position, position + 1)
        where = [g[tuple(at)] if g.shape[axis] > 1 else g for g in grid]
        where[axis] = index[tuple(at)].astype(np.int64)
        out[tuple(where)] = source[tuple(at)]
    return out


class _Terms:
    """Evaluates terms over a stack of axes; dimension p of every array is axis p of the stack."""

    def __init__(self, buffers: Mapping[str, np.ndarray], dims: Mapping[str, int]) -> None:
        self.buffers, self.dims = buffers, dims
        self.axes: list[tuple[str, np.ndarray]] = []
        self.mask: np.ndarray | bool = True
        self.memo: dict[tuple[Term, tuple[str, ...], int], np.ndarray] = {}
        self.keep: list[object] = []

    def env(self) -> dict[str, np.ndarray | int]:
        rank = len(self.axes)
        grid = {
            name: values.reshape([-1 if p == d else 1 for p in range(rank)])
            for d, (name, values) in enumerate(self.axes)
        }
        return {**self.dims, **grid}

    def value(self, term: Term) -> np.ndarray:
        key = (term, tuple(n for n, _ in self.axes), id(self.mask))
        if key not in self.memo:
            self.keep.append(self.mask)
            self.memo[key] = self._value(term)
        return self.memo[key]

    def expr(self, e: Expr) -> np.ndarray:
        return eval_expr(e, self.env(), self._data)

    def _data(self, atom: Data) -> np.ndarray:
        index = self.value(atom.term).astype(np.int64)
        if atom.extent is not None:
            _check(index, int(self.expr(atom.extent)), self.mask)
        return np.clip(index, atom.lo, atom.hi)

    def _value(self, t: Term) -> np.ndarray:
        match t.op:
            case "const":
                return full(t.value, t.dtype)  # type: ignore[arg-type]
            case "index":
                return self.expr(t.expr).astype(t.dtype.np)
            case "cond":
                return self.expr(t.expr) >= 0
            case "load":
                return _read(self.buffers[t.buffer], [self.expr(e) for e in t.indices])
            case "select":
                return self._select(*t.args)
            case "cast":
                return cast(self.value(t.args[0]), t.args[0].dtype, t.dtype)
            case "not":
                return ~self.value(t.args[0])
            case "and":
                return self.value(t.args[0]) & self.value(t.args[1])
            case "or":
                return self.value(t.args[0]) | self.value(t.args[1])
            case "sum" | "rmax" | "rsum" | "wsum":
                return self._reduce(t)
        return apply(t.op, t.args[0].dtype, *(self.value(a) for a in t.args))

    def _select(self, condition: Term, if_true: Term, if_false: Term) -> np.ndarray:
        outer, c = self.mask, self.value(condition)
        self.mask = outer & c
        a = self.value(if_true)
        self.mask = outer & ~c
        b = self.value(if_false)
        self.mask = outer
        return np.where(c, a, b)

    def _reduce(self, t: Term) -> np.ndarray:
        depth, count = len(self.axes), len(t.axes)
        for axis in t.axes:
            self.axes.append((axis.name, np.arange(max(0, axis.extent.evaluate(self.dims)))))
        sizes = tuple(len(v) for _, v in self.axes[depth:])
        outer = self.mask
        if isinstance(outer, np.ndarray) and outer.ndim:
            self.mask = outer.reshape(*outer.shape, *[1] * count)
        contracted = self._contract(t, depth) if t.dtype.is_float else None
        if contracted is not None:
            del self.axes[depth:]
            self.mask = outer
            return contracted
        args = [self._full_rank(self.value(a), depth, sizes) for a in t.args]
        del self.axes[depth:]
        self.mask = outer
        last = tuple(range(depth, depth + count))
        match t.op:
            case "sum":
                return _sum(args[0], last, t.dtype)
            case "rmax":
                return _max(args[0], last, t.dtype)
            case "rsum":
                x, v = args
                top = np.maximum(_max(x, last, t.dtype), np.finfo(x.dtype).min)
                with np.errstate(all="ignore"):
                    return _sum(
                        np.exp2(x - top.reshape(*top.shape, *[1] * count)) * v, last, t.dtype
                    )
        with np.errstate(all="ignore"):
            x = args[0].astype(np.float64)
            mean = x.mean(axis=last, keepdims=True)
            return _round(((x - mean) ** 2).sum(axis=last).astype(value_dtype(t.dtype)), t.dtype)

    def _contract(self, t: Term, depth: int) -> np.ndarray | None:
        """A sum of products, or Σ exp2(x - max x)·v, without forming the product."""
        factors = product_factors(t.args[-1]) if t.op in ("sum", "rsum") else ()
        arrays = [self.value(f) for f in factors]
        if t.op == "rsum":
            last = tuple(range(depth, len(self.axes)))
            sizes = tuple(len(v) for _, v in self.axes[depth:])
            x = self._full_rank(self.value(t.args[0]), depth, sizes)
            top = np.maximum(np.max(x, axis=last, keepdims=True, initial=-np.inf),
                             np.finfo(x.dtype).min)  # fmt: skip
            with np.errstate(all="ignore"):
                arrays.append(np.exp2(x - top))
        if len(arrays) < 2:
            return None
        rank = len(self.axes)
        operands: list[object] = []
        for array in arrays:
            full_rank = array.reshape(
                array.shape + (1,) * (rank - array.ndim if array.ndim else rank)
            )
            kept = [d for d in range(rank) if full_rank.shape[d] != 1]
            operands += [full_rank.reshape([full_rank.shape[d] for d in kept]), kept]
        present = {d for places in operands[1::2] for d in places}  # type: ignore[attr-defined]
        out = [d for d in range(depth) if d in present]
        with np.errstate(all="ignore"):
            total = np.einsum(*operands, out, optimize=True)  # type: ignore[call-overload]
        for d in range(depth, rank):
            if d not in present:
                total = total * len(self.axes[d][1])
        shape = [len(self.axes[d][1]) if d in present else 1 for d in range(depth)]
        return _round(np.asarray(total, value_dtype(t.dtype)).reshape(shape), t.dtype)

    def _full_rank(self, x: np.ndarray, depth: int, sizes: tuple[int, ...]) -> np.ndarray:
        rank = depth + len(sizes)
        x = x.reshape((1,) * (rank - x.ndim) + x.shape) if x.ndim == 0 else x
        return np.broadcast_to(x, (*x.shape[:depth], *sizes))


def product_factors(term: Term) -> tuple[Term, ...]:
    """The factors of a product of products."""
    if term.op != "mul" or accumulator(term.dtype) != term.dtype:
        return (term,)
    return product_factors(term.args[0]) + product_factors(term.args[1])


def eval_term(
    term: Term, axes: tuple[Var, ...], buffers: Mapping[str, np.ndarray],
    dims: Mapping[str, int] | None = None,
) -> np.ndarray:  # fmt: skip
    """Values of a term for every point of `axes`; `buffers` hold decoded values."""
    evaluator = _Terms(buffers, dims or {})
    sizes = [max(0, a.extent.evaluate(dims or {})) for a in axes]
    evaluator.axes = [(a.name, np.arange(n)) for a, n in zip(axes, sizes, strict=True)]
    return np.broadcast_to(evaluator.value(term), sizes)


def _largest(kernel: Kernel, dims: Mapping[str, int]) -> int:
    """Elements of the largest array that evaluating the kernel at once would form."""
    axes = {a for t in kernel.subterms() for a in t.axes} | set(kernel.axes)
    hidden = {t for r in kernel.subterms() if r.axes and len(product_factors(r.args[-1])) > 1
              for t in _products(r.args[-1])}  # fmt: skip
    sizes = [
        math.prod(max(1, a.extent.evaluate(dims)) for a in t.free if a in axes)
        for t in kernel.subterms()
        if t not in hidden
    ]
    return max(sizes, default=1)


def _products(term: Term) -> set[Term]:
    if term.op != "mul":
        return set()
    return {term} | _products(term.args[0]) | _products(term.args[1])


def run_kernel(kernel: Kernel, buffers: dict[str, np.ndarray], dims: Mapping[str, int]) -> None:
    """Runs one kernel on decoded value arrays, in place; in pieces where it would be large."""
    sizes = [max(0, a.extent.evaluate(dims)) for a in kernel.axes]
    rows = sizes[0] if sizes else 1
    step = max(1, rows * CHUNK // max(1, _largest(kernel, dims))) if rows else 1
    for start in range(0, rows, step):
        evaluator = _Terms(buffers, dims)
        ranges = [np.arange(n) for n in sizes]
        if ranges:
            ranges[0] = ranges[0][start : start + step]
        evaluator.axes = [(a.name, r) for a, r in zip(kernel.axes, ranges, strict=True)]
        results = [
            (s, [evaluator.expr(e) for e in s.index], evaluator.value(s.value))
            for s in kernel.stores
        ]
        for store, index, value in results:
            _store(buffers[store.buffer], index, value, tuple(len(r) for r in ranges), kernel)


@dataclass(frozen=True, slots=True)
class Points:
    """Sampled results: `value[p]` belongs at `buffer[index[0][p], ...]`; all are broadcast."""

    buffer: str
    index: tuple[np.ndarray, ...]
    value: np.ndarray


def sample_kernel(
    kernel: Kernel, buffers: Mapping[str, np.ndarray], dims: Mapping[str, int],
    rng: np.random.Generator, budget: int = 4096,
) -> list[Points]:  # fmt: skip
    """What a kernel stores at some points of its axes: both ends and random values of each."""
    sizes = [max(0, a.extent.evaluate(dims)) for a in kernel.axes]
    count = max(3, int(budget ** (1 / max(1, sum(n > 1 for n in sizes)))))
    chosen = [np.arange(n) if n <= count else np.unique(
        np.concatenate(([0, n - 1], rng.integers(0, n, count - 2)))) for n in sizes]  # fmt: skip
    evaluator = _Terms(buffers, dims)
    evaluator.axes = [(a.name, r) for a, r in zip(kernel.axes, chosen, strict=True)]
    shape = tuple(len(r) for r in chosen)
    return [
        Points(s.buffer, tuple(np.broadcast_to(evaluator.expr(e), shape) for e in s.index),
               np.broadcast_to(evaluator.value(s.value), shape))
        for s in kernel.stores
    ]  # fmt: skip


def _store(
    target: np.ndarray, index: list[np.ndarray], value: np.ndarray, shape: tuple[int, ...],
    kernel: Kernel,
) -> None:  # fmt: skip
    if not math.prod(shape):
        return
    index = [np.broadcast_to(i, shape) for i in index]
    value = np.broadcast_to(value, shape)
    order = [p for p, a in enumerate(kernel.axes) if a.name in kernel.ordered]
    order += [p for p in range(len(shape)) if p not in order]
    flat = [i.transpose(order).reshape(-1) for i in index]
    target[tuple(flat) if flat else ()] = value.transpose(order).reshape(-1) if flat else value


def run_plan(
    plan: Plan, inputs: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
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
