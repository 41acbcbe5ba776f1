"""Data types: what values are computed in, and what is only a storage format.

In: nothing. Out: the `DType` singletons and the rules that every stage shares (accumulator type,
promotion). Storage types have no arithmetic: `Cast` decodes them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One data type.

    Fields: `name`; `bits` of one element in memory; `kind` is 'f' float, 'i' signed, 'u' unsigned,
    'b' bool; `storage` is True for formats that only `Cast` may read; `numpy` is the NumPy dtype
    that holds the same bits (an unsigned integer of that size where NumPy has no such type)."""

    name: str
    bits: int
    kind: str
    numpy: str
    storage: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 1 for the 4-bit formats, which arrays hold unpacked."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        """True for floating-point types, storage formats included."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers (bool is not one)."""
        return self.kind in "iu"

    @property
    def np(self) -> np.dtype:
        """The NumPy dtype with the same bits."""
        return np.dtype(self.numpy)

    def __repr__(self) -> str:
        return self.name


f64 = DType("f64", 64, "f", "float64")
f32 = DType("f32", 32, "f", "float32")
f16 = DType("f16", 16, "f", "float16")
bf16 = DType("bf16", 16, "f", "uint16")
f8e4m3 = DType("f8e4m3", 8, "f", "uint8", storage=True)
f8e5m2 = DType("f8e5m2", 8, "f", "uint8", storage=True)
i64 = DType("i64", 64, "i", "int64")
i32 = DType("i32", 32, "i", "int32")
i16 = DType("i16", 16, "i", "int16")
i8 = DType("i8", 8, "i", "int8")
u8 = DType("u8", 8, "u", "uint8")
boolean = DType("bool", 8, "b", "bool")
u4 = DType("u4", 4, "u", "uint8", storage=True)
i4 = DType("i4", 4, "i", "uint8", storage=True)
f4e2m1 = DType("f4e2m1", 4, "f", "uint8", storage=True)
e8m0 = DType("e8m0", 8, "f", "uint8", storage=True)

ALL = (f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, boolean, u4, i4, f4e2m1, e8m0)
_BY_NAME = {d.name: d for d in ALL}
_FROM_NUMPY = {d.numpy: d for d in (f64, f32, f16, i64, i32, i16, i8, u8, boolean)}


def by_name(name: str) -> DType:
    """The dtype called `name`; KeyError if there is none."""
    return _BY_NAME[name]


def from_numpy(dtype: np.dtype) -> DType | None:
    """The dtype of a NumPy array, or None where luminal has no such type."""
    return _FROM_NUMPY.get(np.dtype(dtype).name)


def accumulator(dtype: DType) -> DType:
    """The type in which arithmetic on `dtype` is done: f16 and bf16 compute in f32."""
    return f32 if dtype in (f16, bf16) else dtype


def promote(a: DType, b: DType) -> DType:
    """The common type of two tensors, as PyTorch promotes them (no storage types).

    >>> promote(i64, f16).name, promote(f16, bf16).name, promote(u8, i8).name
    ('f16', 'f32', 'i16')
    """
    if a == b:
        return a
    low, high = sorted((a, b), key=lambda d: ("biuf".index(d.kind), d.bits))
    if low.kind == "b" or low.is_float != high.is_float:
        return high
    if high.is_float:
        return f32 if low.bits == high.bits else high
    if low.kind == high.kind:
        return high
    return low if low.bits > 8 else i16
