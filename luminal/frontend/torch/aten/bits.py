"""Bitwise operators of ATen, from tables over bytes.

In: luminal tensors of integers or bools. Out: tensors in the traced dtype. There is no primitive
for bits: `a & b` looks pairs of bytes up, `a | b` is a + b - (a & b), `a ^ b` is a + b - 2 (a & b).
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast, scalar, tensor
from luminal.frontend.torch.aten.elementwise import Operand, as_dtype
from luminal.frontend.torch.aten.table import Call, op
from luminal.ir.dtype import DType, boolean, f64, i32, i64, u8

__all__: list[str] = []

_BYTE = np.arange(256, dtype=np.uint8)
_AND = tensor(np.bitwise_and.outer(_BYTE, _BYTE).reshape(-1), name="and_of_bytes")
_POWERS = tensor(np.left_shift(np.int64(1), np.arange(64)), name="powers_of_2")


def _split(x: Tensor) -> list[Tensor]:
    """The bytes of x, lowest first, as i32."""
    if x.dtype == i64:
        low = cast(cast(x, i32), i64)
        whole = F.sub(x, F.add(low, F.mul(cast(F.lt(low, 0), i64), 1 << 32)))
        high = F.mul(cast(whole, f64), 2.0**-32)  # exact: a multiple of 2**32
        return _split(cast(x, i32)) + _split(cast(high, i32))
    rest, out = cast(x, i32), []
    for _ in range(x.dtype.bits // 8):
        out.append(cast(cast(rest, u8), i32))
        rest = cast(F.mul(cast(F.sub(rest, out[-1]), f64), 2.0**-8), i32)
    return out


def _joined(parts: list[Tensor], dtype: DType) -> Tensor:
    work = i64 if dtype == i64 else i32
    terms = [F.mul(cast(p, work), scalar(_power(8 * k, work), work)) for k, p in enumerate(parts)]
    return cast(reduce(F.add, terms), dtype)


def _power(exponent: int, dtype: DType) -> int:
    """2**exponent as a number of a signed dtype that wraps."""
    value = 1 << exponent
    return value - (1 << dtype.bits) if value >> (dtype.bits - 1) else value


def _and(a: Tensor, b: Tensor) -> Tensor:
    pairs = zip(_split(a), _split(b), strict=True)
    return _joined([F.take(_AND, F.add(F.mul(x, 256), y)) for x, y in pairs], a.dtype)


def _operands(call: Call, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    return call.ready(as_dtype(a, call.dtype)), call.ready(as_dtype(b, call.dtype))


@op("bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_and.Scalar_Tensor",
    "__and__.Tensor", "__and__.Scalar")  # fmt: skip
def _bitwise_and(call: Call, a: Operand, b: Operand) -> Tensor:
    if call.dtype != boolean and isinstance(b, int) and b >= 0 and (b + 1) & b == 0:
        return F.bitwise_and(as_dtype(a, call.dtype), b)  # the remainder by a power of 2
    x, y = _operands(call, a, b)
    return F.logical_and(x, y) if call.dtype == boolean else _and(x, y)


@op("bitwise_or.Tensor", "bitwise_or.Scalar", "bitwise_or.Scalar_Tensor", "__or__.Tensor",
    "__or__.Scalar")  # fmt: skip
def _bitwise_or(call: Call, a: Operand, b: Operand) -> Tensor:
    x, y = _operands(call, a, b)
    if call.dtype == boolean:
        return F.logical_or(x, y)
    return F.sub(F.add(x, y), _and(x, y))


@op("bitwise_xor.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Scalar_Tensor", "__xor__.Tensor",
    "__xor__.Scalar")  # fmt: skip
def _bitwise_xor(call: Call, a: Operand, b: Operand) -> Tensor:
    x, y = _operands(call, a, b)
    if call.dtype == boolean:
        return F.logical_xor(x, y)
    return F.sub(F.add(x, y), F.mul(_and(x, y), 2))


@op("bitwise_not")
def _bitwise_not(call: Call, x: Tensor) -> Tensor:
    return F.bitwise_not(x)


def _power_of(count: Tensor, dtype: DType) -> Tensor:
    return cast(F.take(_POWERS, F.clamp(cast(count, i64), 0, 63)), dtype)


@op("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar",
    "bitwise_left_shift.Scalar_Tensor", "__lshift__.Tensor")  # fmt: skip
def _left_shift(call: Call, a: Operand, b: Operand) -> Tensor:
    """a << b; 0 for a count outside the dtype."""
    bits = call.dtype.bits
    if isinstance(b, int):
        x = call.ready(as_dtype(a, call.dtype))
        return F.mul(x, scalar(_power(b, call.dtype) if 0 <= b < bits else 0, call.dtype))
    x, y = _operands(call, a, b)
    inside = F.logical_and(F.ge(y, 0), F.lt(y, bits))
    return F.where(inside, F.mul(x, _power_of(y, call.dtype)), F.mul(x, 0))


@op("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar",
    "bitwise_right_shift.Scalar_Tensor", "__rshift__.Tensor")  # fmt: skip
def _right_shift(call: Call, a: Operand, b: Operand) -> Tensor:
    """a >> b with a's sign; only the sign is left by a count outside the dtype."""
    top = call.dtype.bits - (call.dtype.kind == "i")
    if isinstance(b, int):
        x = call.ready(as_dtype(a, call.dtype))
        return F.floor_divide(x, 1 << b) if 0 <= b < top else F.neg(cast(F.lt(x, 0), x.dtype))
    x, y = _operands(call, a, b)
    inside = F.logical_and(F.ge(y, 0), F.lt(y, top))
    power = _power_of(F.where(inside, y, F.mul(y, 0)), call.dtype)
    return F.where(inside, F.floor_divide(x, power), F.neg(cast(F.lt(x, 0), x.dtype)))
