"""Floating-point numbers made of sizes, as tensors: the scale 1 / sqrt(length) and its kin.

In: PyTorch's sympy expression of a SymFloat. Out: a 0-d tensor in f64, as Python computes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

import sympy
from torch.utils._sympy import functions as sym

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.functional_reduce import size_scalar
from luminal.frontend.tensor import Tensor, cast, scalar
from luminal.frontend.torch.symbols import Symbols
from luminal.ir.dtype import f64, i64

__all__ = ["float_of"]

_UNARY = ("sqrt", "exp", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan",
          "log", "log2", "asinh")  # fmt: skip
_FUNCTIONS: dict[type, Callable[..., Tensor]] = {
    sympy.Add: lambda *args: reduce(operator.add, args),
    sympy.Mul: lambda *args: reduce(operator.mul, args),
    sympy.Pow: F.pow, sym.FloatPow: F.pow, sym.IntTrueDiv: F.div, sym.FloatTrueDiv: F.div,
    sym.ToFloat: lambda x: x, sym.Identity: lambda x: x,
}  # fmt: skip
_FUNCTIONS |= {getattr(sym, f"OpaqueUnaryFn_{n}"): getattr(F, n) for n in _UNARY}


def float_of(e: sympy.Basic, symbols: Symbols) -> Tensor:
    """The number as a tensor; UnsupportedError if it is made in another way."""
    if e.is_number:
        return scalar(float(e), f64)  # type: ignore[arg-type]
    function = _FUNCTIONS.get(type(e))
    if e.is_Symbol or (function is None and e.is_integer):
        return cast(size_scalar(symbols.expr(e), i64), f64)
    if function is None:
        raise UnsupportedError(f"[torch] the number {e} is not made of sizes.")
    return function(*(float_of(a, symbols) for a in e.args))
