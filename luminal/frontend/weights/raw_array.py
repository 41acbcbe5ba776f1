"""Arrays of dtypes that NumPy lacks (bf16, f8, e8m0), passed on through DLPack.

In: the stored bits as unsigned integers. Out: an object that `torch.from_dlpack` takes without a
copy and `numpy.asarray` turns into f32. Must not import torch.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["RawArray"]

# (type code, bits) of the DLPack standard
_DLPACK_TYPES: Mapping[str, tuple[int, int]] = {
    "bf16": (4, 16),
    "f8e4m3": (10, 8),
    "f8e5m2": (12, 8),
    "e8m0": (14, 8),
}
_CPU = (1, 0)
_CAPSULE_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
# What a consumer of a capsule still uses, by the address of its managed tensor.
_ALIVE: dict[int, tuple[Any, ...]] = {}


def _release(managed: Any) -> None:
    _ALIVE.pop(ctypes.addressof(managed.contents), None)


_RELEASE = _Deleter(_release)


@dataclass(frozen=True, slots=True, eq=False)
class RawArray:
    """Numbers of a dtype unknown to NumPy; `bits` holds them as unsigned integers."""

    dtype: str
    bits: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, outermost first."""
        return self.bits.shape

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.bits.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The numbers as f32, always a fresh array."""
        if copy is False:
            raise ValueError(f"[RawArray] {self.dtype} becomes f32 only by a copy")
        values = _decode(self.dtype, self.bits)
        return values if dtype is None else values.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, **_options: Any) -> Any:
        """A capsule over the stored bits; they live until its consumer lets go of them."""
        code, width = _DLPACK_TYPES[self.dtype]
        rank = self.bits.ndim
        shape = (ctypes.c_int64 * rank)(*self.bits.shape)
        strides = (ctypes.c_int64 * rank)(*(s // self.bits.itemsize for s in self.bits.strides))
        managed = _ManagedTensor(
            _Tensor(self.bits.ctypes.data, *_CPU, rank, code, width, 1, shape, strides, 0),
            None,
            _RELEASE,
        )
        address = ctypes.addressof(managed)
        _ALIVE[address] = (managed, shape, strides, self.bits)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        )
        return new(address, _CAPSULE_NAME, None)


def _decode(dtype: str, bits: np.ndarray) -> np.ndarray:
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return _byte_table(dtype)[bits]


def _byte_table(dtype: str) -> np.ndarray:
    """The f32 value of each of the 256 patterns of an 8-bit float."""
    patterns = np.arange(256)
    if dtype == "e8m0":
        values = np.ldexp(1.0, patterns - 127)
        values[255] = np.nan
        return values.astype(np.float32)
    mantissa_bits, bias = {"f8e4m3": (3, 7), "f8e5m2": (2, 15)}[dtype]
    exponent, mantissa = (patterns & 127) >> mantissa_bits, patterns & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    if dtype == "f8e4m3":
        values[(patterns & 127) == 127] = np.nan
    else:
        top = exponent == 31
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    return np.where(patterns >= 128, -values, values).astype(np.float32)
