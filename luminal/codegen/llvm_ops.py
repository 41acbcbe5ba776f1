"""The operations of loop IR (`loopir.OPS`) in LLVM text.

In: a Let and the operands of its arguments. Out: the right-hand side of the instruction that yields
the result, or an operand that holds it. Touches no memory and no control flow, sine excepted.
"""

from __future__ import annotations

from collections.abc import Callable

from luminal.codegen import llvm_math
from luminal.codegen.llvm_cast import convert
from luminal.codegen.llvm_text import BITS, ELEMENT, Emitter, Reg, suffix
from luminal.codegen.loopir import Let, Literal, Operand
from luminal.errors import InternalError

__all__ = ["dot4", "instruction"]

# Instructions of two operands by the class of the first: float, signed, unsigned, bool.
_CLASS = {"f": 0, "i": 1, "u": 2, "b": 3}
_BINARY = {
    "add": ("fadd", "add", "add", "or"),
    "sub": ("fsub", "sub", "sub", ""),
    "mul": ("fmul", "mul", "mul", "and"),
    "div": ("fdiv", "", "", ""),
    "and": ("", "", "", "and"),
    "or": ("", "", "", "or"),
    "udiv": ("", "udiv", "udiv", ""),
    "urem": ("", "urem", "urem", ""),
    "lt": ("fcmp olt", "icmp slt", "icmp ult", "icmp ult"),
    "le": ("fcmp ole", "icmp sle", "icmp ule", "icmp ule"),
    "eq": ("fcmp oeq", "icmp eq", "icmp eq", "icmp eq"),
}
_FUNCTIONS = {"exp2": llvm_math.exp2, "log2": llvm_math.log2, "sin": llvm_math.sine}


def instruction(emitter: Emitter, let: Let, args: list[Reg]) -> str | Reg:
    """rhs of what computes `let`, or its result."""
    op, result = let.op, let.result
    kind = let.args[0].dtype.kind if let.args else ""
    if op in _BINARY:
        return f"{_BINARY[op][_CLASS[kind]]} {args[0]}, {args[1].text}"
    if op in _FUNCTIONS:
        return _FUNCTIONS[op](args[0])
    match op:
        case "fma":
            a, b, c = args
            if emitter.target.fma:
                return emitter.intrinsic("fma", a, b, c)
            return f"fadd {a * b}, {c.text}"
        case "select":
            return f"select {args[0]}, {args[1]}, {args[2]}"
        case "cast":
            return convert(args[0], let.args[0].dtype.name, result.dtype.name)
        case "splat":
            return args[0].splat(result.lanes)
        case "shuffle":
            return _shuffle(let, args)
        case "max" | "min":
            return _extreme(op, kind, *args)
        case "reduce_add" | "reduce_max":
            return _reduce(op[7:], kind, args[0])
        case "lanes":
            return _lanes(emitter, ELEMENT[result.dtype.name], result.lanes)
        case "sqrt":
            return emitter.intrinsic("sqrt", args[0])
        case "recip":
            return f"fdiv {args[0].like(1.0)}, {args[0].text}"
        case "not":
            return f"xor {args[0]}, {args[0].like(-1).text}"
        case "mod":
            return f"frem {args[0]}, {args[1].text}" if kind == "f" else _mod(kind, *args)
        case "floordiv" | "floormod":
            return _floored(op, let.args[1], *args)
    raise InternalError(f"[codegen] unknown loop IR operation {op!r}")


def _mod(kind: str, a: Reg, b: Reg) -> str | Reg:
    """The integer remainder, that never traps. Small integers divide as floats: the quotient of two
    n-bit integers truncates right in a float of more than 2n-1 bits' range."""
    if kind == "b":
        return a.like(0)
    bad = b.compare("eq", b.zero)
    if kind == "i":
        bad = bad | b.compare("eq", -1)
    b = bad.pick(b.like(1), b)
    sign = "s" if kind == "i" else "u"
    if a.lanes == 1 or a.element == "i64":
        return f"{sign}rem {a}, {b.text}"
    wide = "double" if a.element == "i32" else "float"
    quotient = a.cast(f"{sign}itofp", wide) / b.cast(f"{sign}itofp", wide)
    return f"sub {a}, {(quotient.cast(f'fpto{sign}i', a.element) * b).text}"


def _floored(op: str, divisor: Operand, a: Reg, b: Reg) -> str:
    """Division that rounds down, and what it leaves."""
    value = int(divisor.value) if isinstance(divisor, Literal) else 0
    if value and value & (value - 1) == 0:
        if op == "floordiv":
            return f"ashr {a}, {a.like(value.bit_length() - 1).text}"
        return f"and {a}, {a.like(value - 1).text}"
    quotient = a.op("sdiv", b) if op == "floordiv" else None
    rest = a.op("srem", b)
    negative = rest.op("ashr", BITS[a.element] - 1)
    return f"add {quotient}, {negative.text}" if quotient else f"add {rest}, {(negative & b).text}"


def _extreme(op: str, kind: str, a: Reg, b: Reg) -> str:
    """rhs of the larger ("max") or smaller ("min") of two."""
    if kind == "f":
        return llvm_math.maximum(a, b, f"{op}imum")
    return a.emitter.intrinsic(f"{'u' if kind == 'u' else 's'}{op}", a, b)


def _lanes(emitter: Emitter, element: str, lanes: int) -> Reg:
    numbers = [emitter.const(n, element) for n in range(lanes)]
    if lanes == 1:
        return numbers[0]
    return Reg(emitter, f"<{', '.join(map(str, numbers))}>", element, lanes)


def _shuffle(let: Let, args: list[Reg]) -> str | Reg:
    a = args[0]
    if a.lanes == 1:
        return a.emitter.concat([args[i] for i in let.attr])
    if len(let.attr) == 1:
        which, lane = divmod(let.attr[0], a.lanes)
        return f"extractelement {args[which]}, i32 {lane}"
    return a.shuffled(let.attr, args[1].text if len(args) > 1 else "poison")


def _reduce(op: str, kind: str, a: Reg) -> str | Reg:
    """Lanes by halves for floats."""
    if a.lanes == 1:
        return a
    if kind != "f":
        name = "or" if kind == "b" else "add" if op == "add" else "umax" if kind == "u" else "smax"
        name = f"llvm.vector.reduce.{name}.{suffix(a.element, a.lanes)}"
        return a.emitter.call(a.element, name, a)

    def both(x: Reg, y: Reg) -> Reg:
        rhs = f"fadd {x}, {y.text}" if op == "add" else llvm_math.maximum(x, y)
        return x.emitter.let(rhs, x.element, x.lanes)

    rest: list[Reg] = []
    while a.lanes > 1:
        half = a.lanes // 2
        if a.lanes % 2:
            rest.append(a.lane(a.lanes - 1))
        a = both(a.slice(0, half), a.slice(half, half))
    for one in rest:
        a = both(a, one)
    return a


# ---- dot products of bytes, exact for every input. x86 without VNNI splits bytes into even and odd
# 16-bit lanes and uses pmaddwd: unlike pmaddubsw it never saturates, and the split of an operand
# is shared by all its uses.

_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_PMADDUBSW = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}

# From a, b, c and how to read a to the result.
Step = Callable[[Reg, Reg, Reg, bool], Reg]


def dot4(a: Reg, b: Reg, c: Reg, unsigned: bool, small: bool) -> Reg:
    """c (i32) + dot products of 4 bytes; `unsigned` tells how to read a, `small` that its bytes are
    0..15: they are read as the target likes best."""
    step = _instruction(c.emitter, small)
    unsigned = c.emitter.x86 if small else unsigned
    largest = max(4, c.emitter.target.vector_bits // 32) if c.emitter.x86 else 4
    if step is None:
        return _portable(a, b, c, unsigned)
    parts, start = [], 0
    while start < c.lanes:
        width = largest
        while width > 4 and width > c.lanes - start:
            width //= 2
        used = min(width, c.lanes - start)
        pieces = (
            x.slice(per * start, per * used).widened(per * width)
            for x, per in ((a, 4), (b, 4), (c, 1))
        )
        parts.append(step(*pieces, unsigned).slice(0, used))
        start += used
    return c.emitter.concat(parts)


def _instruction(emitter: Emitter, small: bool) -> Step | None:
    kind = emitter.target.int8_dot
    if not emitter.x86:
        return _sdot if kind == "dotprod" else None
    return (
        _vnni if kind == "vnni" else _pmaddubsw if small and "ssse3" in emitter.flags else _pmaddwd
    )


def _call(name: str, result: Reg, *args: Reg) -> Reg:
    emitter = result.emitter
    return emitter.let(emitter.call(result.type, name, *args), result.element, result.lanes)


def _flipped(step: Callable[[Reg, Reg], Reg], a: Reg, c: Reg) -> Reg:
    """The dot product where `step` reads a with the wrong sign: of a ± 128, less that of ± 128."""
    other = a ^ -128
    correction = step(c.zero, a.like(-128))
    return step(c, other) - correction


def _vnni(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    def step(total: Reg, x: Reg) -> Reg:  # u8 times i8
        name = f"llvm.x86.avx512.vpdpbusd.{c.lanes * 32}"
        return _call(name, c, total, x.bits("i32"), b.bits("i32"))

    return step(c, a) if unsigned else _flipped(step, a, c)


def _sdot(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    def step(total: Reg, x: Reg) -> Reg:  # i8 times i8
        return _call("llvm.aarch64.neon.sdot.v4i32.v16i8", c, total, x, b)

    return _flipped(step, a, c) if unsigned else step(c, a)


def _pmaddwd(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    for x, y in zip(_split(a, unsigned), _split(b, False), strict=True):
        c = c + _call(f"llvm.x86.{_PMADDWD[c.lanes]}", c, x, y)
    return c


def _pmaddubsw(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    """Exact because 2 * 15 * 128 fits 16 bits."""
    pairs = _call(f"llvm.x86.{_PMADDUBSW[c.lanes]}", c.emitter.const(0, "i16", c.lanes * 2), a, b)
    return c + _call(f"llvm.x86.{_PMADDWD[c.lanes]}", c, pairs, pairs.like(1))


def _split(a: Reg, unsigned: bool) -> tuple[Reg, Reg]:
    """The even and the odd bytes as i16."""
    shift, pairs = "lshr" if unsigned else "ashr", a.bits("i16")
    return (pairs << 8).op(shift, 8), pairs.op(shift, 8)


def _portable(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    x, y = a.cast("zext" if unsigned else "sext", "i32"), b.cast("sext", "i32")
    products = x * y
    for k in range(4):
        c = c + products.slice(k, c.lanes, 4)
    return c
