"""One random view of a tensor: the views of `frontend.views` with random parameters.

In: a shape, its dtype, a chooser. Out: a `View`, or None where the drawn kind does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luminal.frontend import views as views
from luminal.ir.dtype import DType, boolean
from luminal.ir.expr import Expr, const, prod
from luminal.ir.view import Shape, View, identity

__all__ = ["ViewDraw"]


class ViewDraw:
    """Draws views with `one_of` (of a sequence) and `size` (a dimension)."""

    one_of: Callable[[Any], Any]
    pick: Callable[[int, int], int]
    size: Callable[[], Expr]

    def random_view(self, shape: Shape, dtype: DType) -> View | None:
        """A view of a tensor of this shape."""
        kind = self.one_of(("permute", "slice", "reshape", "pad", "expand", "flip", "unfold"))
        if kind == "expand":
            return self.expand(shape)
        if kind == "reshape":
            return self.reshape(shape)
        if not shape:
            return None
        axis = self.pick(0, len(shape) - 1)
        size = shape[axis]
        match kind:
            case "permute":
                order = list(range(len(shape)))
                other = self.pick(0, len(shape) - 1)
                order[axis], order[other] = order[other], order[axis]
                return views.permute(shape, tuple(order))
            case "flip":
                return views.flip(shape, axis)
            case "slice":
                step = self.one_of((1, 2, 3))
                start = self.pick(0, min(2, size.lo))
                return views.slice_(shape, axis, start, (size - start + (step - 1)) // step, step)
            case "unfold":
                window, step = self.one_of((2, 3, 1)), self.one_of((1, 2))
                if size.lo < 2 * window or len(shape) > 3:
                    return None
                return views.unfold(
                    shape, axis, window, step, self.one_of((1, 2)) if window < 3 else 1
                )
        fills = (
            (0.0, -0.0, 1.5, -2.0)
            if dtype.is_float
            else (False, True)
            if dtype == boolean
            else (0, 1)
        )
        before, after = self.one_of((1, 0, 2)), self.one_of((1, 0, 3))
        inner = self.one_of((0, 0, 1)) if size.lo > 0 else 0
        if self.pick(0, 3) == 3 and size.lo >= 2:
            before = -1
        return views.pad(shape, axis, before, after, self.one_of(fills), inner)

    def expand(self, shape: Shape) -> View:
        """A new leading axis, or an axis of 1 stretched."""
        ones = [a for a, d in enumerate(shape) if d.value == 1]
        if ones and self.pick(0, 1):
            axis = self.one_of(ones)
            return views.expand(shape, (*shape[:axis], self.size(), *shape[axis + 1 :]))
        return views.expand(shape, (self.size(), *shape)) if len(shape) < 4 else identity(shape)

    def reshape(self, shape: Shape) -> View:
        """Two axes merged, one split, or an axis of 1 more."""
        axis = self.pick(0, len(shape) - 1) if shape else 0
        kind = self.pick(0, 2)
        if kind == 0 and axis + 1 < len(shape):
            new = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            return views.reshape(shape, new)
        if kind == 1 and shape and len(shape) < 4 and shape[axis].value in (8, 2, 6, 4):
            value = shape[axis].value or 2
            new = (*shape[:axis], const(2), const(value // 2), *shape[axis + 1 :])
            return views.reshape(shape, new)
        if len(shape) < 4:
            return views.reshape(shape, (*shape[:axis], const(1), *shape[axis:]))
        return views.reshape(shape, (prod(shape),))
