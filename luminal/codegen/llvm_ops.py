"""The operations of loop IR (`loopir.OPS`) in LLVM text.

In: an Emitter, a Let and the operand texts of its arguments. Out: the right-hand side of the
instruction that yields the result. Touches no memory and no control flow, sine excepted.
"""

from __future__ import annotations

from collections.abc import Callable

from luminal.codegen import llvm_math
from luminal.codegen.llvm_cast import HALVES, convert
from luminal.codegen.llvm_types import (
    BITS,
    ELEMENT,
    Emitter,
    float_text,
    is_float,
    splat_text,
    suffix,
    vector,
)  # fmt: skip
from luminal.codegen.loopir import Let, Literal, Operand
from luminal.errors import InternalError
from luminal.ir.dtype import f32 as _F32

__all__ = ["instruction"]

Handler = Callable[[Emitter, Let, list[str]], str]
_ARITHMETIC = frozenset((
    "add", "sub", "mul", "div", "fma", "mod", "min", "max", "lt", "le", "eq", "exp2", "log2",
    "sin", "sqrt", "recip", "reduce_add", "reduce_max",
))  # fmt: skip
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "mod": "frem"}
_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and", "or": "or", "and": "and"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "eq": "oeq"}


def instruction(emitter: Emitter, let: Let, args: list[str]) -> str:
    """rhs for `let` ("=x" if the result is the operand x)."""
    if let.op in _ARITHMETIC and let.args[0].dtype.name in HALVES:
        return _through_f32(emitter, let, args)
    handler = _HANDLERS.get(let.op)
    if handler is None:
        raise InternalError(f"[codegen] unknown loop IR operation {let.op!r}")
    return handler(emitter, let, args)


def _element(operand: Operand) -> str:
    return ELEMENT[operand.dtype.name]


def _type(operand: Operand) -> str:
    return vector(ELEMENT[operand.dtype.name], operand.lanes)


def _through_f32(emitter: Emitter, let: Let, args: list[str]) -> str:
    """Arithmetic on f16 and bf16: in f32, rounded once."""
    from_half = [
        convert(emitter, text, a.dtype.name, "f32", a.lanes)
        for a, text in zip(let.args, args, strict=True)
    ]
    single = [Literal(0.0, _F32, a.lanes) for a in let.args]
    half = let.result.dtype.name
    if half not in HALVES:
        return instruction(emitter, Let(let.result, let.op, tuple(single), let.attr), from_half)
    result = type(let.result)(let.result.name, _F32, let.result.lanes)
    rhs = instruction(emitter, Let(result, let.op, tuple(single), let.attr), from_half)
    return "=" + convert(emitter, emitter.let(rhs), "f32", half, let.result.lanes)


def _binary(emitter: Emitter, let: Let, args: list[str]) -> str:
    element, kind = _element(let.args[0]), _type(let.result)
    if is_float(element):
        name = _FLOAT[let.op]
    else:
        name = _BOOL[let.op] if element == "i1" else let.op
    return f"{name} {kind} {args[0]}, {args[1]}"


def _logic(emitter: Emitter, let: Let, args: list[str]) -> str:
    return f"{let.op} {_type(let.result)} {args[0]}, {args[1]}"


def _not(emitter: Emitter, let: Let, args: list[str]) -> str:
    ones = "true" if _element(let.result) == "i1" else "-1"
    ones = splat_text(ones, _element(let.result), let.result.lanes)
    return f"xor {_type(let.result)} {args[0]}, {ones}"


def _fma(emitter: Emitter, let: Let, args: list[str]) -> str:
    element, kind = _element(let.result), _type(let.result)
    if not is_float(element):
        multiply, add = ("and", "or") if element == "i1" else ("mul", "add")
        product = emitter.let(f"{multiply} {kind} {args[0]}, {args[1]}")
        return f"{add} {kind} {product}, {args[2]}"
    if emitter.target.fma:
        return emitter.intrinsic("fma", element, let.result.lanes, *args)
    return f"fadd {kind} {emitter.let(f'fmul {kind} {args[0]}, {args[1]}')}, {args[2]}"


def _mod(emitter: Emitter, let: Let, args: list[str]) -> str:
    """C fmod and the integer remainder that never traps. Small integers divide as floats: the
    quotient of two n-bit integers truncates right in a float of more than 2n-1 bits' range."""
    element, kind, lanes = _element(let.result), _type(let.result), let.result.lanes
    if is_float(element):
        return f"frem {kind} {args[0]}, {args[1]}"
    if element == "i1":
        return "=" + splat_text("false", "i1", lanes)
    signed = let.result.dtype.name != "u8"
    b, mask = args[1], vector("i1", lanes)
    one = splat_text("1", element, lanes)
    bad = emitter.let(f"icmp eq {kind} {b}, zeroinitializer")
    if signed:
        minus = emitter.let(f"icmp eq {kind} {b}, {splat_text('-1', element, lanes)}")
        bad = emitter.let(f"or {mask} {bad}, {minus}")
    b = emitter.let(f"select {mask} {bad}, {kind} {one}, {kind} {b}")
    if lanes == 1 or element == "i64":
        return f"{'srem' if signed else 'urem'} {kind} {args[0]}, {b}"
    wide = vector("double" if element == "i32" else "float", lanes)
    to, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    x = emitter.let(f"{to} {kind} {args[0]} to {wide}")
    y = emitter.let(f"{to} {kind} {b} to {wide}")
    q = emitter.let(f"fdiv {wide} {x}, {y}")
    q = emitter.let(f"{back} {wide} {q} to {kind}")
    return f"sub {kind} {args[0]}, {emitter.let(f'mul {kind} {q}, {b}')}"


def _unsigned(emitter: Emitter, let: Let, args: list[str]) -> str:
    return f"{let.op} {_type(let.result)} {args[0]}, {args[1]}"


def _power_of_two(operand: Operand) -> int:
    """The exponent, if `operand` is a literal power of two; else -1."""
    if isinstance(operand, Literal) and operand.value > 0:
        value = int(operand.value)
        return value.bit_length() - 1 if value & (value - 1) == 0 else -1
    return -1


def _floordiv(emitter: Emitter, let: Let, args: list[str]) -> str:
    element, kind, lanes = _element(let.result), _type(let.result), let.result.lanes
    shift = _power_of_two(let.args[1])
    if shift >= 0:
        return f"ashr {kind} {args[0]}, {splat_text(str(shift), element, lanes)}"
    quotient = emitter.let(f"sdiv {kind} {args[0]}, {args[1]}")
    rest = emitter.let(f"srem {kind} {args[0]}, {args[1]}")
    top = splat_text(str(BITS[element] - 1), element, lanes)
    return f"add {kind} {quotient}, {emitter.let(f'ashr {kind} {rest}, {top}')}"


def _floormod(emitter: Emitter, let: Let, args: list[str]) -> str:
    element, kind, lanes = _element(let.result), _type(let.result), let.result.lanes
    shift = _power_of_two(let.args[1])
    if shift >= 0:
        return f"and {kind} {args[0]}, {splat_text(str((1 << shift) - 1), element, lanes)}"
    rest = emitter.let(f"srem {kind} {args[0]}, {args[1]}")
    top = splat_text(str(BITS[element] - 1), element, lanes)
    negative = emitter.let(f"ashr {kind} {rest}, {top}")
    return f"add {kind} {rest}, {emitter.let(f'and {kind} {negative}, {args[1]}')}"


def _extreme(emitter: Emitter, let: Let, args: list[str]) -> str:
    element, lanes = _element(let.result), let.result.lanes
    return _extreme_of(emitter, let.op, let.result.dtype.name, element, lanes, args)


def _extreme_of(
    emitter: Emitter, op: str, dtype: str, element: str, lanes: int, args: list[str]
) -> str:
    if is_float(element):
        return llvm_math.maximum(emitter, f"{op}imum", element, lanes, args[0], args[1])
    if element == "i1":
        return f"{_BOOL[op]} {vector('i1', lanes)} {args[0]}, {args[1]}"
    return emitter.intrinsic(f"{'u' if dtype == 'u8' else 's'}{op}", element, lanes, *args)


def _compare(emitter: Emitter, let: Let, args: list[str]) -> str:
    source = let.args[0]
    element, kind = _element(source), _type(source)
    if is_float(element):
        return f"fcmp {_FLOAT_COMPARE[let.op]} {kind} {args[0]}, {args[1]}"
    sign = "u" if source.dtype.name in ("u8", "bool") else "s"
    predicate = let.op if let.op == "eq" else sign + let.op
    return f"icmp {predicate} {kind} {args[0]}, {args[1]}"


def _select(emitter: Emitter, let: Let, args: list[str]) -> str:
    mask, kind = _type(let.args[0]), _type(let.result)
    return f"select {mask} {args[0]}, {kind} {args[1]}, {kind} {args[2]}"


def _exp2(emitter: Emitter, let: Let, args: list[str]) -> str:
    return "=" + llvm_math.exp2(emitter, _element(let.result), let.result.lanes, args[0])


def _log2(emitter: Emitter, let: Let, args: list[str]) -> str:
    return "=" + llvm_math.log2(emitter, _element(let.result), let.result.lanes, args[0])


def _sin(emitter: Emitter, let: Let, args: list[str]) -> str:
    return "=" + llvm_math.sine(emitter, _element(let.result), let.result.lanes, args[0])


def _sqrt(emitter: Emitter, let: Let, args: list[str]) -> str:
    return emitter.intrinsic("sqrt", _element(let.result), let.result.lanes, args[0])


def _recip(emitter: Emitter, let: Let, args: list[str]) -> str:
    element = _element(let.result)
    one = splat_text(float_text(1.0, element), element, let.result.lanes)
    return f"fdiv {_type(let.result)} {one}, {args[0]}"


def _cast(emitter: Emitter, let: Let, args: list[str]) -> str:
    source, result = let.args[0], let.result
    return "=" + convert(emitter, args[0], source.dtype.name, result.dtype.name, result.lanes)


def _splat(emitter: Emitter, let: Let, args: list[str]) -> str:
    return "=" + emitter.splat(_element(let.result), let.result.lanes, args[0])


def _lanes(emitter: Emitter, let: Let, args: list[str]) -> str:
    element, lanes = _element(let.result), let.result.lanes
    if lanes == 1:
        return "=" + (float_text(0.0, element) if is_float(element) else "0")
    texts = [float_text(float(i), element) if is_float(element) else str(i) for i in range(lanes)]
    return "=<" + ", ".join(f"{element} {t}" for t in texts) + ">"


def _shuffle(emitter: Emitter, let: Let, args: list[str]) -> str:
    a, element = let.args[0], _element(let.result)
    b = args[1] if len(args) > 1 else "poison"
    if a.lanes == 1:
        parts = [(args[i], 1) for i in let.attr]
        return "=" + emitter.concat(element, parts)
    if len(let.attr) == 1:
        which, lane = divmod(let.attr[0], a.lanes)
        return f"extractelement {_type(a)} {args[which]}, i32 {lane}"
    return emitter.shuffle(element, a.lanes, args[0], b, let.attr)


def _reduce(emitter: Emitter, let: Let, args: list[str]) -> str:
    source = let.args[0]
    element, lanes = _element(source), source.lanes
    if lanes == 1:
        return f"={args[0]}"
    if not is_float(element):
        return _reduce_integers(emitter, let, args[0])
    name, value, rest = source.dtype.name, args[0], []
    while lanes > 1:
        half = lanes // 2
        if lanes % 2:
            rest.append(emitter.let(emitter.slice(element, lanes, value, lanes - 1, 1)))
        low = emitter.let(emitter.slice(element, lanes, value, 0, half))
        high = emitter.let(emitter.slice(element, lanes, value, half, half))
        value, lanes = emitter.let(_combine(emitter, let.op, name, half, low, high)), half
    for one in rest:
        value = emitter.let(_combine(emitter, let.op, name, 1, value, one))
    return f"={value}"


def _combine(emitter: Emitter, op: str, dtype: str, lanes: int, a: str, b: str) -> str:
    element = ELEMENT[dtype]
    if op == "reduce_add":
        return f"fadd {vector(element, lanes)} {a}, {b}"
    return _extreme_of(emitter, "max", dtype, element, lanes, [a, b])


def _reduce_integers(emitter: Emitter, let: Let, value: str) -> str:
    source = let.args[0]
    element = _element(source)
    if element == "i1":
        name = "or"
    elif let.op == "reduce_add":
        name = "add"
    else:
        name = "umax" if source.dtype.name == "u8" else "smax"
    full = f"llvm.vector.reduce.{name}.{suffix(element, source.lanes)}"
    return emitter.call(element, full, (_type(source), value))


_HANDLERS: dict[str, Handler] = {
    "add": _binary, "sub": _binary, "mul": _binary, "div": _binary, "fma": _fma, "mod": _mod,
    "udiv": _unsigned, "urem": _unsigned, "floordiv": _floordiv, "floormod": _floormod,
    "min": _extreme, "max": _extreme, "lt": _compare, "le": _compare, "eq": _compare,
    "and": _logic, "or": _logic, "not": _not, "select": _select, "exp2": _exp2, "log2": _log2,
    "sin": _sin, "sqrt": _sqrt, "recip": _recip, "cast": _cast, "splat": _splat, "lanes": _lanes,
    "shuffle": _shuffle, "reduce_add": _reduce,
    "reduce_max": _reduce,
}  # fmt: skip
