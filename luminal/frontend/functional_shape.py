"""Views and movement: reshape, permute, slice, pad, concat and what is made of them.

In and out: tensors. Almost everything here is an index map and moves no data; concatenation is a
sum of padded parts. Sizes stay symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from luminal.errors import ArgumentError, ShapeError, UnsupportedError
from luminal.frontend.functional_core import neutral, where
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    TensorLike,
    apply,
    broadcast,
    broadcast_dims,
    cast,
    common,
    fail,
    normal_axis,
    result_type,
    scalar,
    shape_of,
)
from luminal.ir.dtype import boolean
from luminal.ir.expr import Expr, ExprLike, const, maximum, minimum, prod, remainder, to_expr
from luminal.ir.view import Shape, View, axes_of, slice_
from luminal.ir.view import flip as flip_view
from luminal.ir.view import pad as pad_view
from luminal.ir.view import permute as permute_view
from luminal.ir.view import unfold as unfold_view

__all__ = [
    "broadcast_tensors", "broadcast_to", "cat", "chunk", "concat", "concatenate", "diag", "diagonal",
    "expand", "expand_as", "flatten", "flip", "fliplr", "flipud", "hstack", "masked_fill", "meshgrid", "moveaxis",
    "movedim", "narrow", "pad", "permute", "pixel_shuffle", "pixel_unshuffle", "ravel", "repeat",
    "repeat_interleave", "reshape", "roll", "rot90", "select", "slice_axis", "split", "squeeze",
    "stack", "swapaxes", "tensor_split", "tile", "transpose", "tril", "triu", "unbind", "unflatten",
    "unfold", "unsqueeze", "view", "vstack",
]  # fmt: skip


def flat_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """f(1, 2) and f((1, 2)) alike."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args


def axes_args(op: str, axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from 0, all of them for None; ArgumentError on a repeated one."""
    if axes is None:
        return tuple(range(ndim))
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    out = tuple(normal_axis(op, a, ndim) for a in given)
    if len(set(out)) != len(out):
        raise fail(ArgumentError, op, f"an axis occurs twice. Got {given}.")
    return out


def _groups(old: Shape, new: Shape) -> list[tuple[int, int, int, int]] | None:
    """Ranges (i0, i1, j0, j1) of dimensions with equal products; None if the counts differ."""
    found, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        a, b = const(1), const(1)
        while a != b or i == i0 or j == j0:
            more_a, more_b = i < len(old), j < len(new)
            take_a = more_a and ((a == b and i == i0) or _behind(a, b) or not more_b)
            take_b = more_b and ((a == b and j == j0) or _behind(b, a) or not more_a)
            if not take_a and not take_b:
                if not more_a and not more_b:
                    break
                take_a, take_b = more_a, more_b
            if take_a:
                a, i = a * old[i], i + 1
            if take_b:
                b, j = b * new[j], j + 1
        if a != b:
            return None
        found.append((i0, i, j0, j))
    return found


def _behind(a: Expr, b: Expr) -> bool:
    """True if a must still grow to reach b."""
    if a == b:
        return False
    if a.value is not None and b.value is not None:
        return a.value < b.value
    return not remainder(b, a).terms if a.terms else False


def _solve_shape(x: Tensor, shape: tuple[Any, ...]) -> Shape:
    unknown = [p for p, d in enumerate(shape) if isinstance(d, int) and d == -1]
    if not unknown:
        return shape_of(shape)
    given = prod(shape_of([d for p, d in enumerate(shape) if p != unknown[0]]))
    total = prod(x.dims)
    missing = total // given if given.lo > 0 or given.value is None else const(0)
    if len(unknown) > 1 or missing * given != total:
        text = f"cannot infer -1. Got {list(shape)} for a tensor of shape {list(x.shape)}."
        raise fail(ShapeError, "reshape", text)
    return shape_of([missing if p == unknown[0] else d for p, d in enumerate(shape)])


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The same elements in row-major order with another shape; one size may be -1."""
    new = _solve_shape(x, flat_args(shape))
    if new == x.dims:
        return x
    keep = tuple(p for p, d in enumerate(x.dims) if d.value != 1)
    core, slim = tuple(x.dims[p] for p in keep), tuple(d for d in new if d.value != 1)
    groups = _groups(core, slim)
    if groups is None:
        text = f"element counts differ. Got {list(x.shape)}; expected {new}."
        if prod(x.dims) != prod(new):
            raise fail(ShapeError, "reshape", text)
        groups = [(0, len(core), 0, len(slim))]
    axes = [to_expr(a) for a, d in zip(axes_of(new), new, strict=True) if d.value != 1]
    index = [const(0)] * x.ndim
    for i0, i1, j0, j1 in groups:
        flat = const(0)
        for j in range(j0, j1):
            flat = flat * slim[j] + axes[j]
        for i in range(i0, i1):
            rest = flat // prod(core[i + 1 : i1])
            index[keep[i]] = rest % core[i] if i > i0 else rest
    return x.through(View(new, x.dims, tuple(index)))


view = reshape


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes start_dim .. end_dim (inclusive) as one."""
    if x.ndim == 0:
        return reshape(x, 1)
    a, b = (normal_axis("flatten", d, x.ndim) for d in (start_dim, end_dim))
    return reshape(x, *x.dims[:a], prod(x.dims[a : b + 1]), *x.dims[b + 1 :])


def ravel(x: Tensor) -> Tensor:
    """All elements as one axis."""
    return reshape(x, prod(x.dims))


def unflatten(x: Tensor, dim: int, sizes: Sequence[Any]) -> Tensor:
    """One axis as several; one of the sizes may be -1."""
    d = normal_axis("unflatten", dim, x.ndim)
    if -1 in [s for s in sizes if isinstance(s, int)]:
        known = prod(shape_of([s for s in sizes if not (isinstance(s, int) and s == -1)]))
        sizes = [x.dims[d] // known if isinstance(s, int) and s == -1 else s for s in sizes]
    return reshape(x, *x.dims[:d], *sizes, *x.dims[d + 1 :])


def permute(x: Tensor, *order: Any) -> Tensor:
    """Axis d of the result is axis order[d] of x."""
    given = axes_args("permute", flat_args(order), x.ndim)
    if len(given) != x.ndim:
        raise fail(ShapeError, "permute", f"needs {x.ndim} axes. Got {given}.")
    return x.through(permute_view(x.dims, given))


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two axes exchanged."""
    order = list(range(x.ndim))
    a, b = (normal_axis("transpose", d, x.ndim) for d in (dim0, dim1))
    if x.ndim:
        order[a], order[b] = order[b], order[a]
    return permute(x, order)


swapaxes = transpose


def movedim(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes moved to other positions; the others keep their order."""
    src, dst = (axes_args("movedim", a, x.ndim) for a in (source, destination))
    order = [a for a in range(x.ndim) if a not in src]
    for position, axis in sorted(zip(dst, src, strict=True)):
        order.insert(position, axis)
    return permute(x, order)


moveaxis = movedim


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """x without its axes of size 1 (or without those named, where their size is 1)."""
    axes = axes_args("squeeze", dim, x.ndim)
    return reshape(x, *(d for p, d in enumerate(x.dims) if p not in axes or d.value != 1))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """x with a new axis of size 1 at `dim`."""
    d = normal_axis("unsqueeze", dim, x.ndim + 1)
    return reshape(x, *x.dims[:d], 1, *x.dims[d:])


def expand(x: Tensor, *sizes: Any) -> Tensor:
    """x broadcast to these sizes; -1 keeps one."""
    sizes = flat_args(sizes)
    extra = len(sizes) - x.ndim
    if extra < 0:
        raise fail(ShapeError, "expand", f"too few sizes. Got {sizes} for shape {list(x.shape)}.")
    full = [
        x.dims[p - extra] if isinstance(s, int) and s == -1 and p >= extra else s
        for p, s in enumerate(sizes)
    ]
    dims = shape_of(full)
    if broadcast_dims("expand", x.dims, dims) != dims:
        raise fail(ShapeError, "expand", f"Got {list(x.shape)}; expected {list(sizes)}.")
    return broadcast(x, dims)


broadcast_to = expand


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """x broadcast to the shape of another tensor."""
    return expand(x, *other.dims)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All of them broadcast to their common shape."""
    dims = broadcast_dims("broadcast_tensors", *(t.dims for t in tensors))
    return tuple(broadcast(t, dims) for t in tensors)


def _bound(value: ExprLike | None, size: Expr, default: ExprLike) -> Expr:
    if value is None:
        return to_expr(default)
    e = to_expr(value)
    if (e.value is not None and e.value < 0) or (e.value is None and e.hi < 0):
        e = e + size
    return maximum(minimum(e, size), 0)


def slice_axis(
    x: Tensor, dim: int, start: ExprLike | None = None, end: ExprLike | None = None, step: int = 1
) -> Tensor:
    """x[start:end:step] along one axis, with Python's rules for negative and large bounds."""
    d = normal_axis("slice", dim, x.ndim)
    size = x.dims[d]
    if step < 1:
        raise fail(ArgumentError, "slice", f"the step must be positive. Got {step}; try flip.")
    low, high = _bound(start, size, 0), _bound(end, size, size)
    count = maximum(0, (high - low + (step - 1)) // step)
    if low.value == 0 and count == size:
        return x
    return x.through(slice_(x.dims, d, low, count, step))


def narrow(x: Tensor, dim: int, start: ExprLike, length: ExprLike) -> Tensor:
    """`length` elements along one axis from `start`."""
    d = normal_axis("narrow", dim, x.ndim)
    begin, count = to_expr(start), to_expr(length)
    begin = begin + x.dims[d] if begin.hi < 0 else begin
    room = x.dims[d] - begin - count
    if begin.hi < 0 or room.hi < 0:
        text = f"out of range. Got start {start}, length {length}; the size is {x.dims[d]}."
        raise fail(ShapeError, "narrow", text)
    return x.through(slice_(x.dims, d, begin, count))


def select(x: Tensor, dim: int, index: ExprLike) -> Tensor:
    """Element `index` along one axis, which disappears."""
    d = normal_axis("select", dim, x.ndim)
    at, size = to_expr(index), x.dims[d]
    if not x.ndim or (at.value is not None and not -size.hi <= at.value < size.hi):
        raise fail(ArgumentError, "select", f"no such index. Got {index}; the size is {size}.")
    one = x.through(slice_(x.dims, d, at + size if at.hi < 0 else at, 1))
    return reshape(one, *one.dims[:d], *one.dims[d + 1 :])


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along one axis."""
    d = normal_axis("unbind", dim, x.ndim)
    return tuple(select(x, d, i) for i in range(static("unbind", x.dims[d])))


def static(op: str, size: Expr) -> int:
    """The size as an int; UnsupportedError if it is symbolic."""
    if size.value is None:
        raise fail(UnsupportedError, op, f"needs a fixed size. Got the symbolic size {size}.")
    return size.value


def split(x: Tensor, split_size: int | Sequence[ExprLike], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of `split_size` along one axis, or of the listed sizes."""
    d = normal_axis("split", dim, x.ndim)
    if isinstance(split_size, int):
        total = static("split", x.dims[d])
        sizes: Sequence[ExprLike] = [
            min(split_size, total - i) for i in range(0, max(total, 1), max(split_size, 1))
        ]
    else:
        sizes = split_size
    if sum((to_expr(s) for s in sizes), const(0)) != x.dims[d]:
        text = f"the sizes do not add up. Got {list(sizes)}; expected a sum of {x.dims[d]}."
        raise fail(ShapeError, "split", text)
    out, start = [], const(0)
    for size in sizes:
        out.append(x.through(slice_(x.dims, d, start, size)))
        start = start + size
    return tuple(out)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` equal pieces along one axis (the last may be smaller)."""
    d = normal_axis("chunk", dim, x.ndim)
    if x.dims[d].value is None and not (x.dims[d] % chunks).terms:
        return split(x, [x.dims[d] // chunks] * chunks, d)
    return split(x, max(1, -(-static("chunk", x.dims[d]) // chunks)), d)


def tensor_split(x: Tensor, sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces as equal as possible, or cut at the listed positions."""
    size = static("tensor_split", x.dims[normal_axis("tensor_split", dim, x.ndim)])
    if isinstance(sections, int):
        sections = [i * (size // sections) + min(i, size % sections) for i in range(1, sections)]
    cuts = [0, *sections, size]
    return tuple(slice_axis(x, dim, a, max(a, b)) for a, b in zip(cuts, cuts[1:], strict=False))


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


def _pad_index(x: Tensor, d: int, before: int, after: int, mode: str) -> Tensor:
    """Padding along one axis with elements of x: reflect, replicate or circular."""
    size = x.dims[d]
    if mode == "reflect" and size.value is not None and max(before, after) >= size.value:
        text = f"reflect needs less padding than elements. Got {before}, {after} for {size}."
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
            x = _pad_index(x, d, int(before), int(after), mode)  # type: ignore[arg-type]
    return x


def flip(x: Tensor, *dims: Any) -> Tensor:
    """x reversed along the given axes."""
    for d in axes_args("flip", flat_args(dims), x.ndim):
        x = x.through(flip_view(x.dims, d)) if x.ndim else x
    return x


def fliplr(x: Tensor) -> Tensor:
    """x reversed along axis 1."""
    return flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    """x reversed along axis 0."""
    return flip(x, 0)


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


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes, as the last axis."""
    x = movedim(x, (dim1, dim2), (-2, -1))
    rows, cols = x.dims[-2] + min(offset, 0), x.dims[-1] - max(offset, 0)
    dims = (*x.dims[:-2], maximum(0, minimum(rows, cols)))
    *rest, k = (to_expr(a) for a in axes_of(dims))
    return x.through(View(dims, x.dims, (*rest, k + max(0, -offset), k + max(0, offset))))


take_diagonal = diagonal


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


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size`, `step` apart, along one axis; the window is the last axis."""
    d = normal_axis("unfold", dimension, x.ndim)
    return x.through(unfold_view(x.dims, d, size, step))


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
