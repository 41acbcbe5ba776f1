"""Less common operations, made of the others.

In and out: tensors. Names and arguments are PyTorch's; aliases are the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Any

from luminal.errors import ArgumentError, ShapeError
from luminal.frontend import functional_core as core
from luminal.frontend.functional_conv import Sizes, sizes
from luminal.frontend.functional_core import add, eq, isnan, le, lt, mul, neg, sub, where
from luminal.frontend.functional_integer import div
from luminal.frontend.functional_join import cat, roll
from luminal.frontend.functional_linear import matmul
from luminal.frontend.functional_math import sqrt
from luminal.frontend.functional_norm import norm
from luminal.frontend.functional_power import lerp, pow
from luminal.frontend.functional_reduce import any as any_of
from luminal.frontend.functional_reduce import mean
from luminal.frontend.functional_reduce import sum as sum_of
from luminal.frontend.functional_shape import (
    movedim,
    narrow,
    ravel,
    reshape,
    select,
    slice_axis,
    static,
    unsqueeze,
)
from luminal.frontend.functional_sort import sort
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    TensorLike,
    cast,
    common,
    fail,
    half_up,
    normal_axis,
    scalar,
    tensor,
)
from luminal.frontend.views import pad as pad_view
from luminal.ir.dtype import f64, i32, i64
from luminal.ir.expr import const, prod, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "absolute", "addcdiv", "addcmul", "addbmm", "block_diag", "bucketize", "cdist", "clamp_max",
    "clamp_min", "clip", "cov", "cross", "diag_embed", "diff", "dist", "divide", 
    "float_power", "fold", "greater", "greater_equal", "heaviside", "less", "less_equal",
    "multiply", "negative", "not_equal", "numel", "positive", "quantile", "rsub", "searchsorted",
    "subtract", "true_divide", "vector_norm",
]  # fmt: skip

absolute, multiply, subtract, negative, clip = core.abs, mul, sub, neg, core.clamp
greater, greater_equal, less, less_equal, not_equal = core.gt, core.ge, lt, le, core.ne
divide = true_divide = div


def positive(x: Tensor) -> Tensor:
    """x itself."""
    return x


def numel(x: Tensor) -> Any:
    """The number of elements: an int, or an expression of symbolic sizes."""
    count = prod(x.dims)
    return count if count.value is None else count.value


def rsub(x: Tensor, other: TensorLike, alpha: Scalar = 1) -> Tensor:
    """other - alpha * x."""
    return sub(other, x, alpha=alpha)


def clamp_min(x: Tensor, min: TensorLike) -> Tensor:
    """x, at least min."""
    return core.clamp(x, min=min)


def clamp_max(x: Tensor, max: TensorLike) -> Tensor:
    """x, at most max."""
    return core.clamp(x, max=max)


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Scalar = 1) -> Tensor:
    """x + value * a * b."""
    return add(x, mul(mul(a, b), value) if value != 1 else mul(a, b))


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Scalar = 1) -> Tensor:
    """x + value * a / b."""
    return add(x, mul(div(a, b), value) if value != 1 else div(a, b))


def addbmm(base: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * base + alpha * the sum of the products of a batch."""
    return add(mul(base, beta), mul(sum_of(matmul(a, b), 0), alpha))


def float_power(a: TensorLike, b: TensorLike) -> Tensor:
    """a to the power b in f64."""
    x, y = common("float_power", a, b, dtype=f64)
    return pow(x, y)


def heaviside(x: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, `values` at 0."""
    return where(eq(x, 0), values, cast(lt(0, x), x.dtype))


def dist(a: Tensor, b: Tensor, p: float = 2) -> Tensor:
    """The p-norm of a - b."""
    return norm(sub(a, b), p)


def vector_norm(
    x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """The norm along axes, as `torch.linalg.vector_norm`."""
    return norm(x, ord, dim, keepdim)


def cdist(a: Tensor, b: Tensor, p: float = 2.0) -> Tensor:
    """Distances of all pairs of rows: [.., m, d] and [.., n, d] to [.., m, n]."""
    gap = sub(unsqueeze(a, -2), unsqueeze(b, -3))
    return sqrt(sum_of(mul(gap, gap), -1)) if p == 2 else norm(gap, p, -1)


def cross(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
    """The cross product along an axis of size 3."""
    d = normal_axis("cross", dim, a.ndim)
    if a.dims[d].value != 3:
        raise fail(ShapeError, "cross", f"needs size 3 along axis {dim}. Got {list(a.shape)}.")
    return roll(sub(mul(a, roll(b, -1, d)), mul(roll(a, -1, d), b)), -1, d)


def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """Differences of neighbours along an axis, n times."""
    d = normal_axis("diff", dim, x.ndim)
    for _ in range(n):
        high, low = slice_axis(x, d, 1), narrow(x, d, 0, x.dims[d] - 1)
        x = core.ne(high, low) if x.dtype.kind == "b" else sub(high, low)
    return x


def cov(x: Tensor, *, correction: int = 1) -> Tensor:
    """The covariances of the rows of x [variables, samples]."""
    off = sub(x, mean(x, -1, True)) if x.ndim > 1 else sub(x, mean(x))
    off = off if x.ndim > 1 else unsqueeze(off, 0)
    out = mul(matmul(off, off.mT), 1.0 / (static("cov", x.dims[-1]) - correction))
    return out if x.ndim > 1 else reshape(out, ())


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last axis on the diagonals of matrices."""
    n = x.dims[-1] + (offset if offset > 0 else -offset)
    dims = (*x.dims[:-1], n, n)
    *rest, row, col = (to_expr(a) for a in axes_of(dims))
    at, gap = (row if offset >= 0 else col), col - row - offset
    fill = 0.0 if x.dtype.is_float else False if x.dtype.kind == "b" else 0
    valid = (gap, -gap, x.dims[-1] - 1 - at)
    return movedim(x.through(View(dims, x.dims, (*rest, at), valid, fill)), (-2, -1), (dim1, dim2))


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal, zeros elsewhere."""
    parts = [reshape(t, *([1] * (2 - t.ndim)), *t.dims) for t in tensors]
    width, start, rows = sum((t.dims[1] for t in parts), const(0)), const(0), []
    for t in parts:
        after = width - start - t.dims[1]
        rows.append(t.through(pad_view(t.dims, 1, start, after, 0.0 if t.dtype.is_float else 0)))
        start = start + t.dims[1]
    return cat(rows, 0)


def searchsorted(
    sorted_sequence: Tensor, values: TensorLike, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Where values would be inserted into a sequence sorted along its last axis."""
    value = values if isinstance(values, Tensor) else tensor(values)
    row = unsqueeze(sorted_sequence, -2) if sorted_sequence.ndim > 1 else sorted_sequence
    before = le(row, unsqueeze(value, -1)) if right else lt(row, unsqueeze(value, -1))
    return sum_of(before, -1, dtype=i32 if out_int32 else i64)


def bucketize(
    x: TensorLike, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the bucket of each element."""
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


def quantile(
    x: Tensor, q: float | Sequence[float], dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """Quantiles, interpolated linearly; several q come along a new first axis."""
    if dim is None:
        flat = quantile(ravel(x), q, 0)
        return flat if not keepdim else reshape(flat, *flat.dims, *([1] * x.ndim))
    d = normal_axis("quantile", dim, x.ndim)
    ordered, size = sort(x, d)[0], static("quantile", x.dims[d])
    missing = any_of(isnan(x), d, True)

    def one(part: float) -> Tensor:
        if not 0 <= part <= 1:
            raise fail(ArgumentError, "quantile", f"q lies in [0, 1]. Got {part}.")
        at = part * (size - 1)
        low = floor(at)
        high = low + 1 if low + 1 < size else low
        value = lerp(narrow(ordered, d, low, 1), narrow(ordered, d, high, 1), at - low)
        value = where(missing, float("nan"), value)
        return value if keepdim else select(value, d, 0)

    return one(q) if isinstance(q, int | float) else cat([unsqueeze(one(p), 0) for p in q], 0)


def fold(
    x: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Columns [n, c·kh·kw, windows] summed where their windows overlap: [n, c, h, w]."""
    out, size, spread, edge, step = (
        sizes("fold", v, 2) for v in (output_size, kernel_size, dilation, padding, stride)
    )
    counts = [
        (out[p] + 2 * edge[p] - spread[p] * (size[p] - 1) - 1) // step[p] + 1 for p in range(2)
    ]
    channels = x.dims[1] // (size[0] * size[1])
    parts = reshape(half_up(x), x.dims[0], channels, *size, *counts)
    total = scalar(0, parts.dtype)
    for at in ((i, j) for i in range(size[0]) for j in range(size[1])):
        part = select(select(parts, 2, at[0]), 2, at[1])
        for p in range(2):
            before = at[p] * spread[p] - edge[p]
            after = out[p] - before - (counts[p] - 1) * step[p] - 1
            view = pad_view(part.dims, 2 + p, before, after, 0.0, step[p] - 1)
            part = part.through(view)
        total = add(total, part)
    return cast(total, x.dtype)
