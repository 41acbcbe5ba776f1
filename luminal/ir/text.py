"""Text of graphs and plans: printed for people and diffs, and parsed back to equal values.

In: a Graph or Plan, or its text. Out: the other. One statement a line, in Python's syntax, read
by a small evaluator (never by `eval`). Tensor constants are printed by name; parsing takes their
data from a mapping.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from luminal.ir import term as terms
from luminal.ir.dtype import ALL, DType, by_name
from luminal.ir.expr import (
    Atom,
    Expr,
    Var,
    axis_var,
    floor_div,
    maximum,
    minimum,
    remainder,
    to_expr,
)
from luminal.ir.graph import ConstantData, Edge, Graph, Node, Output
from luminal.ir.ops import PRIMITIVES
from luminal.ir.plan import Buffer, Kernel, Loop, Online, Plan, Reg, Schedule, Stage, Store
from luminal.ir.term import Data, Term
from luminal.ir.view import View, axes_of, identity

__all__ = ["graph_text", "kernel_text", "parse_graph", "parse_plan", "plan_text"]


class Reader:
    """Evaluates one statement: constants, names, lists, calls and + - * // % on expressions."""

    _OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    }  # fmt: skip

    def __init__(self, calls: Mapping[str, Callable[..., Any]]) -> None:
        self.names: dict[str, Any] = {d.name: d for d in ALL}
        self.names |= {"inf": float("inf"), "nan": float("nan")}
        self.calls = {
            "div": floor_div, "mod": remainder, "min": minimum, "max": maximum, **calls,
        }  # fmt: skip

    def run(self, text: str) -> None:
        """Reads every line; ValueError with the line on anything unknown."""
        for line in text.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                self.statement(line.strip())

    def statement(self, line: str) -> None:
        """One line: a call, or a name bound to one."""
        try:
            (node,) = ast.parse(line).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.names[node.targets[0].id] = self.value(node.value)
            elif isinstance(node, ast.Expr):
                self.value(node.value)
            else:
                raise ValueError("neither a call nor a name = value")
        except (ValueError, SyntaxError, KeyError, TypeError) as error:
            raise ValueError(f"[text] cannot read {line!r}: {error}") from error

    def value(self, node: ast.expr) -> Any:
        """The value of one expression."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.names[node.id]
            case ast.List() | ast.Tuple():
                return tuple(self.value(e) for e in node.elts)
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.BinOp():
                left, right = self.value(node.left), self.value(node.right)
                return self._OPERATORS[type(node.op)](left, right)
            case ast.Call(func=ast.Name(id=name)):
                args = [self.value(a) for a in node.args]
                keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
                return self.calls[name](*args, **keywords)
        raise ValueError(f"not understood: {ast.unparse(node)}")


def _exprs(values: tuple[Any, ...]) -> tuple[Expr, ...]:
    return tuple(to_expr(v) for v in values)


def _dims_text(dims: tuple[Var, ...]) -> list[str]:
    return [f"dim({v.name!r}, {v.lo}, {v.hi})" for v in dims]


def _list(values: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(repr, values))}]"


def _edge_text(edge: Edge) -> str:
    view = edge.view
    if view.is_identity:
        return f"n{edge.node}"
    masked = f", {_list(view.valid)}, {view.fill!r}" if view.valid else ""
    return f"view(n{edge.node}, {_list(view.shape)}, {_list(view.index)}{masked})"


def graph_text(graph: Graph) -> str:
    """A graph as text; `parse_graph` reads it back."""
    lines = _dims_text(graph.dims)
    for number, node in enumerate(graph.nodes):
        args = [_edge_text(e) for e in node.inputs]
        args += (
            [f"name={node.name!r}"]
            if node.op == "Input" or isinstance(node.value, ConstantData)
            else []
        )
        args += [f"value={node.value!r}"] if isinstance(node.value, int | float) else []
        shape = f"[{', '.join(map(repr, node.shape))}]"
        axis = f", axis={node.axis}" if node.axis else ""
        inner = ", ".join([*args, f"shape={shape}", f"dtype={node.dtype}"])
        lines.append(f"n{number} = {node.op}({inner}{axis})")
    for o in graph.outputs:
        updates = f", updates={o.updates!r}" if o.updates else ""
        lines.append(f"output({o.name!r}, {_edge_text(o.edge)}{updates})")
    return "\n".join(lines) + "\n"


def parse_graph(text: str, data: Mapping[str, ConstantData] | None = None) -> Graph:
    """The graph that `graph_text` printed; ValueError names the first bad line."""
    nodes: list[Node] = []
    outputs: list[Output] = []
    dims: list[Var] = []

    def edge(value: int | Edge) -> Edge:
        return value if isinstance(value, Edge) else Edge(value, identity(nodes[value].shape))

    def view(node: int, shape: Any, index: Any, valid: Any = (), fill: Any = 0) -> Edge:
        scope = {a.name: to_expr(a) for a in axes_of(_exprs(shape))}
        env = {Var(n): e for n, e in scope.items()}
        places = [tuple(to_expr(e).substitute(env) for e in part) for part in (index, valid)]
        return Edge(node, View(_exprs(shape), nodes[node].shape, places[0], places[1], fill))

    def node(op: str) -> Callable[..., int]:
        def build(*args: Any, shape: Any, dtype: DType, axis: int = 0, name: str = "",
                  value: Any = None) -> int:  # fmt: skip
            if op == "Constant" and value is None:
                value = (data or {})[name]
            inputs = tuple(edge(a) for a in args)
            label = repr(value) if op == "Constant" and not name else name
            kind = by_name(repr(dtype))  # i8 is also the name of an axis
            nodes.append(Node(op, inputs, _exprs(shape), kind, axis, label, value))
            return len(nodes) - 1

        return build

    def dim(name: str, lo: int, hi: int) -> None:
        dims.append(Var(name, lo, hi))
        reader.names[name] = to_expr(dims[-1])

    def output(name: str, value: int | Edge, updates: str = "") -> None:
        outputs.append(Output(name, edge(value), updates))

    calls = {op: node(op) for op in (*PRIMITIVES, "Input", "Constant")}
    reader = Reader({**calls, "dim": dim, "view": view, "output": output})
    reader.names |= {f"i{d}": to_expr(Var(f"i{d}")) for d in range(16)}
    reader.run(text)
    return Graph(tuple(nodes), tuple(outputs), tuple(dims))


class _TermPrinter:
    """Numbers terms as `Kernel.subterms` does and prints index expressions with data atoms."""

    def __init__(self, kernel: Kernel) -> None:
        self.names = {t: f"t{n}" for n, t in enumerate(kernel.subterms())}

    def expr(self, e: Expr) -> str:
        pieces = []
        for monomial, coef in e.terms:
            factors = [self._atom(a) for a in monomial]
            pieces.append("*".join([str(coef)] * (coef != 1 or not factors) + factors))
        return " + ".join(pieces) or "0"

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return atom.name
        if isinstance(atom, Data):
            extent = "None" if atom.extent is None else self.expr(atom.extent)
            return f"data({self.names[atom.term]}, {atom.lo}, {atom.hi}, {extent})"
        return f"{atom.op}({self.expr(atom.a)}, {self.expr(atom.b)})"  # type: ignore[attr-defined]

    def exprs(self, values: tuple[Expr, ...]) -> str:
        return f"[{', '.join(map(self.expr, values))}]"

    def term(self, t: Term) -> str:
        args = ", ".join(self.names[a] for a in t.args)
        match t.op:
            case "load":
                return f"load({t.buffer!r}, {self.exprs(t.indices)}, {t.dtype})"
            case "const":
                return f"const({t.payload!r}, {t.dtype})"
            case "index":
                return f"index({self.expr(t.expr)}, {t.dtype})"
            case "cond":
                return f"cond({self.expr(t.expr)})"
            case "cast":
                return f"cast({args}, {t.dtype})"
        head = f"[{', '.join(a.name for a in t.axes)}], " if t.axes else ""
        return f"{t.op}_({head}{args})"


def _axis_lines(axes: tuple[Var, ...], call: str) -> list[str]:
    return [f"{call}({a.name!r}, {a.extent!r})" for a in axes]


def kernel_text(kernel: Kernel) -> str:
    """One kernel as text, its terms numbered as `Stage.term` counts them."""
    printer = _TermPrinter(kernel)
    subterms = kernel.subterms()
    bound = dict.fromkeys(a for t in subterms for a in t.axes)
    lines = [f"kernel({kernel.name!r}, {_list(kernel.ordered)}, {_list(kernel.sizes)})"]
    lines += _axis_lines(kernel.axes, "axis")
    lines += _axis_lines(tuple(a for a in bound if a not in kernel.axes), "bound")
    lines += [f"{printer.names[t]} = {printer.term(t)}" for t in subterms]
    lines += [f"store({s.buffer!r}, {printer.exprs(s.index)}, {printer.names[s.value]})"
              for s in kernel.stores]  # fmt: skip
    if kernel.schedule is not None:
        lines.append(f"schedule({_schedule_text(kernel.schedule)})")
    return "\n".join(lines)


def _schedule_text(s: Schedule) -> str:
    return f"Schedule({_list(s.items)}, {_list(s.regs)}, {_list(s.prefetch)})"


def plan_text(plan: Plan) -> str:
    """A plan as text; `parse_plan` reads it back."""
    lines = _dims_text(plan.dims)
    for b in plan.buffers:
        data = f", data={b.data.name!r}" if b.data is not None else ""
        lines.append(f"buffer({b.name!r}, {_list(b.shape)}, {b.dtype}, {b.kind!r}, "
                     f"{_list(b.layout)}, {b.alias!r}{data})")  # fmt: skip
    lines += [f"inputs({_list(plan.inputs)})", f"outputs({_list(plan.outputs)})"]
    lines += [f"costs({_list(plan.costs_us)})"]
    return "\n".join([*lines, "", "\n\n".join(map(kernel_text, plan.kernels))]) + "\n"


class _PlanReader:
    """Collects the statements of a plan's text."""

    def __init__(self, data: Mapping[str, ConstantData]) -> None:
        self.data = data
        self.dims: list[Var] = []
        self.buffers: list[Buffer] = []
        self.kernels: list[Kernel] = []
        self.lists: dict[str, tuple[Any, ...]] = {"inputs": (), "outputs": (), "costs": ()}
        calls: dict[str, Callable[..., Any]] = {
            "dim": self.dim, "buffer": self.buffer, "kernel": self.kernel, "axis": self.axis,
            "bound": self.bound, "store": self.store, "schedule": self.schedule,
            "load": lambda b, i, d: terms.load(b, _exprs(i), d), "const": terms.constant,
            "index": lambda e, d: terms.index(to_expr(e), d), "cast": terms.cast,
            "cond": lambda e: terms.cond(to_expr(e)), "data": self.atom,
            "Schedule": Schedule, "Loop": Loop, "Reg": Reg, "Stage": Stage, "Online": Online,
        }  # fmt: skip
        calls |= {k: lambda v, k=k: self.lists.__setitem__(k, v) for k in self.lists}
        logic = ("and", "or", "not", "select")
        operations = (*terms.UNARY, *terms.BINARY, *terms.REDUCTIONS, *logic)
        calls |= {f"{op}_": self.operation(op) for op in operations}
        self.reader = Reader(calls)

    def dim(self, name: str, lo: int, hi: int) -> None:
        self.dims.append(Var(name, lo, hi))
        self.reader.names[name] = to_expr(self.dims[-1])

    def buffer(self, name: str, shape: Any, dtype: DType, kind: str, layout: Any, alias: str,
               data: str = "") -> None:  # fmt: skip
        value = self.data[data] if data else None
        self.buffers.append(Buffer(name, _exprs(shape), dtype, kind, layout, alias, value))

    def kernel(self, name: str, ordered: Any, sizes: Any) -> None:
        dims = tuple(v for e in sizes for v in e.variables())
        self.kernels.append(Kernel(name, (), (), None, ordered, dims))

    def _change(self, **fields: Any) -> None:
        old = self.kernels[-1]
        values = {"axes": old.axes, "stores": old.stores, "schedule": old.schedule} | fields
        self.kernels[-1] = Kernel(old.name, ordered=old.ordered, sizes=old.sizes, **values)

    def bound(self, name: str, extent: Any) -> Var:
        var = axis_var(name, to_expr(extent))
        self.reader.names[name] = to_expr(var)
        return var

    def axis(self, name: str, extent: Any) -> None:
        self._change(axes=(*self.kernels[-1].axes, self.bound(name, extent)))

    def store(self, buffer: str, index: Any, value: Term) -> None:
        new = Store(buffer, _exprs(index), value)
        self._change(stores=(*self.kernels[-1].stores, new))

    def schedule(self, value: Schedule) -> None:
        self._change(schedule=value)

    def atom(self, term: Term, lo: int, hi: int, extent: Any) -> Expr:
        limit = None if extent is None else to_expr(extent)
        return Expr((((Data(term, lo, hi, limit),), 1),))

    def operation(self, op: str) -> Callable[..., Term]:
        def build(*args: Any) -> Term:
            if op in terms.REDUCTIONS:
                axes = tuple(next(iter(e.variables())) for e in args[0])
                return terms.reduction(op, axes, *args[1:])
            if op in terms.UNARY:
                return terms.unary(op, *args)
            if op in terms.BINARY:
                return terms.binary(op, *args)
            return terms.logical_not(*args) if op == "not" else (
                terms.select(*args) if op == "select"
                else terms.binary("mul" if op == "and" else "add", *args))  # fmt: skip

        return build


def parse_plan(text: str, data: Mapping[str, ConstantData] | None = None) -> Plan:
    """The plan that `plan_text` printed; ValueError names the first bad line."""
    reader = _PlanReader(data or {})
    reader.reader.run(text)
    lists = reader.lists
    return Plan(tuple(reader.kernels), tuple(reader.buffers), lists["inputs"], lists["outputs"],
                tuple(reader.dims), lists["costs"])  # fmt: skip
