"""Constants in memory: zero-copy where they are row-major, packed once where they are not.

In: a constant's Buffer and its array. Out: an array whose memory kernels may read. Never changes
the caller's array.
"""

from __future__ import annotations

import zlib
from weakref import WeakValueDictionary

import numpy as np

from luminal.ir.layout import pack
from luminal.ir.plan import Buffer
from luminal.runtime.memory import ALIGNMENT

__all__ = ["constant_array", "pack_constant"]

_PACKED: WeakValueDictionary[tuple[int, int, object], np.ndarray] = WeakValueDictionary()


def constant_array(buffer: Buffer, array: np.ndarray) -> np.ndarray:
    """The bytes of a constant in the layout of its buffer; packed copies are shared."""
    if not buffer.layout:
        return pack_constant(buffer, array)
    checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    key = (id(array), checksum, buffer.layout)
    packed = _PACKED.get(key)
    if packed is None:
        packed = _PACKED[key] = pack_constant(buffer, array)
    return packed


def pack_constant(buffer: Buffer, array: np.ndarray) -> np.ndarray:
    """The bytes of `array` in the layout of `buffer`: the array itself if it is row-major."""
    if not buffer.layout:
        return np.ascontiguousarray(array)
    if buffer.dtype.bits == 4:
        whole = np.stack((array & 15, array >> 4), -1).reshape(*array.shape[:-1], -1)
        flat = pack(whole[..., : buffer.shape[-1].value], buffer.layout)
        flat = np.concatenate((flat, np.zeros(flat.size % 2, np.uint8)))
        flat = flat[0::2] | flat[1::2] << 4
    else:
        flat = pack(array, buffer.layout)
    room = np.empty(flat.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    packed = room[start : start + flat.nbytes].view(flat.dtype)
    packed[...] = flat
    return packed
