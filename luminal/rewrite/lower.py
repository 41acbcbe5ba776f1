"""Lower: prepared nodes to terms over named axes; views and selections vanish into indices.

In: prepared nodes, and the buffers of those that are stored: always read from there, or perhaps
(`soft`). Out: terms, the pairs (term, load) that say what a soft node's buffer holds, and axis
splits. Decides nothing: `cuts.py` chose the cuts."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import reduce
from math import inf

from luminal.ir import PRIMITIVES, DType, Edge, Graph, Node, Term, boolean, f32, substitute
from luminal.ir import term as terms
from luminal.ir.expr import Expr, Var, axis_var, const, to_expr
from luminal.ir.numeric import full, lowest
from luminal.ir.view import Shape, axes_of
from luminal.rewrite.axes import Split, divisors
from luminal.rewrite.fold import fold, padded_sum, selects_on
from luminal.rewrite.prepare import MAX_UNROLL, is_leaf

_LONGEST = 16


@dataclass(slots=True)
class Axes:
    """Axis names by (extent, ordinal): equal loops get equal names, so equal terms are one."""

    names: dict[tuple[Expr, int], Var] = field(default_factory=dict)
    extents: dict[Expr, int] = field(default_factory=dict)

    def get(self, extent: Expr, ordinal: int) -> Var:
        """The axis number `ordinal` of this extent."""
        if (extent, ordinal) not in self.names:
            number = self.extents.setdefault(extent, len(self.extents))
            self.names[extent, ordinal] = axis_var(f"x{number}_{ordinal}", extent)
        return self.names[extent, ordinal]

    def fresh(self, extent: Expr, used: Iterable[Var]) -> Var:
        """The first axis of this extent that is not in `used`."""
        taken, ordinal = set(used), 0
        while self.get(extent, ordinal) in taken:
            ordinal += 1
        return self.get(extent, ordinal)

    def of_shape(self, shape: Shape) -> tuple[tuple[Var, ...], Shape]:
        """Axes for the dimensions of a shape (none for size 1), and the index of each."""
        axes: list[Var] = []
        indices: list[Expr] = []
        for extent in shape:
            if extent.value == 1:
                indices.append(const(0))
                continue
            axes.append(self.fresh(extent, axes))
            indices.append(to_expr(axes[-1]))
        return tuple(axes), tuple(indices)


@dataclass(slots=True)
class Lowering:
    """Terms of nodes at given indices. `widen` computes f16 and bf16 in f32 without rounding."""

    nodes: Sequence[Node]
    buffers: Mapping[int, str]
    soft: Set[int]
    widen: bool
    axes: Axes = field(default_factory=Axes)
    equal: list[tuple[Term, Term]] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    _memo: dict[tuple[int, Shape], Term] = field(default_factory=dict)

    def wide(self, dtype: DType) -> DType:
        """The dtype in which values of `dtype` are computed.

        x: f16 or bf16 = its f32 value before rounding, if `widen`. Reason: one pass over an axis
        must not round between its steps. More precise than the graph, but not bit-equal; values
        are still rounded where they are stored."""
        return f32 if self.widen and dtype.is_float and dtype.bits == 16 else dtype

    def at(self, number: int, where: Shape) -> Term:
        """The element of a node at these indices."""
        key = (number, where)
        if key not in self._memo:
            if number in self.buffers and number not in self.soft:
                made = self._load(number, where)
            else:
                made = self.compute(number, where)
                if number in self.soft:
                    self.equal.append((made, self._load(number, where)))
            self._memo[key] = made
        return self._memo[key]

    def _load(self, number: int, where: Shape) -> Term:
        dtype = self.nodes[number].dtype
        return terms.cast(terms.load(self.buffers[number], where, dtype), self.wide(dtype))

    def edge(self, edge: Edge, where: Shape) -> Term:
        """The element of an edge at these indices: padding becomes a select."""
        view = edge.view
        if view.is_identity:
            return self.at(edge.node, where)
        env = dict(zip(axes_of(view.shape), where, strict=True))
        mask = terms.constant(True, boolean)
        for e in view.valid:
            mask = terms.binary("mul", mask, terms.cond(e.substitute(env)))
        fill = self._scalar(view.fill, self.nodes[edge.node].dtype)
        if mask.op == "const" and not mask.payload:
            return fill
        index = tuple(e.substitute(env) for e in view.index)
        return terms.select(mask, self.at(edge.node, index), fill)

    def _scalar(self, value: object, dtype: DType) -> Term:
        rounded = full(value, dtype).item() if not dtype.storage else value  # type: ignore[arg-type]
        return terms.constant(rounded, self.wide(dtype))  # type: ignore[arg-type]

    def compute(self, number: int, where: Shape) -> Term:
        """The element computed here, even if the node is stored."""
        node = self.nodes[number]
        match node.op:
            case "Constant" if not is_leaf(node):
                return self._scalar(node.value or 0, node.dtype)
            case "Input" | "Constant":
                return self._load(number, where)
            case "Iota":
                return terms.cast(terms.index(where[0]), self.wide(node.dtype))
            case "Gather":
                return self._gather(node, where)
            case "SumReduce" | "MaxReduce":
                return self._reduce(node, where)
            case "Where":
                condition = self.edge(node.inputs[0], where)
                if condition.op == "const":
                    return self.edge(node.inputs[1 if condition.payload else 2], where)
                return terms.select(condition, *(self.edge(e, where) for e in node.inputs[1:]))
        args = [self.edge(e, where) for e in node.inputs]
        if node.op == "Copy":
            return args[0]
        op = "max" if node.op == "Maximum" else PRIMITIVES[node.op].term
        if op == "lt" and not any(abs(t.value or 0) == inf for t in args if t.op == "const"):
            args = [self._rounded(t, e) for t, e in zip(args, node.inputs, strict=True)]
        dtype = self.wide(node.dtype)
        joined = padded_sum(*args) if op == "add" else None
        return joined or fold(op, args, dtype) or terms.make(op, tuple(args), dtype)

    def _rounded(self, t: Term, edge: Edge) -> Term:
        """A value that is compared, as the graph rounds it: equal to what others stored of it."""
        dtype = self.nodes[edge.node].dtype
        stored = t.op == "const" or (t.op == "cast" and t.args[0].dtype == dtype)
        return t if stored else terms.cast(terms.cast(t, dtype), t.dtype)

    def _gather(self, node: Node, where: Shape) -> Term:
        source, chosen = node.inputs
        position = terms.data(self.edge(chosen, where), source.view.shape[node.axis])
        return self.edge(source, (*where[: node.axis], position, *where[node.axis + 1 :]))

    def _reduce(self, node: Node, where: Shape) -> Term:
        edge, at = node.inputs[0], node.axis
        extent = edge.view.shape[at]
        op = "sum" if node.op == "SumReduce" else "rmax"

        def body(e: Expr) -> Term:
            return self.edge(edge, (*where[:at], e, *where[at:]))

        if extent.value == 0:
            empty = 0 if op == "sum" else lowest(node.dtype)
            return terms.constant(empty, self.wide(node.dtype))
        if extent.value == 1:
            return body(const(0))
        used = {v for e in where for v in e.variables()}
        axis = self.axes.fresh(extent, used)
        inner = body(to_expr(axis))
        if inner.op == "const" and not inner.payload and (op == "sum" or extent.lo > 0):
            return inner
        if extent.value is not None and extent.value <= MAX_UNROLL and selects_on(inner, axis):
            parts = [substitute(inner, {axis: const(i)}) for i in range(extent.value)]
            return reduce(lambda a, b: terms.binary("add" if op == "sum" else "max", a, b), parts)
        made = terms.reduction(op, (axis,), inner)
        for size in divisors(inner, axis) if op == "sum" and extent.value is not None else ():
            blocks = self.axes.fresh(const((extent.value or 0) // size), used)
            within = self.axes.fresh(const(size), {*used, blocks})
            parts = body(to_expr(blocks) * size + to_expr(within))
            self.splits.append((made, blocks, within, parts))
        return made


def positions(graph: Graph) -> frozenset[int]:
    """Nodes of integers and truth values whose element is a short term of positions alone, outputs
    excepted: free to repeat, so that what is known of positions stays known everywhere."""
    lowering = Lowering(graph.nodes, {}, frozenset(), widen=False)
    wanted = {o.edge.node for o in graph.outputs}
    pure: set[int] = set()
    found: set[int] = set()
    for n, node in enumerate(graph.nodes):
        if not node.inputs and not is_leaf(node):
            pure.add(n)
        elif node.inputs and node.op != "Scatter" and pure.issuperset(e.node for e in node.inputs):
            if not node.dtype.is_float and n not in wanted:
                parts = list(terms.postorder(lowering.at(n, lowering.axes.of_shape(node.shape)[1])))
                if len(parts) <= _LONGEST and not any(t.axes or t.op == "load" for t in parts):
                    found.add(n)
                    pure.add(n)
    return frozenset(found)
