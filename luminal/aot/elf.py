"""A linker for Linux: relocatable ELF objects become one shared library, without any other tool.

In: objects that LLVM emitted for x86-64 or aarch64, and which symbols to show. Out: the bytes of a
library for dlopen or `cc`. Knows position-independent code of C-like modules: no thread-local
data, no constructors, no exceptions.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from luminal.aot.elf_object import Object, Symbol, read_object
from luminal.aot.elf_relocations import MACHINES, Machine
from luminal.errors import InternalError

__all__ = ["link_shared"]

_ALLOC, _WRITE, _EXECUTE = 2, 1, 4
_PT_LOAD, _PT_DYNAMIC, _PT_STACK = 1, 2, 0x6474E551
_NO_DELETE = 0x8  # DF_1_NODELETE: threads may be parked in the code, so it is never unmapped


@dataclass(slots=True)
class _Part:
    """A piece of the image: its bytes, or only its size, and its address once placed."""

    name: str
    data: bytearray
    align: int
    size: int = 0
    address: int = 0


@dataclass(slots=True)
class _Image:
    """Parts by segment, symbols, and what the dynamic linker will have to do."""

    machine: Machine
    weak: Collection[str]
    objects: list[Object] = field(default_factory=list)
    places: dict[int, _Part] = field(default_factory=dict)  # by identity of a Section
    segments: tuple[list[_Part], ...] = field(default_factory=lambda: ([], [], [], []))
    defined: dict[str, tuple[_Part, int]] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)  # name: number in the symbol table
    stubs: dict[str, int] = field(default_factory=dict)
    slots: dict[tuple[str, int], int] = field(default_factory=dict)
    dynamic: list[tuple[int, int, int]] = field(default_factory=list)


def link_shared(
    objects: Sequence[bytes], exports: Collection[str], *, weak: Collection[str] = (),
    needed: Sequence[str] = (), soname: str = "", tail: tuple[str, int] | None = None,
) -> bytes:  # fmt: skip
    """The library that `objects` make; InternalError on anything this linker does not know.

    `exports` are the symbols that others see, `weak` those that may be missing when it is loaded,
    `needed` the libraries it depends on. `tail` (symbol, bytes) is read-only data that the caller
    appends to the result.
    """
    parsed = [read_object(data) for data in objects]
    kinds = {o.machine for o in parsed}
    if len(kinds) != 1 or not kinds <= MACHINES.keys():
        raise InternalError(f"[elf] objects for the machines {sorted(kinds)}; expected one known.")
    image = _Image(MACHINES[kinds.pop()], weak, parsed)
    _place_sections(image)
    _find_symbols(image, tail[0] if tail else "")
    _reserve(image)
    return _Writer(image, exports, needed, soname, tail).write()


def _place_sections(image: _Image) -> None:
    for item in image.objects:
        for section in item.sections:
            unwanted = section.name.startswith((".eh_frame", ".note", ".llvm", ".comment"))
            if not section.flags & _ALLOC or unwanted or not section.size:
                continue
            number = 1 if section.flags & _EXECUTE else 2 if section.flags & _WRITE else 0
            data = bytearray(section.data)
            part = _Part(section.name, data, max(1, section.align), section.size)
            image.segments[3 if not data and number == 2 else number].append(part)
            image.places[id(section)] = part


def _find_symbols(image: _Image, tail: str) -> None:
    """Which symbols are defined, and which are imported."""
    for item in image.objects:
        for s in item.symbols:
            part = image.places.get(id(s.section))
            if s.is_global and part is not None:
                if s.name in image.defined:
                    raise InternalError(f"[elf] the symbol {s.name} is defined twice.")
                image.defined[s.name] = (part, s.value)
    known = {*image.defined, tail}
    for item in image.objects:
        for s in item.symbols:
            if s.is_global and s.section is None and s.name not in known:
                image.imports.setdefault(s.name, len(image.imports) + 1)


def _reserve(image: _Image) -> None:
    """Room for stubs of imported functions and for slots of addresses."""
    machine = image.machine
    for item in image.objects:
        for section in filter(lambda s: id(s) in image.places, item.sections):
            for relocation in section.relocations:
                symbol = item.symbols[relocation.symbol]
                if relocation.kind in machine.through_slot:
                    image.slots.setdefault(_key(symbol), 8 * len(image.slots))
                elif relocation.kind in machine.calls and symbol.name in image.imports:
                    image.slots.setdefault(_key(symbol), 8 * len(image.slots))
                    image.stubs.setdefault(symbol.name, 16 * len(image.stubs))
    image.segments[1].append(_Part(".plt", bytearray(16 * len(image.stubs)), 16))
    image.segments[2].append(_Part(".got", bytearray(8 * len(image.slots)), 8))


def _key(symbol: Symbol) -> tuple[str, int]:
    return (symbol.name, 0) if symbol.is_global else ("", id(symbol))


class _Writer:
    """Lays an image out and writes it. File offsets equal addresses, up to the zeroed data."""

    def __init__(
        self, image: _Image, exports: Collection[str], needed: Sequence[str], soname: str,
        tail: tuple[str, int] | None,
    ) -> None:  # fmt: skip
        self.image, self.tail = image, tail
        self.exports = [n for n in exports if n in image.defined]
        if len(self.exports) != len(exports):
            raise InternalError(f"[elf] undefined: {sorted(set(exports) - {*image.defined})}.")
        self.needed, self.soname = needed, soname
        self.strings = bytearray(b"\0")
        self.parts: dict[str, _Part] = {}
        self.tail_address = 0

    def write(self) -> bytes:
        image = self.image
        names = [*image.imports, *self.exports]
        numbers = [self.string(n) for n in names]
        needed = [self.string(n) for n in self.needed]
        soname = self.string(self.soname) if self.soname else 0
        count = self._count_dynamic()
        head = [
            _Part(".hash", bytearray(4 * (2 + 1 + len(names) + 1)), 8),
            _Part(".dynsym", bytearray(24 * (len(names) + 1)), 8),
            _Part(".dynstr", self.strings, 1),
            _Part(".rela.dyn", bytearray(24 * count), 8),
        ]
        image.segments[0][:0] = head
        dynamic = _Part(".dynamic", bytearray(16 * (len(needed) + 10)), 8)
        image.segments[2].append(dynamic)
        self.parts = {p.name: p for p in (*head, dynamic)}
        self.parts |= {p.name: p for s in image.segments for p in s if p.name in (".plt", ".got")}
        spans = self._lay_out()
        self._symbol_table(names, numbers)
        for item in image.objects:
            self._relocate(item)
        self._fill_slots()
        self._dynamic_table(needed, soname)
        return self._bytes(spans)

    def string(self, text: str) -> int:
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text.encode()) - 1

    def _count_dynamic(self) -> int:
        kinds = self.image.machine.absolute
        placed = (s for o in self.image.objects for s in o.sections if id(s) in self.image.places)
        absolute = sum(r.kind == kinds for s in placed for r in s.relocations)
        return absolute + len(self.image.slots)

    def _lay_out(self) -> list[tuple[int, int, int]]:
        """Addresses of all parts; (start, end in the file, end in memory) of each segment."""
        page, spans = self.image.machine.page, []
        place = 64 + 56 * 6
        for number, parts in enumerate(self.image.segments[:3]):
            place += -place % page if number else 0
            start = place if number else 0
            for part in parts:
                place += -place % part.align
                part.address = place
                place += len(part.data) or part.size
            spans.append((start, place, place))
        for part in self.image.segments[3]:
            place += -place % part.align
            part.address = place
            place += part.size
        spans[2] = (*spans[2][:2], place)
        self.tail_address = place + -place % page
        return spans

    def address(self, item: Object, symbol: Symbol) -> int:
        """Where a symbol lies; 0 for an import."""
        if symbol.section is not None:
            part = self.image.places.get(id(symbol.section))
            if part is None:
                raise InternalError(f"[elf] {symbol.name or 'a section'} was left out.")
            return part.address + symbol.value
        if symbol.name in self.image.defined:
            part, value = self.image.defined[symbol.name]
            return part.address + value
        if self.tail and symbol.name == self.tail[0]:
            return self.tail_address
        return 0

    def _relocate(self, item: Object) -> None:
        image, machine = self.image, self.image.machine
        got, plt = self.parts[".got"].address, self.parts[".plt"].address
        for section in item.sections:
            part = image.places.get(id(section))
            for r in section.relocations if part is not None else ():
                symbol = item.symbols[r.symbol]
                place, target = part.address + r.offset, self.address(item, symbol)
                if r.kind == machine.absolute:
                    self._absolute(place, symbol, target + r.addend)
                    part.data[r.offset : r.offset + 8] = struct.pack("<q", target + r.addend)
                    continue
                if r.kind in machine.through_slot:
                    target = got + image.slots[_key(symbol)]
                elif not target and symbol.name in image.stubs:
                    target = plt + image.stubs[symbol.name]
                elif not target:
                    raise InternalError(f"[elf] {symbol.name}: relocation {r.kind} of an import.")
                machine.apply(part.data, r.offset, r.kind, target + r.addend, place)

    def _absolute(self, place: int, symbol: Symbol, value: int) -> None:
        machine = self.image.machine
        number = self.image.imports.get(symbol.name, 0) if symbol.section is None else 0
        kind = machine.dynamic_absolute if number else machine.relative
        self.image.dynamic.append((place, number << 32 | kind, 0 if number else value))

    def _fill_slots(self) -> None:
        image, machine = self.image, self.image.machine
        got, plt = self.parts[".got"], self.parts[".plt"]
        known = {_key(s): (o, s) for o in image.objects for s in o.symbols}
        for key, offset in image.slots.items():
            place, number = got.address + offset, image.imports.get(key[0], 0)
            if number:
                image.dynamic.append((place, number << 32 | machine.dynamic_slot, 0))
            else:
                value = self.address(*known[key])
                got.data[offset : offset + 8] = struct.pack("<q", value)
                image.dynamic.append((place, machine.relative, value))
        for name, offset in image.stubs.items():
            code = machine.stub(plt.address + offset, got.address + image.slots[(name, 0)])
            plt.data[offset : offset + len(code)] = code
        rows = b"".join(struct.pack("<QQq", *row) for row in image.dynamic)
        self.parts[".rela.dyn"].data[: len(rows)] = rows

    def _symbol_table(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        rows, image = [bytes(24)], self.image
        for name, number in zip(names, numbers, strict=True):
            if name in image.imports:
                bind = 2 if name in image.weak else 1
                rows.append(struct.pack("<IBBHQQ", number, bind << 4, 0, 0, 0, 0))
            else:
                part, value = image.defined[name]
                kind = 2 if part in image.segments[1] else 1
                rows.append(struct.pack("<IBBHQQ", number, 1 << 4 | kind, 0, self._index(part),
                                        part.address + value, 0))  # fmt: skip
        self.parts[".dynsym"].data[:] = b"".join(rows)
        count = len(names)  # one bucket: from the last symbol back to the first
        chains = struct.pack(f"<{count + 4}I", 1, count + 1, count, 0, *range(count))
        self.parts[".hash"].data[:] = chains

    def _index(self, part: _Part) -> int:
        return 5 + next(n for n, s in enumerate(self.image.segments) if part in s)

    def _dynamic_table(self, needed: Sequence[int], soname: int) -> None:
        parts, count = self.parts, len(self.image.dynamic)
        rows = [*((1, n) for n in needed), *([(14, soname)] if soname else [])]
        rows += [(4, parts[".hash"].address), (5, parts[".dynstr"].address),
                 (6, parts[".dynsym"].address), (10, len(self.strings)), (11, 24)]  # fmt: skip
        if count:
            rows += [(7, parts[".rela.dyn"].address), (8, 24 * count), (9, 24)]
        rows += [(0x6FFFFFFB, _NO_DELETE)]
        packed = b"".join(struct.pack("<qQ", *row) for row in rows)
        self.parts[".dynamic"].data[: len(packed)] = packed

    def _bytes(self, spans: list[tuple[int, int, int]]) -> bytes:
        """Headers, the parts at their addresses, section headers; then up to the tail's place."""
        page, out = self.image.machine.page, bytearray(spans[2][1])
        for parts in self.image.segments[:3]:
            for part in parts:
                out[part.address : part.address + len(part.data)] = part.data
        table = self._sections(spans, len(out))
        headers = len(out) + -len(out) % 8 + len(table[0]) + -len(table[0]) % 8
        out += bytes(-len(out) % 8) + table[0] + bytes(-len(table[0]) % 8) + table[1]
        start = len(out)
        if self.tail:
            out += bytes((self.tail_address - len(out)) % page)
            start = len(out)
        rows = [(_PT_LOAD, flags, a, a, a, end - a, top - a, page)
                for flags, (a, end, top) in zip((4, 5, 6), spans)]  # fmt: skip
        if self.tail:
            a, size = self.tail_address, self.tail[1]
            rows.append((_PT_LOAD, 4, start, a, a, size, size, page))
        dynamic = self.parts[".dynamic"]
        place, size = dynamic.address, len(dynamic.data)
        rows.append((_PT_DYNAMIC, 6, place, place, place, size, size, 8))
        rows.append((_PT_STACK, 6, 0, 0, 0, 0, 0, 16))
        out[:64] = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, self.image.machine.number, 1, 0, 64,
            headers, 0, 64, 56, len(rows), 64, 10, 9,
        )  # fmt: skip
        for n, row in enumerate(rows):
            out[64 + 56 * n : 120 + 56 * n] = struct.pack("<IIQQQQQQ", *row)
        return bytes(out)

    def _sections(self, spans: list[tuple[int, int, int]], end: int) -> tuple[bytes, bytes]:
        """(names, headers) of the sections, so that linkers and debuggers can read the file."""
        names, rows = bytearray(b"\0"), [bytes(64)]

        def add(name: str, kind: int, flags: int, start: int, size: int, *rest: int) -> None:
            rows.append(struct.pack("<IIQQQQIIQQ", len(names), kind, flags, start, start, size,
                                    *rest))  # fmt: skip
            names.extend(name.encode() + b"\0")

        def part(
            name: str, kind: int, flags: int, link: int, info: int, align: int, each: int
        ) -> None:
            p = self.parts[name]
            add(name, kind, flags, p.address, len(p.data), link, info, align, each)

        part(".hash", 5, 2, 2, 0, 8, 4)
        part(".dynsym", 11, 2, 3, 1, 8, 24)
        part(".dynstr", 3, 2, 0, 0, 1, 0)
        part(".rela.dyn", 4, 2, 2, 0, 8, 24)
        rest = self.parts[".rela.dyn"].address + len(self.parts[".rela.dyn"].data)
        add(".rodata", 1, 2, rest, spans[0][1] - rest, 0, 0, 1, 0)
        add(".text", 1, 6, spans[1][0], spans[1][1] - spans[1][0], 0, 0, 16, 0)
        add(".data", 1, 3, spans[2][0], self.parts[".dynamic"].address - spans[2][0], 0, 0, 8, 0)
        part(".dynamic", 6, 3, 3, 0, 8, 16)
        names_size = len(names) + len(b".shstrtab\0")
        add(".shstrtab", 3, 0, end + -end % 8, names_size, 0, 0, 1, 0)
        return bytes(names), b"".join(rows)
