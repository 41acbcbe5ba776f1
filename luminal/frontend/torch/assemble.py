"""Straight-line Python for one graph: compiled parts, eager operators, views, in order.

In: a Split and its Parts. Out: a Recipe. Every output has its own storage; strides are exactly
those that tracing found.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from luminal.frontend.torch.nodes import is_scalar_math, root_of, value_of, view_base
from luminal.frontend.torch.part import Part
from luminal.frontend.torch.phases import Phase, Split
from luminal.frontend.torch.recipe import Entry, Fresh, Recipe
from luminal.frontend.torch.storage import LARGE_BYTES
from luminal.frontend.torch.symbols import SYMBOLIC, Symbols, free_symbols

__all__ = ["assemble"]

_PLAIN = (bool, int, str, type(None))


@dataclass(slots=True)
class _Line:
    text: str
    uses: frozenset[str]
    defines: str = ""


@dataclass(slots=True)
class _Writer:
    """Lines of source and the environment that they refer to."""

    gm: GraphModule
    symbols: Symbols
    split: Split
    parts: dict[int, Part]
    lines: list[_Line] = field(default_factory=list)
    env: dict[str, object] = field(default_factory=dict)
    names: dict[Node, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    _used: set[str] = field(default_factory=set)

    def emit(self, text: str, defines: str = "") -> None:
        self.lines.append(_Line(text, frozenset(self._used), defines))
        self._used = set()

    def constant(self, value: object, stem: str) -> str:
        name = f"{stem}{len(self.env)}"
        self.env[name] = value
        return name

    def number(self, value: object) -> str:
        return self.symbols.python(value)

    def numbers(self, values: object) -> str:
        return "(" + "".join(self.number(v) + ", " for v in values) + ")"  # type: ignore[attr-defined]

    def use(self, node: Node) -> str:
        """The name of a node's value; views and sizes are computed on first use."""
        if is_scalar_math(node) and self.symbols.known(value_of(node)):
            return self.number(value_of(node))
        if node not in self.names:
            self._view(node)
        self._used.add(self.names[node])
        return self.names[node]

    def define(self, node: Node) -> str:
        self.names[node] = f"v{len(self.names)}"
        return self.names[node]

    def _view(self, node: Node) -> None:
        if node.op == "get_attr":
            self.names[node] = self.constant(_attribute(self.gm, str(node.target)), "c")
            return
        outer, self._used = self._used, set()
        root = root_of(node, self.split.refused)
        base, seen = self.use(root), value_of(node)
        source = value_of(root)
        delta = seen.storage_offset() - source.storage_offset()  # type: ignore[attr-defined]
        offset = "" if _is_zero(delta) else f", {base}.storage_offset() + {self.number(delta)}"
        sizes, strides = self.numbers(seen.shape), self.numbers(seen.stride())  # type: ignore[attr-defined]
        name = self.define(node)
        self.emit(f"{name} = as_strided({base}, {sizes}, {strides}{offset})", name)
        self._used = outer

    def literal(self, value: object) -> str:
        """Source of an argument."""
        match value:
            case Node():
                return self.use(value)
            case tuple():
                return "(" + "".join(self.literal(v) + ", " for v in value) + ")"
            case list():
                return "[" + ", ".join(self.literal(v) for v in value) + "]"
            case dict():
                pairs = (f"{self.literal(k)}: {self.literal(v)}" for k, v in value.items())
                return "{" + ", ".join(pairs) + "}"
            case slice():
                parts = (value.start, value.stop, value.step)
                return "slice(" + ", ".join(self.literal(v) for v in parts) + ")"
            case float() if math.isfinite(value):
                return repr(value)
            case _ if isinstance(value, SYMBOLIC):
                return self.number(value)
            case _ if type(value) in _PLAIN:
                return repr(value)
            case _:
                return self.constant(value, "k")


def _is_zero(value: object) -> bool:
    return value == 0 if isinstance(value, int) else not free_symbols(value) and int(value) == 0  # type: ignore[call-overload]


def _attribute(gm: GraphModule, path: str) -> object:
    found: object = gm
    for part in path.split("."):
        found = getattr(found, part)
    return found


def assemble(
    gm: GraphModule, symbols: Symbols, split: Split, parts: dict[int, Part], kept: Collection[Node]
) -> Recipe:
    """The recipe of a graph; `parts` are by position of their phase. The caller keeps the
    inputs in `kept` alive: they are not deleted after their last use."""
    writer = _Writer(gm, symbols, split, parts)
    _entry(writer)
    for position, phase in enumerate(split.phases):
        if phase.compiled:
            _call_part(writer, parts[position], position)
        else:
            _call_eager(writer, phase)
    for node in split.copies:
        updated = {o.updates for p in parts.values() for o in p.outputs}
        if node.args[0] not in updated:
            writer.emit(f"{writer.use(node.args[0])}.copy_({writer.use(node.args[1])})")
        writer.names[node] = writer.names[node.args[0]]
    output = next(n for n in gm.graph.nodes if n.op == "output")
    result = writer.literal(tuple(output.args[0]))
    writer.emit(f"return {result}")
    return _finish(writer, {writer.names[n] for n in kept})


def _entry(writer: _Writer) -> None:
    inputs = [n for n in writer.gm.graph.nodes if n.op == "placeholder"]
    writer.inputs = tuple(writer.define(n) for n in inputs)
    for symbol, (node, dim) in writer.symbols.sources.items():
        place = "" if dim is None else f".shape[{dim}]"
        writer.emit(f"{symbol} = {writer.use(node)}{place}")


def _call_part(writer: _Writer, part: Part, position: int) -> None:
    inputs = [writer.use(n) for n in part.inputs]
    outputs: list[str] = []
    copies, errors = [], []
    for spec in part.outputs:
        if spec.node is None:
            outputs.append(f"e{position}_{len(errors)}")
            errors.append((outputs[-1], spec.error))
            writer.emit(f"{outputs[-1]} = empty((), (), torch.bool)", outputs[-1])
            continue
        if spec.updates is not None:
            outputs.append(writer.use(spec.updates))
            continue
        value = value_of(spec.node)
        dtype = writer.constant(value.dtype, "k")  # type: ignore[attr-defined]
        sizes, strides = writer.numbers(value.shape), writer.numbers(value.stride())  # type: ignore[attr-defined]
        name = writer.define(spec.node)
        if spec.dense:
            fresh = writer.constant(Fresh(), "k") if _is_large(writer, value) else "empty"
            writer.emit(f"{name} = {fresh}({sizes}, {strides}, {dtype})", name)
            outputs.append(name)
        else:
            staged = f"{name}c"
            writer.emit(f"{staged} = plain({sizes}, dtype={dtype})", staged)
            outputs.append(staged)
            copies.append((name, staged, f"empty({sizes}, {strides}, {dtype})"))
    dims = "(" + "".join(d + ", " for d in part.dims) + ")"
    names = {*inputs, *outputs}
    for line in _run_lines(writer, part, position, inputs, outputs, dims):
        writer._used |= names
        writer.emit(line)
    for name, (kind, text) in errors:
        writer.emit(f"if {name}: raise {kind}({text!r})")
    for name, staged, fresh in copies:
        writer._used.add(staged)
        writer.emit(f"{name} = {fresh}.copy_({staged})", name)


def _is_large(writer: _Writer, fake: object) -> bool:
    """True if a result, at the sizes that were traced, is worth recycling."""
    hints = writer.symbols.hints()
    sizes = [writer.symbols.expr(n).evaluate(hints) for n in fake.shape]  # type: ignore[attr-defined]
    return math.prod(sizes) * fake.dtype.itemsize >= LARGE_BYTES  # type: ignore[attr-defined]


def _run_lines(
    writer: _Writer, part: Part, position: int, inputs: list[str], outputs: list[str], dims: str
) -> list[str]:
    if part.direct is not None:
        return part.direct(
            inputs, outputs, dims, lambda name: writer.constant(Entry(position, name), "k")
        )
    run = writer.constant(part.run, "run")
    return [f"{run}(({_listed(inputs)}), ({_listed(outputs)}), {dims})"]


def _listed(names: list[str]) -> str:
    return "".join(n + ", " for n in names)


def _call_eager(writer: _Writer, phase: Phase) -> None:
    for node in phase.nodes:
        arguments = [writer.literal(a) for a in node.args]
        arguments += [f"{k}={writer.literal(v)}" for k, v in node.kwargs.items()]
        function = writer.constant(node.target, "f")
        name = writer.define(node)
        writer.emit(f"{name} = {function}({', '.join(arguments)})", name)
        value = value_of(node)
        if isinstance(value, SYMBOLIC) and value.node.expr.is_Symbol:
            writer._used.add(name)
            writer.emit(f"{value.node.expr} = {name}")
        for symbol, path in node.meta.get("unbacked_bindings", {}).items():
            get, key = writer.constant(torch.utils._pytree.key_get, "k"), writer.constant(path, "k")
            writer._used.add(name)
            writer.emit(f"{symbol} = {get}({name}, {key})")
        if isinstance(value, torch.Tensor) and _needs_check(writer, node):
            writer._used.add(name)
            writer.emit(f"{name} = exact({name}, {writer.numbers(value.stride())})", name)


def _needs_check(writer: _Writer, node: Node) -> bool:
    """True if a compiled part or a view relies on the strides of this eager result."""
    value = value_of(node)
    if value.layout != torch.strided or not writer.symbols.known(value):  # type: ignore[attr-defined]
        return False
    read = {n for p in writer.parts.values() for n in p.inputs}
    return node in read or any(view_base(u, writer.split.refused) is node for u in node.users)


def _finish(writer: _Writer, kept: set[str]) -> Recipe:
    """Adds `del` after last uses."""
    last: dict[str, int] = {}
    for position, line in enumerate(writer.lines):
        for name in (*line.uses, line.defines):
            if name.startswith("v") and name not in kept:
                last[name] = position
    dying: dict[int, list[str]] = {}
    for name, position in last.items():
        dying.setdefault(position, []).append(name)
    source = []
    for position, line in enumerate(writer.lines):
        source.append("    " + line.text)
        if position in dying and not line.text.startswith("return"):
            source.append("    del " + ", ".join(dying[position]))
    return Recipe(writer.inputs, "\n".join(source), writer.env, device=writer.symbols.device)
