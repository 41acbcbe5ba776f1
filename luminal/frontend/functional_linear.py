"""Contractions: matmul, einsum, linear layers and attention, as products summed along axes.

In and out: tensors. Half precision multiplies and accumulates in f32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from luminal.errors import ArgumentError, DTypeError, ShapeError
from luminal.frontend.functional_core import add, mul, where
from luminal.frontend.functional_join import tril
from luminal.frontend.functional_norm import softmax
from luminal.frontend.functional_reduce import any as any_of
from luminal.frontend.functional_reduce import reduce_many
from luminal.frontend.functional_shape import (
    diagonal,
    expand,
    flat_args,
    permute,
    reshape,
    transpose,
    unsqueeze,
)
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    apply,
    broadcast,
    broadcast_dims,
    cast,
    fail,
    half_up,
    result_type,
    scalar,
)
from luminal.ir.dtype import boolean
from luminal.ir.expr import Expr, const

__all__ = [
    "addmm", "addmv", "baddbmm", "bilinear", "bmm", "dot", "einsum", "inner", "kron", "linear",
    "matmul", "mm", "mv", "outer", "scaled_dot_product_attention", "tensordot", "trace", "vdot",
]  # fmt: skip


def contract(a: Tensor, b: Tensor, axes: Sequence[int]) -> Tensor:
    """The sum of a * b (broadcast) over axes."""
    dtype = result_type(a, b)
    if dtype == boolean:
        raise fail(DTypeError, "matmul", "bools do not multiply. Got bool; try a cast.")
    dims = broadcast_dims("contract", a.dims, b.dims)
    x, y = (broadcast(half_up(cast(t, dtype)), dims) for t in (a, b))
    return cast(reduce_many("SumReduce", apply("Mul", x, y), axes, False), dtype)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product [.., m, k] by [.., k, n]; vectors and batches as in PyTorch."""
    if not a.ndim or not b.ndim:
        text = f"needs at least one axis each. Got {list(a.shape)} and {list(b.shape)}."
        raise fail(ShapeError, "matmul", text)
    if a.dtype != b.dtype:
        raise fail(DTypeError, "matmul", f"Got {a.dtype} and {b.dtype}; expected one dtype.")
    left = unsqueeze(a, 0) if a.ndim == 1 else a
    right = unsqueeze(b, 1) if b.ndim == 1 else b
    if left.dims[-1] != right.dims[-2]:
        text = f"inner sizes differ. Got {list(a.shape)} and {list(b.shape)}; "
        expected = f"expected {left.dims[-1]} == {right.dims[-2]}."
        raise fail(ShapeError, "matmul", text + expected)
    broadcast_dims("matmul", left.dims[:-2], right.dims[:-2])
    x, y = unsqueeze(left, -2), unsqueeze(transpose(right, -1, -2), -3)
    out = contract(x, y, (max(x.ndim, y.ndim) - 1,))
    if b.ndim == 1:
        out = reshape(out, *out.dims[:-1])
    if a.ndim == 1:
        cut = -2 if b.ndim > 1 else -1
        out = reshape(out, *(d for p, d in enumerate(out.dims) if p != out.ndim + cut))
    return out


def _ranked(op: str, *pairs: tuple[Tensor, int]) -> None:
    for x, rank in pairs:
        if x.ndim != rank:
            raise fail(ShapeError, op, f"Got shape {list(x.shape)}; expected {rank} axes.")


def mm(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices."""
    _ranked("mm", (a, 2), (b, 2))
    return matmul(a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Products of two batches of matrices."""
    _ranked("bmm", (a, 3), (b, 3))
    return matmul(a, b)


def mv(a: Tensor, b: Tensor) -> Tensor:
    """A matrix times a vector."""
    _ranked("mv", (a, 2), (b, 1))
    return matmul(a, b)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _ranked("dot", (a, 1), (b, 1))
    return matmul(a, b)


vdot = dot


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Sums of products along the last axes."""
    return mul(a, b) if not a.ndim or not b.ndim else tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]))


def outer(a: Tensor, b: Tensor) -> Tensor:
    """All products of two vectors."""
    _ranked("outer", (a, 1), (b, 1))
    return mul(unsqueeze(a, 1), b)


def kron(a: Tensor, b: Tensor) -> Tensor:
    """The Kronecker product."""
    n = max(a.ndim, b.ndim)
    x, y = (reshape(t, *([1] * (n - t.ndim)), *t.dims) for t in (a, b))
    wide = reshape(x, *(d for e in x.dims for d in (e, 1)))
    tall = reshape(y, *(d for e in y.dims for d in (1, e)))
    return reshape(mul(wide, tall), *(d * e for d, e in zip(x.dims, y.dims, strict=True)))


def trace(x: Tensor) -> Tensor:
    """The sum of the diagonal."""
    return reduce_many("SumReduce", diagonal(x), (0,), False)


def _mixed(base: Tensor, product: Tensor, beta: Scalar, alpha: Scalar) -> Tensor:
    product = product if alpha == 1 else mul(product, alpha)
    return product if beta == 0 else add(product, base if beta == 1 else mul(base, beta))


def addmm(base: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * base + alpha * (a @ b)."""
    return cast(_mixed(half_up(base), mm(half_up(a), half_up(b)), beta, alpha), base.dtype)


def addmv(base: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * base + alpha * (a @ b) for a vector b."""
    return cast(_mixed(half_up(base), mv(half_up(a), half_up(b)), beta, alpha), base.dtype)


def baddbmm(base: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * base + alpha * (a @ b) for batches."""
    return cast(_mixed(half_up(base), bmm(half_up(a), half_up(b)), beta, alpha), base.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, weight being [out, in]."""
    if not x.ndim or x.dims[-1] != weight.dims[-1]:
        text = f"Got input {list(x.shape)} and weight {list(weight.shape)} [out, in]; "
        raise fail(ShapeError, "linear", text + "expected equal last sizes.")
    if bias is None:
        return matmul(x, transpose(weight, 0, 1) if weight.ndim == 2 else weight)
    wide = matmul(half_up(x), transpose(half_up(weight), 0, 1))
    return cast(add(wide, half_up(bias)), x.dtype)


def bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """out[.., o] = a[.., i] weight[o, i, j] b[.., j] + bias[o]."""
    out = einsum("...i,oij,...j->...o", a, weight, b)
    return out if bias is None else add(out, bias)


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The contraction of the listed axes of a with those of b (or of the last with the first)."""
    if isinstance(dims, int):
        dims = (list(range(a.ndim - dims, a.ndim)), list(range(dims)))
    left, right = [[d % t.ndim for d in ds] for t, ds in ((a, dims[0]), (b, dims[1]))]
    keep = [d for d in range(a.ndim) if d not in left]
    rest = [d for d in range(b.ndim) if d not in right]
    x, y = permute(a, keep + left), permute(b, rest + right)
    if x.dims[len(keep) :] != y.dims[len(rest) :]:
        text = f"sizes differ. Got {list(a.shape)} and {list(b.shape)} along {dims}."
        raise fail(ShapeError, "tensordot", text)
    x = reshape(x, *x.dims[: len(keep)], *([1] * len(rest)), *x.dims[len(keep) :])
    return contract(x, y, range(len(keep) + len(rest), x.ndim))


def _einsum_terms(equation: str, tensors: Sequence[Tensor]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the result; '...' becomes labels '0', '1', ... ."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        raise fail(ArgumentError, "einsum", f"Got {len(tensors)} tensors for {equation!r}.")
    labels, widest = [], 0
    for part, t in zip(parts, tensors, strict=True):
        named = part.replace("...", "")
        extra = t.ndim - len(named)
        if extra < 0 or (extra and "..." not in part):
            raise fail(ShapeError, "einsum", f"{part!r} does not fit shape {list(t.shape)}.")
        widest = max(widest, extra)
        before, dots, after = part.partition("...")
        labels.append([*before, *(f"{k}" for k in range(extra - 1, -1, -1) if dots), *after])
    every = [c for part in labels for c in part]
    dots_labels = [f"{k}" for k in range(widest - 1, -1, -1)]
    if not arrow:
        once = sorted({c for c in every if every.count(c) == 1 and c not in dots_labels})
        return labels, dots_labels + once
    before, dots, after = right.partition("...")
    return labels, [*before, *(dots_labels if dots else ()), *after]


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Einstein summation, with '...' and repeated labels; all operands in one contraction."""
    tensors = flat_args(operands)
    labels, result = _einsum_terms(equation, tensors)
    order = result + sorted({c for part in labels for c in part} - set(result))
    ready = []
    for t, part in zip(tensors, labels, strict=True):
        while len(set(part)) < len(part):
            twice = next(c for c in part if part.count(c) > 1)
            a, b = [p for p, c in enumerate(part) if c == twice][:2]
            t, part = diagonal(t, 0, a, b), [c for p, c in enumerate(part) if p not in (a, b)]
            part = [*part, twice]
        t = permute(t, [part.index(c) for c in order if c in part])
        sizes = iter(t.dims)
        ready.append(reshape(t, *(next(sizes) if c in part else const(1) for c in order)))
    axes = range(len(result), len(order))
    total = ready[0]
    for t in ready[1:-1]:
        total = mul(total, t)
    if len(ready) > 1:
        dims = broadcast_dims("einsum", *(t.dims for t in ready))
        return contract(broadcast(total, dims), ready[-1], axes)
    return cast(reduce_many("SumReduce", half_up(total), axes, False), total.dtype)


def _heads_repeated(x: Tensor, heads: Expr) -> Tensor:
    """[b, h, s, d] with every head repeated so that there are `heads` of them."""
    have = x.dims[-3]
    if have == heads:
        return x
    times = heads // have
    lead_dims = x.dims[:-3]
    wide = expand(unsqueeze(x, -3), *lead_dims, have, times, *x.dims[-2:])
    return reshape(wide, *lead_dims, heads, *x.dims[-2:])


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query @ key.T * scale + mask) @ value; a bool mask keeps what is True."""
    if dropout_p:
        raise fail(ArgumentError, "attention", f"Got dropout_p={dropout_p}; expected 0.")
    if enable_gqa:
        key, value = (_heads_repeated(t, query.dims[-3]) for t in (key, value))
    if query.dims[-1] != key.dims[-1] or key.dims[-2] != value.dims[-2]:
        shapes = [list(t.shape) for t in (query, key, value)]
        raise fail(ShapeError, "attention", f"sizes do not fit. Got q, k, v {shapes}.")
    width = query.dims[-1].value
    if scale is None and width is None:
        raise fail(ShapeError, "attention", "a symbolic head size needs an explicit scale.")
    scale = 1.0 / sqrt(width) if scale is None else scale  # type: ignore[arg-type]
    scores = mul(matmul(half_up(query), transpose(half_up(key), -1, -2)), scale)
    if is_causal:
        ones = broadcast(scalar(True, boolean), scores.dims[-2:])
        scores = where(tril(ones), scores, -inf)
    if attn_mask is not None:
        keep = attn_mask.dtype == boolean
        scores = where(attn_mask, scores, -inf) if keep else add(scores, half_up(attn_mask))
    out = matmul(softmax(scores, -1), half_up(value))
    if attn_mask is not None and attn_mask.dtype == boolean:  # no key at all gives 0, not NaN
        out = where(any_of(attn_mask, -1, True), out, 0.0)
    return cast(out, query.dtype)
