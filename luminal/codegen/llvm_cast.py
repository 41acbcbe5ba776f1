"""Conversions between dtypes in LLVM text: casts, half-precision and 8- and 4-bit decoding.

In: an Emitter, an operand and its dtype name. Out: the operand in another dtype, with the meaning
that ir/interp.py gives Cast. f16 and bf16 operands are their bits as i16.
"""

from __future__ import annotations

import math

from luminal.codegen.llvm_math import Lanes
from luminal.codegen.llvm_types import BITS, ELEMENT, Emitter, is_float, splat_text, suffix, vector

__all__ = ["HALVES", "convert", "decode"]

HALVES = ("f16", "bf16")


def convert(emitter: Emitter, value: str, source: str, target: str, lanes: int) -> str:
    """`value` of dtype `source` as dtype `target`."""
    if source == target:
        return value
    if source in HALVES:
        value = _from_half(emitter, value, source, lanes)
        return convert(emitter, value, "f32", target, lanes)
    if target in HALVES:
        if target == "f16" and source == "f64":
            value = _round_to_odd(emitter, value, lanes)
        elif source != "f32":
            value = convert(emitter, value, source, "f32", lanes)
        encode = _to_f16 if target == "f16" else _to_bf16
        return encode(emitter, value, lanes)
    return emitter.let(_plain(emitter, value, source, target, lanes))


def _plain(emitter: Emitter, value: str, source: str, target: str, lanes: int) -> str:
    """rhs of a conversion that LLVM has: among f64, f32, integers and bool."""
    a, b = ELEMENT[source], ELEMENT[target]
    old, new = vector(a, lanes), vector(b, lanes)
    if target == "bool":
        if is_float(a):
            return f"fcmp une {old} {value}, zeroinitializer"
        return f"icmp ne {old} {value}, zeroinitializer"
    if is_float(a) and is_float(b):
        return f"{'fpext' if BITS[b] > BITS[a] else 'fptrunc'} {old} {value} to {new}"
    if is_float(a):
        kind = "fptoui" if target == "u8" else "fptosi"
        name = f"llvm.{kind}.sat.{suffix(b, lanes)}.{suffix(a, lanes)}"
        return emitter.call(new, name, (old, value))
    unsigned = source in ("u8", "bool")
    if is_float(b):
        return f"{'uitofp' if unsigned else 'sitofp'} {old} {value} to {new}"
    if BITS[a] == BITS[b]:
        return f"={value}"
    name = "trunc" if BITS[b] < BITS[a] else "zext" if unsigned else "sext"
    return f"{name} {old} {value} to {new}"


def _has_half(emitter: Emitter) -> bool:
    """Whether the target converts f16 in hardware."""
    return not emitter.x86 or "f16c" in emitter.flags


def _from_half(emitter: Emitter, value: str, source: str, lanes: int) -> str:
    """f32 from the bits of a half."""
    old, words = vector("i16", lanes), vector("i32", lanes)
    single = vector("float", lanes)
    if source == "bf16":
        wide = emitter.let(f"zext {old} {value} to {words}")
        v = Lanes(emitter, "float", lanes)
        return v.from_bits(v.iop("shl", wide, v.iconst(16)))
    if _has_half(emitter):
        half = emitter.let(f"bitcast {old} {value} to {vector('half', lanes)}")
        return emitter.let(f"fpext {vector('half', lanes)} {half} to {single}")
    wide = emitter.let(f"zext {old} {value} to {words}")
    return _small_float(emitter, wide, lanes, width=16, mantissa=10, ieee=True)


def _small_float(
    emitter: Emitter, bits: str, lanes: int, width: int, mantissa: int, ieee: bool
) -> str:
    """f32 from i32 lanes that hold a small float. Not `ieee`: no inf, only all ones is NaN."""
    v = Lanes(emitter, "float", lanes)
    shift, bias = 23 - mantissa, (1 << (width - mantissa - 2)) - 1
    size = v.iop("and", bits, v.iconst((1 << (width - 1)) - 1))
    moved = v.iop("shl", size, v.iconst(shift))
    normal = v.iop("add", moved, v.iconst((127 - bias) << 23))
    first = v.from_bits(v.iop("add", moved, v.iconst((128 - bias) << 23)))
    low = v.bits(v.op("fsub", first, v.const(2.0 ** (1 - bias))))
    itype, mask = v.itype, vector("i1", lanes)
    is_low = emitter.let(f"icmp ult {itype} {size}, {v.iconst(1 << mantissa)}")
    out = emitter.let(f"select {mask} {is_low}, {itype} {low}, {itype} {normal}")
    limit = ((1 << (width - 1 - mantissa)) - 1) << mantissa if ieee else (1 << (width - 1)) - 1
    special = v.iop("or", moved, v.iconst(0x7F800000 if ieee else 0x7FC00000))
    is_top = emitter.let(f"icmp uge {itype} {size}, {v.iconst(limit)}")
    out = emitter.let(f"select {mask} {is_top}, {itype} {special}, {itype} {out}")
    sign = v.iop("shl", v.iop("lshr", bits, v.iconst(width - 1)), v.iconst(31))
    return v.from_bits(v.iop("or", out, sign))


def _to_bf16(emitter: Emitter, value: str, lanes: int) -> str:
    """bf16 bits of f32, to nearest even; NaN stays NaN."""
    v = Lanes(emitter, "float", lanes)
    bits = v.bits(value)
    high = v.iop("lshr", bits, v.iconst(16))
    odd = v.iop("and", high, v.iconst(1))
    rounded = v.iop("add", v.iop("add", bits, v.iconst(0x7FFF)), odd)
    rounded = v.iop("lshr", rounded, v.iconst(16))
    nan = v.iop("or", high, v.iconst(0x40))
    is_nan = v.compare("uno", value, value)
    mask = vector("i1", lanes)
    out = emitter.let(f"select {mask} {is_nan}, {v.itype} {nan}, {v.itype} {rounded}")
    return emitter.let(f"trunc {v.itype} {out} to {vector('i16', lanes)}")


def _to_f16(emitter: Emitter, value: str, lanes: int) -> str:
    """f16 bits of f32, to nearest even; NaN stays NaN."""
    single, half = vector("float", lanes), vector("half", lanes)
    if _has_half(emitter):
        short = emitter.let(f"fptrunc {single} {value} to {half}")
        return emitter.let(f"bitcast {half} {short} to {vector('i16', lanes)}")
    v = Lanes(emitter, "float", lanes)
    itype, mask = v.itype, vector("i1", lanes)
    bits = v.bits(value)
    size = v.iop("and", bits, v.iconst(0x7FFFFFFF))
    half_one = v.const(0.5)
    low = v.iop("sub", v.bits(v.op("fadd", v.from_bits(size), half_one)), v.iconst(0x3F000000))
    odd = v.iop("and", v.iop("lshr", size, v.iconst(13)), v.iconst(1))
    normal = v.iop("add", v.iop("add", size, v.iconst(0xFFF - (112 << 23))), odd)
    normal = v.iop("lshr", normal, v.iconst(13))
    is_low = emitter.let(f"icmp ult {itype} {size}, {v.iconst(113 << 23)}")
    out = emitter.let(f"select {mask} {is_low}, {itype} {low}, {itype} {normal}")
    is_nan = emitter.let(f"icmp ugt {itype} {size}, {v.iconst(0x7F800000)}")
    top = emitter.let(
        f"select {mask} {is_nan}, {itype} {v.iconst(0x7E00)}, {itype} {v.iconst(0x7C00)}"
    )
    is_top = emitter.let(f"icmp uge {itype} {size}, {v.iconst(143 << 23)}")
    out = emitter.let(f"select {mask} {is_top}, {itype} {top}, {itype} {out}")
    sign = v.iop("and", v.iop("lshr", bits, v.iconst(16)), v.iconst(0x8000))
    return emitter.let(f"trunc {itype} {v.iop('or', out, sign)} to {vector('i16', lanes)}")


def _round_to_odd(emitter: Emitter, value: str, lanes: int) -> str:
    """f32 of an f64, inexact results made odd, so that rounding once more to f16 is right."""
    wide, single = vector("double", lanes), vector("float", lanes)
    v = Lanes(emitter, "float", lanes)
    near = emitter.let(f"fptrunc {wide} {value} to {single}")
    back = emitter.let(f"fpext {single} {near} to {wide}")
    a = emitter.let(emitter.intrinsic("fabs", "double", lanes, back))
    b = emitter.let(emitter.intrinsic("fabs", "double", lanes, value))
    larger = emitter.let(f"fcmp ogt {wide} {a}, {b}")
    inexact = emitter.let(f"fcmp one {wide} {a}, {b}")
    flags = vector("i1", lanes)
    down = emitter.let(f"sext {flags} {larger} to {v.itype}")
    odd = emitter.let(f"zext {flags} {inexact} to {v.itype}")
    return v.from_bits(v.iop("or", v.iop("add", v.bits(near), down), odd))


def decode(emitter: Emitter, raw: str, storage: str, lanes: int) -> str:
    """The value of storage bits: i8 lanes in; i8 (u4, i4) or f32 lanes out. Of 4-bit formats
    the nibble is given, its upper bits 0."""
    if storage == "u4":
        return raw
    bytes_, words = vector("i8", lanes), vector("i32", lanes)
    if storage == "i4":
        eight = splat_text("8", "i8", lanes)
        flipped = emitter.let(f"xor {bytes_} {raw}, {eight}")
        return emitter.let(f"sub {bytes_} {flipped}, {eight}")
    if storage == "f8e5m2":
        short = vector("i16", lanes)
        wide = emitter.let(f"zext {bytes_} {raw} to {short}")
        shifted = emitter.let(f"shl {short} {wide}, {splat_text('8', 'i16', lanes)}")
        return _from_half(emitter, shifted, "f16", lanes)
    if storage == "f8e4m3" and _has_half(emitter):
        return _decode_e4m3(emitter, raw, lanes)
    wide = emitter.let(f"zext {bytes_} {raw} to {words}")
    if storage == "f8e4m3":
        return _small_float(emitter, wide, lanes, width=8, mantissa=3, ieee=False)
    v = Lanes(emitter, "float", lanes)
    mask = vector("i1", lanes)
    if storage == "f4e2m1":
        return _decode_f4(v, wide)
    moved = v.iop("shl", wide, v.iconst(23))
    zero = emitter.let(f"icmp eq {words} {wide}, zeroinitializer")
    low = emitter.let(f"select {mask} {zero}, {words} {v.iconst(1 << 22)}, {words} {moved}")
    nan = emitter.let(f"icmp eq {words} {wide}, {v.iconst(255)}")
    return v.from_bits(
        emitter.let(f"select {mask} {nan}, {words} {v.iconst(0x7FC00000)}, {words} {low}")
    )


def _decode_e4m3(emitter: Emitter, raw: str, lanes: int) -> str:
    """As the f16 with the same exponent field, which is 2**8 too small; 480 stands for NaN."""
    short = vector("i16", lanes)
    wide = emitter.let(f"zext {vector('i8', lanes)} {raw} to {short}")
    moved = emitter.let(f"shl {short} {wide}, {splat_text('8', 'i16', lanes)}")
    moved = emitter.let(f"ashr {short} {moved}, {splat_text('1', 'i16', lanes)}")
    moved = emitter.let(f"and {short} {moved}, {splat_text('-16512', 'i16', lanes)}")
    v = Lanes(emitter, "float", lanes)
    value = v.op("fmul", _from_half(emitter, moved, "f16", lanes), v.const(256.0))
    size = emitter.let(emitter.intrinsic("fabs", "float", lanes, value))
    return v.select(v.compare("oeq", size, v.const(480.0)), v.const(math.nan), value)


def _decode_f4(v: Lanes, nibble: str) -> str:
    """0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives."""
    size = v.iop("and", nibble, v.iconst(7))
    moved = v.iop("shl", size, v.iconst(22))
    first = v.from_bits(v.iop("add", moved, v.iconst(127 << 23)))
    low = v.bits(v.op("fsub", first, v.const(1.0)))
    normal = v.iop("add", moved, v.iconst(126 << 23))
    is_low = v.emitter.let(f"icmp ult {v.itype} {size}, {v.iconst(2)}")
    out = v.emitter.let(
        f"select {vector('i1', v.lanes)} {is_low}, {v.itype} {low}, {v.itype} {normal}"
    )
    sign = v.iop("shl", v.iop("lshr", nibble, v.iconst(3)), v.iconst(31))
    return v.from_bits(v.iop("or", out, sign))
