"""Conversions between dtypes in LLVM text: casts and the decoding of small formats.

In: a `Reg` and its dtype name. Out: a `Reg` of another dtype, with the meaning that ir/interp.py
gives Cast. f16 and bf16 operands are their bits as i16.
"""

from __future__ import annotations

import math

from luminal.codegen.llvm_text import BITS, ELEMENT, Emitter, Reg, is_float, suffix

__all__ = ["convert", "decode"]

# Bits of the mantissa, and of all but the sign; whether the largest exponent means inf and NaN,
# only all ones NaN, or nothing special. The bias is half of the exponent's range.
_SMALL = {"f16": (10, 15, "ieee"), "f8e4m3": (3, 7, "nan"), "f4e2m1": (1, 3, "")}


def convert(x: Reg, source: str, target: str) -> Reg:
    """A value of dtype `source` as dtype `target`."""
    if source == target:
        return x
    if source in ("f16", "bf16"):
        single = _from_f16(x) if source == "f16" else (x.cast("zext", "i32") << 16).bits("float")
        return convert(single, "f32", target)
    if target in ("f16", "bf16"):
        if target == "f16" and source == "f64":
            x = _round_to_odd(x)
        else:
            x = convert(x, source, "f32")
        return _to_f16(x) if target == "f16" else _to_bf16(x)
    return _plain(x, source, target)


def _plain(x: Reg, source: str, target: str) -> Reg:
    """A conversion that LLVM has: among f64, f32, integers and bool."""
    element = ELEMENT[target]
    unsigned = source in ("u8", "bool")
    from_float, to_float = is_float(x.element), is_float(element)
    if target == "bool":
        return x.compare("une" if from_float else "ne", x.zero)
    if from_float and not to_float:
        name = f"llvm.fpto{'u' if target == 'u8' else 's'}i.sat"
        name = f"{name}.{suffix(element, x.lanes)}.{suffix(x.element, x.lanes)}"
        result = x.emitter.const(0, element, x.lanes).type
        return x.emitter.let(x.emitter.call(result, name, x), element, x.lanes)
    grows = BITS[element] > BITS[x.element]
    if from_float:
        return x.cast("fpext" if grows else "fptrunc", element)
    if to_float:
        return x.cast("uitofp" if unsigned else "sitofp", element)
    if BITS[element] == BITS[x.element]:
        return x
    return x.cast("trunc" if not grows else "zext" if unsigned else "sext", element)


def _has_half(emitter: Emitter) -> bool:
    """Whether the target converts f16 in hardware."""
    return not emitter.x86 or "f16c" in emitter.flags


def _from_f16(x: Reg) -> Reg:
    if _has_half(x.emitter):
        return x.bits("half").cast("fpext", "float")
    return _small_float(x, "f16")


def _small_float(x: Reg, dtype: str) -> Reg:
    """f32 from the bits of a small float; what is below the normal range comes out exactly by a
    subtraction."""
    mantissa, sign, special = _SMALL[dtype]
    bits, bias = x.cast("zext", "i32"), (1 << (sign - mantissa - 1)) - 1
    size = bits & ((1 << sign) - 1)
    moved = size << (23 - mantissa)
    first = (moved + ((128 - bias) << 23)).bits("float")
    low = (first - 2.0 ** (1 - bias)).bits("i32")
    normal = moved + ((127 - bias) << 23)
    out = size.compare("ult", 1 << mantissa).pick(low, normal)
    if special:
        ieee = special == "ieee"
        top = moved | (0x7F800000 if ieee else 0x7FC00000)
        limit = (1 << sign) - ((1 << mantissa) if ieee else 1)
        out = size.compare("uge", limit).pick(top, out)
    return (out | ((bits >> sign) << 31)).bits("float")


def _to_bf16(x: Reg) -> Reg:
    """bf16 bits of f32, to nearest even; NaN stays NaN."""
    bits = x.bits("i32")
    high = bits >> 16
    odd = high & 1
    rounded = ((bits + 0x7FFF) + odd) >> 16
    nan = high | 0x40
    return x.compare("uno", x).pick(nan, rounded).cast("trunc", "i16")


def _to_f16(x: Reg) -> Reg:
    """f16 bits of f32, to nearest even; NaN stays NaN."""
    if _has_half(x.emitter):
        return x.cast("fptrunc", "half").bits("i16")
    bits = x.bits("i32")
    size = bits & 0x7FFFFFFF
    low = (size.bits("float") + 0.5).bits("i32") - 0x3F000000
    odd = (size >> 13) & 1
    normal = ((size + (0xFFF - (112 << 23))) + odd) >> 13
    out = size.compare("ult", 113 << 23).pick(low, normal)
    top = size.compare("ugt", 0x7F800000).pick(size.like(0x7E00), 0x7C00)
    out = size.compare("uge", 143 << 23).pick(top, out)
    return (out | ((bits >> 16) & 0x8000)).cast("trunc", "i16")


def _round_to_odd(x: Reg) -> Reg:
    """f32 of an f64, inexact results made odd, so that rounding once more to f16 is right."""
    near = x.cast("fptrunc", "float")
    a, b = near.cast("fpext", "double").call("fabs"), x.call("fabs")
    down = a.compare("ogt", b).cast("sext", "i32")
    odd = a.compare("one", b).cast("zext", "i32")
    return ((near.bits("i32") + down) | odd).bits("float")


def decode(raw: Reg, storage: str) -> Reg:
    """The value of storage bits: i8 lanes in; i8 (u4, i4) or f32 lanes out; other dtypes stay. Of
    4-bit formats the nibble is given, its upper bits 0."""
    match storage:
        case "i4":
            return (raw ^ 8) - 8
        case "f8e5m2":
            return _from_f16(raw.cast("zext", "i16") << 8)
        case "f8e4m3" if _has_half(raw.emitter):
            return _e4m3_as_f16(raw)
        case "f8e4m3" | "f4e2m1":
            return _small_float(raw, storage)
        case "e8m0":
            wide = raw.cast("zext", "i32")
            moved = wide << 23
            low = wide.compare("eq", wide.zero).pick(wide.like(1 << 22), moved)
            return wide.compare("eq", 255).pick(wide.like(0x7FC00000), low).bits("float")
    return raw


def _e4m3_as_f16(raw: Reg) -> Reg:
    """As the f16 with the same exponent field, which is 2**8 too small; 480 stands for NaN."""
    moved = (raw.cast("zext", "i16") << 8).op("ashr", 1) & -16512
    value = _from_f16(moved) * 256.0
    return value.call("fabs").compare("oeq", 480.0).pick(value.like(math.nan), value)
