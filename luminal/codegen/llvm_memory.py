"""Loads, stores, gathers, scatters and prefetches of loop IR in LLVM text.

In: an Emitter, a statement, its operand texts, the pointer of its base. Out: the operand loaded,
or instructions. Storage formats are decoded here. A lane that is masked off reads nothing.
"""

from __future__ import annotations

from luminal.codegen.llvm_cast import convert, decode
from luminal.codegen.llvm_types import (
    BITS,
    MEMORY,
    Emitter,
    splat_text,
    suffix,
    vector,
)  # fmt: skip
from luminal.codegen.loopir import Load, Prefetch, Store
from luminal.errors import InternalError

__all__ = ["ZERO", "load", "prefetch", "store"]

# Where a masked-off scalar load reads from.
ZERO = "@.zero"
_DECODED = {"f8e4m3": "f32", "f8e5m2": "f32", "e8m0": "f32", "f4e2m1": "f32", "u4": "i8",
            "i4": "i8"}  # fmt: skip


def load(
    emitter: Emitter, statement: Load, pointer: str, offset: str, mask: str | None, half: str | None
) -> str:
    """The operand loaded; `half` is half of a 4-bit format's offset, if that is known even."""
    dtype, lanes = statement.dtype, statement.result.lanes
    if dtype.bits == 4:
        raw = _nibbles(emitter, statement, pointer, offset, mask, half)
    elif statement.offset.lanes > 1:
        raw = _gather(emitter, statement, pointer, offset, mask)
    else:
        element = MEMORY[dtype.name]
        address = _address(emitter, element, pointer, offset)
        raw = _load_bytes(emitter, element, lanes, address, mask, 1)
    name, kind = dtype.name, vector(MEMORY[dtype.name], lanes)
    if name == "bool":
        return emitter.let(f"icmp ne {kind} {raw}, zeroinitializer")
    if name in _DECODED:
        raw, name = decode(emitter, raw, name, lanes), _DECODED[name]
        if mask is not None and statement.dtype.name == "e8m0":  # whose bits 0 are not 0.0
            kind, flags = vector("float", lanes), vector("i1", lanes)
            raw = emitter.let(f"select {flags} {mask}, {kind} {raw}, {kind} zeroinitializer")
    return convert(emitter, raw, name, statement.result.dtype.name, lanes)


def _address(emitter: Emitter, element: str, pointer: str, offset: str) -> str:
    if offset == "0":
        return pointer
    return emitter.let(f"getelementptr inbounds {element}, ptr {pointer}, i64 {offset}")


def _load_bytes(
    emitter: Emitter, element: str, lanes: int, address: str, mask: str | None, align: int
) -> str:
    kind = vector(element, lanes)
    if mask is None:
        return emitter.let(f"load {kind}, ptr {address}, align {align}")
    if lanes == 1:
        emitter.declared[f"{ZERO} = private constant [64 x i8] zeroinitializer, align 64"] = None
        safe = emitter.let(f"select i1 {mask}, ptr {address}, ptr {ZERO}")
        return emitter.let(f"load {kind}, ptr {safe}, align {align}")
    name = f"llvm.masked.load.{suffix(element, lanes)}.p0"
    on, zero = (vector("i1", lanes), mask), (kind, "zeroinitializer")
    return emitter.let(emitter.call(kind, name, ("ptr", address), ("i32", str(align)), on, zero))


def _pick(emitter: Emitter, element: str, lanes: int, values: str, lane: int) -> str:
    """One lane of a vector, which may be a list of constants."""
    if lanes == 1:
        return values
    if values[0] == "<":
        return values[1:-1].split(", ")[lane].split()[1]
    return emitter.let(f"extractelement {vector(element, lanes)} {values}, i32 {lane}")


def _pointers(
    emitter: Emitter, element: str, lanes: int, pointer: str, offset: str
) -> tuple[str, str]:
    """Type and operand of the addresses of a gather or scatter."""
    indices = f"{vector('i64', lanes)} {offset}"
    many = emitter.let(f"getelementptr inbounds {element}, ptr {pointer}, {indices}")
    return vector("ptr", lanes), many


def _has_gather(emitter: Emitter, element: str) -> bool:
    return BITS[element] >= 32 and "avx512f" in emitter.flags


def _gather(emitter: Emitter, statement: Load, pointer: str, offset: str, mask: str | None) -> str:
    element, lanes = MEMORY[statement.dtype.name], statement.result.lanes
    kind, align = vector(element, lanes), 1
    if _has_gather(emitter, element):
        many = _pointers(emitter, element, lanes, pointer, offset)
        on = (vector("i1", lanes), mask or splat_text("true", "i1", lanes))
        name = f"llvm.masked.gather.{suffix(element, lanes)}.v{lanes}p0"
        zero = (kind, "zeroinitializer")
        return emitter.let(emitter.call(kind, name, many, ("i32", str(align)), on, zero))
    out = "poison"
    for lane in range(lanes):
        one = _pick(emitter, "i64", lanes, offset, lane)
        on = None if mask is None else _pick(emitter, "i1", lanes, mask, lane)
        address = _address(emitter, element, pointer, one)
        value = _load_bytes(emitter, element, 1, address, on, align)
        out = emitter.let(f"insertelement {kind} {out}, {element} {value}, i32 {lane}")
    return out


def _nibbles(
    emitter: Emitter, statement: Load, pointer: str, offset: str, mask: str | None, half: str | None
) -> str:
    """4-bit elements as i8 lanes, upper bits 0."""
    lanes = statement.result.lanes
    if lanes == 1 or lanes % 2 or statement.offset.lanes > 1 or (mask is not None and half is None):
        return _nibble_by_nibble(emitter, statement, pointer, offset, mask)
    pairs, bytes_ = vector("i16", lanes // 2), vector("i8", lanes // 2)
    four = splat_text("4", "i16", lanes // 2)
    if half is not None:
        on = None if mask is None else _pair_mask(emitter, lanes, mask)
        address = _address(emitter, "i8", pointer, half)
        low = _load_bytes(emitter, "i8", lanes // 2, address, on, 1)
        low = emitter.let(f"zext {bytes_} {low} to {pairs}")
        high = emitter.let(f"shl {pairs} {low}, {four}")
    else:
        low, high = _odd_nibbles(emitter, lanes // 2, pointer, offset)
    both = emitter.let(f"or {pairs} {low}, {high}")
    both = emitter.let(f"and {pairs} {both}, {splat_text('3855', 'i16', lanes // 2)}")
    kind = vector("i8", lanes)
    out = emitter.let(f"bitcast {pairs} {both} to {kind}")
    if mask is None:
        return out
    return emitter.let(f"select {vector('i1', lanes)} {mask}, {kind} {out}, {kind} zeroinitializer")


def _odd_nibbles(emitter: Emitter, half: int, pointer: str, offset: str) -> tuple[str, str]:
    """i16 lanes with each even and (moved up a byte) each odd nibble from an offset of unknown
    parity: the bytes from floor(offset / 2) and from ceil(offset / 2), no byte beyond the last."""
    pairs, bytes_ = vector("i16", half), vector("i8", half)
    odd = emitter.let(f"and i64 {offset}, 1")
    first = _address(emitter, "i8", pointer, emitter.let(f"lshr i64 {offset}, 1"))
    second = _address(emitter, "i8", first, odd)
    shift = emitter.let(f"shl i16 {emitter.let(f'trunc i64 {odd} to i16')}, 2")
    count = emitter.splat("i16", half, shift)
    up = emitter.let(f"add {pairs} {count}, {splat_text('4', 'i16', half)}")
    low = _load_bytes(emitter, "i8", half, first, None, 1)
    high = _load_bytes(emitter, "i8", half, second, None, 1)
    low = emitter.let(f"zext {bytes_} {low} to {pairs}")
    high = emitter.let(f"zext {bytes_} {high} to {pairs}")
    low = emitter.let(f"lshr {pairs} {low}, {count}")
    low = emitter.let(f"and {pairs} {low}, {splat_text('15', 'i16', half)}")
    high = emitter.let(f"shl {pairs} {high}, {up}")
    return low, emitter.let(f"and {pairs} {high}, {splat_text('3840', 'i16', half)}")


def _pair_mask(emitter: Emitter, lanes: int, mask: str) -> str:
    """The mask of bytes from that of nibbles."""
    half = lanes // 2
    if half == 1:
        a, b = (_pick(emitter, "i1", 2, mask, i) for i in range(2))
        return emitter.let(f"or i1 {a}, {b}")
    a = emitter.let(emitter.shuffle("i1", lanes, mask, "poison", tuple(range(0, lanes, 2))))
    b = emitter.let(emitter.shuffle("i1", lanes, mask, "poison", tuple(range(1, lanes, 2))))
    return emitter.let(f"or {vector('i1', half)} {a}, {b}")


def _nibble_by_nibble(
    emitter: Emitter, statement: Load, pointer: str, offset: str, mask: str | None
) -> str:
    lanes = statement.result.lanes
    kind, out = vector("i8", lanes), "poison"
    gathers = statement.offset.lanes > 1
    for lane in range(lanes):
        one = _pick(emitter, "i64", lanes, offset, lane) if gathers else offset
        if not gathers and lane:
            one = emitter.let(f"add i64 {one}, {lane}")
        on = None if mask is None else _pick(emitter, "i1", lanes, mask, lane)
        address = _address(emitter, "i8", pointer, emitter.let(f"lshr i64 {one}, 1"))
        byte = _load_bytes(emitter, "i8", 1, address, on, 1)
        odd = emitter.let(f"and i8 {emitter.let(f'trunc i64 {one} to i8')}, 1")
        byte = emitter.let(f"lshr i8 {byte}, {emitter.let(f'shl i8 {odd}, 2')}")
        byte = emitter.let(f"and i8 {byte}, 15")
        if lanes == 1:
            return byte
        out = emitter.let(f"insertelement {kind} {out}, i8 {byte}, i32 {lane}")
    return out


def store(
    emitter: Emitter, statement: Store, pointer: str, offset: str, value: str, mask: str | None
) -> None:
    """Instructions that write `value`."""
    dtype, lanes = statement.dtype, statement.value.lanes
    if dtype.storage:
        raise InternalError(f"[codegen] a kernel cannot store the storage format {dtype}")
    value = convert(emitter, value, statement.value.dtype.name, dtype.name, lanes)
    element = MEMORY[dtype.name]
    kind = vector(element, lanes)
    if dtype.name == "bool":
        value = emitter.let(f"zext {vector('i1', lanes)} {value} to {kind}")
    if statement.offset.lanes > 1:
        _scatter(emitter, statement, pointer, offset, value, mask)
        return
    address = _address(emitter, element, pointer, offset)
    _store_bytes(emitter, statement, element, lanes, address, value, mask)


def _store_bytes(
    emitter: Emitter, statement: Store, element: str, lanes: int, address: str, value: str,
    mask: str | None,
) -> None:  # fmt: skip
    kind, align = vector(element, lanes), 1
    if mask is None:
        emitter.put(f"store {kind} {value}, ptr {address}, align {align}")
    elif lanes == 1:
        on, after = emitter.label(), emitter.label()
        emitter.branch(mask, on, after)
        emitter.place(on)
        emitter.put(f"store {kind} {value}, ptr {address}, align {align}")
        emitter.jump(after)
        emitter.place(after)
    else:
        name = f"llvm.masked.store.{suffix(element, lanes)}.p0"
        mask = _opaque(emitter, lanes, mask) if BITS[element] < 32 else mask
        on, where = (vector("i1", lanes), mask), (("ptr", address), ("i32", str(align)))
        emitter.put(emitter.call("void", name, (kind, value), *where, on))


def _opaque(emitter: Emitter, lanes: int, mask: str) -> str:
    """The mask, so that LLVM cannot see a constant: it stores a single 8- or 16-bit lane of a
    constant mask as 32 bits, which overwrites the neighbours."""
    flags = vector("i1", lanes)
    true = emitter.splat("i1", lanes, emitter.let("icmp ne ptr %.args, null"))
    return emitter.let(f"and {flags} {mask}, {true}")


def _scatter(
    emitter: Emitter, statement: Store, pointer: str, offset: str, value: str, mask: str | None
) -> None:
    """In lane order: the last of equal offsets stays, as llvm.masked.scatter too defines."""
    element, lanes = MEMORY[statement.dtype.name], statement.value.lanes
    kind = vector(element, lanes)
    if _has_gather(emitter, element):
        many = _pointers(emitter, element, lanes, pointer, offset)
        on = (vector("i1", lanes), mask or splat_text("true", "i1", lanes))
        name = f"llvm.masked.scatter.{suffix(element, lanes)}.v{lanes}p0"
        align = ("i32", "1")
        emitter.put(emitter.call("void", name, (kind, value), many, align, on))
        return
    for lane in range(lanes):
        on = None if mask is None else _pick(emitter, "i1", lanes, mask, lane)
        one = _pick(emitter, "i64", lanes, offset, lane)
        part = _pick(emitter, element, lanes, value, lane)
        address = _address(emitter, element, pointer, one)
        _store_bytes(emitter, statement, element, 1, address, part, on)


def prefetch(emitter: Emitter, statement: Prefetch, pointer: str, offset: str) -> None:
    """A hint to bring the line into every cache level."""
    if statement.dtype.bits == 4:
        offset = emitter.let(f"lshr i64 {offset}, 1")
    address = _address(emitter, MEMORY[statement.dtype.name], pointer, offset)
    hints = (("i32", "0"), ("i32", "3"), ("i32", "1"))
    emitter.put(emitter.call("void", "llvm.prefetch.p0", ("ptr", address), *hints))
