"""Writes small GGUF files for tests, good and broken ones.

In: metadata entries and tensors. Out: the bytes of a file.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"}
_FORMATS |= {U64: "Q", I64: "q", F64: "d"}


@dataclass
class Tensor:
    """A tensor to write: its shape is outermost first, `code` the GGUF type."""

    name: str
    shape: tuple[int, ...]
    raw: bytes
    code: int = 0
    offset: int | None = None


def string(text: str | bytes) -> bytes:
    """A length and the bytes of a text."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    """The bytes of one metadata value; arrays are (element kind, items)."""
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        element, items = content
        packed = b"".join(value(element, item) for item in items)
        return struct.pack("<IQ", element, len(items)) + packed
    return struct.pack("<" + _FORMATS[kind], content)


def entry(key: str | bytes, kind: int, content: Any) -> bytes:
    """One metadata entry."""
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def f32_tensor(name: str, array: np.ndarray, offset: int | None = None) -> Tensor:
    """An unquantised tensor."""
    return Tensor(name, array.shape, array.astype("<f4").tobytes(), 0, offset)


def build(
    entries: Sequence[bytes],
    tensors: Sequence[Tensor] = (),
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    """The bytes of a file; the counts can be falsified."""
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_keys is None else n_keys,
    )
    head = magic + struct.pack("<I", version) + struct.pack("<QQ", *counts) + b"".join(entries)
    data = b""
    for tensor in tensors:
        data += b"\0" * (-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        dims = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += string(tensor.name) + struct.pack("<I", len(tensor.shape)) + dims
        head += struct.pack("<IQ", tensor.code, offset)
        data += tensor.raw
    return head + b"\0" * (-len(head) % alignment) + data


def spm_entries(vocabulary: Sequence[str], types: Sequence[int], **changes: Any) -> list[bytes]:
    """Entries of a SentencePiece-like tokenizer; `changes` replace (kind, content) by key."""
    table: dict[str, tuple[int, Any]] = {
        "model": (STRING, "llama"),
        "tokens": (ARRAY, (STRING, list(vocabulary))),
        "scores": (ARRAY, (F32, [-float(i) for i in range(len(vocabulary))])),
        "token_type": (ARRAY, (I32, list(types))),
        "bos_token_id": (U32, 1),
        "eos_token_id": (U32, 2),
    }
    table |= changes
    return [
        entry(f"tokenizer.ggml.{key}", *item) for key, item in table.items() if item is not None
    ]
