"""The registry of the ATen table.

In: functions registered with `@op`. Out: `lookup(target)`. A function takes a `Call` and the
operator's arguments with tensors as luminal tensors, sizes as ints or Exprs, dtypes as DTypes;
it returns a tensor or a sequence of them (None for results that nobody asked for).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, broadcast, cast, scalar
from luminal.frontend.torch.layout import DTYPES, PARTS
from luminal.frontend.torch.symbols import Symbols
from luminal.ir.dtype import DType, i32, i64, u8
from luminal.ir.expr import Expr, to_expr
from luminal.ir.view import Shape, View, axes_of

__all__ = ["Call", "Function", "Pair", "convert", "lookup", "op", "overloads", "relabelled"]

Function = Callable[..., object]
_TABLE: dict[object, Function] = {}
_PAIRS: dict[object, Function] = {}


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex tensor: its real and its imaginary part."""

    re: Tensor
    im: Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is being translated: its node and what tracing found for its result.

    `errors` collects conditions under which eager raises, by exception and text.
    """

    node: Node
    fake: object
    symbols: Symbols
    errors: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result, that of its parts if it is complex."""
        return PARTS.get(self._first.dtype) or DTYPES[self._first.dtype]

    @property
    def dims(self) -> tuple[Expr, ...]:
        """The dimensions of the (first) result."""
        return self.symbols.exprs(self._first.shape)

    @property
    def _first(self) -> torch.Tensor:
        return self.fake[0] if isinstance(self.fake, (list, tuple)) else self.fake  # type: ignore[return-value]

    def wanted(self, position: int) -> bool:
        """True if somebody reads this one of several results."""
        return any(u.args[1] == position for u in self.node.users)

    def refuse(self, text: str, condition: Tensor, kind: str = "RuntimeError") -> None:
        """An exception with this text at run time if `condition` holds anywhere."""
        bad = F.any(condition, list(range(condition.ndim))) if condition.ndim else condition
        known = self.errors.get((kind, text))
        self.errors[kind, text] = bad if known is None else F.logical_or(known, bad)

    def size(self, dim: Expr) -> int:
        """The size of a dimension, the traced one if it is symbolic."""
        return dim.evaluate(self.symbols.hints())

    def equal(self, a: Expr, b: Expr) -> bool:
        """True if two sizes, which tracing found to be equal, have the same traced value."""
        return self.size(a) == self.size(b)

    def ready(self, x: object, dtype: DType | None = None) -> Tensor:
        """A tensor or number in `dtype` (the result's), broadcast to the result's shape."""
        want = self.dtype if dtype is None else dtype
        tensor = cast(x, want) if isinstance(x, Tensor) else scalar(x, want)  # type: ignore[arg-type]
        return broadcast(tensor, self.dims)


def relabelled(x: Tensor, want: Shape) -> Tensor:
    """x with its dimensions written as tracing wrote them: equal, though not in form."""
    return x.through(View(want, x.dims, tuple(to_expr(a) for a in axes_of(want))))


def convert(x: Tensor, dtype: DType) -> Tensor:
    """x converted as PyTorch does on CPUs: floats to narrow integers wrap instead of saturating."""
    if x.dtype.is_float and dtype.is_int and dtype.bits < 32:
        return cast(cast(x, i64 if dtype == u8 else i32), dtype)
    return cast(x, dtype)


def op(*names: str, pairs: bool = False) -> Callable[[Function], Function]:
    """Registers a function for overloads, 'aten' unless a namespace is given: 'add.Tensor'; with
    `pairs` for calls in which some tensor is complex. Names that this version of PyTorch lacks are
    skipped.
    """
    known = _PAIRS if pairs else _TABLE

    def register(function: Function) -> Function:
        for name in names:
            space, _, rest = name.rpartition("::")
            packet, _, overload = rest.partition(".")
            found = getattr(getattr(torch.ops, space or "aten"), packet, None)
            target = getattr(found, overload or "default", None)
            if target is not None:
                known[target] = function
        return function

    return register


def lookup(target: object, pairs: bool = False) -> Function | None:
    """The function for an overload, or None; with `pairs` where some tensor is complex."""
    return (_PAIRS if pairs else _TABLE).get(target)


def overloads() -> list[str]:
    """The names of all overloads in the table."""
    return sorted(str(t) for t in _TABLE)
