"""The pinned meaning of every scalar operation, in NumPy: the reference of all backends.

In: arrays of *values* (f16 and bf16 values are held in float32, already rounded). Out: the same.
`decode` and `encode` translate between values and the bits that buffers hold."""

from collections.abc import Callable

import numpy as np

from luminal.ir.dtype import DType, bf16, boolean, f16, f32
from luminal.ir.term import Scalar


def value_dtype(dtype: DType) -> np.dtype:
    """The NumPy dtype in which values of `dtype` are held."""
    if dtype.storage:
        return np.dtype(np.float32 if dtype.is_float else np.int8)
    return np.dtype(np.float32) if dtype in (f16, bf16) else dtype.np


def full(value: Scalar, dtype: DType) -> np.ndarray:
    return np.asarray(value, value_dtype(dtype))


def lowest(dtype: DType) -> Scalar:
    """The maximum of nothing."""
    if dtype.is_float:
        return -np.inf
    return False if dtype == boolean else int(np.iinfo(dtype.np).min)


def _round_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32)).astype(np.float32)


def _rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """A result computed in the accumulator type, rounded to `dtype` once."""
    if dtype == f16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    if dtype == bf16:
        return _round_bf16(x).reshape(np.shape(x))
    return x.astype(value_dtype(dtype), copy=False)


def _small_float(bits: np.ndarray, exponent: int, mantissa: int, bias: int) -> np.ndarray:
    b = bits.astype(np.int32)
    e, m = (b >> mantissa) & ((1 << exponent) - 1), b & ((1 << mantissa) - 1)
    tiny = np.ldexp(m.astype(np.float32), 1 - bias - mantissa)
    normal = np.ldexp((m + (1 << mantissa)).astype(np.float32), e - bias - mantissa)
    size = np.where(e == 0, tiny, normal)
    return np.where(b >> (exponent + mantissa) & 1, -size, size).astype(np.float32)


def decode(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Values from a buffer's bits; 4-bit formats double the last dimension."""
    if dtype.bits == 4:
        pairs = np.stack((bits & 15, bits >> 4), -1)
        bits = pairs.reshape((*bits.shape[:-1], bits.shape[-1] * 2))
    match dtype.name:
        case "bf16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        case "f16":
            return bits.astype(np.float32)
        case "u4":
            return bits.astype(np.int8)
        case "i4":
            return (bits.astype(np.int8) ^ 8) - np.int8(8)
        case "f4e2m1":
            return _small_float(bits, 2, 1, 1)
        case "e8m0":
            value = np.ldexp(np.float32(1), bits.astype(np.int32) - 127)
            return np.where(bits == 255, np.float32(np.nan), value).astype(np.float32)
        case "f8e4m3":
            value = _small_float(bits, 4, 3, 7)
            return np.where(bits & 127 == 127, np.float32(np.nan), value)
        case "f8e5m2":
            return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    return bits


def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The bits of values of a computing dtype."""
    if dtype == bf16:
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype.np, copy=False)


def cast(x: np.ndarray, source: DType, dtype: DType) -> np.ndarray:
    """x converted: float to int truncates, saturates, NaN to 0; to bool is != 0; ints wrap."""
    if source == dtype:
        return x
    if dtype == boolean:
        return x != 0
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.is_float:
            wide = np.float64 if source.bits == 64 else value_dtype(dtype)
            return _rounded(x.astype(wide), dtype)
        if not source.is_float:
            return x.astype(dtype.np)
        info, whole = np.iinfo(dtype.np), np.trunc(x.astype(np.float64))
        high, low = whole >= float(info.max), whole <= float(info.min)
        safe = np.where(high | low | np.isnan(whole), 0.0, whole).astype(dtype.np)
        return np.where(high, info.max, np.where(low, info.min, safe)).astype(dtype.np)


def _mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    zero = b == 0
    return np.where(zero, 0, np.fmod(a, np.where(zero, 1, b))).astype(a.dtype)


_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "log2": np.log2, "exp2": np.exp2, "sin": np.sin, "sqrt": np.sqrt,
    "recip": lambda x: x.dtype.type(1) / x,
    "add": np.add, "mul": np.multiply, "mod": _mod, "max": np.maximum, "lt": np.less,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
}  # fmt: skip


def apply(op: str, dtype: DType, *args: np.ndarray) -> np.ndarray:
    """One elementwise operation on values of `dtype` (names as in term.py): in float64 where
    NumPy's float32 functions are not exact enough, rounded once."""
    wide = dtype == f32 and op in ("log2", "exp2", "sin", "sqrt")
    with np.errstate(all="ignore"):
        out = _FUNCTIONS[op](*(x.astype(np.float64) if wide else x for x in args))
        return out if op == "lt" else _rounded(out, dtype)
