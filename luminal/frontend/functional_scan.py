"""Prefix scans: reductions over masked views, products by doubling.

In and out: tensors. NaN and ties are treated as PyTorch treats them.
"""

from __future__ import annotations

from math import inf

from luminal.errors import UnsupportedError
from luminal.frontend.functional_core import eq, isnan, logical_or, neg, sub, where
from luminal.frontend.functional_join import pad
from luminal.frontend.functional_reduce import logsumexp, lowest
from luminal.frontend.functional_shape import expand, reshape
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
from luminal.ir.dtype import DType, i64
from luminal.ir.expr import to_expr
from luminal.ir.view import View, axes_of

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


def prefixes(x: Tensor, d: int, fill: Scalar) -> Tensor:
    """[.., i, .., j]: element j along axis d where j <= i, else `fill`; j is the last axis."""
    dims = (*x.dims, x.dims[d])
    *axes, j = (to_expr(a) for a in axes_of(dims))
    valid = (axes[d] - j,)
    axes[d] = j
    return x.through(View(dims, x.dims, tuple(axes), valid, fill))


def cumsum(x: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """Sums of all elements up to each one along an axis."""
    d = normal_axis("cumsum", dim, x.ndim)
    want = dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.is_float else i64
    wide = half_up(cast(x, want))
    if x.ndim == 0:
        return cast(x, want)
    fill = 0.0 if want.is_float else 0
    return cast(reduce_axis("SumReduce", prefixes(wide, d, fill), x.ndim), want)


def _running(x: Tensor, dim: int, best: str) -> tuple[Tensor, Tensor]:
    d = normal_axis(best, dim, x.ndim)
    if x.ndim == 0:
        return x, scalar(0, i64)
    sign = 1 if best == "cummax" else -1
    signed = x if sign > 0 else neg(x) if x.dtype.is_float else sub(scalar(-1, x.dtype), x)
    parts = prefixes(signed, d, lowest(x.dtype))
    top = reduce_axis("MaxReduce", parts, x.ndim)
    reached = reshape(top, *top.dims, 1)
    hit = logical_or(eq(parts, reached), isnan(parts)) if x.dtype.is_float else eq(parts, reached)
    place = prefixes(
        expand(reshape(iota(x.dims[d]), -1, *([1] * (x.ndim - 1 - d))), *x.dims), d, -1
    )
    index = reduce_axis("MaxReduce", where(hit, place, -1), x.ndim)
    back = top if sign > 0 else neg(top) if x.dtype.is_float else sub(scalar(-1, x.dtype), top)
    return back, index


def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Running maximum along an axis and the (last) index that reached it."""
    return _running(x, dim, "cummax")


def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Running minimum along an axis and the (last) index that reached it."""
    return _running(x, dim, "cummin")


def cumprod(x: Tensor, dim: int, *, dtype: DType | str | None = None) -> Tensor:
    """Products of all elements up to each one along an axis, by doubling."""
    d = normal_axis("cumprod", dim, x.ndim)
    want = dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.is_float else i64
    x = half_up(cast(x, want))
    size = x.dims[d].hi if x.ndim else 1
    if size > 1 << 20:
        raise fail(UnsupportedError, "cumprod", f"needs a bounded size. Got {x.dims[d]}.")
    side, step = [0, 0] * (x.ndim - 1 - d), 1
    while step < size:
        x, step = apply("Mul", x, pad(x, [*side, step, -step], value=1)), step * 2
    return cast(x, want)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(x))) without overflow."""
    d = normal_axis("logcumsumexp", dim, x.ndim)
    if x.ndim == 0:
        return x
    parts = prefixes(half_up(x), d, -inf)
    return cast(logsumexp(parts, x.ndim), x.dtype)
