"""Arithmetic, comparison, logic, selection and bits, from the primitives.

In and out: tensors and Python scalars, promoted and broadcast as in PyTorch. Everything here is
elementwise; integer division is exact for every value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

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
from luminal.ir.dtype import DType, bf16, boolean, f16, f32, f64, i32, i64
from luminal.ir.expr import const, to_expr
from luminal.ir.view import View, axes_of, pad

__all__ = [
    "abs", "add", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "clamp", "copysign", "div", "eq", "floor", "floor_divide",
    "fmax", "fmin", "fmod", "ge", "gt", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "le",
    "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul",
    "nan_to_num", "ne", "neg", "reciprocal", "remainder", "round", "sign", "signbit", "square",
    "sub", "trunc", "where",
]  # fmt: skip

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


def div(a: TensorLike, b: TensorLike, *, rounding_mode: str | None = None) -> Tensor:
    """a / b in floating point; `rounding_mode` 'floor' or 'trunc' keeps integers integers."""
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode == "trunc":
        dtype = result_type(a, b)
        return trunc(div(a, b)) if dtype.is_float else _quotient(*common("div", a, b))[0]
    if rounding_mode is not None:
        raise fail(ArgumentError, "div", f"Got rounding_mode={rounding_mode!r}; try 'floor'.")
    dtype = floating(a, b)
    work = f32 if dtype in (f16, bf16) else dtype
    x, y = common("div", a, b, dtype=work)
    return cast(apply("Mul", x, apply("Recip", y)), dtype)


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


@in_f32
def _trunc(x: Tensor) -> Tensor:
    limit, whole = (2.0**52, i64) if x.dtype == f64 else (2.0**23, i32)
    small = apply("Mul", lt(-limit, x), lt(x, limit))
    return where(small, cast(cast(x, whole), x.dtype), x)


@in_f32
def _floor(x: Tensor) -> Tensor:
    whole = _trunc(x)
    return sub(whole, cast(lt(x, whole), x.dtype))


@in_f32
def _round(x: Tensor) -> Tensor:
    low = _floor(x)
    rest = sub(x, low)
    odd = lt(mul(_floor(mul(low, 0.5)), 2.0), low)
    up = logical_or(lt(0.5, rest), logical_and(logical_not(lt(rest, 0.5)), odd))
    return add(low, cast(up, x.dtype))


def trunc(x: Tensor) -> Tensor:
    """The integer part, towards 0."""
    return _trunc(x) if x.dtype.is_float else x


def floor(x: Tensor) -> Tensor:
    """The largest integer <= x."""
    return _floor(x) if x.dtype.is_float else x


def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, halves to even; or with so many decimals."""
    if not x.dtype.is_float:
        return x
    return _round(x) if not decimals else div(_round(mul(x, 10.0**decimals)), 10.0**decimals)


def _quotient(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Integer a / b towards 0, and the rest with a's sign. Exact: a - rest is a multiple of b, so
    rounding a nearby float quotient finds it, and one correction repairs the float's error."""
    if a.dtype == boolean:
        raise fail(DTypeError, "div", "bools do not divide. Got bool; try a cast to int.")
    rest = apply("Mod", a, b)
    whole = sub(a, rest)
    work = f64 if a.dtype.bits > 16 else f32
    inverse = apply("Recip", cast(b, work))

    def nearest(n: Tensor) -> Tensor:
        q = apply("Mul", cast(n, work), inverse)
        half = where(lt(q, 0.0), scalar(-0.5, work), scalar(0.5, work))
        return cast(apply("Add", q, half), i64 if a.dtype == i64 else i32)

    first = cast(nearest(whole), a.dtype)
    if a.dtype != i64:
        return first, rest
    left = sub(whole, apply("Mul", first, b))
    return apply("Add", first, nearest(left)), rest


def _opposite(rest: Tensor, b: Tensor) -> Tensor:
    """rest != 0 and its sign is not b's."""
    below = apply("Mul", lt(rest, 0), logical_not(lt(b, 0)))
    return apply("Add", below, apply("Mul", lt(0, rest), lt(b, 0)))


def floor_divide(a: TensorLike, b: TensorLike) -> Tensor:
    """The largest integer <= a / b, in the common dtype."""
    x, y = common("floor_divide", a, b)
    if not x.dtype.is_float:
        quotient, rest = _quotient(x, y)
        return sub(quotient, cast(_opposite(rest, y), x.dtype))
    dtype, x, y = x.dtype, half_up(x), half_up(y)
    rest = apply("Mod", x, y)
    exact = sub(div(sub(x, rest), y), cast(_opposite(rest, y), x.dtype))
    low = floor(exact)
    low = add(low, cast(lt(0.5, sub(exact, low)), x.dtype))
    return cast(where(eq(y, 0), div(x, y), low), dtype)


def remainder(a: TensorLike, b: TensorLike) -> Tensor:
    """a - b * floor(a / b): the sign of b."""
    x, y = common("remainder", a, b)
    rest = apply("Mod", x, y)
    return where(_opposite(rest, y), add(rest, y), rest)


def fmod(a: TensorLike, b: TensorLike) -> Tensor:
    """a - b * trunc(a / b): the sign of a."""
    return apply("Mod", *common("fmod", a, b))


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


def _shift_power(count: Tensor, dtype: DType) -> Tensor:
    powers = tensor(np.left_shift(np.int64(1), np.arange(64)), name="powers_of_two")
    flat = cast(count, i64)
    index = lead(flat)
    dims = (const(64), *flat.dims)
    src = powers.through(View(dims, powers.dims, (to_expr(axes_of(dims)[0]),)))
    return cast(unlead(gather_primitive(src, index, 0)), dtype)


def bitwise_left_shift(a: TensorLike, b: TensorLike) -> Tensor:
    """a << b for 0 <= b < 64."""
    x, y = common("bitwise_left_shift", a, b)
    return mul(x, (1 << b) if isinstance(b, int) else _shift_power(y, x.dtype))


def bitwise_right_shift(a: TensorLike, b: TensorLike) -> Tensor:
    """a >> b, keeping the sign, for 0 <= b < 63."""
    x, y = common("bitwise_right_shift", a, b)
    top = x.dtype.bits - 1
    if isinstance(b, int) and b < top:
        return floor_divide(x, 1 << b)
    high = where(lt(y, top), _shift_power(minimum(y, top - 1), x.dtype), 1)
    return where(lt(y, top), floor_divide(x, high), where(lt(x, 0), scalar(-1, x.dtype), 0))


def bitwise_not(x: Tensor) -> Tensor:
    """~x; not x for bools."""
    if x.dtype == boolean:
        return logical_not(x)
    return sub(scalar(255 if x.dtype.kind == "u" else -1, x.dtype), x)


def _bits(x: Tensor) -> list[Tensor]:
    """The bits of an integer tensor as bools, lowest first."""
    size, signed = x.dtype.bits, x.dtype.kind == "i"
    out = []
    for k in range(size - signed):
        modulus = scalar(2 << k, x.dtype) if k + 1 < size else None
        rest = x if modulus is None else fmod(x, modulus)
        rest = where(lt(rest, 0), add(rest, scalar(2 << k, x.dtype)), rest) if signed else rest
        out.append(logical_not(lt(rest, scalar(1 << k, x.dtype))))
    return [*out, lt(x, 0)] if signed else out


def _bitwise(name: str, bools: Callable[..., Tensor], a: TensorLike, b: TensorLike) -> Tensor:
    x, y = common(name, a, b)
    if x.dtype == boolean:
        return bools(x, y)
    if x.dtype.is_float:
        raise fail(DTypeError, name, f"needs integers or bools. Got {x.dtype}.")
    found = [cast(bools(p, q), x.dtype) for p, q in zip(_bits(x), _bits(y), strict=True)]
    return reduce(add, (mul(f, scalar(1 << k, x.dtype)) for k, f in enumerate(found)))


def bitwise_and(a: TensorLike, b: TensorLike) -> Tensor:
    """a & b."""
    if isinstance(b, int) and not isinstance(b, bool) and b >= 0 and (b + 1) & b == 0:
        if isinstance(a, Tensor) and a.dtype.is_int and b.bit_length() < a.dtype.bits - 1:
            return remainder(a, b + 1)
    return _bitwise("bitwise_and", logical_and, a, b)


def bitwise_or(a: TensorLike, b: TensorLike) -> Tensor:
    """a | b."""
    return _bitwise("bitwise_or", logical_or, a, b)


def bitwise_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """a ^ b."""
    return _bitwise("bitwise_xor", logical_xor, a, b)
