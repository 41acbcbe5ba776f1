"""Joining, tiling and padding tensors: sums of padded parts and index maps.

In and out: tensors. Sizes stay symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from luminal.errors import ArgumentError, ShapeError
from luminal.frontend.functional_core import neutral, where
from luminal.frontend.functional_shape import (
    expand,
    flat_args,
    flip,
    permute,
    ravel,
    reshape,
    take_diagonal,
    transpose,
    unsqueeze,
)
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    TensorLike,
    apply,
    broadcast,
    cast,
    common,
    fail,
    normal_axis,
    result_type,
    scalar,
    shape_of,
)
from luminal.frontend.views import pad as pad_view
from luminal.ir.dtype import boolean
from luminal.ir.expr import Expr, ExprLike, const, maximum, minimum, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "cat",
    "concat",
    "concatenate",
    "diag",
    "hstack",
    "masked_fill",
    "meshgrid",
    "pad",
    "pixel_shuffle",
    "pixel_unshuffle",
    "repeat",
    "repeat_interleave",
    "roll",
    "rot90",
    "stack",
    "tile",
    "tril",
    "triu",
    "vstack",
]


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors joined along one axis, in their common dtype."""
    kept = [t for t in tensors if not (t.ndim == 1 and t.dims[0].value == 0)] or list(tensors[:1])
    if not kept:
        raise fail(ArgumentError, "cat", "needs at least one tensor. Got none.")
    d = normal_axis("cat", dim, kept[0].ndim)
    dtype = result_type(*tensors)
    rests = {t.dims[:d] + t.dims[d + 1 :] for t in kept}
    if len(rests) > 1 or len({t.ndim for t in kept}) > 1 or not kept[0].ndim:
        shapes = [list(t.shape) for t in kept]
        text = f"all sizes but that of axis {d} must agree. Got {shapes}."
        raise fail(ShapeError, "cat", text)
    total = sum((t.dims[d] for t in kept), const(0))
    parts, start, fill = [], const(0), neutral(dtype)
    for t in kept:
        after = total - start - t.dims[d]
        parts.append(cast(t, dtype).through(pad_view(t.dims, d, start, after, fill)))
        start = start + t.dims[d]
    return (
        reduce(lambda a, b: apply("Add", a, b), parts) if len(parts) > 1 else cast(kept[0], dtype)
    )


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    d = normal_axis("stack", dim, tensors[0].ndim + 1)
    if len({t.dims for t in tensors}) > 1:
        shapes = [list(t.shape) for t in tensors]
        raise fail(ShapeError, "stack", f"all shapes must be equal. Got {shapes}.")
    return cat([unsqueeze(t, d) for t in tensors], d)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along axis 1 (axis 0 for vectors)."""
    parts = [t if t.ndim else reshape(t, 1) for t in tensors]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along axis 0, vectors as rows."""
    return cat([t if t.ndim > 1 else reshape(t, 1, -1) for t in tensors], 0)


def _pad_index(x: Tensor, d: int, before: Expr, after: Expr, mode: str) -> Tensor:
    """Padding along one axis with elements of x: reflect, replicate or circular."""
    size = x.dims[d]
    room = size - 1 if mode == "reflect" else size
    if mode != "replicate" and min((room - before).hi, (room - after).hi) < 0:
        text = f"{mode} needs more elements. Got {before} before and {after} after {size}."
        raise fail(ShapeError, "pad", text)
    dims = (*x.dims[:d], size + before + after, *x.dims[d + 1 :])
    index = [to_expr(a) for a in axes_of(dims)]
    at, last = index[d] - before, size - 1
    if mode == "circular":
        index[d] = (at + size) % size
    elif mode == "replicate":
        index[d] = minimum(maximum(at, 0), last)
    elif mode == "reflect":
        down = maximum(at, -at)
        index[d] = minimum(down, 2 * last - down)
    else:
        raise fail(ArgumentError, "pad", f"no such mode. Got {mode!r}; try 'constant'.")
    return x.through(View(dims, x.dims, tuple(index)))


def pad(
    x: Tensor, padding: Sequence[ExprLike], mode: str = "constant", value: Scalar | None = None
) -> Tensor:
    """Padding (before, after) of the last axis, then of the one before, ...; negative crops."""
    if len(padding) % 2 or len(padding) > 2 * x.ndim:
        raise fail(ShapeError, "pad", f"needs pairs. Got {list(padding)} for {x.ndim} axes.")
    kind = float if x.dtype.is_float else bool if x.dtype.kind == "b" else int
    fill = kind(value or 0)
    for position in range(len(padding) // 2):
        d = x.ndim - 1 - position
        before, after = padding[2 * position : 2 * position + 2]
        if before == 0 and after == 0:
            continue
        if mode == "constant":
            x = x.through(pad_view(x.dims, d, before, after, fill))
        else:
            x = _pad_index(x, d, to_expr(before), to_expr(after), mode)
    return x


def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """x turned by k quarter turns from the first axis towards the second."""
    a, b = dims
    match k % 4:
        case 0:
            return x
        case 1:
            return transpose(flip(x, b), a, b)
        case 2:
            return flip(x, a, b)
        case _:
            return flip(transpose(x, a, b), b)


def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """x shifted cyclically along axes (over all elements if no axis is given)."""
    if dims is None:
        return reshape(roll(ravel(x), shifts, 0), *x.dims)
    pairs = [(shifts, dims)] if isinstance(dims, int) else zip(shifts, dims, strict=True)  # type: ignore[arg-type]
    for shift, dim in pairs:
        d = normal_axis("roll", dim, x.ndim)  # type: ignore[arg-type]
        index = [to_expr(a) for a in axes_of(x.dims)]
        if x.dims[d].value != 0:
            index[d] = (index[d] - shift) % x.dims[d]
        x = x.through(View(x.dims, x.dims, tuple(index)))
    return x


def _triangle(x: Tensor, sign: int, diagonal: int) -> Tensor:
    i, j = (to_expr(a) for a in axes_of(x.dims)[-2:])
    condition = (i - j + diagonal) * sign
    fill = 0.0 if x.dtype.is_float else False if x.dtype.kind == "b" else 0
    axes = tuple(to_expr(a) for a in axes_of(x.dims))
    return x.through(View(x.dims, x.dims, axes, (condition,), fill))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two axes, 0 elsewhere."""
    return _triangle(x, 1, diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two axes, 0 elsewhere."""
    return _triangle(x, -1, diagonal)


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix with a vector on its diagonal."""
    if x.ndim == 2:
        return take_diagonal(x, diagonal)
    n = x.dims[0] + abs(diagonal)
    row, col = (to_expr(a) for a in axes_of((n, n)))
    at, gap = row + min(diagonal, 0), row - col + diagonal
    fill = neutral(x.dtype) or 0
    valid = (gap, -gap, at, x.dims[0] - 1 - at)
    fill = 0.0 if x.dtype.is_float else fill
    return x.through(View((n, n), x.dims, (at,), valid, fill))


def repeat(x: Tensor, *sizes: Any) -> Tensor:
    """x tiled so many times along each axis."""
    sizes = shape_of(flat_args(sizes))
    x = reshape(x, *([1] * (len(sizes) - x.ndim)), *x.dims)
    if len(sizes) != x.ndim:
        raise fail(ShapeError, "repeat", f"Got {len(sizes)} sizes; expected {x.ndim} or more.")
    dims = tuple(a * b for a, b in zip(sizes, x.dims, strict=True))
    index = tuple(to_expr(a) % d for a, d in zip(axes_of(dims), x.dims, strict=True))
    return x.through(View(dims, x.dims, index))


def tile(x: Tensor, *sizes: Any) -> Tensor:
    """x tiled; missing sizes are 1."""
    sizes = flat_args(sizes)
    return repeat(x, *([1] * (x.ndim - len(sizes))), *sizes)


def repeat_interleave(x: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    """Every element `repeats` times in a row along one axis (all elements if none is given)."""
    if dim is None:
        return repeat_interleave(ravel(x), repeats, 0)
    d = normal_axis("repeat_interleave", dim, x.ndim)
    dims = (*x.dims[:d], x.dims[d] * repeats, *x.dims[d + 1 :])
    index = [to_expr(a) for a in axes_of(dims)]
    index[d] = index[d] // repeats if repeats else index[d]
    return x.through(View(dims, x.dims, tuple(index)))


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Vectors as coordinates of a grid."""
    vectors = [v if v.ndim else reshape(v, 1) for v in flat_args(tensors)]
    if indexing == "xy" and len(vectors) > 1:
        grids = meshgrid(vectors[1], vectors[0], *vectors[2:])
        grids = (grids[1], grids[0], *grids[2:])
        return grids
    dims = tuple(v.dims[0] for v in vectors)
    return tuple(
        expand(reshape(v, *([1] * p), -1, *([1] * (len(dims) - 1 - p))), *dims)
        for p, v in enumerate(vectors)
    )


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """[.., c·r², h, w] to [.., c, h·r, w·r]."""
    r, (c, h, w), n = upscale_factor, x.dims[-3:], x.ndim - 3
    parts = reshape(x, *x.dims[:-3], c // (r * r), r, r, h, w)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return reshape(permute(parts, order), *x.dims[:-3], c // (r * r), h * r, w * r)


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """[.., c, h·r, w·r] to [.., c·r², h, w]."""
    r, (c, h, w), n = downscale_factor, x.dims[-3:], x.ndim - 3
    parts = reshape(x, *x.dims[:-3], c, h // r, r, w // r, r)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return reshape(permute(parts, order), *x.dims[:-3], c * (r * r), h // r, w // r)


def masked_fill(x: Tensor, mask: Tensor, value: TensorLike) -> Tensor:
    """`value` where the mask holds, else x; x's dtype."""
    (fill,) = common("masked_fill", value, dtype=x.dtype)
    return where(mask, fill, x)


def overlap(x: Tensor, part: Tensor, starts: Sequence[ExprLike]) -> Tensor:
    """x with the block at `starts` replaced by `part`."""
    inside = broadcast(scalar(True, boolean), part.dims)
    padded = cast(part, x.dtype)
    for d, start in enumerate(starts):
        after = x.dims[d] - part.dims[d] - start
        if to_expr(start) == 0 and after == 0:
            continue
        padded = padded.through(pad_view(padded.dims, d, start, after, neutral(x.dtype)))
        inside = inside.through(pad_view(inside.dims, d, start, after, False))
    return where(inside, padded, x)
