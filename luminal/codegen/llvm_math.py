"""Conversions and functions in LLVM text: halves, small floats, exp2, log2, sin, for any lanes.

In: a `Reg` and, for conversions, the names of dtypes; f16 and bf16 are their bits as i16. Out: the
result: conversions as ir/interp.py gives Cast, functions within 3 ulp
(tests/test_codegen_llvm_math.py measures). Only sin of |x| > 1e8 calls the C library."""

import math
import struct

from luminal.codegen.llvm_text import BITS, ELEMENT, Emitter, Reg, by_pieces, is_float, suffix

# Bits of the mantissa, and of all but the sign; whether the largest exponent means inf and NaN,
# only all ones NaN, or nothing special. The bias is half of the exponent's range.
_SMALL = {"f16": (10, 15, "ieee"), "f8e4m3": (3, 7, "nan"), "f4e2m1": (1, 3, "")}
# Minimax fits. exp2(r) = 1 + r*P(r), |r| <= 1/2.
_EXP2 = {
    "float": (
        0.69314697758199093, 0.24022242074213927, 0.055507337678861544, 0.0096715131514733469,
        0.0013264719794586034,
    ),
    "double": (
        0.69314718055994533, 0.24022650695910131, 0.055504108664820083, 0.0096181291075941190,
        0.0013333558146774642, 0.00015403530457113266, 0.000015252733493109487,
        1.3215435281794357e-6, 1.0178199578606699e-7, 7.0737833276571495e-9,
        4.4347703614249551e-10,
    ),
}  # fmt: skip
# log2((1+s)/(1-s)) = s*(2/ln 2 + z*P(z)), z = s*s <= 0.0295.
_LOG2 = {
    "float": (0.96179828167307021, 0.57675334082954140, 0.43097746751061780),
    "double": (
        0.96179669392597552, 0.57707801635567607, 0.41219858307714750, 0.32059890412891036,
        0.26230757360132587, 0.22198889496818315, 0.19115654053462443, 0.19119687450605673,
    ),
}  # fmt: skip
# sin(r) = r*(1 + z*P(z)), z = r*r, |r| <= pi/2.
_SIN = {
    "float": (
        -0.16666659253423306, 0.0083330580019331961, -0.00019808960249095117,
        2.6042849082114964e-6,
    ),
    "double": (
        -0.16666666666666667, 0.0083333333333333330, -0.00019841269841269668,
        2.7557319223932651e-6, -2.5052108378419389e-8, 1.6059043190879055e-10,
        -7.6471270358650829e-13, 2.8101978519712030e-15, -7.9809087564367952e-18,
    ),
}  # fmt: skip
# pi in parts of 11 and 26 bits: n times a part is exact below |n| = 2**13 and 2**26.
_PI_PARTS = {
    "float": (3.140625, 0.0009675025939941406, 1.5099067240953445e-07, 5.126688303189038e-12),
    "double": (
        3.141592651605606, 1.9841871479187034e-09, 1.144237741932715e-17, 3.2892513872648515e-26,
    ),
}  # fmt: skip
_SIN_LIMIT = {"float": 2.5e4, "double": 1.3e8}
MANTISSA = {"float": 23, "double": 52}
_LOWEST = {"float": -126, "double": -1022}  # exponent of the smallest normal number


def _horner(x: Reg, coefficients: tuple[float, ...]) -> Reg:
    """coefficients[0] + x * (coefficients[1] + ...)."""
    out = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = out.fma(x, c)
    return out


def maximum(a: Reg, b: Reg, name: str = "maximum") -> str:
    """rhs of the larger ("maximum") or smaller ("minimum") of two floats; NaN wins.

    x86 returns b if either is NaN, so only a NaN in `a` needs care; AVX-512 merges that in."""
    if "avx512f" not in a.emitter.flags or "%" not in a.text or "%" not in b.text:
        return a.emitter.intrinsic(name, a, b, flags="nsz ")
    larger = a.compare("ogt" if name == "maximum" else "olt", b).pick(a, b)
    return f"select {a.compare('ord', a)}, {larger}, {a}"


def exp2(x: Reg) -> Reg:
    """2 ** x; overflow gives inf, results below the normal range round correctly."""

    def power(r: Reg) -> Reg:
        return _horner(r, _EXP2[x.element]).fma(r, 1.0)

    width = _scalef_width(x)
    if width:
        n = x.call("rint")
        return by_pieces(_scalef, width, x.lanes, (power(x - n), 1), (n, 1))
    mantissa, low = MANTISSA[x.element], float(_LOWEST[x.element])
    shift = 128.0 if x.element == "double" else 64.0
    clamped = x.like(low - mantissa - 2).call("maximum", x, flags="nsz ")
    clamped = x.like(2.0 - low).call("minimum", clamped, flags="nsz ")
    tiny = clamped.compare("olt", low)
    lifted = clamped + tiny.pick(x.like(shift), 0.0)
    magic = 1.5 * 2.0**mantissa
    t = lifted + magic
    near = power(lifted - (t - magic))
    exponent = t.bits() << mantissa
    scaled = (near.bits() + exponent).bits(x.element)
    return scaled * tiny.pick(x.like(2.0**-shift), 1.0)


def _scalef_width(x: Reg) -> int:
    """Lanes of one AVX-512 vscalef that divide those of x; 0 if there is none."""
    if not {"avx512f", "avx512vl"} <= x.emitter.flags:
        return 0
    sizes = (bits for bits in (512, 256, 128) if bits <= x.emitter.target.vector_bits)
    widths = (bits // BITS[x.element] for bits in sizes)
    return next((width for width in widths if x.lanes % width == 0), 0)


def _scalef(a: Reg, n: Reg) -> Reg:
    """a * 2**n. An infinite n gives inf or 0 even where a is NaN, which ends exp2(+-inf) right."""
    emitter, bits = a.emitter, a.lanes * BITS[a.element]
    name = f"llvm.x86.avx512.mask.scalef.{'pd' if a.element == 'double' else 'ps'}.{bits}"
    args = [a, n, a.zero, emitter.const(-1, f"i{max(8, a.lanes)}")]
    args += [emitter.const(4, "i32")] if bits == 512 else []
    return emitter.let(emitter.call(a.type, name, *args), a.element, a.lanes)


def log2(x: Reg) -> Reg:
    """log2(x): -inf at 0, NaN below, exact at powers of two."""
    mantissa, lift = MANTISSA[x.element], MANTISSA[x.element] + 2
    tiny = x.compare("olt", 2.0 ** _LOWEST[x.element])
    bits = tiny.pick(x * 2.0**lift, x).bits()
    origin = 0x3F3504F3 if x.element == "float" else _double_bits(math.sqrt(0.5))
    e = (bits - origin).op("ashr", mantissa)
    m = (bits - (e << mantissa)).bits(x.element)
    f = m - 1.0
    s = f / (m + 1.0)
    z = s * s
    p = _horner(z, _LOG2[x.element]).fma(z, 2.0 / math.log(2.0))
    if x.element == "float":
        exponent = e.cast("sitofp", "float")
    else:  # i64 has no vector conversion
        magic = 1.5 * 2.0**52
        exponent = (e + _double_bits(magic)).bits("double") - magic
    exponent = exponent + tiny.pick(x.like(-float(lift)), 0.0)
    result = s.fma(p, exponent)
    result = x.compare("olt", math.inf).pick(result, x)
    bad = x.compare("oeq", 0.0).pick(x.like(-math.inf), math.nan)
    return x.compare("ogt", 0.0).pick(result, bad)


def _double_bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def sine(x: Reg) -> Reg:
    """sin(x); that of -0 is +0. Vectors with an argument that the reduction cannot hold take a
    branch: f32 is then done in f64, and f64 by the C library."""
    emitter = x.emitter
    near = _near_sine(x)
    any_far = x.call("fabs").compare("ogt", _SIN_LIMIT[x.element]).any()
    before, slow, after = emitter.block, emitter.label(), emitter.label()
    emitter.branch(any_far, slow, after)
    emitter.place(slow)
    far = emitter.let(f"call {x.type} @{_far_sine(x)}({x})", x.element, x.lanes)
    emitter.jump(after)
    emitter.place(after)
    rhs = f"phi {x.type} [{near.text}, %{before}], [{far.text}, %{slow}]"
    return emitter.let(rhs, x.element, x.lanes)


def _near_sine(x: Reg) -> Reg:
    magic = 1.5 * 2.0 ** MANTISSA[x.element]
    t = x.fma(x.like(1.0 / math.pi), magic)
    n = t - magic
    r = x
    for part in _PI_PARTS[x.element]:
        r = n.fma(x.like(-part), r)
    odd = t.bits() << (BITS[x.element] - 1)
    r = (r.bits() ^ odd).bits(x.element)
    z = r * r
    return (r * z).fma(_horner(z, _SIN[x.element]), r)


def _far_sine(x: Reg) -> str:
    """The name of an internal function for any argument, defined on the way."""
    name = f".sin.{suffix(x.element, x.lanes)}"
    inner = Emitter(x.emitter.target, x.emitter.declared)
    argument = Reg(inner, "%x", x.element, x.lanes)
    if x.element == "float":
        out = sine(argument.cast("fpext", "double")).cast("fptrunc", "float")
    else:
        lanes = (argument.lane(n) for n in range(x.lanes))
        out = inner.concat([inner.let(inner.call("double", "sin", a), "double") for a in lanes])
    lines = "\n".join(inner.lines)
    head = f"define internal {x.type} @{name}({argument}) #0 {{\nentry:"
    inner.declared[f"{head}\n{lines}\n  ret {out}\n}}"] = None
    return name


# ---- conversions


def convert(x: Reg, source: str, target: str) -> Reg:
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
    low = (first - 2.0 ** (1 - bias)).bits()
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
    bits = x.bits()
    high = bits >> 16
    odd = high & 1
    rounded = ((bits + 0x7FFF) + odd) >> 16
    nan = high | 0x40
    return x.compare("uno", x).pick(nan, rounded).cast("trunc", "i16")


def _to_f16(x: Reg) -> Reg:
    """f16 bits of f32, to nearest even; NaN stays NaN."""
    if _has_half(x.emitter):
        return x.cast("fptrunc", "half").bits("i16")
    bits = x.bits()
    size = bits & 0x7FFFFFFF
    low = (size.bits("float") + 0.5).bits() - 0x3F000000
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
    return ((near.bits() + down) | odd).bits("float")


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
