"""The file format: a fixed head, a JSON header, sections at page boundaries.

In: a header and sections as pieces of bytes. Out: a file written in one step, or the header and
views of the mapped sections. LuminalError on a file that is not whole. docs/aot.md describes the
format; nothing in it is ever executed but the code section.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luminal.errors import WeightsError

__all__ = ["FORMAT", "Container", "fail", "read_container", "write_container"]

MAGIC = b"\x89LUM\r\n\x1a\n"
FORMAT = 1
PAGE = 4096
_HEAD = struct.Struct(
    "<8sIIQQ"
)  # magic, format, CRC-32 of the header, its bytes, bytes of the file


def fail(path: Path, problem: str, hint: str = "Try exporting the model again") -> WeightsError:
    """The error for a file that cannot be used."""
    return WeightsError(f"[load] {path.name}: {problem}. {hint}.")


@dataclass(frozen=True, slots=True)
class Container:
    """An open file: its header and the bytes of its sections, which are mapped."""

    path: Path
    header: dict[str, Any]
    sections: Mapping[str, memoryview]

    def checked(self, name: str) -> memoryview:
        """A section whose checksum is right."""
        data = self.sections[name]
        if zlib.crc32(data) != self.header["sections"][name][2]:
            raise fail(self.path, f"the section {name!r} is damaged")
        return data


def write_container(
    path: Path, header: Mapping[str, Any], sections: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """Writes a file beside its final place and moves it there; sections are streamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, header, sections)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _write(
    file: Any, header: Mapping[str, Any], sections: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """The header names each section with its place after the header, size and checksum; since
    those are known last, room for the header is left and filled in the end."""
    room = len(_encoded(header, {name: [1 << 62, 1 << 62, 1 << 32] for name in sections}))
    start = _HEAD.size + room + -(_HEAD.size + room) % PAGE
    file.seek(start)
    table: dict[str, list[int]] = {}
    for name, pieces in sections.items():
        file.write(bytes(-(file.tell()) % PAGE))
        begin, checksum = file.tell(), 0
        for piece in pieces:
            file.write(piece)
            checksum = zlib.crc32(piece, checksum)
        table[name] = [begin, file.tell() - begin, checksum]
    size = file.tell()
    text = _encoded(header, table)
    file.seek(0)
    file.write(_HEAD.pack(MAGIC, FORMAT, zlib.crc32(text), len(text), size) + text)
    file.truncate(size)


def _encoded(header: Mapping[str, Any], table: Mapping[str, list[int]]) -> bytes:
    return json.dumps({**header, "sections": table}, separators=(",", ":")).encode()


def read_container(path: Path) -> Container:
    """Maps a file and checks its head, header and the places of its sections."""
    data = _mapped(path)
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise fail(path, "this is no exported model", "Try a file that luminal.export wrote")
    _, version, checksum, length, size = _HEAD.unpack(data[: _HEAD.size])
    if version != FORMAT:
        raise fail(path, f"the file has format {version}; this version of luminal reads {FORMAT}")
    if size != len(data) or _HEAD.size + length > size:
        raise fail(path, f"the file is truncated. Got {len(data)} bytes; expected {size}")
    text = data[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(text) != checksum:
        raise fail(path, "the header is damaged")
    header = json.loads(text)
    whole, sections = memoryview(data), {}
    for name, (begin, count, _) in header["sections"].items():
        if begin + count > size:
            raise fail(path, f"the section {name!r} lies past the end of the file")
        sections[name] = whole[begin : begin + count]
    return Container(path, header, sections)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise fail(path, f"cannot read the file: {reason}", "Try another path") from None
