"""Views: index maps on the edges of a graph. They move no data and compose by substitution.

In: shapes and index expressions. Out: `View`. A view reads element `index(i0, i1, ...)` of its
source wherever every expression of `valid` is >= 0, and the value `fill` elsewhere (padding)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from luminal.ir.expr import Expr, Var, axis_var, is_nonnegative, to_expr

Shape = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class View:
    """An index map from `shape` to `source` (both tuples of dimensions).

    `index[d]` is the source index along d in terms of `axes_of(shape)`; `valid` are expressions
    that must all be >= 0 for the source to be read; `fill` is the value where they are not (in
    the source's dtype; -0.0 is the neutral fill for sums of padded parts)."""

    shape: Shape
    source: Shape
    index: tuple[Expr, ...]
    valid: tuple[Expr, ...] = ()
    fill: float | int | bool = 0

    @property
    def is_identity(self) -> bool:
        same = self.shape == self.source and not self.valid
        return same and self.index == identity(self.shape).index

    def then(self, outer: View) -> View | None:
        """The view `outer` of this view as one view; None if both pad with different fills."""
        if self.is_identity:
            return outer
        if self.valid and outer.valid and repr(self.fill) != repr(outer.fill):
            return None
        env = dict(zip(axes_of(self.shape), outer.index, strict=True))
        valid = [e.substitute(env) for e in self.valid] + list(outer.valid)
        kept = tuple(dict.fromkeys(e for e in valid if not is_nonnegative(e)))
        index = tuple(e.substitute(env) for e in self.index)
        return View(outer.shape, self.source, index, kept, self.fill if self.valid else outer.fill)


@lru_cache(maxsize=1 << 14)
def axes_of(shape: Shape, prefix: str = "i") -> tuple[Var, ...]:
    """The canonical axis variables i0, i1, ... of a shape."""
    return tuple(axis_var(f"{prefix}{d}", extent) for d, extent in enumerate(shape))


@lru_cache(maxsize=1 << 14)
def identity(shape: Shape) -> View:
    return View(shape, shape, tuple(map(to_expr, axes_of(shape))))
