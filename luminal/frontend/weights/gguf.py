"""Reads GGUF model files (versions 2 and 3) through a memory map.

In: a path. Out: a GGUFFile with the metadata and one QuantTensor per tensor. Every count, length
and offset is checked against the size of the file before anything is allocated or read, so a
damaged or hostile file gives a WeightsError, quickly. Must not decode weights or know any model.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from luminal.errors import WeightsError
from luminal.frontend.weights.blocks import BLOCK_TYPES, REFUSED_TYPES, BlockType
from luminal.frontend.weights.files import map_file
from luminal.frontend.weights.quant import QuantTensor

__all__ = ["GGUFFile", "load_gguf", "open_gguf"]

_SCALARS: Mapping[int, tuple[str, int]] = {
    0: ("<u1", 1),
    1: ("<i1", 1),
    2: ("<u2", 2),
    3: ("<i2", 2),
    4: ("<u4", 4),
    5: ("<i4", 4),
    6: ("<f4", 4),
    7: ("?", 1),
    10: ("<u8", 8),
    11: ("<i8", 8),
    12: ("<f8", 8),
}
_STRING, _ARRAY, _UINT32, _FLOAT32, _INT32 = 8, 9, 4, 6, 5
_VALUE_NAMES: Mapping[int, str] = {
    0: "u8",
    1: "i8",
    2: "u16",
    3: "i16",
    4: "u32",
    5: "i32",
    6: "f32",
    7: "bool",
    8: "string",
    9: "array",
    10: "u64",
    11: "i64",
    12: "f64",
}
_LENGTH = struct.Struct("<Q")
_MAX_DEPTH = 3
_LONGEST = 400  # characters of a problem
_MAX_DIMS = 4
_MAX_EXTENT = 1 << 40
_MIN_KEY_BYTES = 12  # an empty name, its length and a value type
_MIN_TENSOR_BYTES = 24  # a name length, a dimension count, a type and an offset


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An open model file; `tensors` read the mapped bytes only when used.

    `kinds` gives the stored value type of each key, as "u32" or "array of f32".
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    kinds: Mapping[str, str]
    tensors: Mapping[str, QuantTensor]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    block: BlockType
    offset: int
    size_bytes: int


class _Cursor:
    """A position in the mapped file that refuses to run past its end."""

    __slots__ = ("data", "path", "position")

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0

    def fail(self, problem: str, hint: str = "Try downloading the file again.") -> WeightsError:
        if len(problem) > _LONGEST:  # a damaged length makes a name out of half the file
            problem = f"{problem[: _LONGEST - 100]}[…]{problem[-100:]}"
        return WeightsError(f"[load_gguf] {self.path.name}: {problem.removesuffix('.')}. {hint}")

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def take(self, size_bytes: int, what: str) -> bytes:
        if size_bytes > self.remaining:
            raise self.fail(
                f"the file ends inside its header: {what} needs {size_bytes} bytes at offset "
                f"{self.position}, {self.remaining} are left"
            )
        start = self.position
        self.position += size_bytes
        return self.data[start : self.position]

    def u32(self, what: str) -> int:
        return struct.unpack("<I", self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return struct.unpack("<Q", self.take(8, what))[0]

    def text(self, what: str) -> str:
        raw = self.take(self.u64(f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8. Got bytes {raw[:16]!r}") from error

    def value(self, kind: int, key: str, depth: int = 0) -> tuple[Any, str]:
        """The value and the name of its stored type."""
        if kind == _STRING:
            return self.text(f"the text of {key!r}"), "string"
        if kind == _ARRAY:
            return self._array(key, depth)
        scalar, size = self._scalar(kind, key)
        raw = self.take(size, f"the value of {key!r}")
        return np.frombuffer(raw, scalar)[0].item(), _VALUE_NAMES[kind]

    def _scalar(self, kind: int, key: str) -> tuple[str, int]:
        if kind not in _SCALARS:
            raise self.fail(f"key {key!r} has value type {kind}. Expected a type from 0 to 12")
        return _SCALARS[kind]

    def _array(self, key: str, depth: int) -> tuple[Any, str]:
        if depth >= _MAX_DEPTH:
            raise self.fail(f"key {key!r} nests arrays deeper than {_MAX_DEPTH} levels")
        kind = self.u32(f"the element type of {key!r}")
        count = self.u64(f"the length of {key!r}")
        smallest = {_STRING: 8, _ARRAY: _MIN_KEY_BYTES}.get(kind) or self._scalar(kind, key)[1]
        if count * smallest > self.remaining:
            raise self.fail(
                f"key {key!r} is an array of {count} elements, which cannot fit in the "
                f"{self.remaining} bytes that are left"
            )
        if kind == _STRING:
            return self._texts(key, count), "array of string"
        if kind == _ARRAY:
            nested = [self.value(_ARRAY, key, depth + 1) for _ in range(count)]
            return [item for item, _ in nested], "array of array"
        raw = self.take(count * smallest, f"the array {key!r}")
        return np.frombuffer(raw, self._scalar(kind, key)[0]).tolist(), (
            f"array of {_VALUE_NAMES[kind]}"
        )

    def _texts(self, key: str, count: int) -> list[str]:
        """Many strings; the same checks as `text`, without a call for each."""
        data, size, position = self.data, len(self.data), self.position
        texts: list[str] = []
        try:
            for _ in range(count):
                (length,) = _LENGTH.unpack_from(data, position)
                position += 8
                if length > size - position:
                    raise self.fail(f"the file ends inside its header: an element of {key!r}")
                texts.append(data[position : position + length].decode("utf-8"))
                position += length
        except struct.error as error:
            raise self.fail(f"the file ends inside its header, in {key!r}") from error
        except UnicodeDecodeError as error:
            raise self.fail(f"an element of {key!r} is not UTF-8") from error
        self.position = position
        return texts


def open_gguf(path: str | Path) -> GGUFFile:
    """Opens a GGUF file and checks all of it except the weights themselves.

    Raises WeightsError when the file is missing, damaged, truncated or of an unknown kind.
    """
    path = Path(path)
    data = map_file(path, "load_gguf")
    cursor = _Cursor(path, data)
    version, tensor_count, key_count = _header(cursor)
    metadata, kinds = _metadata(cursor, key_count)
    alignment = _alignment(cursor, metadata, kinds)
    infos = _tensor_infos(cursor, tensor_count)
    base = -(-cursor.position // alignment) * alignment
    _check_spans(cursor, infos, base, alignment)
    mapped = np.frombuffer(data, np.uint8)
    tensors = {
        info.name: QuantTensor(
            info.name,
            info.block,
            info.shape,
            mapped[base + info.offset : base + info.offset + info.size_bytes],
        )
        for info in infos
    }
    return GGUFFile(path, version, metadata, kinds, tensors)


def load_gguf(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns (metadata, {tensor name: dequantised array}), arrays in row-major order.

    Quantised and half-precision weights come as f32; f64 and integer tensors keep their dtype.
    """
    file = open_gguf(path)
    return dict(file.metadata), {name: t.dequantise() for name, t in file.tensors.items()}


def _header(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.take(min(4, cursor.remaining), "the magic number")
    if magic != b"GGUF":
        problem = f"not a GGUF file. Got magic {magic!r}; expected b'GGUF'"
        raise cursor.fail(problem, "Try the path of a model file that ends in .gguf.")
    version = cursor.u32("the version")
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0 and version != 0
        hint = " The file looks big-endian." if swapped else ""
        raise cursor.fail(f"GGUF version {version} is not supported. Expected 2 or 3.{hint}")
    tensor_count, key_count = cursor.u64("the tensor count"), cursor.u64("the key count")
    needed = tensor_count * _MIN_TENSOR_BYTES + key_count * _MIN_KEY_BYTES
    if needed > cursor.remaining:
        raise cursor.fail(
            f"{tensor_count} tensors and {key_count} keys cannot fit in a file of "
            f"{len(cursor.data)} bytes"
        )
    return version, tensor_count, key_count


def _metadata(cursor: _Cursor, count: int) -> tuple[dict[str, Any], dict[str, str]]:
    metadata: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for index in range(count):
        key = cursor.text(f"key number {index}")
        if key in metadata:
            raise cursor.fail(f"key {key!r} appears twice")
        metadata[key], kinds[key] = cursor.value(cursor.u32(f"the type of {key!r}"), key)
    return metadata, kinds


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any], kinds: Mapping[str, str]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if kinds.get("general.alignment", "u32") != "u32":
        raise cursor.fail(f"general.alignment is a {kinds['general.alignment']}. Expected a u32")
    if alignment < 8 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment}. Expected a power of two from 8 up")
    return alignment


def _tensor_infos(cursor: _Cursor, count: int) -> list[_TensorInfo]:
    infos: dict[str, _TensorInfo] = {}
    for index in range(count):
        info = _tensor_info(cursor, index)
        if info.name in infos:
            raise cursor.fail(f"tensor {info.name!r} appears twice")
        infos[info.name] = info
    return list(infos.values())


def _tensor_info(cursor: _Cursor, index: int) -> _TensorInfo:
    name = cursor.text(f"the name of tensor {index}")
    if not name:
        raise cursor.fail(f"tensor {index} has no name: the tensor count or the header is damaged")
    what = f"the description of tensor {name!r}"
    rank = cursor.u32(what)
    if rank > _MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {rank} dims. Expected at most {_MAX_DIMS}")
    extents = [cursor.u64(what) for _ in range(rank)]
    kind, offset = cursor.u32(what), cursor.u64(what)
    if kind not in BLOCK_TYPES:
        gone = f", {REFUSED_TYPES[kind]}" if kind in REFUSED_TYPES else ""
        raise cursor.fail(f"tensor {name!r} has the unknown or unusable quant type {kind}{gone}")
    block = BLOCK_TYPES[kind]
    elements = 1
    for extent in extents:
        elements *= extent
        if extent > _MAX_EXTENT or elements > _MAX_EXTENT:
            raise cursor.fail(f"tensor {name!r} has an absurd size. Got dims {extents}")
    if extents and extents[0] % block.elements:
        raise cursor.fail(
            f"tensor {name!r}: rows of {extents[0]} weights are not whole {block.name} blocks. "
            f"Expected a multiple of {block.elements}"
        )
    if not extents and block.elements > 1:
        raise cursor.fail(f"tensor {name!r} has no dims but the block type {block.name}")
    size_bytes = elements // block.elements * block.size_bytes
    return _TensorInfo(name, tuple(reversed(extents)) or (1,), block, offset, size_bytes)


def _check_spans(cursor: _Cursor, infos: list[_TensorInfo], base: int, alignment: int) -> None:
    size = len(cursor.data)
    for info in infos:
        if info.offset % alignment:
            raise cursor.fail(
                f"tensor {info.name!r} starts at offset {info.offset}, which is not a multiple "
                f"of the alignment {alignment}"
            )
        if base + info.offset + info.size_bytes > size:
            raise cursor.fail(
                f"the data of tensor {info.name!r} lies past the end of the file. It needs bytes "
                f"{base + info.offset} to {base + info.offset + info.size_bytes}, the file has "
                f"{size}"
            )
    ordered = sorted((i for i in infos if i.size_bytes), key=lambda info: info.offset)
    for before, after in pairwise(ordered):
        if after.offset < before.offset + before.size_bytes:
            raise cursor.fail(f"the data of tensors {before.name!r} and {after.name!r} overlaps")
