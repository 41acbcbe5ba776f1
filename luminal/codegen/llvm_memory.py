"""Loads, stores, gathers, scatters and prefetches of loop IR in LLVM text.

In: a dtype, operands, the pointer of a base. Out: the operand loaded, or instructions. Storage
formats are decoded here. A lane that is masked off reads nothing.
"""

from __future__ import annotations

from luminal.codegen.llvm_cast import decode
from luminal.codegen.llvm_text import BITS, MEMORY, Reg, suffix, vector
from luminal.ir.dtype import DType

__all__ = ["load", "prefetch", "store"]

# Where a masked-off scalar load reads from.
_ZERO = "@.zero"


def load(
    pointer: Reg, offset: Reg, dtype: DType, lanes: int, mask: Reg | None, half: Reg | None
) -> Reg:
    """The operand loaded; `half` is half of a 4-bit format's offset, if that is known even."""
    element = MEMORY[dtype.name]
    if dtype.bits == 4:
        raw = _nibbles(pointer, offset, lanes, mask, half)
    elif offset.lanes > 1:
        raw = _gather(pointer, offset, element, mask)
    else:
        raw = _read(pointer.at(element, offset), element, lanes, mask)
    if dtype.name == "bool":
        return raw.compare("ne", raw.zero)
    value = decode(raw, dtype.name)
    if mask is not None and dtype.name == "e8m0":  # whose bits 0 are not 0.0
        return mask.pick(value, value.zero)
    return value


def _read(address: Reg, element: str, lanes: int, mask: Reg | None) -> Reg:
    emitter, kind = address.emitter, vector(element, lanes)
    if mask is not None and lanes == 1:
        emitter.declared[f"{_ZERO} = private constant [64 x i8] zeroinitializer, align 64"] = None
        address = mask.pick(address, Reg(emitter, _ZERO, "ptr"))
    if mask is None or lanes == 1:
        return emitter.let(f"load {kind}, {address}, align 1", element, lanes)
    name = f"llvm.masked.load.{suffix(element, lanes)}.p0"
    zero = Reg(emitter, "zeroinitializer", element, lanes)
    rhs = emitter.call(kind, name, address, emitter.const(1, "i32"), mask, zero)
    return emitter.let(rhs, element, lanes)


def _has_gather(pointer: Reg, element: str) -> bool:
    return BITS[element] >= 32 and "avx512f" in pointer.emitter.flags


def _gather(pointer: Reg, offset: Reg, element: str, mask: Reg | None) -> Reg:
    emitter, lanes = pointer.emitter, offset.lanes
    out = Reg(emitter, "poison", element, lanes)
    if _has_gather(pointer, element):
        many = pointer.at(element, offset)
        on = emitter.const(True, "i1", lanes) if mask is None else mask
        name = f"llvm.masked.gather.{suffix(element, lanes)}.v{lanes}p0"
        rhs = emitter.call(out.type, name, many, emitter.const(1, "i32"), on, out.zero)
        return emitter.let(rhs, element, lanes)
    for n in range(lanes):
        one, on = offset.lane(n), mask and mask.lane(n)
        out = out.insert(_read(pointer.at(element, one), element, 1, on), n)
    return out


def _nibbles(pointer: Reg, offset: Reg, lanes: int, mask: Reg | None, half: Reg | None) -> Reg:
    """4-bit elements as i8 lanes, upper bits 0."""
    if half is None or lanes == 1 or lanes % 2 or offset.lanes > 1:
        return _nibble_by_nibble(pointer, offset, lanes, mask)
    on = None if mask is None else mask.slice(0, lanes // 2, 2) | mask.slice(1, lanes // 2, 2)
    low = _read(pointer.at("i8", half), "i8", lanes // 2, on).cast("zext", "i16")
    both = ((low | (low << 4)) & 0x0F0F).bits("i8")
    return both if mask is None else mask.pick(both, both.zero)


def _nibble_by_nibble(pointer: Reg, offset: Reg, lanes: int, mask: Reg | None) -> Reg:
    out = Reg(pointer.emitter, "poison", "i8", lanes)
    for n in range(lanes):
        one = offset.lane(n) if offset.lanes > 1 or n == 0 else offset + n
        on = mask and mask.lane(n)
        byte = _read(pointer.at("i8", one >> 1), "i8", 1, on)
        byte = (byte >> ((one.cast("trunc", "i8") & 1) << 2)) & 15
        out = out.insert(byte, n) if lanes > 1 else byte
    return out


def store(pointer: Reg, offset: Reg, dtype: DType, value: Reg, mask: Reg | None) -> None:
    """Instructions that write `value`; scatters in lane order: the last of equal offsets stays, as
    llvm.masked.scatter too defines."""
    emitter, element = pointer.emitter, MEMORY[dtype.name]
    if dtype.name == "bool":
        value = value.cast("zext", element)
    if offset.lanes == 1:
        _write(pointer.at(element, offset), value, mask)
    elif _has_gather(pointer, element):
        many = pointer.at(element, offset)
        on = emitter.const(True, "i1", value.lanes) if mask is None else mask
        name = f"llvm.masked.scatter.{suffix(element, value.lanes)}.v{value.lanes}p0"
        emitter.put(emitter.call("void", name, value, many, emitter.const(1, "i32"), on))
    else:
        for n in range(value.lanes):
            on, one, part = mask and mask.lane(n), offset.lane(n), value.lane(n)
            _write(pointer.at(element, one), part, on)


def _write(address: Reg, value: Reg, mask: Reg | None) -> None:
    emitter, line = address.emitter, f"store {value}, {address}, align 1"
    if mask is None:
        emitter.put(line)
    elif value.lanes == 1:
        emitter.when(mask, line)
    else:
        name = f"llvm.masked.store.{suffix(value.element, value.lanes)}.p0"
        on = _opaque(mask) if BITS[value.element] < 32 else mask
        emitter.put(emitter.call("void", name, value, address, emitter.const(1, "i32"), on))


def _opaque(mask: Reg) -> Reg:
    """The mask, so that LLVM cannot see a constant: it stores a single 8- or 16-bit lane of a
    constant mask as 32 bits, which overwrites the neighbours."""
    return mask & mask.emitter.let("icmp ne ptr %.args, null", "i1").splat(mask.lanes)


def prefetch(pointer: Reg, offset: Reg, dtype: DType) -> None:
    """A hint to bring the line into every cache level."""
    emitter = pointer.emitter
    address = pointer.at(MEMORY[dtype.name], offset >> 1 if dtype.bits == 4 else offset)
    hints = (emitter.const(n, "i32") for n in (0, 3, 1))
    emitter.put(emitter.call("void", "llvm.prefetch.p0", address, *hints))
