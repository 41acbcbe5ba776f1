"""One stored weight tensor, and the planes that kernels read.

In: raw bytes of a tensor and its block type. Out: either all weights as f32, or contiguous planes
(quants packed to 4 or 8 bits, scales, minima) that stay small in memory and are decoded inside
the kernels. Must not know files or models.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from luminal.errors import UnsupportedError
from luminal.frontend.weights.blocks import Blocks, BlockType

__all__ = ["Deferred", "Plane", "Planes", "QuantTensor", "pack_nibbles"]

_CHUNK_BLOCKS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Deferred:
    """An array that is made anew whenever NumPy asks for it, and never kept: who packs it in
    another layout needs it once."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.make().astype(dtype or self.dtype, copy=False)


@dataclass(frozen=True, slots=True)
class Plane:
    """One array of a tensor: luminal dtype name, logical shape and NumPy storage.

    4-bit types hold two numbers a byte, the even one in the low nibble; bf16 is held as u16.
    """

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray | Deferred


@dataclass(frozen=True, slots=True)
class Planes:
    """A weight tensor [..., K] taken apart: w = scale·sub_scale·quants + minimum·sub_minimum.

    quants [..., K]; scale and minimum [..., K/block]; sub_scale, sub_minimum [..., K/group].
    A plane that is None counts as 1 (sub_*) or 0 (minimum); a plain tensor has quants alone.
    """

    quants: Plane
    scale: Plane | None = None
    sub_scale: Plane | None = None
    minimum: Plane | None = None
    sub_minimum: Plane | None = None

    def present(self) -> dict[str, Plane]:
        """The planes that exist, by name, in a fixed order."""
        names = ("quants", "scale", "sub_scale", "minimum", "sub_minimum")
        found = ((name, getattr(self, name)) for name in names)
        return {name: plane for name, plane in found if plane is not None}

    @property
    def size_bytes(self) -> int:
        """Memory that the planes take."""
        return sum(plane.data.nbytes for plane in self.present().values())


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """A tensor of a model file; nothing is read or decoded before a method is called."""

    name: str
    block: BlockType
    shape: tuple[int, ...]
    raw: np.ndarray

    @property
    def type_name(self) -> str:
        """The GGUF name of the storage type, as "Q4_K"."""
        return self.block.name

    def dequantise(self) -> np.ndarray:
        """All weights as f32 (f64 and integer tensors keep their dtype), a fresh array."""
        if self.block.plain is not None:
            return self._plain_values()
        count = int(np.prod(self.shape, dtype=np.int64))
        weights = np.empty((count // self.block.elements, self.block.elements), np.float32)
        raw = self._raw_blocks()
        for start in range(0, len(raw), _CHUNK_BLOCKS):
            chunk = slice(start, start + _CHUNK_BLOCKS)
            weights[chunk] = self._decode(raw[chunk])
        return weights.reshape(self.shape)

    def planes(self) -> Planes:
        """The planes of this tensor; plain float types come as one plane without a copy."""
        if self.block.plain is not None:
            dtype = "bf16" if self.block.name == "BF16" else self.block.name.lower()
            stored = self.raw.view(self.block.plain).reshape(self.shape)
            return Planes(Plane(dtype, self.shape, stored))
        if self.block.unpack is None:
            return Planes(Plane("f32", self.shape, self.dequantise()))
        return self._split(self.block.unpack(self._raw_blocks()))

    def deferred(self) -> Planes:
        """`planes`, of which those that must be unpacked are made whenever they are read."""
        if self.block.plain is not None:
            return self.planes()
        parts, held = {}, dict[str, Plane]()

        def make(name: str) -> np.ndarray:
            if name not in held:  # the others of this tensor are read next
                held.update(_unpacked(self).present())
            return np.asarray(held.pop(name).data)

        for name, plane in self._row().planes().present().items():
            shape = (*self.shape[:-1], plane.data.shape[-1])
            data = Deferred(shape, plane.data.dtype, partial(make, name))
            parts[name] = Plane(plane.dtype, (*self.shape[:-1], plane.shape[-1]), data)
        return Planes(**parts)

    def _row(self) -> QuantTensor:
        """The first row alone."""
        size = self.shape[-1] // self.block.elements * self.block.size_bytes
        return QuantTensor(self.name, self.block, (1, self.shape[-1]), self.raw[:size])

    def _raw_blocks(self) -> np.ndarray:
        return self.raw.reshape(-1, self.block.size_bytes)

    def _plain_values(self) -> np.ndarray:
        stored = self.raw.view(self.block.plain).reshape(self.shape)
        if self.block.name == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32) if self.block.name == "F16" else stored.copy()

    def _decode(self, raw: np.ndarray) -> np.ndarray:
        if self.block.unpack is not None:
            return self.block.unpack(raw).decode()
        quants = _gguf_quants(self.name, self.block.name)
        return quants.dequantize(raw, quants.GGMLQuantizationType(self.block.code))

    def _split(self, blocks: Blocks) -> Planes:
        rows = self.shape[:-1]
        quants = blocks.quants.reshape(self.shape)
        packed = quants if blocks.bits == "i8" else pack_nibbles(quants)

        def plane(values: np.ndarray | None) -> Plane | None:
            if values is None:
                return None
            dtype = {"e": "f16", "f": "f32", "b": "i8"}[values.dtype.char]
            values = np.ascontiguousarray(values.reshape(*rows, -1))
            return Plane(dtype, values.shape, values)

        return Planes(
            Plane(blocks.bits, self.shape, np.ascontiguousarray(packed)),
            plane(blocks.scale),
            plane(blocks.sub_scale),
            plane(blocks.minimum),
            plane(blocks.sub_minimum),
        )


def _unpacked(tensor: QuantTensor) -> Planes:
    """The planes of a tensor, whose pages of the file are given back."""
    planes = tensor.planes()
    whole = base = tensor.raw
    while isinstance(base, np.ndarray) and base.base is not None:
        whole, base = base, base.base
    base = base.obj if isinstance(base, memoryview) else base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        start = tensor.raw.ctypes.data - whole.ctypes.data
        end = (start + tensor.raw.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if end > start:
            base.madvise(mmap.MADV_DONTNEED, start, end - start)
    return planes


def pack_nibbles(values: np.ndarray) -> np.ndarray:
    """Packs 4-bit integers [..., K] into u8 [..., K/2], the even element in the low nibble."""
    pairs = values.view(np.uint8).reshape(*values.shape[:-1], -1, 2)
    return (pairs[..., 0] & 15) | (pairs[..., 1] << 4)


def _gguf_quants(tensor: str, type_name: str) -> ModuleType:
    try:
        from gguf import quants
    except ImportError as error:
        raise UnsupportedError(
            f"[load_gguf] tensor {tensor!r} has the type {type_name}, whose code books come with "
            "the package gguf. Try `pip install luminal[llm]`"
        ) from error
    return quants
