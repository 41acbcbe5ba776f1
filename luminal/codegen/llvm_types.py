"""LLVM text in small pieces: type names, constants, fresh names, declarations, shuffles.

In: dtypes, lane counts, Python numbers. Out: operand and instruction text, collected by an
`Emitter`. An instruction's right-hand side is called `rhs`; "=x" as rhs means the operand x.
Knows nothing of loop IR.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from luminal.ir.target import Target

__all__ = [
    "BITS", "ELEMENT", "Emitter", "MEMORY", "constant", "float_text", "integer_kind", "is_float",
    "splat_text", "vector",
]  # fmt: skip

# Register types by dtype name: f16 and bf16 are carried as their bits.
ELEMENT = {
    "f64": "double", "f32": "float", "f16": "i16", "bf16": "i16", "i64": "i64", "i32": "i32",
    "i16": "i16", "i8": "i8", "u8": "i8", "bool": "i1",
    "f8e4m3": "i8", "f8e5m2": "i8", "e8m0": "i8", "u4": "i8", "i4": "i8", "f4e2m1": "i8",
}  # fmt: skip
# Types in memory: a bool is a byte.
MEMORY = {**ELEMENT, "bool": "i8"}
BITS = {"double": 64, "float": 32, "half": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}
_SUFFIX = {"double": "f64", "float": "f32", "half": "f16"}


@lru_cache(maxsize=4096)
def vector(element: str, lanes: int) -> str:
    """The type of `lanes` elements; a scalar for 1."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


@lru_cache(maxsize=4096)
def suffix(element: str, lanes: int) -> str:
    """The part of an intrinsic's name that says its type."""
    short = _SUFFIX.get(element, element)
    return short if lanes == 1 else f"v{lanes}{short}"


def is_float(element: str) -> bool:
    """True for the types that have floating-point instructions."""
    return element in _SUFFIX


def integer_kind(element: str) -> str:
    """The integer type as wide as `element`."""
    return f"i{BITS[element]}"


def float_text(value: float, element: str) -> str:
    """A float constant, exactly; rounded to `element` first."""
    if element == "float":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _half_bits(value: float, dtype: str) -> int:
    if dtype == "f16":
        try:
            return struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00
    single = struct.unpack("<f", struct.pack("<f", value))[0] if value == value else value
    if single != single:
        return 0x7FC0
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@lru_cache(maxsize=8192)
def _scalar_constant(value: float | int | bool, dtype: str) -> str:
    element = ELEMENT[dtype]
    if is_float(element):
        return float_text(float(value), element)
    if dtype in ("f16", "bf16"):
        value = _half_bits(float(value), dtype)
    if element == "i1":
        return "true" if value else "false"
    bits = BITS[element]
    whole = int(value) & ((1 << bits) - 1)
    return str(whole - (1 << bits) if whole >> (bits - 1) else whole)


def splat_text(scalar: str, element: str, lanes: int) -> str:
    """A scalar constant in every lane."""
    return scalar if lanes == 1 else f"splat ({element} {scalar})"


def constant(value: float | int | bool, dtype: str, lanes: int) -> str:
    """Operand text of a constant of the dtype called `dtype`."""
    if isinstance(value, float):
        value = -0.0 if value == 0 and str(value)[0] == "-" else value
        if value == 0 or value != value:  # -0.0 == 0.0 and NaN != NaN: no cache
            return splat_text(_scalar_constant.__wrapped__(value, dtype), ELEMENT[dtype], lanes)
    return splat_text(_scalar_constant(value, dtype), ELEMENT[dtype], lanes)


@lru_cache(maxsize=1024)
def _signature(name: str, element: str, lanes: int, arity: int) -> tuple[str, str]:
    kind, full = vector(element, lanes), f"llvm.{name}.{suffix(element, lanes)}"
    return full, f"declare {kind} @{full}({', '.join([kind] * arity)})"


class Emitter:
    """Lines of one function, and the declarations of its module.

    `let` appends an instruction and returns the name of its result. Names of its own begin with
    a dot, so they never meet names of the loop IR.
    """

    __slots__ = ("block", "count", "declared", "flags", "lines", "loops", "target", "x86")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.flags = frozenset(f[1:] for f in target.features.split(",") if f.startswith("+"))
        self.x86 = target.triple.startswith(("x86_64", "i686"))
        self.declared: dict[str, None] = {}
        self.loops = 0
        self.reset()

    def reset(self) -> None:
        """Begin a new function."""
        self.lines: list[str] = []
        self.count = 0
        self.block = "entry"

    def let(self, rhs: str) -> str:
        """Append `rhs`; the operand that holds its result."""
        if rhs[0] == "=":
            return rhs[1:]
        self.count += 1
        name = f"%.{self.count}"
        self.lines.append(f"  {name} = {rhs}")
        return name

    def put(self, line: str) -> None:
        """Append an instruction without result."""
        self.lines.append(f"  {line}")

    def label(self) -> str:
        """A fresh label, not yet placed."""
        self.count += 1
        return f".L{self.count}"

    def place(self, label: str) -> None:
        """Begin the block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, condition: str, yes: str, no: str) -> None:
        """Conditional jump."""
        self.put(f"br i1 {condition}, label %{yes}, label %{no}")

    def jump(self, label: str) -> None:
        """Unconditional jump."""
        self.put(f"br label %{label}")

    def call(self, result: str, name: str, *args: tuple[str, str], flags: str = "") -> str:
        """rhs of a call of `name`, declared on the way; `args` are (type, operand) pairs."""
        types = ", ".join(t for t, _ in args)
        self.declared[f"declare {result} @{name}({types})"] = None
        operands = ", ".join(f"{t} {v}" for t, v in args)
        return f"call {flags}{result} @{name}({operands})"

    def intrinsic(
        self, name: str, element: str, lanes: int, *operands: str, flags: str = ""
    ) -> str:
        """rhs of llvm.`name` over operands that all have the type of the result."""
        kind = vector(element, lanes)
        full, declaration = _signature(name, element, lanes, len(operands))
        self.declared[declaration] = None
        return f"call {flags}{kind} @{full}({kind} {f', {kind} '.join(operands)})"

    def shuffle(self, element: str, lanes: int, a: str, b: str, order: tuple[int, ...]) -> str:
        """rhs: lanes `order` of a followed by b; an operand `a` alone takes b = "poison"."""
        kind = vector(element, lanes)
        mask = ", ".join(f"i32 {i}" for i in order)
        return f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{mask}>"

    def slice(self, element: str, lanes: int, a: str, start: int, count: int) -> str:
        """rhs: lanes start .. start+count-1 of a vector (a scalar if count is 1)."""
        if count == lanes:
            return f"={a}"
        if count == 1:
            return f"extractelement {vector(element, lanes)} {a}, i32 {start}"
        return self.shuffle(element, lanes, a, "poison", tuple(range(start, start + count)))

    def concat(self, element: str, parts: list[tuple[str, int]]) -> str:
        """One operand from (operand, lanes) parts in order."""
        if len(parts) == 1:
            return parts[0][0]
        middle = len(parts) // 2
        left, right = parts[:middle], parts[middle:]
        n, m = sum(c for _, c in left), sum(c for _, c in right)
        a = self.widen(element, self.concat(element, left), n, max(n, m))
        b = self.widen(element, self.concat(element, right), m, max(n, m))
        if max(n, m) == 1:
            first = self.let(f"insertelement <2 x {element}> poison, {element} {a}, i32 0")
            return self.let(f"insertelement <2 x {element}> {first}, {element} {b}, i32 1")
        order = (*range(n), *range(max(n, m), max(n, m) + m))
        return self.let(self.shuffle(element, max(n, m), a, b, order))

    def widen(self, element: str, a: str, lanes: int, wanted: int) -> str:
        """`a` with undefined lanes appended."""
        if lanes == wanted:
            return a
        if lanes == 1:
            kind = vector(element, wanted)
            return self.let(f"insertelement {kind} zeroinitializer, {element} {a}, i32 0")
        order = (*range(lanes), *(lanes for _ in range(wanted - lanes)))
        return self.let(self.shuffle(element, lanes, a, "zeroinitializer", order))

    def splat(self, element: str, lanes: int, scalar: str) -> str:
        """A scalar operand in every lane."""
        if lanes == 1:
            return scalar
        if scalar[0] != "%":
            return splat_text(scalar, element, lanes)
        kind = vector(element, lanes)
        if element == "i1" and "avx512f" in self.flags and lanes in (8, 16, 32, 64):
            bits = self.let(f"sext i1 {scalar} to i{lanes}")
            return self.let(f"bitcast i{lanes} {bits} to {kind}")
        one = self.let(f"insertelement {kind} poison, {element} {scalar}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.let(f"shufflevector {kind} {one}, {kind} poison, {zeros}")
