"""Safetensors files as the home of a model's weights: written, or compared with those in memory.

In: a path, arrays with their dtypes. Out: a file, or which of its tensors holds which array. The
reader is luminal/frontend/weights/safetensors.py.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from luminal.errors import ArgumentError, UnsupportedError
from luminal.frontend.weights.safetensors import load_safetensors

__all__ = ["matching", "write_safetensors"]

Held = Mapping[str, tuple[np.ndarray, str]]
_NAMES = {"f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "i64": "I64", "i32": "I32",
          "i16": "I16", "i8": "I8", "u8": "U8", "bool": "BOOL", "f8e4m3": "F8_E4M3",
          "f8e5m2": "F8_E5M2", "e8m0": "F8_E8M0"}  # fmt: skip


def write_safetensors(path: Path, held: Held) -> None:
    """Writes arrays, given with the names of their dtypes; UnsupportedError on 4-bit ones."""
    header, end = {}, 0
    for name, (array, dtype) in held.items():
        if dtype not in _NAMES:
            raise UnsupportedError(f"[export] safetensors has no dtype {dtype} (weight {name!r}).")
        header[name] = {"dtype": _NAMES[dtype], "shape": [*array.shape],
                        "data_offsets": [end, end + array.nbytes]}  # fmt: skip
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array, _ in held.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def matching(path: Path, held: Held) -> dict[str, str]:
    """The tensor of the file that equals each array; ArgumentError if there is none."""
    found = {n: getattr(a, "bits", a) for n, a in load_safetensors(path).items()}
    names = {}
    for name, (array, _) in held.items():
        same = [n for n in ([name] if name in found else found) if _equal(found[n], array)]
        if not same:
            raise ArgumentError(
                f"[export] {path.name} does not hold the weight {name!r} as it is in the model. "
                "Try another name of a file that does not exist; it will be written."
            )
        names[name] = same[0]
    return names


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(left, right))
