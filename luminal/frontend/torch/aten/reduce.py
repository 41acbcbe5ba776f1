"""Reductions, scans, softmax and norms of ATen.

In: luminal tensors. Out: tensors in the traced dtype and shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast
from luminal.frontend.torch.aten.elementwise import wide
from luminal.frontend.torch.aten.table import Call, op
from luminal.ir.dtype import DType, boolean, f64, u8
from luminal.ir.expr import const, prod

__all__: list[str] = []

LONGEST_SCAN = 4096

Dims = int | Sequence[int] | None


def axes_of_dims(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """The reduced axes, counted from 0; all of them for None or an empty list."""
    if dim is None or dim == [] or dim == ():
        return tuple(range(x.ndim))
    listed = [dim] if isinstance(dim, int) else dim
    return tuple(d % max(x.ndim, 1) for d in listed) if x.ndim else ()


def _reduced(function: Callable[..., Tensor], x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    axes = axes_of_dims(x, dim)
    return function(x, list(axes), keepdim) if axes else function(F.reshape(x, 1), [0], False)


@op("sum.dim_IntList", "sum")
def _sum(
    call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    wanted = wide(cast(x, call.dtype))
    axes = axes_of_dims(x, dim)
    return F.sum(wanted, list(axes), keepdim, dtype=wanted.dtype) if axes else wanted


@op("mean.dim", "mean")
def _mean(
    call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    axes = axes_of_dims(x, dim)
    return F.mean(cast(x, call.dtype), list(axes), keepdim) if axes else cast(x, call.dtype)


@op("prod.dim_int")
def _prod(
    call: Call, x: Tensor, dim: int, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return F.prod(cast(x, call.dtype), dim, keepdim, dtype=call.dtype)


@op("prod")
def _prod_all(call: Call, x: Tensor, dtype: DType | None = None) -> Tensor:
    return F.prod(cast(x, call.dtype), dtype=call.dtype)


@op("amax")
def _amax(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced(F.amax, x, dim, keepdim)


@op("amin")
def _amin(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced(F.amin, x, dim, keepdim)


@op("max")
def _max(call: Call, x: Tensor) -> Tensor:
    return _reduced(F.amax, x, None, False)


@op("min")
def _min(call: Call, x: Tensor) -> Tensor:
    return _reduced(F.amin, x, None, False)


@op("max.dim")
def _max_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return F.max(x, dim, keepdim)


@op("min.dim")
def _min_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return F.min(x, dim, keepdim)


@op("argmax")
def _argmax(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return F.argmax(x, dim, keepdim)


@op("argmin")
def _argmin(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return F.argmin(x, dim, keepdim)


@op("any", "any.dim", "any.dims")
def _any(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced(F.any, x, dim, keepdim)


@op("all", "all.dim", "all.dims")
def _all(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced(F.all, x, dim, keepdim)


@op("var.correction")
def _var(
    call: Call, x: Tensor, dim: Dims = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    return _var_mean(call, x, dim, correction=correction, keepdim=keepdim)[0]


@op("var_mean.correction")
def _var_mean(
    call: Call, x: Tensor, dim: Dims = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    axes = axes_of_dims(x, dim)
    if not axes:
        raise UnsupportedError("[torch] the variance of a 0-d tensor.")
    return F.var_mean(x, list(axes), 1 if correction is None else correction, keepdim)


@op("std.correction")
def _std(
    call: Call, x: Tensor, dim: Dims = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    double = cast(x, f64)  # eager accumulates in double: no overflow
    return F.sqrt(_var_mean(call, double, dim, correction=correction, keepdim=keepdim)[0])


@op("std_mean.correction")
def _std_mean(
    call: Call, x: Tensor, dim: Dims = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    double = cast(x, f64)
    spread, middle = _var_mean(call, double, dim, correction=correction, keepdim=keepdim)
    return F.sqrt(spread), middle


@op("linalg_vector_norm")
def _vector_norm(
    call: Call, x: Tensor, order: float = 2, dim: Dims = None, keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    if not math.isfinite(order) and prod(x.dims).lo < 1:
        raise UnsupportedError("[torch] a norm over no elements.")
    wide = cast(x, call.dtype)
    if not x.ndim:
        return F.reshape(F.norm(F.reshape(wide, 1), order, [0], False), ())
    return F.norm(wide, order, list(axes_of_dims(x, dim)), keepdim)


def _scannable(call: Call, x: Tensor, dim: int) -> None:
    """Scans read all earlier elements for each one: only short axes are worth it."""
    if x.ndim and call.size(x.dims[dim % x.ndim]) > LONGEST_SCAN:
        raise UnsupportedError("[torch] a scan along a long axis.")


@op("cumsum")
def _cumsum(call: Call, x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return F.cumsum(cast(x, call.dtype), dim, dtype=call.dtype)


@op("cumprod")
def _cumprod(call: Call, x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    _scannable(call, x, dim)
    return F.cumprod(cast(x, call.dtype), dim, dtype=call.dtype)


@op("logcumsumexp")
def _logcumsumexp(call: Call, x: Tensor, dim: int) -> Tensor:
    if not x.dtype.is_float:
        raise UnsupportedError("[torch] logcumsumexp of integers.")
    _scannable(call, x, dim)
    return F.logcumsumexp(x, dim)


@op("cummax")
def _cummax(call: Call, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    _scannable(call, x, dim)
    return F.cummax(cast(x, u8) if x.dtype == boolean else x, dim)


@op("cummin")
def _cummin(call: Call, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    _scannable(call, x, dim)
    return F.cummin(cast(x, u8) if x.dtype == boolean else x, dim)


@op("logsumexp")
def _logsumexp(call: Call, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    return F.logsumexp(cast(x, call.dtype), dim, keepdim)


@op("_softmax", "_safe_softmax")
def _softmax(call: Call, x: Tensor, dim: int, half_to_float: object = False) -> Tensor:
    x = cast(x, call.dtype)
    return F.softmax(x, dim) if x.ndim else F.reshape(F.softmax(F.reshape(x, 1), 0), ())


@op("_log_softmax")
def _log_softmax(call: Call, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    x = cast(x, call.dtype)
    return F.log_softmax(x, dim) if x.ndim else F.reshape(F.log_softmax(F.reshape(x, 1), 0), ())


def _standard(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps), mean and 1/sqrt(...), the latter two with size-1 axes."""
    middle = F.mean(x, list(axes), True)
    off = F.sub(x, middle)
    spread = F.rsqrt(F.add(F.mean(F.mul(off, off), list(axes), True), eps))
    return F.mul(off, spread), middle, spread


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else F.mul(x, wide(weight))
    return x if bias is None else F.add(x, wide(bias))


@op("native_layer_norm")
def _layer_norm(
    call: Call, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    axes = range(x.ndim - len(shape), x.ndim)
    out, middle, spread = _standard(wide(x), axes, eps)
    return cast(_affine(out, weight, bias), call.dtype), middle, spread


def _channels(v: Tensor | None, ndim: int) -> Tensor | None:
    return None if v is None else F.reshape(v, v.dims[0], *([1] * (ndim - 2)))


@op("native_group_norm")
def _group_norm(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: object, c: object,
    area: object, groups: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    parts = F.reshape(wide(x), x.dims[0], groups, x.dims[1] // groups, *x.dims[2:])
    out, middle, spread = _standard(parts, range(2, parts.ndim), eps)
    out = _affine(F.reshape(out, *x.dims), _channels(weight, x.ndim), _channels(bias, x.ndim))
    small = (x.dims[0], const(groups))
    return cast(out, call.dtype), F.reshape(middle, *small), F.reshape(spread, *small)


@op("_native_batch_norm_legit_no_training")
def _batch_norm(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    if call.wanted(1) or call.wanted(2):
        raise UnsupportedError("[torch] the saved statistics of batch norm in evaluation.")
    return F.batch_norm(x, mean, var, weight, bias, False, eps), None, None


@op("_native_batch_norm_legit_functional")
def _batch_norm_training(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if not training:
        out = F.batch_norm(x, mean, var, weight, bias, False, eps)
        return out, None, None, mean, var
    out, middle, spread = _batch_statistics(call, x, weight, bias, eps)
    axes = [0, *range(2, x.ndim)]
    count = prod(tuple(x.dims[a] for a in axes))
    if count.value is None or count.value < 2:
        raise UnsupportedError("[torch] batch norm in training over a symbolic or single count.")
    spread_of = F.var(wide(x), axes, correction=1)
    new_mean = F.add(F.mul(mean, 1 - momentum), F.mul(middle, momentum))
    new_var = F.add(F.mul(var, 1 - momentum), F.mul(spread_of, momentum))
    return out, middle, spread, new_mean, new_var


@op("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _batch_statistics(call, x, weight, bias, eps)


def _batch_statistics(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = [0, *range(2, x.ndim)]
    out, middle, spread = _standard(wide(x), axes, eps)
    out = _affine(out, _channels(weight, x.ndim), _channels(bias, x.ndim))
    return cast(out, call.dtype), F.reshape(middle, x.dims[1]), F.reshape(spread, x.dims[1])
