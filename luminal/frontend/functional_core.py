"""Arithmetic, comparison, logic, selection and bits, from the primitives.

In and out: tensors and Python scalars, promoted and broadcast as in PyTorch. Everything here is
elementwise; integer division is exact for every value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from luminal.errors import ArgumentError, DTypeError
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    TensorLike,
    apply,
    broadcast,
    cast,
    common,
    fail,
    gather_primitive,
    half_up,
    reduce_axis,
    result_type,
    scalar,
    tensor,
)
from luminal.frontend.views import pad
from luminal.ir.dtype import DType, bf16, boolean, f16, f32, f64, i32
from luminal.ir.expr import const, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "abs",
    "add",
    "clamp",
    "copysign",
    "eq",
    "fmax",
    "fmin",
    "ge",
    "gt",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "le",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "nan_to_num",
    "ne",
    "neg",
    "reciprocal",
    "sign",
    "signbit",
    "square",
    "sub",
    "where",
]

_INF = float("inf")


def floating(*values: TensorLike) -> DType:
    """The dtype in which a float-only operation on these yields its result."""
    dtype = result_type(*values)
    return dtype if dtype.is_float else f32


def in_f32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes a float-only operation compute half-precision in f32 and round once, at the end."""

    def wrapped(x: TensorLike, *args: object, **options: object) -> Tensor:
        x = x if isinstance(x, Tensor) else tensor(x)
        dtype = floating(x)
        return cast(function(half_up(cast(x, dtype)), *args, **options), dtype)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__wrapped__ = function  # type: ignore[attr-defined]
    return wrapped


def _pointwise(op: str, name: str, a: TensorLike, b: TensorLike) -> Tensor:
    dtype = result_type(a, b)
    if op == "Mul" and dtype in (f16, bf16) and not all(isinstance(v, Tensor) for v in (a, b)):
        return cast(apply(op, *common(name, a, b, dtype=f32)), dtype)  # the scalar stays unrounded
    return apply(op, *common(name, a, b, dtype=dtype))


def add(a: TensorLike, b: TensorLike, *, alpha: Scalar = 1) -> Tensor:
    """a + alpha * b."""
    return _pointwise("Add", "add", a, b if alpha == 1 else mul(b, alpha))


def mul(a: TensorLike, b: TensorLike) -> Tensor:
    """a * b."""
    return _pointwise("Mul", "mul", a, b)


def sub(a: TensorLike, b: TensorLike, *, alpha: Scalar = 1) -> Tensor:
    """a - alpha * b."""
    dtype = result_type(a, b)
    if dtype == boolean:
        raise fail(DTypeError, "sub", "bools do not subtract. Got bool; try logical_xor.")
    if not isinstance(b, Tensor | np.ndarray):
        return add(a, -b * alpha)  # type: ignore[operator]
    work = f32 if dtype in (f16, bf16) else dtype
    a, b = common("sub", a, b, dtype=work)
    return cast(apply("Add", a, apply("Mul", b, broadcast(scalar(-alpha, work), b.dims))), dtype)


def neg(x: Tensor) -> Tensor:
    """-x."""
    if x.dtype == boolean:
        raise fail(DTypeError, "neg", "bools have no sign. Got bool; try logical_not.")
    return mul(x, -1)


@in_f32
def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return apply("Recip", x)


def square(x: Tensor) -> Tensor:
    """x * x."""
    return mul(x, x)


def lt(a: TensorLike, b: TensorLike) -> Tensor:
    """a < b."""
    return apply("LessThan", *common("lt", a, b))


def gt(a: TensorLike, b: TensorLike) -> Tensor:
    """a > b."""
    return lt(b, a)


def _ordered(result: Tensor, a: TensorLike, b: TensorLike) -> Tensor:
    """`result` where neither is NaN, else False."""
    for x in (a, b):
        if isinstance(x, Tensor) and x.dtype.is_float and not isinstance(x.source.value, float):
            number = logical_not(isnan(x))
            result = apply("Mul", *common("eq", result, number))
    return result


def le(a: TensorLike, b: TensorLike) -> Tensor:
    """a <= b; false with NaN."""
    return _ordered(logical_not(lt(b, a)), a, b)


def ge(a: TensorLike, b: TensorLike) -> Tensor:
    """a >= b; false with NaN."""
    return le(b, a)


def eq(a: TensorLike, b: TensorLike) -> Tensor:
    """a == b; false with NaN."""
    return _ordered(logical_not(apply("Add", lt(a, b), lt(b, a))), a, b)


def ne(a: TensorLike, b: TensorLike) -> Tensor:
    """a != b; true with NaN."""
    return logical_not(eq(a, b))


def _no_floats(x: Tensor) -> Tensor:
    return broadcast(scalar(False, boolean), x.dims)


def isnan(x: Tensor) -> Tensor:
    """True where x is not a number."""
    return (
        logical_not(apply("Add", lt(x, _INF), lt(-_INF, x))) if x.dtype.is_float else _no_floats(x)
    )


def isposinf(x: Tensor) -> Tensor:
    """True where x is +inf."""
    return eq(x, _INF) if x.dtype.is_float else _no_floats(x)


def isneginf(x: Tensor) -> Tensor:
    """True where x is -inf."""
    return eq(x, -_INF) if x.dtype.is_float else _no_floats(x)


def isinf(x: Tensor) -> Tensor:
    """True where x is +inf or -inf."""
    return apply("Add", isposinf(x), isneginf(x))


def isfinite(x: Tensor) -> Tensor:
    """True where x is neither NaN nor infinite."""
    if not x.dtype.is_float:
        return logical_not(_no_floats(x))
    return apply("Mul", lt(x, _INF), lt(-_INF, x))


def truth(x: TensorLike) -> Tensor:
    """x != 0 as bool."""
    return cast(x if isinstance(x, Tensor) else tensor(x), boolean)


def logical_not(x: TensorLike) -> Tensor:
    """not x."""
    b = truth(x)
    return apply("LessThan", b, broadcast(scalar(True, boolean), b.dims))


def logical_and(a: TensorLike, b: TensorLike) -> Tensor:
    """a and b."""
    return apply("Mul", *common("logical_and", truth(a), truth(b)))


def logical_or(a: TensorLike, b: TensorLike) -> Tensor:
    """a or b."""
    return apply("Add", *common("logical_or", truth(a), truth(b)))


def logical_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """Exactly one of a and b."""
    x, y = common("logical_xor", truth(a), truth(b))
    return apply("Add", apply("LessThan", x, y), apply("LessThan", y, x))


def neutral(dtype: DType) -> Scalar:
    """The fill that a sum of padded parts ignores."""
    return -0.0 if dtype.is_float else False if dtype.kind == "b" else 0


def lead(x: Tensor) -> Tensor:
    """x with a new axis of size 1 in front."""
    dims = (const(1), *x.dims)
    return x.through(View(dims, x.dims, tuple(to_expr(a) for a in axes_of(dims)[1:])))


def unlead(x: Tensor) -> Tensor:
    """x without its first axis, of size 1."""
    dims = x.dims[1:]
    return x.through(View(dims, x.dims, (const(0), *(to_expr(a) for a in axes_of(dims)))))


def _pair(a: Tensor, b: Tensor) -> Tensor:
    """[a, b] along a new first axis."""
    a, b, fill = lead(a), lead(b), neutral(a.dtype)
    parts = (a.through(pad(a.dims, 0, 0, 1, fill)), b.through(pad(b.dims, 0, 1, 0, fill)))
    return apply("Add", *parts)


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """a where the condition holds, else b."""
    c = truth(condition)
    dtype = result_type(a, b)
    a, b = common("where", a, b, dtype=dtype, like=c.dims)
    if a.dtype == boolean and isinstance(b.source.value, bool) and not b.source.value:
        return logical_and(c, a)
    c = broadcast(c, a.dims)
    return unlead(gather_primitive(_pair(b, a), cast(lead(c), i32), 0))


def maximum(a: TensorLike, b: TensorLike) -> Tensor:
    """The larger; NaN wins."""
    return reduce_axis("MaxReduce", _pair(*common("maximum", a, b)), 0)


def minimum(a: TensorLike, b: TensorLike) -> Tensor:
    """The smaller; NaN wins."""
    x, y = common("minimum", a, b)
    if x.dtype == boolean:
        return apply("Mul", x, y)
    return where(lt(x, y), x, y) if x.dtype.is_int else neg(maximum(neg(x), neg(y)))


def fmax(a: TensorLike, b: TensorLike) -> Tensor:
    """The larger; a number wins over NaN."""
    x, y = common("fmax", a, b)
    return where(isnan(x), y, where(isnan(y), x, maximum(x, y)))


def fmin(a: TensorLike, b: TensorLike) -> Tensor:
    """The smaller; a number wins over NaN."""
    x, y = common("fmin", a, b)
    return where(isnan(x), y, where(isnan(y), x, minimum(x, y)))


def clamp(x: Tensor, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """x limited to [min, max]; NaN stays."""
    if min is None and max is None:
        raise fail(ArgumentError, "clamp", "needs min or max. Got neither.")
    out = x if min is None else maximum(x, min)
    return out if max is None else minimum(out, max)


def abs(x: Tensor) -> Tensor:
    """The absolute value (+0.0 for -0.0)."""
    if x.dtype.kind in "ub":
        return x
    zero = scalar(0, x.dtype)
    return where(lt(zero, x), x, add(zero, neg(x)))


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 in x's dtype; 0 for NaN."""
    return x if x.dtype == boolean else sub(cast(lt(0, x), x.dtype), cast(lt(x, 0), x.dtype))


def signbit(x: Tensor) -> Tensor:
    """True below 0 and for -0.0."""
    if not x.dtype.is_float:
        return lt(x, 0)
    return lt(where(eq(x, 0), reciprocal(x), x), 0)


def copysign(a: TensorLike, b: TensorLike) -> Tensor:
    """The size of a with the sign of b."""
    dtype = floating(a, b)
    x, y = common("copysign", a, b, dtype=dtype)
    size = abs(x)
    return where(signbit(y), neg(size), size)


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN, inf and -inf replaced by numbers (the largest ones unless given)."""
    if not x.dtype.is_float:
        return x
    largest = {f64: 1.7976931348623157e308, f16: 65504.0, bf16: 3.3895313892515355e38}
    top = largest.get(x.dtype, 3.4028234663852886e38)
    x = where(isposinf(x), top if posinf is None else posinf, where(isnan(x), nan, x))
    return where(isneginf(x), -top if neginf is None else neginf, x)
