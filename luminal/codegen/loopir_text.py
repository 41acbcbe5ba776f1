"""Text of loop IR: printed for people and diffs, and parsed back to equal functions.

In: a Function, or its text. Out: the other. The syntax is Python's: a definition is
`name: type = op(arguments)`, blocks are indented. Read by a small evaluator, never by `eval`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from luminal.codegen.loopir import (
    OPS,
    Block,
    Fail,
    For,
    Function,
    If,
    Let,
    Literal,
    Load,
    Operand,
    Prefetch,
    Statement,
    Store,
    Value,
)  # fmt: skip
from luminal.ir.dtype import DType, by_name

__all__ = ["function_text", "parse_function"]


def _type(value: Operand) -> str:
    return f"{value.dtype}" if value.lanes == 1 else f"{value.dtype}[{value.lanes}]"


def _operand(value: Operand) -> str:
    if isinstance(value, Value):
        return value.name
    return f"{_type(value)}({value.value!r})" if value.lanes == 1 else (
        f"splat({value.value!r}, {_type(value)})"
    )  # fmt: skip


def _operands(values: tuple[Operand, ...]) -> str:
    return ", ".join(map(_operand, values))


def _access(s: Load | Store) -> str:
    mask = "" if s.mask is None else f", mask={_operand(s.mask)}"
    return f"{s.base!r}, {s.dtype}, {_operand(s.offset)}{mask}"


def _results(values: tuple[Value, ...]) -> Iterator[str]:
    return (f"{v.name}: {_type(v)} = result()" for v in values)


def _lines(block: Block, last: str) -> Iterator[str]:
    """The lines of a block, indented; `last` passes its values on."""
    for s in block.body:
        yield from (f"    {line}" for line in _statement(s))
    yield f"    {last}"


def _statement(s: Statement) -> Iterator[str]:
    match s:
        case Let():
            attr = f", attr={list(s.attr)}" if s.attr else ""
            yield f"{s.result.name}: {_type(s.result)} = {s.op}_({_operands(s.args)}{attr})"
        case Load():
            yield f"{s.result.name}: {_type(s.result)} = load({_access(s)})"
        case Store():
            yield f"store({_operand(s.value)}, {_access(s)})"
        case Prefetch():
            yield f"prefetch({s.base!r}, {s.dtype}, {_operand(s.offset)})"
        case Fail():
            yield f"fail({_operand(s.condition)})"
        case For():
            yield f"for {s.var.name} in span({_operand(s.lo)}, {_operand(s.hi)}):"
            for inside, first in s.carried:
                yield f"    {inside.name}: {_type(inside)} = carried({_operand(first)})"
            yield from _lines(s.body, f"yields({_operands(s.yields)})")
            yield from _results(s.results)
        case If():
            yield f"if {_operand(s.condition)}:"
            yield from _lines(s.then, f"yields({_operands(s.then_yields)})")
            yield "else:"
            yield from _lines(s.orelse, f"yields({_operands(s.else_yields)})")
            yield from _results(s.results)


def function_text(f: Function) -> str:
    """One kernel as text; `parse_function` reads it back."""
    lines = [
        f"function({f.name!r}, {list(f.arguments)}, {list(f.dims)})",
        f"scratch({f.scratch_bytes}, {[list(s) for s in f.scratch]})",
    ]
    for name, block, value in (("grid", f.grid, f.grid_value), ("cost_ns", f.cost, f.cost_value)):
        lines += [f"with {name}():", *_lines(block, f"yields({_operand(value)})")]
    lines += [f"with chunks({f.lo.name}, {f.hi.name}):", *_lines(f.body, "yields()")]
    return "\n".join(lines) + "\n"


class _Reader:
    """Reads statements of one function; a name stands for the value it was defined as."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def define(self, name: str, dtype: DType, lanes: int = 1) -> Value:
        """A new value under its name."""
        self.values[name] = Value(name, dtype, lanes)
        return self.values[name]

    def typed(self, node: ast.expr) -> tuple[DType, int]:
        """A dtype and a number of lanes: `f32` or `f32[8]`."""
        if isinstance(node, ast.Subscript):
            return by_name(ast.unparse(node.value)), ast.literal_eval(node.slice)
        return by_name(ast.unparse(node)), 1

    def operand(self, node: ast.expr) -> Operand:
        """A value by name, or a literal."""
        match node:
            case ast.Name():
                return self.values[node.id]
            case ast.Call(func=ast.Name(id="splat"), args=[number, kind]):
                return Literal(_number(number), *self.typed(kind))
            case ast.Call(func=kind, args=[number]):
                return Literal(_number(number), *self.typed(kind))
        raise ValueError(f"not an operand: {ast.unparse(node)}")

    def operands(self, nodes: list[ast.expr]) -> tuple[Operand, ...]:
        """Several operands."""
        return tuple(map(self.operand, nodes))

    def block(self, nodes: list[ast.stmt]) -> tuple[Block, tuple[Operand, ...]]:
        """Statements up to `yields(...)`, and what that passes on."""
        block, rest = Block(), list(nodes)
        while len(rest) > 1:
            node = rest.pop(0)
            results = []
            while _is_call(rest[0], "result"):
                results.append(rest.pop(0))
            try:
                block.body.append(self.statement(node, results))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                line = ast.unparse(node).splitlines()[0]
                raise ValueError(f"[text] cannot read {line!r}: {error}") from error
        return block, self.operands(_call(rest[0], "yields").args)

    def statement(self, node: ast.stmt, results: list[ast.stmt]) -> Statement:
        """One statement; `results` are the definitions that follow a loop or a branch."""
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as call):
                return self.definition(name, node.annotation, call)
            case ast.For(iter=ast.Call() as span):
                lo, hi = self.operands(span.args)
                return self.loop(node, lo, hi, results)
            case ast.If():
                condition = self.operand(node.test)
                then, then_yields = self.block(node.body)
                orelse, else_yields = self.block(node.orelse)
                made = tuple(map(self.result, results))
                return If(condition, then, orelse, then_yields, else_yields, made)
            case ast.Expr(value=ast.Call(func=ast.Name(id="store"), args=[value, *args]) as call):
                base, dtype, offset, more = self.access(args, call.keywords)
                return Store(base, dtype, offset, self.operand(value), **more)
            case ast.Expr(value=ast.Call(func=ast.Name(id="prefetch"), args=args)):
                return Prefetch(*self.access(args, [])[:3])
            case ast.Expr(value=ast.Call(func=ast.Name(id="fail"), args=[condition])):
                return Fail(self.operand(condition))
        raise ValueError("neither a definition, a loop, a branch nor a store")

    def definition(self, name: str, kind: ast.expr, call: ast.Call) -> Statement:
        """`name: kind = call`: a load or an operation."""
        op = ast.unparse(call.func)
        if op == "load":
            base, dtype, offset, more = self.access(call.args, call.keywords)
            return Load(self.define(name, *self.typed(kind)), base, dtype, offset, **more)
        if op[:-1] not in OPS:
            raise ValueError(f"no operation {op}")
        args = self.operands(call.args)
        attr = tuple(ast.literal_eval(call.keywords[0].value)) if call.keywords else ()
        return Let(self.define(name, *self.typed(kind)), op[:-1], args, attr)

    def access(self, args: list[ast.expr], keywords: list[ast.keyword]) -> tuple:
        """Base, storage dtype, offset and options of a memory access."""
        base, dtype, offset = args
        more = {str(k.arg): self.operand(k.value) for k in keywords}
        return ast.literal_eval(base), self.typed(dtype)[0], self.operand(offset), more

    def loop(self, node: ast.For, lo: Operand, hi: Operand, results: list[ast.stmt]) -> For:
        """A loop with the values that it carries."""
        var = self.define(ast.unparse(node.target), lo.dtype)
        carried, body = [], list(node.body)
        while _is_call(body[0], "carried"):
            first = body.pop(0)
            initial = self.operand(_call(first, "carried").args[0])
            carried.append((self.result(first), initial))
        block, yields = self.block(body)
        made = tuple(map(self.result, results))
        return For(var, lo, hi, block, tuple(carried), yields, made)

    def result(self, node: ast.stmt) -> Value:
        """A value that is only declared."""
        assert isinstance(node, ast.AnnAssign)
        return self.define(ast.unparse(node.target), *self.typed(node.annotation))


def _number(node: ast.expr) -> float | int | bool:
    text = ast.unparse(node)
    return float(text) if text.lstrip("-") in ("inf", "nan") else ast.literal_eval(node)


def _is_call(node: ast.stmt, name: str) -> bool:
    value = node.value if isinstance(node, ast.AnnAssign | ast.Expr) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) == name


def _call(node: ast.stmt, name: str) -> ast.Call:
    if not _is_call(node, name):
        raise ValueError(f"[text] cannot read {ast.unparse(node)!r}: expected {name}(...)")
    return node.value  # type: ignore[attr-defined]


def parse_function(text: str) -> Function:
    """The function that `function_text` printed; ValueError names the first bad line."""
    from_text = ast.parse(text).body
    if len(from_text) != 5:
        raise ValueError(f"[text] cannot read {text.splitlines()[0]!r}: expected five statements")
    head, local = _call(from_text[0], "function"), _call(from_text[1], "scratch")
    name, arguments, dims = map(ast.literal_eval, head.args)
    size, scratch = map(ast.literal_eval, local.args)
    reader, i64 = _Reader(), by_name("i64")
    for d in dims:
        reader.define(d, i64)
    parts: list[tuple[Block, tuple[Operand, ...]]] = []
    bounds: list[Value] = []
    for node in from_text[2:]:
        assert isinstance(node, ast.With)
        call = node.items[0].context_expr
        assert isinstance(call, ast.Call)
        bounds = [reader.define(ast.unparse(a), i64) for a in call.args]
        parts.append(reader.block(node.body))
    (grid, (count,)), (cost, (cost_ns,)), (body, _) = parts
    lo, hi = bounds
    return Function(name, tuple(arguments), tuple(dims), tuple(map(tuple, scratch)), size,
                    lo, hi, body, grid, count, cost, cost_ns)  # fmt: skip
