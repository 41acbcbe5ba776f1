"""Powers and functions of two float arguments.

In and out: tensors and Python scalars. General float powers go through f64, for the digits.
"""

from __future__ import annotations

from math import inf, pi

from luminal.frontend.functional_core import (
    abs,
    add,
    eq,
    floating,
    isinf,
    isnan,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    reciprocal,
    signbit,
    sub,
    where,
)
from luminal.frontend.functional_integer import bits, div, floor, remainder
from luminal.frontend.functional_math import atan, exp, exp2, log, log1p, log2, rsqrt, sqrt
from luminal.frontend.tensor import Tensor, TensorLike, broadcast, cast, common, half_up, scalar
from luminal.ir.dtype import f64

__all__ = ["atan2", "hypot", "lerp", "logaddexp", "pow", "xlogy"]


def atan2(y: TensorLike, x: TensorLike) -> Tensor:
    """The angle of the point (x, y)."""
    dtype = floating(y, x)
    a, b = (half_up(v) for v in common("atan2", y, x, dtype=dtype))
    up, right = abs(a), abs(b)
    both = logical_and(eq(up, inf), eq(right, inf))
    high, low = maximum(up, right), minimum(up, right)
    ratio = where(both, 1.0, where(eq(high, 0.0), scalar(0.0, a.dtype), div(low, high)))
    angle = atan(ratio)
    angle = where(lt(right, up), sub(pi / 2, angle), angle)
    angle = where(signbit(b), sub(pi, angle), angle)
    return cast(where(signbit(a), neg(angle), angle), dtype)


def _power_by_squares(x: Tensor, n: int) -> Tensor:
    out: Tensor | None = None
    while n:
        if n & 1:
            out = x if out is None else mul(out, x)
        n >>= 1
        x = mul(x, x) if n else x
    return out if out is not None else _one(x)


def _one(x: Tensor) -> Tensor:
    return broadcast(scalar(1, x.dtype), x.dims)


def _integer_power(a: Tensor, b: Tensor) -> Tensor:
    """By squaring over all bits of the exponent; negative exponents give 0, 1 or -1."""
    out, base = _one(a), a
    for bit in bits(b)[: b.dtype.bits - (b.dtype.kind == "i")]:
        out = where(bit, mul(out, base), out)
        base = mul(base, base)
    unit = logical_or(eq(a, 1), eq(a, -1)) if a.dtype.kind == "i" else eq(a, 1)
    return where(lt(b, 0), where(unit, out, 0), out)


def _small_power(x: Tensor, n: Tensor) -> Tensor:
    """x to the power n, a whole number below 32; exact where the result has no more digits."""
    out = _one(x)
    for _ in range(5):
        half = floor(mul(n, 0.5))
        out = where(eq(add(half, half), n), out, mul(out, x))
        x, n = mul(x, x), half
    return out


def _float_power(a: Tensor, b: Tensor) -> Tensor:
    """exp2(b log2 |a|), in f64 for the digits, with the sign rules of C's pow."""
    x, y = cast(a, f64), cast(b, f64)
    size = exp2(mul(y, log2(abs(x))))
    size = where(logical_or(eq(y, 0.0), eq(abs(x), 1.0)), 1.0, size)
    whole = eq(floor(y), y)
    if a.dtype == f64:  # which has no digits to spare
        small = _small_power(abs(x), abs(y))
        small = where(lt(y, 0.0), reciprocal(small), small)
        size = where(logical_and(whole, lt(abs(y), 32.0)), small, size)
    odd = eq(remainder(y, 2.0), 1.0)
    real = logical_or(whole, logical_or(eq(x, -inf), eq(x, 0.0)))
    signed = where(odd, neg(size), where(real, size, float("nan")))
    return cast(where(signbit(x), signed, size), a.dtype)


def pow(a: TensorLike, b: TensorLike) -> Tensor:
    """a to the power b; integers stay integers."""
    if isinstance(a, Tensor) and isinstance(b, int | float) and not isinstance(b, bool):
        dtype = common("pow", a, b)[0].dtype
        base = half_up(cast(a, dtype))
        if b == int(b) if abs_float(b) < 64 else False:
            n = int(b)
            if n >= 0:
                return cast(_power_by_squares(base, n), dtype)
            if dtype.is_float:
                return cast(reciprocal(_power_by_squares(base, -n)), dtype)
        if dtype.is_float and b in (0.5, -0.5):
            return cast(sqrt(base) if b > 0 else rsqrt(base), dtype)
    x, y = common("pow", a, b)
    return _float_power(x, y) if x.dtype.is_float else _integer_power(x, y)


def abs_float(value: float) -> float:
    """|value| of a Python number."""
    return -value if value < 0 else value


def hypot(a: TensorLike, b: TensorLike) -> Tensor:
    """sqrt(a² + b²) without overflow."""
    x, y = common("hypot", a, b, dtype=floating(a, b))
    high = maximum(abs(x), abs(y))
    low = minimum(abs(x), abs(y))
    r = where(logical_or(eq(high, 0.0), eq(high, inf)), scalar(0.0, x.dtype), div(low, high))
    size = mul(high, sqrt(add(mul(r, r), 1.0)))
    return where(logical_or(isinf(x), isinf(y)), inf, size)


def lerp(start: Tensor, end: TensorLike, weight: TensorLike) -> Tensor:
    """start + weight (end - start)."""
    return add(start, mul(sub(end, start), weight))


def xlogy(a: TensorLike, b: TensorLike) -> Tensor:
    """a log(b), 0 where a is 0."""
    x, y = common("xlogy", a, b, dtype=floating(a, b))
    return where(isnan(y), y, where(eq(x, 0.0), scalar(0.0, x.dtype), mul(x, log(y))))


def logaddexp(a: TensorLike, b: TensorLike) -> Tensor:
    """log(exp(a) + exp(b))."""
    x, y = common("logaddexp", a, b, dtype=floating(a, b))
    high = maximum(x, y)
    gap = where(eq(x, y), scalar(0.0, x.dtype), neg(abs(sub(x, y))))
    return add(high, log1p(exp(gap)))
