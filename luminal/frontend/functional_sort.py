"""Sorting by counting ranks through comparisons: stable, NaN last, quadratic.

In and out: tensors.
"""

from __future__ import annotations

from typing import Any

from luminal.errors import ArgumentError
from luminal.frontend.functional_core import (
    isnan,
    logical_and,
    logical_not,
    logical_or,
    lt,
    minimum,
    mul,
    where,
)
from luminal.frontend.functional_create import zeros_like
from luminal.frontend.functional_key import _size
from luminal.frontend.functional_reduce import lowest, reduce_many
from luminal.frontend.functional_shape import movedim, ravel, reshape, select, slice_axis, unsqueeze
from luminal.frontend.tensor import (
    Tensor,
    broadcast,
    cast,
    fail,
    iota,
    normal_axis,
    scalar,
    scatter_primitive,
)
from luminal.ir.dtype import i64

__all__ = ["argsort", "kthvalue", "median", "msort", "sort", "topk"]


def ranks(x: Tensor, d: int, descending: bool) -> Tensor:
    """The position that a stable sort along axis d gives each element; NaN counts as largest."""
    here, there = unsqueeze(movedim(x, d, -1), -1), unsqueeze(movedim(x, d, -1), -2)
    if descending:
        here, there = there, here  # roles of 'smaller' exchange; ties still go by position
    less, more = lt(there, here), lt(here, there)
    if x.dtype.is_float:
        less = logical_or(less, logical_and(isnan(here), logical_not(isnan(there))))
        more = logical_or(more, logical_and(isnan(there), logical_not(isnan(here))))
    n = iota(x.dims[d])
    earlier = lt(unsqueeze(n, 0), unsqueeze(n, 1))
    before = logical_or(less, logical_and(logical_not(more), earlier))
    return movedim(reduce_many("SumReduce", cast(before, i64), (x.ndim,), False), -1, d)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted values and their indices; stable."""
    d = normal_axis("sort", dim, x.ndim)
    if not x.ndim:
        return x, scalar(0, i64)
    rank = ranks(x, d, descending)
    place = broadcast(reshape(iota(x.dims[d]), -1, *([1] * (x.ndim - 1 - d))), x.dims)
    index = scatter_primitive(zeros_like(x, dtype=i64), rank, place, d)
    return scatter_primitive(zeros_like(x), rank, x, d), index


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The indices that sort x; stable."""
    return sort(x, dim, descending)[1]


def msort(x: Tensor) -> Tensor:
    """x sorted along axis 0."""
    return sort(x, 0)[0]


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) values in order, and their indices."""
    d = normal_axis("topk", dim, x.ndim)
    if x.ndim and (x.dims[d] - k).hi < 0:
        raise fail(ArgumentError, "topk", f"k is too large. Got {k} for size {x.dims[d]}.")
    values, index = sort(x, d, largest)
    return (slice_axis(values, d, 0, k), slice_axis(index, d, 0, k)) if x.ndim else (values, index)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest value (from 1) and its index."""
    d = normal_axis("kthvalue", dim, x.ndim)
    out = tuple(slice_axis(t, d, k - 1, k) if x.ndim else t for t in sort(x, d))
    first, second = out if keepdim or not x.ndim else (select(t, d, 0) for t in out)
    return first, second


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median (and its index along an axis); NaN if there is one."""
    if dim is None:
        return median(ravel(x), 0)[0]
    d = normal_axis("median", dim, x.ndim)
    if not x.ndim:
        return x, scalar(0, i64)
    values, order = sort(x, d)
    middle = (x.dims[d] - 1) // 2
    parts = [slice_axis(t, d, middle, middle + 1) for t in (values, order)]
    if x.dtype.is_float:
        spot = minimum(_first_nan(x, d), _size(x.dims[d]))
        has = lt(spot, _size(x.dims[d]))
        parts = [where(has, float("nan"), parts[0]), where(has, spot, parts[1])]
    return tuple(parts if keepdim else (select(t, d, 0) for t in parts))


def _first_nan(x: Tensor, d: int) -> Tensor:
    place = reshape(mul(iota(x.dims[d]), -1), -1, *([1] * (x.ndim - 1 - d)))
    return mul(reduce_many("MaxReduce", where(isnan(x), place, lowest(i64) + 1), (d,), True), -1)
