"""Text of graphs and plans: printed for people and diffs, and parsed back to equal values.

In: a Graph or Plan, or its text. Out: the other. One statement a line, in Python's syntax, read
by a small evaluator (never by `eval`). Tensor constants are printed by name; parsing takes their
data from a mapping."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from luminal.ir import expr as exprs
from luminal.ir import term as terms
from luminal.ir.dtype import ALL, DType, by_name
from luminal.ir.expr import Atom, Binary, Expr, Var, axis_var, to_expr
from luminal.ir.graph import ConstantData, Edge, Graph, Node, Output
from luminal.ir.ops import LEAVES, PRIMITIVES
from luminal.ir.plan import Buffer, Kernel, Loop, Online, Plan, Reg, Schedule, Stage, Store
from luminal.ir.term import Data, Term
from luminal.ir.view import View, axes_of, identity


class Reader:
    """Evaluates statements: constants, names, lists, calls and + - * on expressions.

    `calls` says what each call does; `names` grows by what statements define, `dims` by the
    symbolic dimensions that `dim` declares."""

    _OPERATORS: ClassVar = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def __init__(self, calls: Mapping[str, Callable[..., Any]]) -> None:
        self.names: dict[str, Any] = {d.name: d for d in ALL}
        self.names |= {"inf": float("inf"), "nan": float("nan")}
        self.dims: list[Var] = []
        self.calls = {
            "div": exprs.floor_div, "mod": exprs.remainder, "min": exprs.minimum,
            "max": exprs.maximum, "dim": self.dim, **calls,
        }  # fmt: skip

    def dim(self, name: str, lo: int, hi: int) -> None:
        self.dims.append(Var(name, lo, hi))
        self.names[name] = to_expr(self.dims[-1])

    def run(self, text: str) -> None:
        """Reads every statement; ValueError with its line on anything unknown."""
        try:
            nodes = ast.parse(text).body
        except SyntaxError as error:
            raise ValueError(f"[text] cannot read {error.text!r}: {error.msg}") from error
        for node in nodes:
            self.read(node)

    def read(self, node: ast.stmt) -> Any:
        """Reads one statement; ValueError with its line on anything unknown."""
        try:
            return self.statement(node)
        except (ValueError, KeyError, TypeError) as error:
            line = ast.unparse(node).splitlines()[0]
            raise ValueError(f"[text] cannot read {line!r}: {error}") from error

    def statement(self, node: ast.stmt) -> Any:
        """A call, or a name bound to one."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                self.names[name] = self.value(node.value)
            case ast.Expr():
                self.value(node.value)
            case _:
                raise ValueError("neither a call nor a name = value")

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.names[node.id]
            case ast.List() | ast.Tuple():
                return tuple(map(self.value, node.elts))
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.BinOp() if type(node.op) in self._OPERATORS:
                left, right = self.value(node.left), self.value(node.right)
                return self._OPERATORS[type(node.op)](left, right)
            case ast.Call(func=ast.Name(id=name)):
                keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
                return self.calls[name](*map(self.value, node.args), **keywords)
        raise ValueError(f"not understood: {ast.unparse(node)}")


def _exprs(values: Iterable[Any]) -> tuple[Expr, ...]:
    return tuple(map(to_expr, values))


def _list(values: Iterable[Any], text: Callable[[Any], str] = repr) -> str:
    return f"[{', '.join(map(text, values))}]"


def _dims_text(dims: tuple[Var, ...]) -> list[str]:
    return [f"dim({v.name!r}, {v.lo}, {v.hi})" for v in dims]


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
        args = list(map(_edge_text, node.inputs))
        if node.op == "Input" or isinstance(node.value, ConstantData):
            args.append(f"name={node.name!r}")
        elif node.op == "Constant":
            args.append(f"value={node.value!r}")
        args += [f"shape={_list(node.shape)}", f"dtype={node.dtype}"]
        args += [f"axis={node.axis}"] if node.axis else []
        lines.append(f"n{number} = {node.op}({', '.join(args)})")
    for o in graph.outputs:
        updates = f", updates={o.updates!r}" if o.updates else ""
        lines.append(f"output({o.name!r}, {_edge_text(o.edge)}{updates})")
    return "\n".join(lines) + "\n"


def parse_graph(text: str, data: Mapping[str, ConstantData] | None = None) -> Graph:
    """The graph that `graph_text` printed; ValueError names the first bad line."""
    nodes: list[Node] = []
    outputs: list[Output] = []

    def edge(value: int | Edge) -> Edge:
        return value if isinstance(value, Edge) else Edge(value, identity(nodes[value].shape))

    def view(node: int, shape: Any, index: Any, valid: Any = (), fill: Any = 0) -> Edge:
        env = {Var(a.name): to_expr(a) for a in axes_of(_exprs(shape))}
        index, valid = (tuple(to_expr(e).substitute(env) for e in part) for part in (index, valid))
        return Edge(node, View(_exprs(shape), nodes[node].shape, index, valid, fill))

    def node(op: str, *args: Any, shape: Any, dtype: DType, axis: int = 0, name: str = "",
             value: Any = None) -> int:  # fmt: skip
        if op == "Constant":
            name, value = (name, (data or {})[name]) if value is None else (repr(value), value)
        kind = by_name(repr(dtype))  # i8 is also the name of an axis
        nodes.append(Node(op, tuple(map(edge, args)), _exprs(shape), kind, axis, name, value))
        return len(nodes) - 1

    def output(name: str, value: int | Edge, updates: str = "") -> None:
        outputs.append(Output(name, edge(value), updates))

    reader = Reader({"view": view, "output": output})
    reader.calls |= {op: partial(node, op) for op in (*PRIMITIVES, *LEAVES)}
    reader.names |= {f"i{d}": to_expr(Var(f"i{d}")) for d in range(16)}
    reader.run(text)
    return Graph(tuple(nodes), tuple(outputs), tuple(reader.dims))


class _TermPrinter:
    """Numbers terms as `Kernel.subterms` does and prints index expressions with data atoms."""

    def __init__(self, kernel: Kernel) -> None:
        self.names = {t: f"t{n}" for n, t in enumerate(kernel.subterms())}

    def expr(self, e: Expr) -> str:
        pieces = []
        for monomial, coef in e.terms:
            factors = [self.atom(a) for a in monomial]
            pieces.append("*".join([str(coef)] * (coef != 1 or not factors) + factors))
        return " + ".join(pieces) or "0"

    def atom(self, atom: Atom) -> str:
        if isinstance(atom, Binary):
            return f"{atom.op}({self.expr(atom.a)}, {self.expr(atom.b)})"
        if isinstance(atom, Data):
            extent = "None" if atom.extent is None else self.expr(atom.extent)
            return f"data({self.names[atom.term]}, {atom.lo}, {atom.hi}, {extent})"
        return atom.key

    def term(self, t: Term) -> str:
        args = [self.names[a] for a in t.args]
        match t.op:
            case "load":
                return f"load({t.buffer!r}, {_list(t.indices, self.expr)}, {t.dtype})"
            case "const":
                return f"const({t.payload!r}, {t.dtype})"
            case "index":
                return f"index({self.expr(t.expr)}, {t.dtype})"
            case "cond":
                return f"cond({self.expr(t.expr)})"
            case "cast":
                return f"cast({args[0]}, {t.dtype})"
        return f"{t.op}_({', '.join([_list(t.axes)] * bool(t.axes) + args)})"


def kernel_text(kernel: Kernel) -> str:
    """One kernel as text, its terms numbered as `Stage.term` counts them."""
    printer = _TermPrinter(kernel)
    lines = [f"kernel({kernel.name!r}, {_list(kernel.ordered)}, {_list(kernel.sizes)})"]
    for a in kernel.all_axes():
        lines.append(f"{'axis' if a in kernel.axes else 'bound'}({a.name!r}, {a.extent!r})")
    lines += [f"{name} = {printer.term(t)}" for t, name in printer.names.items()]
    lines += [f"store({s.buffer!r}, {_list(s.index, printer.expr)}, {printer.names[s.value]})"
              for s in kernel.stores]  # fmt: skip
    if kernel.schedule is not None:
        items, regs = map(_list, (kernel.schedule.items, kernel.schedule.regs))
        lines.append(f"schedule(Schedule({items}, {regs}))")
    return "\n".join(lines)


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


def _operation(op: str, *args: Any) -> Term:
    axes = None
    if op in terms.REDUCTIONS:
        axes, args = tuple(next(iter(e.variables())) for e in args[0]), args[1:]
    return terms.make(op, args, args[0].dtype, axes)


def parse_plan(text: str, data: Mapping[str, ConstantData] | None = None) -> Plan:
    """The plan that `plan_text` printed; ValueError names the first bad line."""
    buffers: list[Buffer] = []
    kernels: list[dict[str, Any]] = []
    lists: dict[str, Any] = {}

    def buffer(name: str, shape: Any, dtype: DType, kind: str, layout: Any, alias: str,
               data: str = "") -> None:  # fmt: skip
        buffers.append(Buffer(name, _exprs(shape), dtype, kind, layout, alias, held.get(data)))

    def kernel(name: str, ordered: Any, sizes: Any) -> None:
        sizes = tuple(v for e in sizes for v in e.variables())
        kernels.append({"name": name, "axes": (), "stores": (), "ordered": ordered, "sizes": sizes})

    def axis(name: str, extent: Any, free: bool = True) -> None:
        var = axis_var(name, extent)
        reader.names[name] = to_expr(var)
        kernels[-1]["axes"] += (var,) * free

    def store(buffer: str, index: Any, value: Term) -> None:
        kernels[-1]["stores"] += (Store(buffer, _exprs(index), value),)

    held = data or {}
    reader = Reader({
        "buffer": buffer, "kernel": kernel, "axis": axis, "bound": partial(axis, free=False),
        "store": store, "schedule": lambda value: kernels[-1].update(schedule=value),
        "load": lambda b, i, d: terms.load(b, _exprs(i), d), "const": terms.constant,
        "index": lambda e, d: terms.index(to_expr(e), d), "cast": terms.cast,
        "cond": lambda e: terms.cond(to_expr(e)),
        "data": lambda t, lo, hi, e: to_expr(Data(t, lo, hi, None if e is None else to_expr(e))),
        "Schedule": Schedule, "Loop": Loop, "Reg": Reg, "Stage": Stage, "Online": Online,
    })  # fmt: skip
    names = ("inputs", "outputs", "costs")
    reader.calls |= {name: partial(lists.__setitem__, name) for name in names}
    for op in (*terms.UNARY, *terms.BINARY, *terms.REDUCTIONS, *terms.LOGIC):
        reader.calls[f"{op}_"] = partial(_operation, op)
    reader.run(text)
    return Plan(tuple(Kernel(**k) for k in kernels), tuple(buffers), lists["inputs"],
                lists["outputs"], tuple(reader.dims), lists["costs"])  # fmt: skip
