"""Integer and bitwise arithmetic, and the roundings: exact for every value.

In and out: tensors and Python scalars, promoted as in PyTorch. Integer division by 0 gives some
number and never traps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from luminal.errors import ArgumentError, DTypeError
from luminal.frontend.functional_core import (
    add,
    eq,
    floating,
    in_f32,
    lead,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    minimum,
    mul,
    sub,
    unlead,
    where,
)
from luminal.frontend.tensor import (
    Tensor,
    TensorLike,
    apply,
    cast,
    common,
    fail,
    gather_primitive,
    half_up,
    result_type,
    scalar,
    tensor,
)
from luminal.ir.dtype import DType, bf16, boolean, f16, f32, f64, i32, i64
from luminal.ir.expr import const, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "div",
    "floor",
    "floor_divide",
    "fmod",
    "remainder",
    "round",
    "trunc",
]


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
        wide = i64 if a.dtype.bits > 16 else i32  # holds -min too, which then wraps
        return cast(apply("Add", q, half), wide)

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


_POWERS = tensor(np.left_shift(np.int64(1), np.arange(64)), name="powers_of_two")


def _shift_power(count: Tensor, dtype: DType) -> Tensor:
    flat = cast(count, i64)
    index = lead(flat)
    dims = (const(64), *flat.dims)
    src = _POWERS.through(View(dims, _POWERS.dims, (to_expr(axes_of(dims)[0]),)))
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


def bits(x: Tensor) -> list[Tensor]:
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
    found = [cast(bools(p, q), x.dtype) for p, q in zip(bits(x), bits(y), strict=True)]
    return reduce(add, (mul(f, scalar(1 << k, x.dtype)) for k, f in enumerate(found)))


def _is_low_mask(a: TensorLike, b: TensorLike) -> bool:
    """Is b = 2**n - 1, a positive number of a's integer dtype?"""
    if not isinstance(b, int) or isinstance(b, bool) or b < 0 or (b + 1) & b:
        return False
    return isinstance(a, Tensor) and a.dtype.is_int and b.bit_length() < a.dtype.bits - 1


def bitwise_and(a: TensorLike, b: TensorLike) -> Tensor:
    """a & b."""
    if _is_low_mask(a, b):
        return remainder(a, b + 1)
    return _bitwise("bitwise_and", logical_and, a, b)


def bitwise_or(a: TensorLike, b: TensorLike) -> Tensor:
    """a | b."""
    return _bitwise("bitwise_or", logical_or, a, b)


def bitwise_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """a ^ b."""
    return _bitwise("bitwise_xor", logical_xor, a, b)
