"""What the two instruction sets ask of a linker: kinds of relocations and how to apply them.

In: the number of a relocation, addresses. Out: patched code. The numbers are those of the
processor supplements of the System V ABI. InternalError on a kind that LLVM does not emit for
position-independent code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from luminal.errors import InternalError

Patch = Callable[[bytearray, int, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """One instruction set. `through_slot` kinds want the address of a slot that holds the
    symbol's, `calls` may go through a stub; `absolute` is a 64-bit address."""

    number: int
    page: int
    absolute: int
    dynamic_absolute: int
    dynamic_slot: int
    relative: int
    through_slot: frozenset[int]
    calls: frozenset[int]
    apply: Patch
    stub: Callable[[int, int], bytes]


def _signed(value: int, bits: int, kind: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise InternalError(f"[elf] relocation {kind} does not reach: {value} in {bits} bits.")
    return value


def _x86(data: bytearray, offset: int, kind: int, target: int, place: int) -> None:
    if kind in (2, 4, 9, 41, 42):  # PC32, PLT32, GOTPCREL and its relaxable forms
        struct.pack_into("<i", data, offset, _signed(target - place, 32, kind))
    elif kind == 24:  # PC64
        struct.pack_into("<q", data, offset, target - place)
    else:
        raise InternalError(f"[elf] unknown x86-64 relocation {kind}.")


def _x86_stub(place: int, slot: int) -> bytes:
    return b"\xff\x25" + struct.pack("<i", slot - place - 6)  # jmp *slot(%rip)


_SHIFTS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}  # low 12 bits, scaled


def _arm(data: bytearray, offset: int, kind: int, target: int, place: int) -> None:
    if kind in (260, 261):  # PREL64, PREL32
        struct.pack_into("<q" if kind == 260 else "<i", data, offset, target - place)
        return
    word = struct.unpack_from("<I", data, offset)[0]
    if kind in (275, 311):  # page of a symbol or slot
        word |= _page_bits((target >> 12) - (place >> 12), kind)
    elif kind == 274:  # ADR_PREL_LO21
        word |= _page_bits(target - place, kind)
    elif kind in _SHIFTS:
        word |= (target & 0xFFF) >> _SHIFTS[kind] << 10
    elif kind in (282, 283):  # JUMP26, CALL26
        word |= _signed(target - place >> 2, 26, kind) & 0x3FFFFFF
    elif kind in (279, 280):  # TSTBR14, CONDBR19
        bits = 14 if kind == 279 else 19
        word |= (_signed(target - place >> 2, bits, kind) & (1 << bits) - 1) << 5
    else:
        raise InternalError(f"[elf] unknown aarch64 relocation {kind}.")
    struct.pack_into("<I", data, offset, word)


def _page_bits(distance: int, kind: int) -> int:
    distance = _signed(distance, 21, kind)
    return (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5


def _arm_stub(place: int, slot: int) -> bytes:
    page = 0x90000010 | _page_bits((slot >> 12) - (place >> 12), 275)  # adrp x16, slot
    load = 0xF9400211 | (slot & 0xFFF) >> 3 << 10  # ldr x17, [x16, slot]
    return struct.pack("<III", page, load, 0xD61F0220)  # br x17


MACHINES = {
    62: Machine(62, 1 << 12, 1, 1, 6, 8, frozenset({9, 41, 42}), frozenset({4}), _x86,
                _x86_stub),
    183: Machine(183, 1 << 16, 257, 257, 1025, 1027, frozenset({311, 312}), frozenset({282, 283}),
                 _arm, _arm_stub),
}  # fmt: skip
