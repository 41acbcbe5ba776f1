"""Text of loop IR: printed for people and diffs, and parsed back to equal functions.

In: a Function, or its text. Out: the other. The syntax is Python's: a definition is `name: type =
op(arguments)`, blocks are indented and end by yielding what a loop or branch passes on; a loop
lists the values that it carries beside its variable, and their first ones after its bounds."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from luminal.codegen import loopir as ir
from luminal.codegen.loopir import Operand, Value
from luminal.ir.dtype import ALL, by_name, i64
from luminal.ir.text import Reader


def _typed(v: Value) -> str:
    return f"{v.name}: {v.dtype}" + (f"[{v.lanes}]" if v.lanes > 1 else "")


def _text(v: Operand) -> str:
    if isinstance(v, Value):
        return v.name
    return f"{v.dtype}({v.value!r}" + (f", {v.lanes})" if v.lanes > 1 else ")")


def _texts(*values: Operand) -> str:
    return ", ".join(map(_text, values))


def _lines(
    block: ir.Block, results: tuple[Value, ...], values: tuple[Operand, ...]
) -> Iterator[str]:
    """The lines of a block, indented, and what it passes on as `results`."""
    for s in block.body:
        yield from (f"    {line}" for line in _statement(s))
    passed = (f"{r.name}={_text(v)}" for r, v in zip(results, values, strict=True))
    yield f"    yields({', '.join(passed)})"


def _item(v: Any) -> str:
    return _text(v) if isinstance(v, Operand) else repr(v)


def _statement(s: ir.Statement) -> Iterator[str]:
    match s:
        case ir.For():
            names = _texts(s.var, *(inside for inside, _ in s.carried))
            yield f"for {names} in span({_texts(s.lo, s.hi, *(first for _, first in s.carried))}):"
            yield from _lines(s.body, s.results, s.yields)
        case ir.If():
            yield f"if {_text(s.condition)}:"
            yield from _lines(s.then, s.results, s.then_yields)
            yield "else:"
            yield from _lines(s.orelse, s.results, s.else_yields)
        case ir.Let():
            attr = f", attr={list(s.attr)}" if s.attr else ""
            yield f"{_typed(s.result)} = {s.op}_({_texts(*s.args)}{attr})"
        case _:
            values = [getattr(s, f.name) for f in fields(s) if f.name != "result"]
            call = f"{type(s).__name__.lower()}({', '.join(_item(v) for v in values if v)})"
            yield f"{_typed(s.result)} = {call}" if isinstance(s, ir.Load) else call


def function_text(f: ir.Function) -> str:
    """One kernel as text; `parse_function` reads it back."""
    parts = (f.name, list(f.arguments), list(f.dims), list(f.scratch), f.scratch_bytes)
    lines = [f"function({', '.join(map(repr, parts))})"]
    for name, block, value in (("grid", f.grid, f.grid_value), ("cost_ns", f.cost, f.cost_value)):
        lines += [f"with {name}():", *_lines(block, (Value(name, i64),), (value,))]
    lines += [f"with chunks({_texts(f.lo, f.hi)}):", *_lines(f.body, (), ())]
    return "\n".join(lines) + "\n"


class _Reader(Reader):
    """Reads statements of one function; a name stands for the value it was defined as."""

    def __init__(self) -> None:
        named = (ir.Load, ir.Store, ir.Prefetch, ir.Fail)
        super().__init__({t.__name__.lower(): t for t in named})
        self.calls |= {d.name: partial(_literal, d) for d in ALL}
        self.calls |= {f"{op}_": partial(_let, op) for op in ir.OPS}
        self.parts: dict[str, Any] = {}
        self.calls["function"] = self.function

    def function(self, name: str, arguments: Any, dims: Any, scratch: Any, size: int) -> None:
        for d in dims:
            self.define(d)
        self.parts |= {"name": name, "arguments": arguments, "dims": dims, "scratch": scratch,
                       "scratch_bytes": size}  # fmt: skip

    def define(self, name: str, like: Operand | None = None) -> Value:
        """A new value under its name, an i64 unless it is `like` another."""
        self.names[name] = Value(name, like.dtype, like.lanes) if like else Value(name, i64)
        return self.names[name]

    def block(self, nodes: list[ast.stmt]) -> tuple[ir.Block, dict[str, Operand]]:
        """Statements up to `yields(...)`, and what that passes on by name."""
        body, passed = [self.read(node) for node in nodes[:-1]], nodes[-1].value  # type: ignore[attr-defined]
        return ir.Block(body), {k.arg: self.value(k.value) for k in passed.keywords}

    def statement(self, node: ast.stmt) -> Any:
        """A definition, a loop, a branch, a store or a part of the function."""
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=ast.Call() as call):
                lanes = ast.literal_eval(kind.slice) if isinstance(kind, ast.Subscript) else 1
                dtype = by_name(ast.unparse(kind).split("[")[0])
                args = map(self.value, call.args)
                attr = {k.arg: self.value(k.value) for k in call.keywords}
                make = self.calls[ast.unparse(call.func)]
                return make(self.define(name, Value(name, dtype, lanes)), *args, **attr)
            case ast.For(iter=ast.Call(args=[lo, hi, *firsts])):
                var, *inside = ast.unparse(node.target).strip("()").split(", ")
                bounds, initial = (self.value(lo), self.value(hi)), [*map(self.value, firsts)]
                carried = tuple(
                    (self.define(n, v), v) for n, v in zip(inside, initial, strict=True)
                )
                index = self.define(var)
                body, passed = self.block(node.body)
                made = tuple(self.define(n, v) for n, v in passed.items())
                return ir.For(index, *bounds, body, carried, tuple(passed.values()), made)
            case ast.If():
                condition = self.value(node.test)
                (then, yes), (orelse, no) = self.block(node.body), self.block(node.orelse)
                made = tuple(self.define(n, v) for n, v in yes.items())
                return ir.If(condition, then, orelse, tuple(yes.values()), tuple(no.values()), made)
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as part)]):
                bounds = [self.define(ast.unparse(a)) for a in part.args]
                self.parts[ast.unparse(part.func)] = (*bounds, *self.block(node.body))
                return None
            case ast.Expr():
                return self.value(node.value)
        raise ValueError("neither a definition, a loop, a branch nor a store")


def _literal(dtype: Any, value: float | int | bool, lanes: int = 1) -> ir.Literal:
    return ir.Literal(value, dtype, lanes)


def _let(op: str, result: Value, *args: Operand, attr: tuple[int, ...] = ()) -> ir.Let:
    return ir.Let(result, op, args, attr)


def parse_function(text: str) -> ir.Function:
    """The function that `function_text` printed; ValueError names the first bad line."""
    reader = _Reader()
    reader.run(text)
    parts = reader.parts
    grid, grid_value = parts.pop("grid")
    cost, cost_value = parts.pop("cost_ns")
    lo, hi, body, _ = parts.pop("chunks")
    return ir.Function(**parts, lo=lo, hi=hi, body=body, grid=grid, grid_value=grid_value["grid"],
                    cost=cost, cost_value=cost_value["cost_ns"])  # fmt: skip
