"""Views and movement of ATen: shapes, slices, joins, pads, triangles.

In: luminal tensors; sizes as ints or Exprs. Out: views, or padded sums of views. Result shapes
are those that tracing found.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast
from luminal.frontend.torch.aten.table import Call, op, relabelled
from luminal.frontend.views import reshape, slice_
from luminal.ir.expr import Expr, ExprLike, const, is_nonnegative, minimum, prod, to_expr
from luminal.ir.view import View, axes_of

__all__: list[str] = []


@op("view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias")
def _view(call: Call, x: Tensor, *size: object) -> Tensor:
    if prod(x.dims) != prod(call.dims) and call.equal(prod(x.dims), prod(call.dims)):
        return x.through(reshape(x.dims, call.dims))  # equal because a guard says what divides what
    return F.reshape(x, *call.dims)


@op("squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze")
def _squeeze(call: Call, x: Tensor, *dims: object) -> Tensor:
    return F.reshape(x, *call.dims)


@op("permute")
def _permute(call: Call, x: Tensor, order: Sequence[int]) -> Tensor:
    return F.permute(x, *[d % max(x.ndim, 1) for d in order])


@op("transpose.int")
def _transpose(call: Call, x: Tensor, a: int, b: int) -> Tensor:
    return F.transpose(x, a, b)


@op("t")
def _t(call: Call, x: Tensor) -> Tensor:
    return x if x.ndim < 2 else F.transpose(x, 0, 1)


@op("expand", "expand_copy")
def _expand(call: Call, x: Tensor, size: Sequence[ExprLike], implicit: bool = False) -> Tensor:
    wanted = call.dims[len(call.dims) - x.ndim :]
    sizes = tuple(  # tracing knows that sizes are equal which do not look so: h // k * k and h
        w if call.size(d) != 1 and call.equal(d, w) else d
        for d, w in zip(x.dims, wanted, strict=True)
    )
    return F.expand(x if sizes == x.dims else relabelled(x, sizes), *call.dims)


@op("alias", "detach")
def _alias(call: Call, x: Tensor) -> Tensor:
    return x


def position(index: ExprLike, size: Expr) -> Expr:
    """A position, counted from 0; UnsupportedError where it may be counted from either end."""
    place = to_expr(index)
    if place.hi < 0:
        return size + place
    if not is_nonnegative(place):
        raise UnsupportedError("[torch] an index that may be negative.")
    return place


def start_of(value: ExprLike | None, size: Expr) -> Expr:
    """A slice's first position, counted from 0 and limited to the size."""
    first = to_expr(0 if value is None else value)
    if first.value is not None and first.value < 0:
        first = size + first
        if size.value is not None:
            first = const(max(0, first.value))  # type: ignore[type-var]
        elif not is_nonnegative(first):
            raise UnsupportedError("[torch] a slice that may start before the first element.")
    elif not is_nonnegative(first):
        raise UnsupportedError("[torch] a slice whose start may be negative.")
    return minimum(first, size)


@op("slice.Tensor")
def _slice(
    call: Call, x: Tensor, dim: int = 0, start: ExprLike | None = None,
    end: ExprLike | None = None, step: int = 1,
) -> Tensor:  # fmt: skip
    d = dim % x.ndim
    return x.through(slice_(x.dims, d, start_of(start, x.dims[d]), call.dims[d], step))


@op("select.int")
def _select(call: Call, x: Tensor, dim: int, index: ExprLike) -> Tensor:
    d = dim % x.ndim
    place = position(index, x.dims[d])
    if not is_nonnegative(place) or not is_nonnegative(x.dims[d] - 1 - place):
        raise UnsupportedError("[torch] an index that may be out of range.")
    axes = [to_expr(a) for a in axes_of(call.dims)]
    return x.through(View(call.dims, x.dims, (*axes[:d], place, *axes[d:])))


@op("split_with_sizes", "split.Tensor", "unbind.int")
def _split(call: Call, x: Tensor, sizes: object = 0, dim: int = 0) -> list[Tensor]:
    unbind = "unbind" in str(call.node.target)
    d = (sizes if unbind else dim) % x.ndim  # type: ignore[operator]
    out, start = [], const(0)
    for fake in call.fake:  # type: ignore[attr-defined]
        dims = call.symbols.exprs(fake.shape)
        size = const(1) if unbind else dims[d]
        piece = x.through(slice_(x.dims, d, start, size))
        out.append(F.reshape(piece, *dims) if unbind else piece)
        start = start + size
    return out


@op("cat")
def _cat(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return F.cat([cast(t, call.dtype) for t in tensors], dim)


@op("stack")
def _stack(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return F.stack([cast(t, call.dtype) for t in tensors], dim)


@op("repeat")
def _repeat(call: Call, x: Tensor, sizes: Sequence[ExprLike]) -> Tensor:
    return F.repeat(x, *sizes)


@op("flip", "prims::rev.default")
def _flip(call: Call, x: Tensor, dims: Sequence[int]) -> Tensor:
    return F.flip(x, *dims) if dims else x


@op("roll")
def _roll(call: Call, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return F.roll(x, shifts[0])
    return F.roll(x, list(shifts), list(dims))


@op("constant_pad_nd")
def _pad(call: Call, x: Tensor, padding: Sequence[ExprLike], value: float = 0) -> Tensor:
    return F.pad(x, padding, value=value)


@op("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection(call: Call, x: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(x, padding, "reflect")


@op("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication(call: Call, x: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(x, padding, "replicate")


@op("tril")
def _tril(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    return F.tril(x, diagonal)


@op("triu")
def _triu(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    return F.triu(x, diagonal)


@op("diagonal", "diagonal_copy")
def _diagonal(call: Call, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return F.diagonal(x, offset, dim1, dim2)


@op("unfold", "unfold_copy")
def _unfold(call: Call, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    return F.unfold(x, dimension, size, step) if x.ndim else F.reshape(x, 1)


@op("pixel_shuffle")
def _pixel_shuffle(call: Call, x: Tensor, factor: int) -> Tensor:
    return F.pixel_shuffle(x, factor)


@op("pixel_unshuffle")
def _pixel_unshuffle(call: Call, x: Tensor, factor: int) -> Tensor:
    return F.pixel_unshuffle(x, factor)


@op("as_strided")
def _as_strided(
    call: Call, x: Tensor, size: Sequence[ExprLike], stride: Sequence[ExprLike],
    offset: ExprLike | None = None,
) -> Tensor:  # fmt: skip
    source = call.node.args[0].meta["val"]  # type: ignore[union-attr]
    if not source.is_contiguous() or not (source.storage_offset() == 0 or offset is None):
        raise UnsupportedError("[torch] as_strided of a tensor that is not contiguous.")
    flat = F.reshape(x, -1)
    place = to_expr(0 if offset is None else offset)
    for axis, step in zip(axes_of(call.dims), stride, strict=True):
        place = place + to_expr(axis) * step
    last = flat.dims[0] - 1 - place
    if not is_nonnegative(place) or not is_nonnegative(last):
        raise UnsupportedError("[torch] as_strided beyond the tensor's elements.")
    return flat.through(View(call.dims, flat.dims, (place,)))
