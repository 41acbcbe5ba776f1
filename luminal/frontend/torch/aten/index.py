"""Gathers, scatters, sorting and the creation of tensors in ATen.

In: luminal tensors. Out: tensors in the traced dtype and shape. Indices are checked at run time;
what eager would refuse is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.functional_reduce import size_scalar
from luminal.frontend.tensor import (
    Tensor,
    broadcast,
    broadcast_dims,
    cast,
    gather_primitive,
    iota,
    tensor,
)
from luminal.frontend.torch.aten.table import Call, op
from luminal.frontend.torch.aten.views import start_of
from luminal.frontend.views import slice_
from luminal.ir.dtype import boolean, i64
from luminal.ir.expr import Expr, ExprLike, const, prod

__all__ = ["sortable", "wrapped"]

LONGEST_SORT = 1024


def wrapped(index: Tensor, size: Expr) -> Tensor:
    """A position counted from the end where it is negative, as i64."""
    index = cast(index, i64)
    extent = size_scalar(size, i64)
    return F.where(F.lt(index, 0), F.add(index, extent), index)


def _positions(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, list[int]]:
    """Where the result's index dimensions stand, and the indexed axes of x."""
    axes = [d for d, i in enumerate(indices) if i is not None]
    for d in axes:
        if indices[d].dtype in (boolean,) or not indices[d].dtype.is_int:  # type: ignore[union-attr]
            raise UnsupportedError("[torch] a mask as an index.")
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return (axes[0] if adjacent else 0), axes


@op("index.Tensor", "_unsafe_index.Tensor")
def _index(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    place, axes = _positions(call, x, indices)
    if len(axes) == 1:
        at = wrapped(indices[axes[0]], x.dims[axes[0]])  # type: ignore[arg-type]
        return _take(x, at, axes[0])
    return _index_many(call, x, indices, axes, place)


def _take(x: Tensor, at: Tensor, axis: int) -> Tensor:
    """x with `axis` replaced by the dimensions of `at`, gathered there."""
    n = at.ndim
    flat = F.reshape(at, prod(at.dims)) if n != 1 else at
    out = F.index_select(x, axis, flat)
    return out if n == 1 else F.reshape(out, *x.dims[:axis], *at.dims, *x.dims[axis + 1 :])


def _index_many(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], axes: list[int], place: int
) -> Tensor:
    """Several index tensors: one gather after another, along each indexed axis."""
    rest = [d for d in range(x.ndim) if d not in axes]
    front = F.permute(x, *axes, *rest)
    dims = broadcast_dims("index", *(indices[d].dims for d in axes))  # type: ignore[union-attr]
    count = prod(dims)
    out = front
    for step, d in enumerate(axes):
        at = F.reshape(broadcast(wrapped(indices[d], x.dims[d]), dims), count)  # type: ignore[arg-type]
        out = F.index_select(out, 0, at) if step == 0 else _pointwise_take(out, at)
    shaped = F.reshape(out, *dims, *(x.dims[d] for d in rest))
    before = [r for r in range(len(rest)) if rest[r] < axes[0]] if place else []
    order = (
        *(len(dims) + r for r in before),
        *range(len(dims)),
        *(len(dims) + r for r in range(len(rest)) if r not in before),
    )
    return F.permute(shaped, *order)


def _pointwise_take(x: Tensor, at: Tensor) -> Tensor:
    """out[n, ...] = x[n, at[n], ...]."""
    dims = (x.dims[0], const(1), *x.dims[2:])
    index = F.reshape(at, x.dims[0], *([1] * (x.ndim - 1)))
    return F.squeeze(gather_primitive(x, broadcast(index, dims), 1), 1)


@op("index_select")
def _index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Tensor:
    index = index if index.ndim else F.reshape(index, 1)
    if not x.ndim:
        return F.reshape(F.index_select(F.reshape(x, 1), 0, index), ())
    return F.index_select(x, dim % x.ndim, index)


@op("gather")
def _gather(call: Call, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if not x.ndim or not index.ndim:
        return F.reshape(F.gather(F.reshape(x, -1), 0, F.reshape(index, -1)), *call.dims)
    return F.gather(x, dim % x.ndim, index)


@op("embedding")
def _embedding(call: Call, weight: Tensor, index: Tensor, *rest: object) -> Tensor:
    return _take(weight, index, 0)


def sortable(call: Call, x: Tensor, dim: int) -> None:
    """Sorting compares all pairs: only short axes are worth it."""
    if x.ndim and call.size(x.dims[dim % x.ndim]) > LONGEST_SORT:
        raise UnsupportedError("[torch] sorting a long axis.")


@op("topk")
def _topk(
    call: Call, x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Tensor, Tensor]:
    sortable(call, x, dim)
    if not x.dtype.is_float:
        raise UnsupportedError("[torch] topk of integers: which of equals is unspecified.")
    return F.topk(x, k, dim, largest)


@op("sort")
def _sort(call: Call, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    sortable(call, x, dim)
    return F.sort(x, dim, descending)


@op("sort.stable")
def _sort_stable(
    call: Call, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    sortable(call, x, dim)
    return F.sort(x, dim, descending)


@op("bucketize.Tensor")
def _bucketize(
    call: Call, x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    if call.size(boundaries.dims[0]) > LONGEST_SORT:
        raise UnsupportedError("[torch] many boundaries.")
    return F.bucketize(x, boundaries, right=right)


@op("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    call: Call, row: Tensor, x: Tensor | float, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if call.size(row.dims[-1]) > LONGEST_SORT:
        raise UnsupportedError("[torch] a search in a long sequence.")
    row = row if sorter is None else F.gather(row, row.ndim - 1, sorter)
    return F.searchsorted(row, x, right=right or side == "right")


@op("tril_indices", "triu_indices")
def _triangle_indices(
    call: Call, rows: int, columns: int, offset: int = 0, **kwargs: object
) -> Tensor:
    find = np.tril_indices if "tril" in str(call.node.target) else np.triu_indices
    return cast(tensor(np.stack(find(rows, offset, columns))), call.dtype)


@op("full", "full_like", "new_full")
def _full(call: Call, first: object, *rest: object, **kwargs: object) -> Tensor:
    value = rest[-1] if "new" in str(call.node.target) else rest[0]
    return call.ready(_number(value))


def _number(value: object) -> object:
    if isinstance(value, Expr):
        raise UnsupportedError("[torch] a tensor filled with a size.")
    return value


@op("scalar_tensor")
def _scalar_tensor(call: Call, value: object, **kwargs: object) -> Tensor:
    if isinstance(value, Expr):
        return cast(size_scalar(value, i64), call.dtype)
    return call.ready(value)


@op("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty",
    "empty_permuted", "empty_strided", "new_empty_strided")  # fmt: skip
def _zeros(call: Call, *args: object, **kwargs: object) -> Tensor:
    if "strided" in str(call.node.target) and 0 in call.fake.stride():  # type: ignore[attr-defined]
        raise UnsupportedError("[torch] a new tensor whose elements overlap.")
    return call.ready(False if call.dtype == boolean else 0)


@op("ones", "ones_like", "new_ones")
def _ones(call: Call, *args: object, **kwargs: object) -> Tensor:
    return call.ready(True if call.dtype == boolean else 1)


@op("arange.start_step", "arange.start", "arange")
def _arange(call: Call, *args: object, **kwargs: object) -> Tensor:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    return _steps(call, start, step)


def _steps(call: Call, start: object, step: object) -> Tensor:
    extent = call.dims[0]
    if call.dtype.is_float:
        if isinstance(start, Expr) or isinstance(step, Expr):
            raise UnsupportedError("[torch] a float range over a size.")
        place = cast(iota(extent), call.dtype)
        return F.add(F.mul(place, step), start) if (start, step) != (0, 1) else place
    place = iota(extent)
    if step != 1:
        place = F.mul(place, step)
    if isinstance(start, Expr):
        place = F.add(place, size_scalar(start, i64))
    elif start:
        place = F.add(place, start)
    return cast(place, call.dtype)


@op("prims::iota.default")
def _iota(
    call: Call, length: object, *, start: object = 0, step: object = 1, **_: object
) -> Tensor:
    return _steps(call, start, step)


@op("eye", "eye.m")
def _eye(call: Call, *args: object, **kwargs: object) -> Tensor:
    rows, columns = call.dims
    i = F.reshape(iota(rows), rows, 1)
    return cast(F.eq(i, F.reshape(iota(columns), 1, columns)), call.dtype)


@op("slice_copy.Tensor")
def _slice_copy(
    call: Call, x: Tensor, dim: int = 0, start: ExprLike | None = None,
    end: ExprLike | None = None, step: int = 1,
) -> Tensor:  # fmt: skip
    d = dim % x.ndim
    return x.through(slice_(x.dims, d, start_of(start, x.dims[d]), call.dims[d], step))
