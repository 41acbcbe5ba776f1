"""Views and movement: reshape, permute, slice, pad, concat and what is made of them.

In and out: tensors. Almost everything here is an index map and moves no data; concatenation is a
sum of padded parts. Sizes stay symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from luminal.errors import ArgumentError, ShapeError, UnsupportedError
from luminal.frontend.tensor import Tensor, broadcast, broadcast_dims, fail, normal_axis, shape_of
from luminal.frontend.views import flip as flip_view
from luminal.frontend.views import permute as permute_view
from luminal.frontend.views import slice_
from luminal.frontend.views import unfold as unfold_view
from luminal.ir.expr import Expr, ExprLike, const, maximum, minimum, prod, remainder, to_expr
from luminal.ir.view import Shape, View, axes_of

__all__ = [
    "broadcast_tensors",
    "broadcast_to",
    "chunk",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "moveaxis",
    "movedim",
    "narrow",
    "permute",
    "ravel",
    "reshape",
    "select",
    "slice_axis",
    "split",
    "squeeze",
    "swapaxes",
    "tensor_split",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "view",
]


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
    return tuple(slice_axis(x, dim, a, max(a, b)) for a, b in pairwise(cuts))


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


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes, as the last axis."""
    x = movedim(x, (dim1, dim2), (-2, -1))
    rows, cols = x.dims[-2] + min(offset, 0), x.dims[-1] - max(offset, 0)
    dims = (*x.dims[:-2], maximum(0, minimum(rows, cols)))
    *rest, k = (to_expr(a) for a in axes_of(dims))
    return x.through(View(dims, x.dims, (*rest, k + max(0, -offset), k + max(0, offset))))


take_diagonal = diagonal


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size`, `step` apart, along one axis; the window is the last axis."""
    d = normal_axis("unfold", dimension, x.ndim)
    return x.through(unfold_view(x.dims, d, size, step))
