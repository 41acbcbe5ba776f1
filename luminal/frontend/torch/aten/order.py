"""Order statistics of ATen, and its assertions on data.

In: luminal tensors. Out: tensors in the traced dtype and shape. Which of equal integers an index
names is up to eager's algorithm: such indices stay with eager.
"""

from __future__ import annotations

import math

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast
from luminal.frontend.torch.aten.index import sortable
from luminal.frontend.torch.aten.table import Call, op
from luminal.ir.dtype import i64

__all__: list[str] = []


def _distinct(call: Call, x: Tensor, dim: int) -> None:
    sortable(call, x, dim)
    if not x.dtype.is_float and call.wanted(1):
        raise UnsupportedError("[torch] the index of one of equal integers.")


@op("median.dim")
def _median_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    _distinct(call, x, dim)
    return F.median(x, dim, keepdim)


@op("median")
def _median(call: Call, x: Tensor) -> Tensor:
    flat = F.reshape(x, -1)
    sortable(call, flat, 0)
    return F.median(flat, 0)[0]


@op("kthvalue")
def _kthvalue(
    call: Call, x: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    _distinct(call, x, dim)
    return F.kthvalue(x, k, dim, keepdim)


@op("nanmedian.dim")
def _nanmedian_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_float or not x.ndim:
        return _median_dim(call, x, dim, keepdim)
    d = dim % x.ndim
    _distinct(call, x, d)
    values, order = F.sort(x, d)
    count = F.sum(cast(F.logical_not(F.isnan(x)), i64), [d], True)
    place = F.maximum(F.floor_divide(F.sub(count, 1), 2), 0)
    parts = [F.gather(t, d, place) for t in (values, order)]
    return tuple(parts if keepdim else (F.squeeze(t, d) for t in parts))  # type: ignore[return-value]


@op("nanmedian")
def _nanmedian(call: Call, x: Tensor) -> Tensor:
    flat = F.reshape(x, -1)
    sortable(call, flat, 0)
    return _nanmedian_dim(call, flat, 0)[0] if x.dtype.is_float else F.median(flat, 0)[0]


@op("histc")
def _histc(call: Call, x: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Tensor:
    """Counts of equal bins between given ends."""
    if not x.dtype.is_float or low >= high or not (math.isfinite(low) and math.isfinite(high)):
        raise UnsupportedError("[torch] a histogram between the least and the largest value.")
    flat = F.reshape(x, -1)
    if call.size(flat.dims[0]) * bins > 1 << 22:
        raise UnsupportedError("[torch] a histogram of many elements and bins.")
    place = F.floor(F.mul(F.div(F.sub(flat, low), high - low), bins))
    place = F.where(F.eq(flat, high), bins - 1, place)
    inside = F.logical_and(F.ge(flat, low), F.le(flat, high))
    at = F.reshape(cast(F.where(inside, place, -1), i64), 1, -1)
    hits = F.eq(at, F.reshape(F.arange(bins), bins, 1))
    return F.sum(cast(hits, x.dtype), [1])


@op("_assert_async.msg", "_functional_assert_async.msg")
def _assert_async(call: Call, holds: Tensor, text: str, *rest: object) -> None:
    call.refuse(text, F.logical_not(holds))


@op("_linalg_check_errors")
def _check_errors(call: Call, info: Tensor, name: str, *, is_matrix: bool) -> None:
    cause = "is not positive-definite" if "cholesky" in name else "is singular"
    call.refuse(f"{name}: The input matrix {cause}.", F.ne(info, 0), "torch.linalg.LinAlgError")
