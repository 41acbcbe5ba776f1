"""Reductions, prefix scans, softmax and normalisation, from SumReduce and MaxReduce.

In and out: tensors. Half precision computes in f32 and rounds once. NaN and ties are treated as
PyTorch treats them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from luminal.errors import ArgumentError, ShapeError, UnsupportedError
from luminal.frontend.functional_core import (
    add,
    eq,
    isnan,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    sub,
    truth,
    where,
)
from luminal.frontend.functional_integer import div
from luminal.frontend.functional_join import pad
from luminal.frontend.functional_math import exp, log, sqrt
from luminal.frontend.functional_shape import axes_args, ravel, reshape
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    apply,
    cast,
    dtype_of,
    fail,
    half_up,
    iota,
    normal_axis,
    reduce_axis,
    scalar,
)
from luminal.frontend.views import slice_
from luminal.ir.dtype import DType, boolean, i64, u8
from luminal.ir.expr import Expr, const
from luminal.ir.expr import prod as product
from luminal.ir.view import View

__all__ = [
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "logsumexp",
    "max",
    "mean",
    "min",
    "nanmean",
    "nansum",
    "prod",
    "std",
    "std_mean",
    "sum",
    "var",
    "var_mean",
]

Dims = int | Sequence[int] | None


def lowest(dtype: DType) -> Scalar:
    """The value below every other of a dtype."""
    if dtype.is_float:
        return -inf
    return False if dtype.kind == "b" else 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))


def reduce_many(op: str, x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    """SumReduce or MaxReduce over several axes."""
    dims = x.dims
    for axis in sorted(axes, reverse=True) if x.ndim else ():
        x = reduce_axis(op, x, axis)
    return reshape(x, *(const(1) if d in axes else e for d, e in enumerate(dims))) if keepdim else x


def _count(x: Tensor, axes: Sequence[int]) -> Expr:
    return product(tuple(x.dims[a] for a in axes)) if x.ndim else const(1)


def size_scalar(size: Expr, dtype: DType) -> Tensor:
    """A size as a 0-d tensor: a constant, or read off an iota where it is symbolic."""
    if size.value is not None:
        return scalar(size.value, dtype)
    whole = iota(size + 1)
    return cast(whole.through(View((), whole.dims, (size,))), dtype)


def sum(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None
) -> Tensor:
    """The sum; integers and bools become i64 unless `dtype` says otherwise."""
    want = dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.is_float else i64
    return reduce_many("SumReduce", cast(x, want), axes_args("sum", dim, x.ndim), keepdim)


def mean(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | str | None = None
) -> Tensor:
    """The arithmetic mean of a float tensor."""
    want = dtype_of(dtype) if dtype is not None else x.dtype
    if not want.is_float:
        raise fail(ArgumentError, "mean", f"needs floats. Got {want}; try dtype='f32'.")
    axes = axes_args("mean", dim, x.ndim)
    total = sum(half_up(cast(x, want)), axes, keepdim)
    count = _count(x, axes)
    if count.value:
        return cast(mul(total, 1.0 / count.value), want)
    return cast(div(total, size_scalar(count, total.dtype)), want)


def var_mean(
    x: Tensor, dim: Dims = None, correction: float = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Variance (divided by count - correction) and mean."""
    axes = axes_args("var", dim, x.ndim)
    wide = half_up(x)
    middle = mean(wide, axes, True)
    off = sub(wide, middle)
    total = sum(mul(off, off), axes, keepdim)
    count = _count(x, axes)
    if count.value is not None:
        left = count.value - correction
        out = mul(total, 1.0 / left) if left > 0 else div(total, scalar(0.0, total.dtype))
    else:
        out = div(total, maximum(sub(size_scalar(count, total.dtype), correction), 0.0))
    if not keepdim:
        middle = reshape(middle, *(d for p, d in enumerate(x.dims) if p not in axes))
    return cast(out, x.dtype), cast(middle, x.dtype)


def var(
    x: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float = 1,
) -> Tensor:  # fmt: skip
    """The variance, with Bessel's correction unless told otherwise."""
    return var_mean(x, dim, correction if unbiased is None else int(unbiased), keepdim)[0]


def std(
    x: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float = 1,
) -> Tensor:  # fmt: skip
    """The standard deviation."""
    return sqrt(var(x, dim, unbiased, keepdim, correction=correction))


def std_mean(
    x: Tensor, dim: Dims = None, correction: float = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    spread, middle = var_mean(x, dim, correction, keepdim)
    return sqrt(spread), middle


def any(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """True where some element is not 0 (as u8 for u8)."""
    found = reduce_many("SumReduce", truth(x), axes_args("any", dim, x.ndim), keepdim)
    return cast(found, u8) if x.dtype == u8 else found


def all(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """True where no element is 0 (as u8 for u8)."""
    found = logical_not(any(logical_not(x), dim, keepdim))
    return cast(found, u8) if x.dtype == u8 else found


def count_nonzero(x: Tensor, dim: Dims = None) -> Tensor:
    """How many elements are not 0."""
    return sum(truth(x), dim)


def _need_elements(op: str, x: Tensor, axes: Sequence[int]) -> None:
    if x.ndim and len(axes) and 0 in [x.dims[a].value for a in axes]:
        raise fail(ShapeError, op, f"no elements to reduce. Got shape {list(x.shape)}.")


def amax(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The maximum; NaN wins."""
    axes = axes_args("amax", None if dim == () else dim, x.ndim)
    _need_elements("amax", x, axes)
    return reduce_many("MaxReduce", x, axes, keepdim)


def amin(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The minimum; NaN wins."""
    if x.dtype == boolean:
        return all(x, dim, keepdim)
    if x.dtype.is_int:  # ~x reverses the order without overflow
        flipped = sub(scalar(255 if x.dtype.kind == "u" else -1, x.dtype), x)
        return sub(scalar(255 if x.dtype.kind == "u" else -1, x.dtype), amax(flipped, dim, keepdim))
    return neg(amax(neg(x), dim, keepdim))


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Minimum and maximum."""
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def _arg(x: Tensor, best: Callable[..., Tensor], dim: int | None, keepdim: bool) -> Tensor:
    """The first index of the best element, NaN being best."""
    if dim is None:
        index = _arg(ravel(x), best, 0, False)
        return reshape(index, *([1] * x.ndim)) if keepdim else index
    d = normal_axis("argmax", dim, x.ndim)
    if x.ndim == 0:
        return scalar(0, i64)
    _need_elements("argmax", x, (d,))
    hit = eq(x, best(x, d, True))
    hit = logical_or(hit, isnan(x)) if x.dtype.is_float else hit
    place = reshape(neg(iota(x.dims[d])), -1, *([1] * (x.ndim - 1 - d)))
    score = where(hit, place, lowest(i64))
    return neg(reduce_many("MaxReduce", score, (d,), keepdim))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the maximum (the first one; NaN counts as the largest)."""
    return _arg(x, amax, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the minimum (the first one; NaN counts as the smallest)."""
    return _arg(x, amin, dim, keepdim)


def max(x: Tensor, dim: object = None, keepdim: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """max(x); (values, indices) along an axis; or the larger of two tensors."""
    if isinstance(dim, Tensor):
        return maximum(x, dim)
    return amax(x) if dim is None else (amax(x, dim, keepdim), argmax(x, dim, keepdim))  # type: ignore[arg-type]


def min(x: Tensor, dim: object = None, keepdim: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """min(x); (values, indices) along an axis; or the smaller of two tensors."""
    if isinstance(dim, Tensor):
        return minimum(x, dim)
    return amin(x) if dim is None else (amin(x, dim, keepdim), argmin(x, dim, keepdim))  # type: ignore[arg-type]


def _halve(x: Tensor, d: int, size: int) -> Tensor:
    half = size // 2
    parts = (x.through(slice_(x.dims, d, start, half)) for start in (0, half))
    return apply("Mul", *parts)


def prod(
    x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | str | None = None
) -> Tensor:
    """The product, as a tree; integers become i64."""
    if dim is None:
        return prod(ravel(x), 0, dtype=dtype)
    d = normal_axis("prod", dim, x.ndim)
    want = dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.is_float else i64
    x, dims = half_up(cast(x, want)), x.dims
    if x.ndim == 0:
        return cast(x, want)
    size = dims[d].value if dims[d].value is not None else dims[d].hi
    if size > 1 << 20:
        raise fail(UnsupportedError, "prod", f"needs a bounded size. Got {dims[d]}.")
    whole = 1 << (size - 1).bit_length() if size > 0 else 1
    side = [0, 0] * (x.ndim - 1 - d)
    x = pad(x, [*side, 0, whole - dims[d]], value=1)
    while whole > 1:
        x, whole = _halve(x, d, whole), whole // 2
    out = [const(1) if p == d else e for p, e in enumerate(dims) if keepdim or p != d]
    return cast(reshape(x, *out), want)


def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow."""
    axes = axes_args("logsumexp", dim, x.ndim)
    wide = half_up(x)
    top = reduce_many("MaxReduce", wide, axes, True)
    base = where(lt(-inf, top), top, 0.0)
    out = add(log(sum(exp(sub(wide, base)), axes, True)), base)
    out = where(lt(top, inf), out, top)
    kept = out.dims if keepdim else [d for p, d in enumerate(x.dims) if p not in axes]
    return cast(reshape(out, *kept), x.dtype)


def nansum(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The sum of what is not NaN."""
    return sum(where(isnan(x), 0.0, x) if x.dtype.is_float else x, dim, keepdim)


def nanmean(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The mean of what is not NaN."""
    count = sum(logical_not(isnan(x)), dim, keepdim)
    return div(nansum(x, dim, keepdim), cast(count, x.dtype))
