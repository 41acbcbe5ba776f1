"""Indexing: gather, scatter, tensors as indices, sorting, and creation from index vectors.

In and out: tensors. Indices out of range are an IndexError when the compiled function runs.
Sorting counts ranks through comparisons: stable, NaN last, quadratic.
"""

from __future__ import annotations

import numpy as np

from luminal.errors import ArgumentError, DTypeError, ShapeError
from luminal.frontend.functional_core import add, eq, mul, where
from luminal.frontend.functional_create import ones_like, zeros
from luminal.frontend.functional_join import overlap
from luminal.frontend.functional_reduce import any as any_of
from luminal.frontend.functional_reduce import lowest, reduce_many
from luminal.frontend.functional_shape import movedim, ravel, reshape, select, slice_axis, unsqueeze
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    TensorLike,
    broadcast,
    broadcast_dims,
    cast,
    common,
    fail,
    gather_primitive,
    half_up,
    iota,
    normal_axis,
    scalar,
    scatter_primitive,
    tensor,
)
from luminal.ir.dtype import i64
from luminal.ir.expr import Expr, ExprLike, const, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "bincount",
    "embedding",
    "gather",
    "index_add",
    "index_copy",
    "index_fill",
    "index_select",
    "isin",
    "one_hot",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "select_scatter",
    "slice_scatter",
    "take",
    "take_along_dim",
]


def _index(op: str, index: TensorLike) -> Tensor:
    t = index if isinstance(index, Tensor) else tensor(np.asarray(index))
    if not t.dtype.is_int:
        raise fail(DTypeError, op, f"indices must be integers. Got {t.dtype}.")
    return t if t.dtype.bits >= 32 and t.dtype.kind == "i" else cast(t, i64)


def take_blocks(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """out[.., i.., ..] = x[.., index[i..], ..]: axis `dim` gives way to the axes of `index`."""
    before, after = x.dims[:dim], x.dims[dim + 1 :]
    if not index.ndim:
        return select(take_blocks(x, dim, reshape(index, 1)), dim, 0)
    dims = (*before, *index.dims, *after)
    axes = [to_expr(a) for a in axes_of(dims)]
    n = index.ndim
    where_index = index.through(View(dims, index.dims, tuple(axes[dim : dim + n])))
    src_dims = (*before, x.dims[dim], *index.dims[1:], *after)
    axes = [to_expr(a) for a in axes_of(src_dims)]
    kept = (*axes[: dim + 1], *axes[dim + n :])
    return gather_primitive(x.through(View(src_dims, x.dims, kept)), where_index, dim)


def index_select(x: Tensor, dim: int, index: TensorLike) -> Tensor:
    """The listed elements along an axis."""
    return take_blocks(x, normal_axis("index_select", dim, x.ndim), _index("index_select", index))


def embedding(index: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight [n, d] by index; the result is [*index.shape, d]."""
    return take_blocks(weight, 0, _index("embedding", index))


def _cropped(op: str, x: Tensor, d: int, dims: tuple[Expr, ...]) -> Tensor:
    if len(dims) != x.ndim:
        raise fail(ShapeError, op, f"ranks differ. Got {list(x.shape)} and index {list(dims)}.")
    for axis, size in enumerate(dims):
        if axis != d and size != x.dims[axis]:
            x = slice_axis(x, axis, 0, size)
    return x


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """out[i][j] = x[index[i][j]][j] for axis 0, and so on."""
    d = normal_axis("gather", dim, x.ndim)
    index = _index("gather", index)
    if not x.ndim or not index.ndim:
        return reshape(gather(reshape(x, -1), 0, reshape(index, -1)), *index.dims)
    return gather_primitive(_cropped("gather", x, d, index.dims), index, d)


def take_along_dim(x: Tensor, index: Tensor, dim: int | None = None) -> Tensor:
    """gather with broadcasting; over all elements if no axis is given."""
    if dim is None:
        return gather(ravel(x), 0, ravel(index))
    d = normal_axis("take_along_dim", dim, x.ndim)
    one = const(1)
    rest = [tuple(one if p == d else e for p, e in enumerate(t.dims)) for t in (x, index)]
    dims = broadcast_dims("take_along_dim", *rest)
    x, index = (broadcast(t, (*dims[:d], t.dims[d], *dims[d + 1 :])) for t in (x, index))
    return gather(x, d, index)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Elements of x, seen as a vector, by index."""
    return take_blocks(ravel(x), 0, _index("take", index))


def scatter(x: Tensor, dim: int, index: Tensor, src: TensorLike) -> Tensor:
    """x with x[index[i][j]][j] = src[i][j] for axis 0, and so on; the last duplicate wins."""
    d = normal_axis("scatter", dim, x.ndim)
    index = _index("scatter", index)
    (value,) = (src,) if isinstance(src, Tensor) else common("scatter", src, dtype=x.dtype)
    value = _cropped("scatter", value, -1, index.dims) if value.ndim else value
    value = broadcast(cast(value, x.dtype), index.dims)
    part = _cropped("scatter", x, d, index.dims)
    done = scatter_primitive(part, index, value, d)
    return done if part.dims == x.dims else overlap(x, done, [0] * x.ndim)


def _hits(x: Tensor, d: int, index: Tensor) -> Tensor:
    """[.., o, .., i]: does element i of `index` along axis d name o? i is the last axis."""
    place = reshape(iota(x.dims[d]), -1, *([1] * (index.ndim - d)))
    return eq(unsqueeze(movedim(index, d, -1), d), cast(place, index.dtype))


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x combined with src at the indexed places: 'sum', 'amax', 'amin' or 'mean'."""
    d = normal_axis("scatter", dim, x.ndim)
    index = _index("scatter", index)
    src = _cropped("scatter", cast(src, x.dtype), -1, index.dims)
    part = _cropped("scatter", x, d, index.dims)
    hits, values = _hits(part, d, index), unsqueeze(movedim(half_up(src), d, -1), d)
    base, zero = half_up(part), scalar(0, half_up(part).dtype)
    touched = any_of(hits, -1)
    own = base if include_self else where(touched, zero, base)
    if reduce in ("sum", "mean"):
        out = add(own, reduce_many("SumReduce", where(hits, values, zero), (x.ndim,), False))
        if reduce == "mean":
            count = reduce_many("SumReduce", cast(hits, i64), (x.ndim,), False)
            count = add(count, 1) if include_self else where(touched, count, 1)
            out = out.div(count) if x.dtype.is_float else out.div(count, rounding_mode="floor")
    elif reduce in ("amax", "amin"):
        sign = (lambda t: t) if reduce == "amax" else (lambda t: t.neg())
        own = sign(base) if include_self else where(touched, lowest(base.dtype), sign(base))
        best = reduce_many(
            "MaxReduce", where(hits, sign(values), lowest(base.dtype)), (x.ndim,), False
        )
        out = sign(own.maximum(best))
    else:
        raise fail(ArgumentError, "scatter_reduce", f"Got {reduce!r}; try 'sum' or 'amax'.")
    done = cast(out, x.dtype)
    return done if part.dims == x.dims else overlap(x, done, [0] * x.ndim)


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x plus src at the indexed places; duplicates add up."""
    return scatter_reduce(x, dim, index, src, "sum")


def _along(x: Tensor, d: int, index: TensorLike, src_dims: tuple[Expr, ...]) -> Tensor:
    flat = reshape(_index("index", index), -1, *([1] * (x.ndim - 1 - d)))
    return broadcast(flat, src_dims)


def index_copy(x: Tensor, dim: int, index: TensorLike, src: Tensor) -> Tensor:
    """x with the slices `index` along an axis replaced by those of src (a cache update)."""
    d = normal_axis("index_copy", dim, x.ndim)
    if src.ndim != x.ndim:
        raise fail(ShapeError, "index_copy", f"Got {list(src.shape)} for {list(x.shape)}.")
    return scatter(x, d, _along(x, d, index, src.dims), src)


def index_add(x: Tensor, dim: int, index: TensorLike, src: Tensor, *, alpha: Scalar = 1) -> Tensor:
    """x with the slices of src added at `index` along an axis."""
    d = normal_axis("index_add", dim, x.ndim)
    return scatter_add(x, d, _along(x, d, index, src.dims), mul(src, alpha) if alpha != 1 else src)


def index_fill(x: Tensor, dim: int, index: TensorLike, value: Scalar) -> Tensor:
    """x with the slices `index` along an axis set to a value."""
    d = normal_axis("index_fill", dim, x.ndim)
    t = _index("index_fill", index)
    dims = (*x.dims[:d], t.dims[0] if t.ndim else const(1), *x.dims[d + 1 :])
    return scatter(x, d, _along(x, d, t, dims), value)


def slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: ExprLike | None = None,
    end: ExprLike | None = None, step: int = 1,
) -> Tensor:  # fmt: skip
    """x with x[start:end:step] along an axis replaced by src."""
    d = normal_axis("slice_scatter", dim, x.ndim)
    places = slice_axis(iota(x.dims[d]), 0, start, end, step)
    dims = (*x.dims[:d], places.dims[0], *x.dims[d + 1 :])
    src = broadcast(cast(src, x.dtype), dims)
    first = to_expr(start or 0)
    if step == 1 and (first.value is None or first.value >= 0):
        return overlap(x, src, [first if p == d else 0 for p in range(x.ndim)])
    return index_copy(x, d, places, src)


def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with slice `index` along an axis replaced by src."""
    d = normal_axis("select_scatter", dim, x.ndim)
    start = to_expr(index) + x.dims[d] if index < 0 else to_expr(index)
    return overlap(x, unsqueeze(src, d), [start if p == d else 0 for p in range(x.ndim)])


def one_hot(index: Tensor, num_classes: ExprLike) -> Tensor:
    """[.., num_classes] of i64: 1 where the class is the index."""
    return cast(eq(unsqueeze(_index("one_hot", index), -1), iota(num_classes)), i64)


def isin(x: Tensor, values: Tensor) -> Tensor:
    """True where x equals one of the values."""
    return any_of(eq(unsqueeze(x, -1), ravel(values)), -1)


def bincount(index: Tensor, minlength: ExprLike) -> Tensor:
    """How often 0, 1, ..., minlength - 1 occur."""
    zero = zeros(minlength, dtype=i64)
    return scatter_add(zero, 0, index, ones_like(index, dtype=i64))
