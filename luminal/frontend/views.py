"""Views as a user makes them: permuted, broadcast, reshaped, cut, padded, in windows.

In: a shape and what to do with it. Out: an `ir.view.View`. Checks nothing: callers do."""

from collections.abc import Callable
from dataclasses import replace

from luminal.ir.expr import Expr, ExprLike, const, is_nonnegative, prod, to_expr
from luminal.ir.view import Shape, View, axes_of


def _exprs(shape: Shape) -> list[Expr]:
    return [to_expr(a) for a in axes_of(shape)]


def permute(shape: Shape, order: tuple[int, ...]) -> View:
    """Dimension d of the result is dimension order[d] of the source."""
    new = tuple(shape[d] for d in order)
    index: list[Expr] = [const(0)] * len(shape)
    for position, d in enumerate(order):
        index[d] = to_expr(axes_of(new)[position])
    return View(new, shape, tuple(index))


def expand(shape: Shape, new: Shape) -> View:
    """Broadcast: `new` has at least as many dimensions, aligned at the right; 1 stretches."""
    axes = axes_of(new)
    offset = len(new) - len(shape)
    index = tuple(
        const(0) if size.value == 1 else to_expr(axes[offset + d]) for d, size in enumerate(shape)
    )
    return View(new, shape, index)


def reshape(shape: Shape, new: Shape) -> View:
    """The same elements in row-major order with another shape; the caller checks the counts."""
    axes = axes_of(new)
    if any(d.value == 0 for d in shape):
        return View(new, shape, (const(0),) * len(shape))
    if shape and len(shape) < len(new):
        paired = _split_dims(shape, new)
        if paired is not None:
            return View(new, shape, paired)
    flat = const(0)
    for axis, extent in zip(axes, new, strict=True):
        flat = flat * extent + to_expr(axis)
    index: list[Expr] = []
    for d in range(len(shape)):
        inner = prod(shape[d + 1 :])
        index.append(flat // inner % shape[d] if d else flat // inner)
    return View(new, shape, tuple(index))


def _split_dims(shape: Shape, new: Shape) -> tuple[Expr, ...] | None:
    """Index when each source dimension is the product of consecutive new ones."""
    axes, index, position = axes_of(new), [], 0
    for d, extent in enumerate(shape):
        total, flat = const(1), const(0)
        while position < len(new) and (total != extent or (new[position].value == 1)):
            if total == extent and d + 1 < len(shape) and shape[d + 1].value == 1:
                break
            flat = flat * new[position] + to_expr(axes[position])
            total = total * new[position]
            position += 1
        if total != extent:
            return None
        index.append(flat)
    return tuple(index) if position == len(new) else None


def _along(shape: Shape, axis: int, size: ExprLike, place: Callable[[Expr], Expr]) -> View:
    """`axis` gets another size; element i of it is element place(i) of the source."""
    new = (*shape[:axis], to_expr(size), *shape[axis + 1 :])
    index = _exprs(new)
    index[axis] = place(index[axis])
    return View(new, shape, tuple(index))


def slice_(shape: Shape, axis: int, start: ExprLike, size: ExprLike, step: int = 1) -> View:
    """size elements along `axis` from `start` (>= 0), `step` apart (may be negative)."""
    return _along(shape, axis, size, lambda i: to_expr(start) + i * step)


def flip(shape: Shape, axis: int) -> View:
    """Reversed along `axis`."""
    return _along(shape, axis, shape[axis], lambda i: shape[axis] - 1 - i)


def pad(
    shape: Shape, axis: int, before: ExprLike, after: ExprLike, fill: float | int | bool = 0,
    inner: int = 0,
) -> View:  # fmt: skip
    """`fill` added before and after along `axis`, and `inner` of it between elements.

    Negative amounts crop."""
    before, step = to_expr(before), inner + 1
    size = before + (shape[axis] - 1) * step + 1 + after
    view = _along(shape, axis, size, lambda i: (i - before) // step)
    offset = to_expr(axes_of(view.shape)[axis]) - before
    valid = [offset, (shape[axis] - 1) * step - offset]
    valid += [-(offset % step)] if step > 1 else []
    return replace(view, valid=tuple(e for e in valid if not is_nonnegative(e)), fill=fill)


def unfold(shape: Shape, axis: int, size: int, step: int, dilation: int = 1) -> View:
    """Windows along `axis`: that dimension becomes the count, and `size` is appended last."""
    count = (shape[axis] - (dilation * (size - 1) + 1)) // step + 1
    new = (*shape[:axis], count, *shape[axis + 1 :], const(size))
    index = _exprs(new)
    window = index.pop()
    index[axis] = index[axis] * step + window * dilation
    return View(new, shape, tuple(index))
