"""exp2, log2, sin and the like in LLVM text: polynomials for any lane count.

In: an Emitter, an operand, its float type and lanes. Out: the operand of the result, within 3 ulp
(tests/test_codegen_llvm_math.py measures). Only sin of |x| > 1e8 calls the C library.
"""

from __future__ import annotations

import math

from luminal.codegen.llvm_types import (
    BITS,
    Emitter,
    float_text,
    integer_kind,
    splat_text,
    suffix,
    vector,
)  # fmt: skip

__all__ = ["Lanes", "exp2", "log2", "maximum", "sine"]

_INF = float("inf")
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


class Lanes:
    """Arithmetic on one float type with a fixed lane count; operands are text."""

    __slots__ = ("element", "emitter", "integer", "itype", "lanes", "type")

    def __init__(self, emitter: Emitter, element: str, lanes: int) -> None:
        self.emitter, self.element, self.lanes = emitter, element, lanes
        self.integer = integer_kind(element)
        self.type, self.itype = vector(element, lanes), vector(self.integer, lanes)

    def const(self, value: float) -> str:
        """A float constant in every lane."""
        return splat_text(float_text(value, self.element), self.element, self.lanes)

    def iconst(self, value: int) -> str:
        """An integer constant in every lane."""
        return splat_text(str(value), self.integer, self.lanes)

    def op(self, name: str, a: str, b: str) -> str:
        """A float instruction (fadd, fsub, fmul, fdiv)."""
        return self.emitter.let(f"{name} {self.type} {a}, {b}")

    def iop(self, name: str, a: str, b: str) -> str:
        """An integer instruction."""
        return self.emitter.let(f"{name} {self.itype} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, fused where the target can."""
        if self.emitter.target.fma:
            return self.emitter.let(
                self.emitter.intrinsic("fma", self.element, self.lanes, a, b, c)
            )
        return self.op("fadd", self.op("fmul", a, b), c)

    def compare(self, predicate: str, a: str, b: str) -> str:
        """A float comparison."""
        return self.emitter.let(f"fcmp {predicate} {self.type} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """condition ? a : b."""
        mask = vector("i1", self.lanes)
        return self.emitter.let(f"select {mask} {condition}, {self.type} {a}, {self.type} {b}")

    def bits(self, a: str) -> str:
        """The bits of a float as an integer."""
        return self.emitter.let(f"bitcast {self.type} {a} to {self.itype}")

    def from_bits(self, a: str) -> str:
        """The float with these bits."""
        return self.emitter.let(f"bitcast {self.itype} {a} to {self.type}")

    def horner(self, x: str, coefficients: tuple[float, ...]) -> str:
        """coefficients[0] + x * (coefficients[1] + ...)."""
        out = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            out = self.fma(out, x, self.const(c))
        return out


def maximum(emitter: Emitter, name: str, element: str, lanes: int, a: str, b: str) -> str:
    """rhs of the larger ("maximum") or smaller ("minimum") of two floats; NaN wins.

    x86 returns b if either is NaN, so only a NaN in `a` needs care; AVX-512 merges that in.
    """
    if "avx512f" not in emitter.flags or "%" not in a or "%" not in b:
        return emitter.intrinsic(name, element, lanes, a, b, flags="nsz ")
    v = Lanes(emitter, element, lanes)
    mask = vector("i1", lanes)
    larger = v.select(v.compare("ogt" if name == "maximum" else "olt", a, b), a, b)
    return f"select {mask} {v.compare('ord', a, a)}, {v.type} {larger}, {v.type} {a}"


def exp2(emitter: Emitter, element: str, lanes: int, x: str) -> str:
    """2 ** x; overflow gives inf, results below the normal range round correctly."""
    v = Lanes(emitter, element, lanes)
    width = _scalef_width(emitter, element, lanes)
    if width:
        n = emitter.let(emitter.intrinsic("rint", element, lanes, x))
        r = v.op("fsub", x, n)
        power = v.fma(v.horner(r, _EXP2[element]), r, v.const(1.0))
        return _scalef(emitter, element, lanes, power, n, width)
    mantissa, low, top = (52, -1022.0, 1024.0) if element == "double" else (23, -126.0, 128.0)
    shift = 128.0 if element == "double" else 64.0
    floor = v.const(low - mantissa - 2)
    clamped = emitter.let(maximum(emitter, "maximum", element, lanes, floor, x))
    clamped = emitter.let(maximum(emitter, "minimum", element, lanes, v.const(top), clamped))
    tiny = v.compare("olt", clamped, v.const(low))
    lifted = v.op("fadd", clamped, v.select(tiny, v.const(shift), v.const(0.0)))
    magic = v.const(1.5 * 2.0**mantissa)
    t = v.op("fadd", lifted, magic)
    r = v.op("fsub", lifted, v.op("fsub", t, magic))
    power = v.fma(v.horner(r, _EXP2[element]), r, v.const(1.0))
    exponent = v.iop("shl", v.bits(t), v.iconst(mantissa))
    scaled = v.from_bits(v.iop("add", v.bits(power), exponent))
    return v.op("fmul", scaled, v.select(tiny, v.const(2.0**-shift), v.const(1.0)))


def _scalef_width(emitter: Emitter, element: str, lanes: int) -> int:
    """Lanes of one AVX-512 vscalef that divide `lanes`; 0 if there is none."""
    if not {"avx512f", "avx512vl"} <= emitter.flags:
        return 0
    for bits in (512, 256, 128):
        width = bits // BITS[element]
        if bits <= emitter.target.vector_bits and lanes % width == 0:
            return width
    return 0


def _scalef(emitter: Emitter, element: str, lanes: int, a: str, n: str, width: int) -> str:
    """a * 2**n. An infinite n gives inf or 0 even where a is NaN, which ends exp2(+-inf) right."""
    short = "pd" if element == "double" else "ps"
    kind = vector(element, width)
    mask = f"i{max(8, width)}"
    parts = []
    for start in range(0, lanes, width):
        args = [
            (kind, emitter.let(emitter.slice(element, lanes, a, start, width))),
            (kind, emitter.let(emitter.slice(element, lanes, n, start, width))),
            (kind, "zeroinitializer"),
            (mask, "-1"),
        ]
        bits = width * BITS[element]
        args += [("i32", "4")] if bits == 512 else []
        name = f"llvm.x86.avx512.mask.scalef.{short}.{bits}"
        parts.append((emitter.let(emitter.call(kind, name, *args)), width))
    return emitter.concat(element, parts)


def log2(emitter: Emitter, element: str, lanes: int, x: str) -> str:
    """log2(x): -inf at 0, NaN below, exact at powers of two."""
    v = Lanes(emitter, element, lanes)
    mantissa, smallest = (52, 2.0**-1022) if element == "double" else (23, 2.0**-126)
    lift = mantissa + 2
    tiny = v.compare("olt", x, v.const(smallest))
    lifted = v.select(tiny, v.op("fmul", x, v.const(2.0**lift)), x)
    bits = v.bits(lifted)
    half = int(float_text(math.sqrt(0.5), "double"), 16)
    origin = half if element == "double" else 0x3F3504F3
    e = v.iop("ashr", v.iop("sub", bits, v.iconst(origin)), v.iconst(mantissa))
    m = v.from_bits(v.iop("sub", bits, v.iop("shl", e, v.iconst(mantissa))))
    f = v.op("fsub", m, v.const(1.0))
    s = v.op("fdiv", f, v.op("fadd", m, v.const(1.0)))
    z = v.op("fmul", s, s)
    p = v.fma(v.horner(z, _LOG2[element]), z, v.const(2.0 / math.log(2.0)))
    exponent = _small_to_float(v, e)
    exponent = v.op("fadd", exponent, v.select(tiny, v.const(-float(lift)), v.const(0.0)))
    result = v.fma(s, p, exponent)
    result = v.select(v.compare("olt", x, v.const(_INF)), result, x)
    bad = v.select(v.compare("oeq", x, v.const(0.0)), v.const(-_INF), v.const(math.nan))
    return v.select(v.compare("ogt", x, v.const(0.0)), result, bad)


def _small_to_float(v: Lanes, e: str) -> str:
    """A small signed integer as float; by a magic number where i64 has no vector conversion."""
    if v.element == "float":
        return v.emitter.let(f"sitofp {v.itype} {e} to {v.type}")
    magic = 1.5 * 2.0**52
    lifted = v.iop("add", e, v.iconst(int(float_text(magic, "double"), 16)))
    return v.op("fsub", v.from_bits(lifted), v.const(magic))


def sine(emitter: Emitter, element: str, lanes: int, x: str) -> str:
    """sin(x); that of -0 is +0. Vectors with an argument that the reduction cannot hold take a
    branch: f32 is then done in f64, and f64 by the C library."""
    v = Lanes(emitter, element, lanes)
    near = _near_sine(v, x)
    size = emitter.let(emitter.intrinsic("fabs", element, lanes, x))
    any_far = v.compare("ogt", size, v.const(_SIN_LIMIT[element]))
    if lanes > 1:
        name = f"llvm.vector.reduce.or.{suffix('i1', lanes)}"
        any_far = emitter.let(emitter.call("i1", name, (vector("i1", lanes), any_far)))
    before, slow, after = emitter.block, emitter.label(), emitter.label()
    emitter.branch(any_far, slow, after)
    emitter.place(slow)
    far = emitter.let(f"call {v.type} @{_far_sine(emitter, element, lanes)}({v.type} {x})")
    emitter.jump(after)
    emitter.place(after)
    return emitter.let(f"phi {v.type} [{near}, %{before}], [{far}, %{slow}]")


def _near_sine(v: Lanes, x: str) -> str:
    mantissa = 52 if v.element == "double" else 23
    magic = v.const(1.5 * 2.0**mantissa)
    t = v.fma(x, v.const(1.0 / math.pi), magic)
    n = v.op("fsub", t, magic)
    r = x
    for part in _PI_PARTS[v.element]:
        r = v.fma(n, v.const(-part), r)
    odd = v.iop("shl", v.bits(t), v.iconst(BITS[v.element] - 1))
    r = v.from_bits(v.iop("xor", v.bits(r), odd))
    z = v.op("fmul", r, r)
    return v.fma(v.op("fmul", r, z), v.horner(z, _SIN[v.element]), r)


def _far_sine(emitter: Emitter, element: str, lanes: int) -> str:
    """The name of an internal function for any argument, defined on the way."""
    name, kind, wide = f".sin.{suffix(element, lanes)}", vector(element, lanes), ("double", lanes)
    inner = Emitter(emitter.target)
    inner.declared = emitter.declared
    if element == "float":
        x = inner.let(f"fpext {kind} %x to {vector(*wide)}")
        y = sine(inner, *wide, x)
        out = inner.let(f"fptrunc {vector(*wide)} {y} to {kind}")
    else:
        parts = []
        for lane in range(lanes):
            one = inner.let(inner.slice(*wide, "%x", lane, 1))
            parts.append((inner.let(inner.call("double", "sin", ("double", one))), 1))
        out = inner.concat("double", parts)
    lines = "\n".join(inner.lines)
    head = f"define internal {kind} @{name}({kind} %x) #0 {{\nentry:"
    emitter.declared[f"{head}\n{lines}\n  ret {kind} {out}\n}}"] = None
    return name
