"""Operators on the make of numbers in ATen: common divisors, exponents, neighbours, angles.

In: luminal tensors. Out: tensors in the traced dtype.
"""

from __future__ import annotations

import math

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast
from luminal.frontend.torch.aten.table import Call, op
from luminal.ir.dtype import DType, bf16, f16, f32, f64, i32

__all__: list[str] = []

_FORMATS = {f32: (24, -149), f16: (11, -24), bf16: (8, -133)}
"""Digits, and the exponent of the least number."""


def _common_divisor(a: Tensor, b: Tensor) -> Tensor:
    """Euclid's algorithm; as many steps as neighbours in Fibonacci's sequence may need."""
    x, y = F.abs(a), F.abs(b)
    for _ in range(math.ceil(x.dtype.bits * 1.45)):
        x, y = F.where(F.eq(y, 0), x, y), F.fmod(x, y)
    return x


@op("gcd")
def _gcd(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return _common_divisor(call.ready(a), call.ready(b))


@op("lcm")
def _lcm(call: Call, a: Tensor, b: Tensor) -> Tensor:
    work = i32 if call.dtype.bits < 32 else call.dtype
    x, y = call.ready(a, work), call.ready(b, work)
    divisor = _common_divisor(call.ready(a), call.ready(b))
    safe = F.where(F.eq(divisor, 0), 1, cast(divisor, work))
    return F.abs(F.mul(F.div(x, safe, rounding_mode="trunc"), y))


@op("angle")
def _angle(call: Call, x: Tensor) -> Tensor:
    x = cast(x, call.dtype)
    return F.where(F.isnan(x), x, F.where(F.lt(x, 0), math.pi, 0.0))


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """(mantissa in 0.5 .. 1 with x's sign, exponent) in f64, (0, 0) for 0."""
    if x.dtype == f64:
        raise UnsupportedError("[torch] the exponent of a double.")
    wide = cast(x, f64)
    size = F.abs(wide)
    usual = F.logical_and(F.gt(size, 0), F.isfinite(size))
    safe = F.where(usual, size, 1.0)
    exponent = F.add(F.floor(F.log2(safe)), 1.0)
    for _ in range(2):
        part = F.mul(safe, F.exp2(F.neg(exponent)))
        exponent = F.add(
            exponent, F.where(F.ge(part, 1.0), 1.0, F.where(F.lt(part, 0.5), -1.0, 0.0))
        )
    part = F.copysign(F.mul(safe, F.exp2(F.neg(exponent))), wide)
    return F.where(usual, part, wide), F.where(usual, exponent, 0.0)


@op("frexp.Tensor")
def _frexp(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    part, exponent = _parts(x)
    return cast(part, x.dtype), cast(exponent, i32)


@op("nextafter")
def _nextafter(call: Call, a: Tensor, b: Tensor) -> Tensor:
    x, y = call.ready(a), call.ready(b)
    part, exponent = _parts(x)
    digits, least = _format(x.dtype)
    wide, towards = cast(x, f64), cast(y, f64)
    up = F.gt(towards, wide)
    inward = F.ne(up, F.gt(wide, 0))
    step = F.sub(
        exponent, F.where(F.logical_and(inward, F.eq(F.abs(part), 0.5)), digits + 1, digits)
    )
    size = F.exp2(F.maximum(step, float(least)))
    moved = F.add(wide, F.where(up, size, F.neg(size)))
    moved = F.where(F.eq(wide, 0), F.copysign(2.0**least, towards), moved)
    moved = F.where(F.isinf(wide), F.copysign(_largest(x.dtype), wide), moved)
    moved = F.copysign(moved, F.where(F.eq(wide, 0), towards, wide))
    moved = F.where(F.eq(wide, towards), towards, moved)
    return cast(F.where(F.logical_or(F.isnan(wide), F.isnan(towards)), math.nan, moved), x.dtype)


def _format(dtype: DType) -> tuple[int, int]:
    if dtype not in _FORMATS:
        raise UnsupportedError("[torch] the neighbour of a double.")
    return _FORMATS[dtype]


def _largest(dtype: DType) -> float:
    digits, _ = _format(dtype)
    top = {f32: 128, f16: 16, bf16: 128}[dtype]
    return 2.0**top - 2.0 ** (top - digits)
