"""Indexing: gather, scatter, tensors as indices, sorting, and creation from index vectors.

In and out: tensors. Indices out of range are an IndexError when the compiled function runs.
Sorting counts ranks through comparisons: stable, NaN last, quadratic.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, DTypeError, ShapeError
from luminal.frontend.functional_core import (
    add,
    eq,
    isnan,
    logical_and,
    logical_not,
    logical_or,
    lt,
    minimum,
    mul,
    where,
)
from luminal.frontend.functional_reduce import any as any_of
from luminal.frontend.functional_reduce import lowest, reduce_many
from luminal.frontend.functional_shape import (
    flip,
    movedim,
    overlap,
    ravel,
    reshape,
    select,
    slice_axis,
    unsqueeze,
)
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    TensorLike,
    broadcast,
    broadcast_dims,
    cast,
    common,
    dtype_of,
    fail,
    gather_primitive,
    half_up,
    iota,
    normal_axis,
    result_type,
    scalar,
    scatter_primitive,
    shape_of,
    tensor,
)
from luminal.ir.dtype import DType, boolean, f32, i64
from luminal.ir.expr import Expr, ExprLike, const, prod, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "arange", "argsort", "bincount", "embedding", "empty", "eye", "full", "full_like", "gather",
    "getitem", "index_add", "index_copy", "index_fill", "index_put", "index_select", "isin",
    "kthvalue", "linspace", "median", "msort", "one_hot", "ones", "ones_like", "scatter",
    "scatter_add", "scatter_reduce", "select_scatter", "slice_scatter", "sort", "take",
    "take_along_dim", "topk", "zeros", "zeros_like",
]  # fmt: skip


def full(shape: Any, value: Scalar, *, dtype: DType | str | None = None) -> Tensor:
    """A tensor of one value."""
    sizes = shape_of(shape if isinstance(shape, list | tuple) else (shape,))
    want = dtype_of(dtype) if dtype is not None else result_type(value)
    return broadcast(scalar(value, want), sizes)


def _sizes(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape


def zeros(*shape: Any, dtype: DType | str = f32) -> Tensor:
    """A tensor of zeros."""
    return full(_sizes(shape), 0, dtype=dtype)


def ones(*shape: Any, dtype: DType | str = f32) -> Tensor:
    """A tensor of ones."""
    return full(_sizes(shape), 1, dtype=dtype)


empty = zeros


def full_like(x: Tensor, value: Scalar, *, dtype: DType | str | None = None) -> Tensor:
    """A tensor of one value with x's shape and dtype."""
    return full(x.dims, value, dtype=x.dtype if dtype is None else dtype)


def zeros_like(x: Tensor, *, dtype: DType | str | None = None) -> Tensor:
    """Zeros with x's shape and dtype."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Tensor, *, dtype: DType | str | None = None) -> Tensor:
    """Ones with x's shape and dtype."""
    return full_like(x, 1, dtype=dtype)


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: DType | str | None = None
) -> Tensor:
    """start, start + step, ... below end; i64 for integers, else f32."""
    start, end = (0, start) if end is None else (start, end)
    floats = any(isinstance(v, float) for v in (start, end, step))
    want = dtype_of(dtype) if dtype is not None else f32 if floats else i64
    if floats:
        count: ExprLike = max(0, int(np.ceil((end - start) / step)))
    elif step > 0:
        count = (to_expr(end) - start + (step - 1)) // step
    else:
        count = (to_expr(start) - end + (-step - 1)) // -step
    count = to_expr(count)
    if count.hi < 0:
        count = const(0)
    base = iota(count)
    if floats or (want.is_float and not isinstance(start, Expr)):
        wide = want if want.bits >= 32 else f32
        return cast(add(mul(cast(base, wide), step), start), want)
    if not isinstance(start, Expr) or start.value is not None:
        return cast(add(mul(base, step), int(to_expr(start).value or 0)), want)
    whole = iota(to_expr(start) + count * abs(step))
    index = start + to_expr(axes_of((count,))[0]) * step
    return cast(whole.through(View((count,), whole.dims, (index,))), want)


def linspace(start: float, end: float, steps: int, *, dtype: DType | str = f32) -> Tensor:
    """`steps` numbers evenly from start to end."""
    want = dtype_of(dtype)
    return tensor(np.linspace(start, end, steps), want) if steps else zeros(0, dtype=want)


def eye(n: ExprLike, m: ExprLike | None = None, *, dtype: DType | str = f32) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    want = dtype_of(dtype)
    dims = shape_of((n, n if m is None else m))
    i, j = (to_expr(a) for a in axes_of(dims))
    one = scalar(1, want)
    zero = 0.0 if want.is_float else False if want == boolean else 0
    return one.through(View(dims, (), (), (i - j, j - i), zero))


def _index(op: str, index: TensorLike) -> Tensor:
    t = index if isinstance(index, Tensor) else tensor(np.asarray(index))
    if not t.dtype.is_int:
        raise fail(DTypeError, op, f"indices must be integers. Got {t.dtype}.")
    return t if t.dtype.bits >= 32 and t.dtype.kind == "i" else cast(t, i64)


def take_blocks(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """x with axis `dim` replaced by the axes of `index`: out[.., i.., ..] = x[.., index[i..], ..]."""
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


def _split_key(x: Tensor, key: object) -> list[Any]:
    """The key as one entry per axis (and per new axis), without '...'."""
    parts = list(key) if isinstance(key, tuple) else [key]
    parts = [tensor(np.asarray(p)) if isinstance(p, list | np.ndarray) else p for p in parts]
    used = sum(
        p.ndim if isinstance(p, Tensor) and p.dtype == boolean else 1
        for p in parts
        if p is not None and p is not Ellipsis
    )
    if used > x.ndim or sum(isinstance(p, EllipsisType) for p in parts) > 1:
        text = f"too many indices. Got {used} for shape {list(x.shape)}."
        raise fail(ShapeError, "index", text)
    spot = next((n for n, p in enumerate(parts) if p is Ellipsis), len(parts))
    return [*parts[:spot], *[slice(None)] * (x.ndim - used), *parts[spot + 1 :]]


def _basic(x: Tensor, parts: list[Any]) -> tuple[Tensor, dict[int, Tensor]]:
    """x after ints, slices and None; and the tensors left, by axis of the result."""
    axis, left = 0, {}
    for part in parts:
        if part is None:
            x, axis = unsqueeze(x, axis), axis + 1
        elif isinstance(part, slice):
            x, axis = _sliced(x, axis, part), axis + 1
        elif isinstance(part, Tensor):
            if part.dtype == boolean:
                text = "a bool mask gives a size that depends on data. Try where or masked_fill."
                raise fail(ArgumentError, "index", text)
            left[axis], axis = part, axis + 1
        elif isinstance(part, int | np.integer | Expr) and not isinstance(part, bool):
            x = select(x, axis, part if isinstance(part, Expr) else int(part))
        else:
            raise fail(ArgumentError, "index", f"cannot index with {part!r}. Try ints or slices.")
    return x, left


def _sliced(x: Tensor, axis: int, part: slice) -> Tensor:
    step = 1 if part.step is None else part.step
    if step > 0:
        return slice_axis(x, axis, part.start, part.stop, step)
    size = x.dims[axis].value
    if size is None or step == 0:
        raise fail(ArgumentError, "index", f"Got step {step}; expected a positive one. Try flip.")
    found = range(*part.indices(size))
    back = flip(x, axis)
    return slice_axis(
        back, axis, size - 1 - found.start, size - found.stop - 1 if found else 0, -step
    )


def _wrapped(index: Tensor, size: Expr) -> Tensor:
    """Indices that may be negative, counted from 0."""
    if isinstance(index.source.value, int) and index.source.value >= 0:
        return index
    end = iota(size + 1, index.dtype).through(View((), (size + 1,), (size,)))
    end = scalar(size.value, index.dtype) if size.value is not None else end
    return where(lt(index, 0), add(index, end), index)


def _joined(x: Tensor, left: dict[int, Tensor]) -> tuple[Tensor, Tensor, int]:
    """x with the indexed axes merged into one, the flat index, and that axis's position."""
    axes = sorted(left)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    spot = axes[0] if together else 0
    dims = broadcast_dims("index", *(left[a].dims for a in axes))
    flat = scalar(0, i64)
    for a in axes:
        index = broadcast(_wrapped(_index("index", left[a]), x.dims[a]), dims)
        flat = index if len(axes) == 1 else add(mul(flat, _size(x.dims[a])), cast(index, i64))
    x = x if together else movedim(x, axes, list(range(len(axes))))
    merged = (*x.dims[:spot], prod(x.dims[spot : spot + len(axes)]), *x.dims[spot + len(axes) :])
    return reshape(x, *merged), flat, spot


def _size(size: Expr) -> Tensor:
    if size.value is not None:
        return scalar(size.value, i64)
    return iota(size + 1).through(View((), (size + 1,), (size,)))


def getitem(x: Tensor, key: object) -> Tensor:
    """x[key]: ints, slices, None, '...', lists and integer tensors, as in PyTorch."""
    x, left = _basic(x, _split_key(x, key))
    if not left:
        return x
    if len(left) == 1:
        ((axis, index),) = left.items()
        return take_blocks(x, axis, _wrapped(_index("index", index), x.dims[axis]))
    merged, flat, spot = _joined(x, left)
    return take_blocks(merged, spot, flat)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: TensorLike, accumulate: bool = False
) -> Tensor:
    """x with x[indices] = values (or += with `accumulate`); None keeps a whole axis."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == boolean:
        mask = indices[0]
        mask = reshape(mask, *mask.dims, *([1] * (x.ndim - mask.ndim)))
        (value,) = common("index_put", values, dtype=x.dtype)
        return where(mask, add(x, value) if accumulate else value, x)
    left = {a: t for a, t in enumerate(indices) if t is not None}
    axes = sorted(left)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    merged, flat, spot = _joined(x, left)
    dims = (*merged.dims[:spot], *flat.dims, *merged.dims[spot + 1 :])
    (value,) = common("index_put", values, dtype=x.dtype)
    value = broadcast(value, dims)
    count = prod(flat.dims)
    value = reshape(value, *merged.dims[:spot], count, *merged.dims[spot + 1 :])
    put = index_add if accumulate else index_copy
    done = put(merged, spot, reshape(flat, count), value)
    if together:
        return reshape(done, *x.dims)
    moved = [x.dims[a] for a in axes] + [d for a, d in enumerate(x.dims) if a not in left]
    return movedim(reshape(done, *moved), list(range(len(axes))), axes)


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
