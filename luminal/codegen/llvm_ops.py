"""The operations of loop IR (`loopir.OPS`) in LLVM text.

In: a Let and the operands of its arguments. Out: the right-hand side of the instruction that yields
the result, or an operand that holds it. Touches no memory and no control flow, sine excepted.
"""

from __future__ import annotations

from luminal.codegen import llvm_math
from luminal.codegen.llvm_cast import convert
from luminal.codegen.llvm_text import BITS, ELEMENT, Emitter, Reg, is_float, suffix
from luminal.codegen.loopir import Let, Literal, Operand
from luminal.errors import InternalError

__all__ = ["instruction"]

# Instructions of two operands by the class of the first: float, signed, unsigned, bool.
_CLASS = {"f": 0, "i": 1, "u": 2, "b": 3}
_BINARY = {
    "add": ("fadd", "add", "add", "or"),
    "sub": ("fsub", "sub", "sub", "sub"),
    "mul": ("fmul", "mul", "mul", "and"),
    "div": ("fdiv", "sdiv", "udiv", "udiv"),
    "and": ("", "and", "and", "and"),
    "or": ("", "or", "or", "or"),
    "udiv": ("", "udiv", "udiv", "udiv"),
    "urem": ("", "urem", "urem", "urem"),
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
            return _fma(*args, logic=kind == "b")
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
            return _floored(op, _power_of_two(let.args[1]), *args)
    raise InternalError(f"[codegen] unknown loop IR operation {op!r}")


def _fma(a: Reg, b: Reg, c: Reg, logic: bool) -> str:
    if logic:
        return f"or {a & b}, {c.text}"
    if is_float(a.element) and a.emitter.target.fma:
        return a.emitter.intrinsic("fma", a, b, c)
    return f"{'fadd' if is_float(a.element) else 'add'} {a * b}, {c.text}"


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


def _power_of_two(operand: Operand) -> int:
    """The exponent, if `operand` is a literal power of two; else -1."""
    if isinstance(operand, Literal) and operand.value > 0:
        value = int(operand.value)
        return value.bit_length() - 1 if value & (value - 1) == 0 else -1
    return -1


def _floored(op: str, shift: int, a: Reg, b: Reg) -> str:
    """Division that rounds down, and what it leaves; `shift` is the logarithm of b or -1."""
    if shift >= 0:
        mask = (1 << shift) - 1
        return (
            f"ashr {a}, {a.like(shift).text}"
            if op == "floordiv"
            else f"and {a}, {a.like(mask).text}"
        )
    quotient = a.op("sdiv", b) if op == "floordiv" else None
    rest = a.op("srem", b)
    negative = rest.op("ashr", BITS[a.element] - 1)
    return f"add {quotient}, {negative.text}" if quotient else f"add {rest}, {(negative & b).text}"


def _extreme(op: str, kind: str, a: Reg, b: Reg) -> str:
    """rhs of the larger ("max") or smaller ("min") of two."""
    if kind == "f":
        return llvm_math.maximum(a, b, f"{op}imum")
    if kind == "b":
        return f"{'or' if op == 'max' else 'and'} {a}, {b.text}"
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
