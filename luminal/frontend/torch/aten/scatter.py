"""Scatters of ATen: writes at indices, in order or accumulated, and writes through views.

In: luminal tensors. Out: tensors in the traced dtype and shape. Accumulation compares every place
with every index, hence a limit on the number of pairs. Indices are checked as eager checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.functional_reduce import size_scalar
from luminal.frontend.tensor import (
    Tensor,
    broadcast,
    broadcast_dims,
    cast,
    iota,
    scalar,
    scatter_primitive,
)
from luminal.frontend.torch.aten.index import wrapped
from luminal.frontend.torch.aten.table import Call, op
from luminal.frontend.torch.aten.views import position, start_of
from luminal.ir.dtype import boolean, i32, i64
from luminal.ir.expr import Expr, ExprLike, prod, to_expr
from luminal.ir.view import View, axes_of

__all__: list[str] = []

MOST_PAIRS = 1 << 24
LONGEST_MASK = 4096
_REDUCTIONS = {"sum": "sum", "add": "sum", "prod": "prod", "multiply": "prod", "mean": "mean",
               "amax": "amax", "amin": "amin"}  # fmt: skip


def _in_range(
    call: Call, index: Tensor, size: Expr, text: str, kind: str = "IndexError",
    negative: bool = False,
) -> None:  # fmt: skip
    """Eager's refusal of indices outside 0 .. size - 1, or from -size on."""
    extent = size_scalar(size, i64)
    place = cast(index, i64)
    low = F.lt(place, F.neg(extent) if negative else 0)
    call.refuse(text, F.logical_or(low, F.ge(place, extent)), kind)


def _vectors(x: Tensor, *others: Tensor) -> list[Tensor]:
    """The tensors with 0-d ones as vectors of one element."""
    return [t if t.ndim else F.reshape(t, 1) for t in (x, *others)]


@op("scatter.src")
def _scatter(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    out, index, src = _vectors(x, index, src)
    return F.reshape(F.scatter(out, dim % out.ndim, index, src), *x.dims)


@op("scatter.value")
def _scatter_value(call: Call, x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _scatter(call, x, dim, index, broadcast(scalar(value, x.dtype), index.dims))


@op("index_copy")
def _index_copy(call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    out, index, source = _vectors(x, index, source)
    return F.reshape(F.index_copy(out, dim % out.ndim, index, source), *x.dims)


def _combined(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """x combined with src [..] at index [..] along an axis."""
    shape, dtype = x.dims, x.dtype
    x, index, src = _vectors(x, index, src)
    d, work = dim % x.ndim, i32 if dtype == boolean else dtype
    sizes = [call.size(s) for s in index.dims]
    if product(sizes) * call.size(x.dims[d]) > MOST_PAIRS:
        raise UnsupportedError("[torch] a scatter that accumulates over many pairs.")
    if product(sizes) == 0:
        return F.reshape(x, *shape)
    wide, parts = cast(x, work), cast(src, work)
    if reduce == "prod":
        out = _multiplied(wide, d, index, parts, include_self)
    else:
        out = F.scatter_reduce(wide, d, index, parts, reduce, include_self=include_self)
    return F.reshape(cast(out, dtype), *shape)


def _multiplied(x: Tensor, d: int, index: Tensor, src: Tensor, include_self: bool) -> Tensor:
    """x times the product of src at the indexed places."""
    if any(a != b for k, (a, b) in enumerate(zip(x.dims, index.dims, strict=True)) if k != d):
        raise UnsupportedError("[torch] a product scattered over a part of a tensor.")
    src = _cropped(src, index.dims)
    place = F.reshape(iota(x.dims[d]), -1, *([1] * (x.ndim - d)))
    hits = F.eq(F.unsqueeze(F.movedim(cast(index, i64), d, -1), d), place)
    factors = F.where(hits, F.unsqueeze(F.movedim(src, d, -1), d), scalar(1, x.dtype))
    own = x if include_self else F.where(F.any(hits, [-1]), scalar(1, x.dtype), x)
    return F.mul(own, F.prod(factors, -1, dtype=x.dtype))


def _cropped(x: Tensor, dims: Sequence[Expr]) -> Tensor:
    for d, size in enumerate(dims):
        x = F.narrow(x, d, 0, size)
    return x


def _bounds_text(x: Tensor, dim: int) -> str:
    size = x.dims[dim % x.ndim] if x.ndim else 1
    return f"index out of bounds for dimension {dim} with size {size}"


@op("scatter_add")
def _scatter_add(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter_reduce(call, x, dim, index, src, "sum")


@op("scatter_reduce.two", "scatter.reduce")
def _scatter_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    out = _vectors(x)[0]
    _in_range(call, index, out.dims[dim % out.ndim], _bounds_text(x, dim), "RuntimeError")
    return _combined(call, x, dim, index, src, _REDUCTIONS[reduce], include_self)


@op("scatter.value_reduce")
def _scatter_value_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str
) -> Tensor:
    src = broadcast(scalar(value, x.dtype), index.dims)
    return _scatter_reduce(call, x, dim, index, src, reduce)


def _along(x: Tensor, d: int, index: Tensor, dims: Sequence[Expr]) -> Tensor:
    """A vector of places along axis d, repeated over the other axes."""
    return broadcast(F.reshape(index, -1, *([1] * (x.ndim - 1 - d))), tuple(dims))


@op("index_add")
def _index_add(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    scaled = source if alpha == 1 else F.mul(cast(source, x.dtype), alpha)
    return _index_reduce(call, x, dim, index, scaled, "sum")


@op("index_reduce")
def _index_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    shape = x.dims
    x, index, source = _vectors(x, index, source)
    d = dim % x.ndim
    _in_range(call, index, x.dims[d], "index out of range in self")
    places = _along(x, d, index, source.dims)
    out = _combined(call, x, d, places, source, _REDUCTIONS[reduce], include_self)
    return F.reshape(out, *shape)


@op("put")
def _put(call: Call, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, size = F.reshape(x, -1), prod(x.dims)
    _in_range(call, index, size, "out of range: index", negative=True)
    places, values = F.reshape(wrapped(index, size), -1), F.reshape(source, -1)
    if accumulate:
        return F.reshape(_combined(call, flat, 0, places, values, "sum", True), *x.dims)
    return F.reshape(F.scatter(flat, 0, places, values), *x.dims)


@op("masked_scatter")
def _masked_scatter(call: Call, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    chosen = F.reshape(broadcast(mask, call.dims), -1)
    if call.size(chosen.dims[0]) > LONGEST_MASK or not call.size(prod(source.dims)):
        raise UnsupportedError("[torch] a long masked_scatter.")
    place = F.sub(F.cumsum(cast(chosen, i64), 0), 1)
    last = F.sub(size_scalar(prod(source.dims), i64), 1)
    call.refuse("masked_scatter: expected self and source to have same dtypes and enough elements",
                F.logical_and(chosen, F.gt(place, last)))  # fmt: skip
    picked = F.take(F.reshape(source, -1), F.maximum(F.minimum(place, last), 0))
    return F.reshape(F.where(chosen, picked, F.reshape(call.ready(x), -1)), *call.dims)


@op("slice_scatter")
def _slice_scatter(
    call: Call, x: Tensor, src: Tensor, dim: int = 0, start: ExprLike | None = None,
    end: ExprLike | None = None, step: int = 1,
) -> Tensor:  # fmt: skip
    d = dim % x.ndim
    first = start_of(start, x.dims[d])
    taken = src.dims[d]
    axes = [to_expr(a) for a in axes_of(x.dims)]
    offset = axes[d] - first
    valid = [offset, (taken - 1) * step - offset]
    if step != 1:
        valid.append(-(offset % step))
    index = (*axes[:d], offset // step, *axes[d + 1 :])
    return _overlaid(x, src, View(x.dims, src.dims, index, tuple(valid)))


@op("select_scatter")
def _select_scatter(call: Call, x: Tensor, src: Tensor, dim: int, index: ExprLike) -> Tensor:
    d = dim % x.ndim
    place = position(index, x.dims[d])
    axes = [to_expr(a) for a in axes_of(x.dims)]
    valid = (axes[d] - place, place - axes[d])
    view = View(x.dims, src.dims, (*axes[:d], *axes[d + 1 :]), valid)
    return _overlaid(x, src, view)


@op("diagonal_scatter")
def _diagonal_scatter(
    call: Call, x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    axes = [to_expr(e) for e in axes_of(x.dims)]
    gap = axes[b] - axes[a] - offset
    rest = [e for d, e in enumerate(axes) if d not in (a, b)]
    along = axes[a] if offset >= 0 else axes[b]
    return _overlaid(x, src, View(x.dims, src.dims, (*rest, along), (gap, -gap)))


def _overlaid(x: Tensor, src: Tensor, view: View) -> Tensor:
    """src where the view is valid, else x."""
    truth = broadcast(scalar(True, boolean), src.dims)
    inside = truth.through(View(view.shape, view.source, view.index, view.valid, False))
    return F.where(inside, cast(src, x.dtype).through(view), x)


def _flat_index(x: Tensor, indices: Sequence[Tensor | None], axes: list[int]) -> Tensor:
    """The row-major position among the indexed axes, shaped as the broadcast indices."""
    dims = broadcast_dims("index", *(indices[d].dims for d in axes))  # type: ignore[union-attr]
    total: Tensor | None = None
    for d in axes:
        at = broadcast(wrapped(indices[d], x.dims[d]), dims)  # type: ignore[arg-type]
        if total is None:
            total = at
            continue
        total = F.add(F.mul(total, size_scalar(x.dims[d], i64)), at)
    if total is None:
        raise UnsupportedError("[torch] an index without positions.")
    return total


@op("index_put", "_unsafe_index_put")
def _index_put(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
    accumulate: bool = False,
) -> Tensor:  # fmt: skip
    axes = [d for d, i in enumerate(indices) if i is not None]
    masks = [d for d in axes if indices[d].dtype == boolean]  # type: ignore[union-attr]
    if len(axes) == 1 and masks:
        return _masked_put(call, x, indices[axes[0]], values, axes[0], accumulate)  # type: ignore[arg-type]
    if masks or not axes:
        raise UnsupportedError("[torch] index_put with masks.")
    if len(axes) > 1 or accumulate or indices[axes[0]].ndim > 1:  # type: ignore[union-attr]
        return _put_many(call, x, indices, values, axes, accumulate)
    d = axes[0]
    at = wrapped(indices[d], x.dims[d])  # type: ignore[arg-type]
    at = at if at.ndim else F.reshape(at, 1)
    dims = (*x.dims[:d], at.dims[0], *x.dims[d + 1 :])
    shaped = values
    if indices[d].ndim == 0 and values.ndim:  # type: ignore[union-attr]
        full = (*x.dims[:d], *x.dims[d + 1 :])
        shaped = F.unsqueeze(broadcast(values, full), d)
    index = _along(x, d, at, dims)
    return scatter_primitive(x, index, broadcast(cast(shaped, x.dtype), dims), d)


def _masked_put(
    call: Call, x: Tensor, mask: Tensor, values: Tensor, axis: int, accumulate: bool
) -> Tensor:
    """Values where the mask, over the axes from `axis` on, is true: one for all, or in order."""
    n, rest = mask.ndim, x.dims[axis + mask.ndim :]
    if axis or (values.ndim > len(rest) + 1) or call.size(prod(mask.dims)) > LONGEST_MASK:
        raise UnsupportedError("[torch] index_put with a mask after other axes, or a long one.")
    values = cast(values, x.dtype)
    if values.ndim <= len(rest) or values.dims[0].value == 1:
        value = broadcast(F.reshape(values, *values.dims[values.ndim - len(rest) :]), x.dims)
    else:
        flat = cast(F.reshape(mask, -1), i64)
        place, last = F.sub(F.cumsum(flat, 0), 1), F.sub(size_scalar(values.dims[0], i64), 1)
        text = "shape mismatch: value tensor cannot be broadcast to indexing result"
        call.refuse(text, F.ne(F.sum(flat, [0]), F.add(last, 1)), "IndexError")
        safe = F.maximum(F.minimum(place, last), 0)
        value = F.index_select(broadcast(values, (values.dims[0], *rest)), 0, safe)
        value = F.reshape(value, *x.dims)
    value = F.add(x, value) if accumulate else value
    shaped = F.reshape(mask, *mask.dims, *([1] * (x.ndim - n)))
    return F.where(broadcast(shaped, x.dims), value, x)


@op("prims::as_strided_scatter.default")
def _as_strided_scatter(
    call: Call, x: Tensor, src: Tensor, size: Sequence[ExprLike], stride: Sequence[int],
    offset: int | None = None,
) -> Tensor:  # fmt: skip
    source = call.node.args[0].meta["val"]  # type: ignore[union-attr]
    if not source.is_contiguous() or not all(isinstance(s, int) for s in (*stride, offset or 0)):
        raise UnsupportedError("[torch] as_strided_scatter into a tensor that is not contiguous.")
    flat, place = F.reshape(x, -1), scalar(offset or 0, i64)
    for d, step in enumerate(stride):
        along = F.reshape(iota(src.dims[d]), -1, *([1] * (src.ndim - 1 - d)))
        place = F.add(place, F.mul(cast(along, i64), step))
    place = F.reshape(broadcast(place, src.dims), -1)
    _in_range(call, place, flat.dims[0], "setStorage: out of bounds", "RuntimeError")
    out = scatter_primitive(flat, place, F.reshape(cast(src, x.dtype), -1), 0)
    return F.reshape(out, *x.dims)


def _put_many(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, axes: list[int],
    accumulate: bool,
) -> Tensor:  # fmt: skip
    """Any index tensors: a scatter into the indexed axes, brought to the front and flattened."""
    for d in axes:
        if len(axes) > 1 or accumulate:
            text = _bounds_text(x, d)
            _in_range(call, indices[d], x.dims[d], text, negative=True)  # type: ignore[arg-type]
    rest = [d for d in range(x.ndim) if d not in axes]
    front = F.permute(x, *axes, *rest)
    at = _flat_index(x, indices, axes)
    n = at.ndim
    before = [d for d in rest if d < axes[0]] if axes[-1] - axes[0] == len(axes) - 1 else []
    after = [d for d in rest if d not in before]
    full = (*(x.dims[d] for d in before), *at.dims, *(x.dims[d] for d in after))
    k = len(before)
    order = (*range(k, k + n), *range(k), *range(k + n, len(full)))
    src = F.permute(broadcast(cast(values, x.dtype), full), *order)
    outer, inner = prod(front.dims[: len(axes)]), front.dims[len(axes) :]
    flat, src = F.reshape(front, outer, *inner), F.reshape(src, prod(at.dims), *inner)
    index = _along(flat, 0, F.reshape(at, -1), src.dims)
    if accumulate:
        out = _combined(call, flat, 0, index, src, "sum", True)
    else:
        out = scatter_primitive(flat, index, src, 0)
    back = sorted(range(x.ndim), key=[*axes, *rest].__getitem__)
    return F.permute(F.reshape(out, *front.dims), *back)
