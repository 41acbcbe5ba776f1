"""LLVM text in small pieces: types, constants, operands whose arithmetic prints instructions.

In: dtypes, lane counts, Python numbers. Out: `Reg`s and lines collected by an `Emitter`. The text
of an instruction without the name of its result is called `rhs`. Knows nothing of loop IR."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

from luminal.ir import ALL, Target

# Types in memory by dtype name, and in registers. f16, bf16 and storage formats are their bits.
MEMORY = {d.name: f"i{max(8, d.bits)}" for d in ALL} | {"f64": "double", "f32": "float"}
ELEMENT = MEMORY | {"bool": "i1"}
BITS = {"double": 64, "float": 32, "half": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}
_SUFFIX = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}

Number = float | int | bool


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
    return element in ("double", "float", "half")


def _constant(value: Number, element: str) -> str:
    if is_float(element):
        value = ctypes.c_float(value).value if element == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if element == "i1":
        return "true" if value else "false"
    half = 1 << (BITS[element] - 1)
    return str((int(value) + half) % (2 * half) - half)


def _operator(name: str) -> Callable[[Reg, Reg | Number], Reg]:
    def method(self: Reg, other: Reg | Number) -> Reg:
        return self.op(f"f{name}" if is_float(self.element) else name, other)

    return method


class Reg:
    """An operand: its text, element type and lanes; as a string, type and text.

    Operators and methods append an instruction and return its result. A Python number as another
    operand is a constant of the same type."""

    __slots__ = ("element", "emitter", "lanes", "text", "type")

    def __init__(self, emitter: Emitter, text: str, element: str, lanes: int = 1) -> None:
        self.emitter, self.text, self.element, self.lanes = emitter, text, element, lanes
        self.type = vector(element, lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def like(self, value: Reg | Number) -> Reg:
        """A constant of this type; an operand stays as it is."""
        return value if isinstance(value, Reg) else (
            self.emitter.const(value, self.element, self.lanes)
        )  # fmt: skip

    @property
    def zero(self) -> Reg:
        return Reg(self.emitter, "zeroinitializer", self.element, self.lanes)

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __and__, __or__, __xor__ = map(_operator, ("and", "or", "xor"))
    __lshift__, __rshift__ = map(_operator, ("shl", "lshr"))

    def op(self, name: str, other: Reg | Number) -> Reg:
        """Any instruction of two operands of one type."""
        rhs = f"{name} {self}, {self.like(other).text}"
        return self.emitter.let(rhs, self.element, self.lanes)

    def compare(self, predicate: str, other: Reg | Number) -> Reg:
        """A comparison by LLVM's name."""
        name = "fcmp" if is_float(self.element) else "icmp"
        rhs = f"{name} {predicate} {self}, {self.like(other).text}"
        return self.emitter.let(rhs, "i1", self.lanes)

    def pick(self, yes: Reg, no: Reg | Number) -> Reg:
        """Of conditions: yes where they hold, else no."""
        return self.emitter.let(f"select {self}, {yes}, {yes.like(no)}", yes.element, yes.lanes)

    def cast(self, name: str, element: str) -> Reg:
        return self.emitter.let(
            f"{name} {self} to {vector(element, self.lanes)}", element, self.lanes
        )

    def bits(self, element: str = "") -> Reg:
        """The same bits as lanes of another type, integers as wide by default."""
        element = element or f"i{BITS[self.element]}"
        lanes = self.lanes * BITS[self.element] // BITS[element]
        return self.emitter.let(f"bitcast {self} to {vector(element, lanes)}", element, lanes)

    def call(self, name: str, *others: Reg, flags: str = "") -> Reg:
        """An intrinsic whose operands all have the type of the result."""
        rhs = self.emitter.intrinsic(name, self, *others, flags=flags)
        return self.emitter.let(rhs, self.element, self.lanes)

    def fma(self, factor: Reg, addend: Reg | Number) -> Reg:
        """self * factor + addend, fused where the target can."""
        if self.emitter.target.fma:
            return self.call("fma", factor, self.like(addend))
        return self * factor + addend

    def at(self, element: str, offset: Reg) -> Reg:
        """Of a pointer: those `offset` elements on."""
        if offset.text == "0":
            return self
        rhs = f"getelementptr inbounds {element}, {self}, {offset}"
        return self.emitter.let(rhs, "ptr", offset.lanes)

    def reduced(self, name: str) -> str:
        """rhs of LLVM's reduction of all lanes by `name`."""
        name = f"llvm.vector.reduce.{name}.{suffix(self.element, self.lanes)}"
        return self.emitter.call(self.element, name, self)

    def any(self) -> Reg:
        """Of conditions: whether one holds."""
        return self if self.lanes == 1 else self.emitter.let(self.reduced("or"), "i1")

    # ---- lanes

    def shuffled(self, order: Sequence[int], other: str = "poison") -> str:
        """rhs: lanes `order` of self followed by `other` (the text of an operand)."""
        mask = ", ".join(f"i32 {i}" for i in order)
        return f"shufflevector {self}, {self.type} {other}, <{len(order)} x i32> <{mask}>"

    def slice(self, start: int, count: int, step: int = 1) -> Reg:
        """Lanes start, start + step, ...; a scalar if `count` is 1."""
        if count == self.lanes:
            return self
        if count == 1:
            return self.lane(start)
        order = range(start, start + count * step, step)
        return self.emitter.let(self.shuffled(order), self.element, count)

    def lane(self, number: int) -> Reg:
        """One lane, also of a list of constants."""
        if self.lanes == 1:
            return self
        if self.text[0] == "<":
            text = self.text[1:-1].split(", ")[number].split()[1]
            return Reg(self.emitter, text, self.element)
        return self.emitter.let(f"extractelement {self}, i32 {number}", self.element)

    def insert(self, scalar: Reg, lane: int) -> Reg:
        """With one lane exchanged; of the text "poison", in a new vector."""
        rhs = f"insertelement {self}, {scalar}, i32 {lane}"
        return self.emitter.let(rhs, self.element, self.lanes)

    def widened(self, lanes: int) -> Reg:
        """With undefined lanes appended."""
        if lanes == self.lanes:
            return self
        if self.lanes == 1:
            return Reg(self.emitter, "zeroinitializer", self.element, lanes).insert(self, 0)
        order = (*range(self.lanes), *(self.lanes for _ in range(lanes - self.lanes)))
        return self.emitter.let(self.shuffled(order, "zeroinitializer"), self.element, lanes)

    def splat(self, lanes: int) -> Reg:
        """A scalar in every lane."""
        if lanes == 1:
            return self
        emitter, element = self.emitter, self.element
        if self.text[0] != "%":
            return Reg(emitter, f"splat ({self})", element, lanes)
        if element == "i1" and "avx512f" in emitter.flags and lanes in (8, 16, 32, 64):
            bits = emitter.let(f"sext {self} to i{lanes}", f"i{lanes}")
            return emitter.let(f"bitcast {bits} to {vector(element, lanes)}", element, lanes)
        kind = vector(element, lanes)
        one = emitter.let(f"insertelement {kind} poison, {self}, i64 0", element, lanes)
        zeros = f"<{lanes} x i32> zeroinitializer"
        return emitter.let(f"shufflevector {one}, {kind} poison, {zeros}", element, lanes)


class Emitter:
    """Lines of one function, and the declarations of its module.

    `let` appends an instruction and names its result. Names of its own begin with a dot, so they
    never meet names of the loop IR."""

    def __init__(self, target: Target, declared: dict[str, None] | None = None) -> None:
        self.target = target
        self.flags = frozenset(f[1:] for f in target.features.split(",") if f.startswith("+"))
        self.x86 = target.triple.startswith(("x86_64", "i686"))
        self.declared: dict[str, None] = {} if declared is None else declared
        self.loops = 0
        self.reset()

    def reset(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.block = "entry"

    def const(self, value: Number, element: str, lanes: int = 1) -> Reg:
        text = _constant(value, element)
        return Reg(self, text if lanes == 1 else f"splat ({element} {text})", element, lanes)

    def let(self, rhs: str, element: str, lanes: int = 1) -> Reg:
        """Append `rhs`; its result."""
        self.count += 1
        name = f"%.{self.count}"
        self.lines.append(f"  {name} = {rhs}")
        return Reg(self, name, element, lanes)

    def put(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self) -> str:
        """A fresh label, not yet placed."""
        self.count += 1
        return f".L{self.count}"

    def place(self, label: str) -> None:
        """Begin the block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def when(self, condition: Reg, line: str) -> None:
        """An instruction without result, if a condition holds."""
        on, after = self.label(), self.label()
        self.branch(condition, on, after)
        self.place(on)
        self.put(line)
        self.jump(after)
        self.place(after)

    def branch(self, condition: Reg, yes: str, no: str) -> None:
        self.put(f"br {condition}, label %{yes}, label %{no}")

    def jump(self, label: str) -> None:
        self.put(f"br label %{label}")

    def call(self, result: str, name: str, *args: Reg, flags: str = "") -> str:
        """rhs of a call of `name`, declared on the way."""
        types = ", ".join(a.type for a in args)
        self.declared[f"declare {result} @{name}({types})"] = None
        return f"call {flags}{result} @{name}({', '.join(map(str, args))})"

    def intrinsic(self, name: str, *args: Reg, flags: str = "") -> str:
        """rhs of llvm.`name` over operands that all have the type of the result."""
        full = f"llvm.{name}.{suffix(args[0].element, args[0].lanes)}"
        return self.call(args[0].type, full, *args, flags=flags)

    def concat(self, parts: Sequence[Reg]) -> Reg:
        """One operand from the lanes of several in order."""
        if len(parts) == 1:
            return parts[0]
        middle = len(parts) // 2
        left, right = parts[:middle], parts[middle:]
        n, m = sum(p.lanes for p in left), sum(p.lanes for p in right)
        a = self.concat(left).widened(max(n, m))
        b = self.concat(right).widened(max(n, m))
        if max(n, m) == 1:
            return Reg(self, "poison", a.element, 2).insert(a, 0).insert(b, 1)
        order = (*range(n), *range(max(n, m), max(n, m) + m))
        return self.let(a.shuffled(order, b.text), a.element, n + m)


def by_pieces(
    step: Callable[..., Reg], largest: int, lanes: int, *operands: tuple[Reg, int]
) -> Reg:
    """`step` of operands cut into pieces of its width: at most `largest` lanes, by halves down to
    4 where less is left. The operands have `lanes` lanes times the number beside them."""
    parts: list[Reg] = []
    start = 0
    while start < lanes:
        width = largest
        while width > 4 and width > lanes - start:
            width //= 2
        used = min(width, lanes - start)
        pieces = [x.slice(n * start, n * used).widened(n * width) for x, n in operands]
        parts.append(step(*pieces).slice(0, used))
        start += used
    return operands[0][0].emitter.concat(parts)
