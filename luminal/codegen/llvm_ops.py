"""The operations of loop IR (`loopir.OPS`) in LLVM text.

In: a Let and the operands of its arguments. Out: the right-hand side of the instruction that yields
the result, or an operand that holds it. Touches no memory and no control flow, sine excepted."""

import functools
from collections.abc import Callable

from luminal.codegen import llvm_math
from luminal.codegen.llvm_math import convert
from luminal.codegen.llvm_text import BITS, ELEMENT, Emitter, Reg, by_pieces
from luminal.codegen.loopir import Let, Literal
from luminal.errors import InternalError

# Instructions of two operands by the class of the first: float, signed, unsigned, bool.
_CLASS = {"f": 0, "i": 1, "u": 2, "b": 3}
_BINARY = {
    "add": ("fadd", "add", "add", "or"), "sub": ("fsub", "sub", "sub", ""),
    "mul": ("fmul", "mul", "mul", "and"), "div": ("fdiv", "", "", ""),
    "and": ("", "", "", "and"), "or": ("", "", "", "or"),
    "udiv": ("", "udiv", "udiv", ""), "urem": ("", "urem", "urem", ""),
    "lt": ("fcmp olt", "icmp slt", "icmp ult", "icmp ult"),
    "le": ("fcmp ole", "icmp sle", "icmp ule", "icmp ule"),
    "eq": ("fcmp oeq", "icmp eq", "icmp eq", "icmp eq"),
}  # fmt: skip


def instruction(emitter: Emitter, let: Let, args: list[Reg]) -> str | Reg:
    """rhs of what computes `let`, or its result."""
    if let.op in _BINARY:
        found = _BINARY[let.op][_CLASS[let.args[0].dtype.kind]]
        return f"{found} {args[0]}, {args[1].text}"
    if let.op == "lanes":
        return _lanes(emitter, ELEMENT[let.result.dtype.name], let.result.lanes)
    if let.op not in _OTHERS:
        raise InternalError(f"[codegen] unknown loop IR operation {let.op!r}")
    return _OTHERS[let.op](let, *args)


def _fma(let: Let, a: Reg, b: Reg, c: Reg) -> str:
    fused = a.emitter.target.fma
    return a.emitter.intrinsic("fma", a, b, c) if fused else f"fadd {a * b}, {c.text}"


def _mod(let: Let, a: Reg, b: Reg) -> str | Reg:
    """The C remainder; of integers it never traps."""
    kind = let.result.dtype.kind
    if kind in "fb":
        return f"frem {a}, {b.text}" if kind == "f" else a.like(0)
    bad = b.compare("eq", b.zero)
    bad = bad | b.compare("eq", -1) if kind == "i" else bad
    return f"{'s' if kind == 'i' else 'u'}rem {a}, {bad.pick(b.like(1), b).text}"


def _floored(let: Let, a: Reg, b: Reg) -> str:
    """Division that rounds down, and what it leaves."""
    op, divisor = let.op, let.args[1]
    value = int(divisor.value) if isinstance(divisor, Literal) else 0
    if value and value & (value - 1) == 0:
        if op == "floordiv":
            return f"ashr {a}, {a.like(value.bit_length() - 1).text}"
        return f"and {a}, {a.like(value - 1).text}"
    quotient = a.op("sdiv", b) if op == "floordiv" else None
    rest = a.op("srem", b)
    negative = rest.op("ashr", BITS[a.element] - 1)
    return f"add {quotient}, {negative.text}" if quotient else f"add {rest}, {(negative & b).text}"


def _extreme(let: Let, a: Reg, b: Reg) -> str:
    kind = let.result.dtype.kind
    if kind == "f":
        return llvm_math.maximum(a, b)
    return a.emitter.intrinsic(f"{'u' if kind == 'u' else 's'}{let.op}", a, b)


def _lanes(emitter: Emitter, element: str, lanes: int) -> Reg:
    numbers = [emitter.const(n, element) for n in range(lanes)]
    if lanes == 1:
        return numbers[0]
    return Reg(emitter, f"<{', '.join(map(str, numbers))}>", element, lanes)


def _shuffle(let: Let, *args: Reg) -> str | Reg:
    a = args[0]
    if a.lanes == 1:
        return a.emitter.concat([args[i] for i in let.attr])
    if len(let.attr) == 1:
        which, lane = divmod(let.attr[0], a.lanes)
        return f"extractelement {args[which]}, i32 {lane}"
    return a.shuffled(let.attr, args[1].text if len(args) > 1 else "poison")


def _reduce(let: Let, a: Reg) -> str | Reg:
    """Lanes by halves for floats."""
    op, kind = let.op[7:], let.result.dtype.kind
    if a.lanes == 1:
        return a
    if kind != "f":
        name = "or" if kind == "b" else "add" if op == "add" else "umax" if kind == "u" else "smax"
        return a.reduced(name)

    def both(x: Reg, y: Reg) -> Reg:
        rhs = f"fadd {x}, {y.text}" if op == "add" else llvm_math.maximum(x, y)
        return x.emitter.let(rhs, x.element, x.lanes)

    rest: list[Reg] = []
    while a.lanes > 1:
        half = a.lanes // 2
        rest += [a.lane(a.lanes - 1)] if a.lanes % 2 else []
        a = both(a.slice(0, half), a.slice(half, half))
    return functools.reduce(both, rest, a)


def _field(let: Let, a: Reg) -> str | Reg:
    """Four bits become floats by a look-up where a register holds 16; what lies above them does
    not matter there."""
    at, count, signed = let.attr
    target, emitter = ELEMENT[let.result.dtype.name], a.emitter
    low = a.op("lshr", at) if at else a
    if count == 4 and a.lanes == 16 and target == "float" and "avx512f" in emitter.flags:
        values = (float(n - 16 * (signed and n > 7)) for n in range(16))
        table = ", ".join(str(emitter.const(value, "float")) for value in values)
        kind = Reg(emitter, f"<{table}>", "float", 16)
        return emitter.call(kind.type, "llvm.x86.avx512.permvar.sf.512", kind, low)
    if signed:
        low = (a << (32 - count - at)).op("ashr", 32 - count)
    elif at + count < 32:
        low = low & ((1 << count) - 1)
    return convert(low, "i32", let.result.dtype.name)


# ---- dot products of bytes, exact for every input. x86 without VNNI splits bytes into even and odd
# 16-bit lanes and uses pmaddwd: unlike pmaddubsw it never saturates, and the split of an operand
# is shared by all its uses.

_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_PMADDUBSW = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}

# From a, b, c and how to read a to the result.
Step = Callable[[Reg, Reg, Reg, bool], Reg]


def _dot4(let: Let, a: Reg, b: Reg, c: Reg) -> Reg:
    """c + dot products of 4 bytes; an `a` that is 0..15 is read as the target likes best."""
    small = bool(let.attr)
    unsigned = c.emitter.x86 if small else let.args[0].dtype.kind == "u"
    step, largest = _instruction(c, small)

    def piece(x: Reg, y: Reg, z: Reg) -> Reg:
        return step(x, y, z, unsigned)

    return by_pieces(piece, largest, c.lanes, (a, 4), (b, 4), (c, 1))


def _instruction(c: Reg, small: bool) -> tuple[Step, int]:
    """How to do it, and for how many lanes of c at most."""
    target, largest = c.emitter.target, max(4, c.emitter.target.vector_bits // 32)
    if not c.emitter.x86:
        return (_sdot, 4) if target.int8_dot == "dotprod" else (_portable, c.lanes)
    if target.int8_dot == "vnni":
        return _vnni, largest
    return _pmaddubsw if small and "ssse3" in c.emitter.flags else _pmaddwd, largest


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
    shift, pairs = "lshr" if unsigned else "ashr", a.bits("i16")
    return (pairs << 8).op(shift, 8), pairs.op(shift, 8)


def _portable(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    x, y = a.cast("zext" if unsigned else "sext", "i32"), b.cast("sext", "i32")
    products = x * y
    for k in range(4):
        c = c + products.slice(k, c.lanes, 4)
    return c


_OTHERS: dict[str, Callable[..., str | Reg]] = {
    "dot4": _dot4, "field": _field, "floordiv": _floored, "floormod": _floored, "fma": _fma,
    "max": _extreme, "min": _extreme, "mod": _mod, "reduce_add": _reduce, "reduce_max": _reduce,
    "shuffle": _shuffle,
    "cast": lambda let, a: convert(a, let.args[0].dtype.name, let.result.dtype.name),
    "exp2": lambda let, a: llvm_math.exp2(a),
    "log2": lambda let, a: llvm_math.log2(a),
    "not": lambda let, a: f"xor {a}, {a.like(-1).text}",
    "recip": lambda let, a: f"fdiv {a.like(1.0)}, {a.text}",
    "select": lambda let, c, a, b: f"select {c}, {a}, {b}",
    "sin": lambda let, a: llvm_math.sine(a),
    "splat": lambda let, a: a.splat(let.result.lanes),
    "sqrt": lambda let, a: a.emitter.intrinsic("sqrt", a),
}  # fmt: skip
