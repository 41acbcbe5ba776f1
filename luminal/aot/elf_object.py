"""Relocatable ELF objects, read.

In: the bytes of a 64-bit little-endian object. Out: sections with their data and relocations, and
symbols. InternalError on anything else; interprets nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from luminal.errors import InternalError

_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2


@dataclass(frozen=True, slots=True)
class Relocation:
    """Patch at `offset` of its section: kind, number of the symbol, addend."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(slots=True, eq=False)
class Section:
    """A section: `data` is empty where it only has a size (zeroed memory)."""

    name: str
    flags: int
    align: int
    size: int
    data: bytes
    relocations: list[Relocation] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A symbol; `section` is None if it is defined elsewhere."""

    name: str
    is_global: bool
    section: Section | None
    value: int


@dataclass(frozen=True, slots=True)
class Object:
    """One object file. `machine` is ELF's number of the instruction set."""

    machine: int
    sections: list[Section]
    symbols: list[Symbol]


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def read_object(data: bytes) -> Object:
    """The sections and symbols of an object."""
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 16)[0] != 1:
        raise InternalError("[elf] not a 64-bit little-endian relocatable object.")
    machine = struct.unpack_from("<H", data, 18)[0]
    table = struct.unpack_from("<Q", data, 40)[0]
    count, names = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * n) for n in range(count)]
    bodies = [b"" if h[1] == _NOBITS else data[h[4] : h[4] + h[5]] for h in headers]
    sections = [Section(_text(bodies[names], h[0]), h[2], h[8], h[5], body)
                for h, body in zip(headers, bodies, strict=True)]  # fmt: skip
    symbols: list[Symbol] = []
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == _SYMTAB:
            symbols = _symbols(body, bodies[header[6]], sections)
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == _RELA:
            sections[header[7]].relocations = [
                Relocation(place, info & 0xFFFFFFFF, info >> 32, addend)
                for place, info, addend in struct.iter_unpack("<QQq", body)
            ]
    return Object(machine, sections, symbols)


def data_object(machine: int, symbol: str, size_bytes: int) -> tuple[bytes, bytes]:
    """What comes before and after `size_bytes` of read-only data in an object that defines nothing
    but the hidden `symbol` for them."""
    names = b"\0.rodata\0.symtab\0.strtab\0.note.GNU-stack\0"
    strings = b"\0" + symbol.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    padding = bytes(-size_bytes % 8)
    entry = struct.pack("<IBBHQQ", 1, 1 << 4 | 1, 2, 1, 0, size_bytes)
    places = [64 + size_bytes + len(padding)]
    for part in (bytes(24) + entry, strings):
        places.append(places[-1] + len(part))
    named = names + bytes(-len(names) % 8)
    rows = (
        (0,) * 10, (1, 1, 2, 0, 64, size_bytes, 0, 0, 64, 0),
        (9, 2, 0, 0, places[0], 48, 3, 1, 8, 24),
        (17, 3, 0, 0, places[1], len(strings), 0, 0, 1, 0),
        (17, 3, 0, 0, places[2], len(names), 0, 0, 1, 0), (25, 1, 0, 0, 64, 0, 0, 0, 1, 0),
    )  # fmt: skip
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, machine, 1, 0, 0,
                       places[2] + len(named), 0, 64, 0, 0, 64, len(rows), 4)  # fmt: skip
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    return head, padding + bytes(24) + entry + strings + named + table


def _symbols(body: bytes, strings: bytes, sections: list[Section]) -> list[Symbol]:
    found = []
    for name, info, _, place, value, _ in struct.iter_unpack("<IBBHQQ", body):
        if place == _COMMON or (place == _ABSOLUTE and info & 15 != 4):
            raise InternalError(f"[elf] the symbol {_text(strings, name)} is common or absolute.")
        section = sections[place] if place not in (_UNDEFINED, _ABSOLUTE) else None
        found.append(Symbol(_text(strings, name), info >> 4 != 0, section, value))
    return found
