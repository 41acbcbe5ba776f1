"""Reads safetensors files through a memory map.

In: a path. Out: {name: array}, NumPy arrays where NumPy has the dtype and `RawArray` where it has
not (bf16, f8); both go to `torch.from_dlpack`. The header is checked against the file before any
tensor is made. Must not know any model.
"""

import json
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from luminal.errors import WeightsError
from luminal.frontend.weights.files import map_file
from luminal.frontend.weights.raw_array import RawArray

__all__ = ["load_safetensors"]

_NUMPY_DTYPES: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "C64": "<c8",
}
_RAW_DTYPES: Mapping[str, tuple[str, str]] = {
    "BF16": ("bf16", "<u2"),
    "F8_E4M3": ("f8e4m3", "u1"),
    "F8_E5M2": ("f8e5m2", "u1"),
    "F8_E8M0": ("e8m0", "u1"),
}
_MAX_HEADER_BYTES = 100_000_000
_Spans = list[tuple[int, int, str]]


def load_safetensors(path: str | Path) -> dict[str, np.ndarray | RawArray]:
    """Returns {tensor name: array over the mapped file}; arrays may be written to, the file never.

    Raises WeightsError when the file is missing, damaged or truncated.
    """
    path = Path(path)
    data = map_file(path, "load_safetensors")
    header, start = _header(path, data)
    size_bytes = len(data) - start
    arrays: dict[str, np.ndarray | RawArray] = {}
    spans: _Spans = []
    mapped = np.frombuffer(data, np.uint8)[start:]
    for name, entry in header.items():
        if name != "__metadata__":
            stored, shape, (begin, end) = _checked(path, name, entry, size_bytes)
            spans.append((begin, end, name))
            arrays[name] = _array(mapped[begin:end], stored, shape)
    _check_coverage(path, spans, size_bytes)
    return arrays


def _fail(path: Path, problem: str) -> WeightsError:
    problem = problem.removesuffix(".")
    return WeightsError(f"[load_safetensors] {path.name}: {problem}. Try downloading it again.")


def _header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise _fail(path, f"the file has {len(data)} bytes. Expected at least 8 for the header")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise _fail(path, f"a header of {length} bytes cannot fit in a file of {len(data)}")
    raw = data[8 : 8 + length]
    if raw[:1] != b"{":
        raise _fail(path, f"the header is not a JSON object. Got {raw[:16]!r}")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError as error:
        raise _fail(path, "the header is nested too deeply") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise _fail(path, f"the header is not valid JSON: {error}") from error
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} appears twice")
    return table


def _checked(
    path: Path, name: str, entry: object, size_bytes: int
) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """The dtype, shape and byte span of one entry of the header."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _fail(path, f"tensor {name!r} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or (dtype not in _NUMPY_DTYPES and dtype not in _RAW_DTYPES):
        raise _fail(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not _natural(shape):
        raise _fail(path, f"tensor {name!r} has the shape {shape!r}. Expected whole numbers")
    if not _natural(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _fail(
            path, f"tensor {name!r} has the data_offsets {offsets!r}. Expected [begin, end]"
        )
    begin, end = offsets
    if end > size_bytes:
        raise _fail(
            path,
            f"the data of tensor {name!r} lies past the end of the file. It ends at byte {end} of "
            f"the data, the file has {size_bytes}",
        )
    stored = _NUMPY_DTYPES.get(dtype) or _RAW_DTYPES[dtype][1]
    needed = np.dtype(stored).itemsize
    for extent in shape:
        needed *= extent
    if needed != end - begin:
        raise _fail(
            path, f"tensor {name!r} {dtype} {shape} needs {needed} bytes. Got {end - begin}"
        )
    return dtype, tuple(shape), (begin, end)


def _natural(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _array(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray | RawArray:
    stored = np.dtype(_NUMPY_DTYPES.get(dtype) or _RAW_DTYPES[dtype][1])
    if raw.ctypes.data % stored.itemsize:
        raw = raw.copy()
    values = raw.view(stored).reshape(shape)
    return values if dtype in _NUMPY_DTYPES else RawArray(_RAW_DTYPES[dtype][0], values)


def _check_coverage(path: Path, spans: _Spans, size_bytes: int) -> None:
    position, previous = 0, "the header"
    for begin, end, name in sorted(spans):
        if begin != position:
            kind = "overlaps" if begin < position else "leaves a gap after"
            raise _fail(path, f"the data of tensor {name!r} {kind} that of {previous!r}")
        position, previous = end, name
    if position != size_bytes:
        raise _fail(path, f"{size_bytes - position} bytes follow the last tensor. Expected none")
