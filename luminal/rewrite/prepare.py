"""Prepare: the graph with implicit selections made explicit and every output a node of its own.

In: a Graph. Out: nodes in topological order that also use Where(c, a, b), Maximum(a, b), Copy(x):
choices that the 15 primitives spell with stacks, and copies where an output or a scatter needs a
buffer of its own. Computes no terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from luminal.errors import InternalError
from luminal.ir.dtype import boolean
from luminal.ir.expr import Expr, Var, const, is_nonnegative, to_expr
from luminal.ir.graph import ConstantData, Edge, Graph, Node
from luminal.ir.view import View, axes_of, identity

__all__ = ["MAX_UNROLL", "Prepared", "Wanted", "prepare"]

MAX_UNROLL = 4
"""Reductions of at most this constant extent that select on their axis are written out."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output: its name, the prepared node that holds it (an Input if `updates` is itself)."""

    name: str
    node: int
    updates: str


@dataclass(slots=True)
class Prepared:
    """Nodes that outputs need, renumbered, and the outputs."""

    nodes: list[Node] = field(default_factory=list)
    outputs: list[Wanted] = field(default_factory=list)
    known: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node, share: bool = True) -> int:
        """The number of a node; equal nodes are one if `share`."""
        if share and node in self.known:
            return self.known[node]
        self.nodes.append(node)
        self.known.setdefault(node, len(self.nodes) - 1)
        return len(self.nodes) - 1


def prepare(graph: Graph) -> Prepared:
    """The prepared form of a graph."""
    out = Prepared()
    placed: dict[int, Edge] = {}
    live = _live(graph.nodes, [o.edge.node for o in graph.outputs])
    for old, node in enumerate(graph.nodes):
        if old in live or node.op == "Input":
            inputs = tuple(_moved(placed, e) for e in node.inputs)
            placed[old] = _rewrite_node(out, replace(node, inputs=inputs))
    _outputs(graph, out, placed)
    return _without_dead(out)


def _moved(placed: dict[int, Edge], edge: Edge) -> Edge:
    """An edge to where its node is now; nodes move through views without padding only."""
    base = placed[edge.node]
    if base.view.shape is base.view.source:  # as `identity` makes it
        return Edge(base.node, edge.view)
    view = base.view.then(edge.view)
    if view is None:
        raise InternalError("[prepare] two paddings meet on one edge.")
    return Edge(base.node, view)


def _live(nodes: Sequence[Node], roots: list[int]) -> set[int]:
    live: set[int] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in live:
            live.add(n)
            stack += [e.node for e in nodes[n].inputs]
    return live


def _without_dead(prepared: Prepared) -> Prepared:
    """Without the nodes that no output needs any more (inputs stay)."""
    live = _live(prepared.nodes, [o.node for o in prepared.outputs])
    out = Prepared()
    number: dict[int, int] = {}
    for old, node in enumerate(prepared.nodes):
        if old in live or node.op == "Input":
            inputs = tuple(Edge(number[e.node], e.view) for e in node.inputs)
            number[old] = out.add(replace(node, inputs=inputs), share=False)
    out.outputs = [replace(o, node=number[o.node]) for o in prepared.outputs]
    return out


def _outputs(graph: Graph, out: Prepared, placed: dict[int, Edge]) -> None:
    """Every output gets a node that no other has; those that overwrite an input choose first."""
    taken: set[int] = set()
    wanted: dict[int, Wanted] = {}
    for position in sorted(range(len(graph.outputs)), key=lambda p: not graph.outputs[p].updates):
        o = graph.outputs[position]
        edge = _moved(placed, o.edge)
        n, view = edge.node, edge.view
        node = out.nodes[n]
        plain = view.is_identity and node.op not in ("Input", "Constant", "Copy")
        unchanged = node.op == "Input" and node.name == o.updates and view.is_identity
        if not unchanged and (not plain or n in taken):
            copy = Node("Copy", (Edge(n, view),), view.shape, node.dtype, name=o.name)
            n = out.add(copy, share=False)
        taken.add(n)
        wanted[position] = Wanted(o.name, n, o.updates)
    out.outputs += [wanted[p] for p in range(len(graph.outputs))]


def _rewrite_node(out: Prepared, node: Node) -> Edge:
    if node.op == "Gather":
        chosen = _where(out, node)
        if chosen is not None:
            return Edge(out.add(chosen), _add_axis(node.axis, node.shape))
    if node.op == "MaxReduce":
        parts = _stack_parts(out, node.inputs[0], node.axis)
        if parts is not None:
            return _maximum(out, node, parts)
    whole = identity(node.shape)
    if node.op == "Scatter":
        return Edge(out.add(_scatter(out, node), share=False), whole)
    return Edge(out.add(node), whole)


def _scatter(out: Prepared, node: Node) -> Node:
    """A scatter whose dest is a stored tensor, seen whole."""
    dest = node.inputs[0]
    held = out.nodes[dest.node]
    if dest.view.is_identity and held.op not in ("Constant", "Iota"):
        return node
    if dest.view.is_identity and isinstance(held.value, ConstantData):
        return node
    copy = out.add(Node("Copy", (dest,), dest.view.shape, node.dtype), share=False)
    return replace(node, inputs=(Edge(copy, identity(dest.view.shape)), *node.inputs[1:]))


def _where(out: Prepared, node: Node) -> Node | None:
    """Gather of a 2-stack at a truth value, as Where(condition, slice 1, slice 0)."""
    src, index = node.inputs
    cast = out.nodes[index.node]
    if cast.op != "Cast" or out.nodes[cast.inputs[0].node].dtype != boolean:
        return None
    if node.shape[node.axis].value != 1:
        return None
    parts = _stack_parts(out, src, node.axis)
    view = cast.inputs[0].view.then(index.view)
    if parts is None or len(parts) != 2 or view is None or index.view.valid:
        return None
    condition = Edge(cast.inputs[0].node, _drop(view, node.axis, 0))
    inputs = (condition, parts[1], parts[0])
    return Node("Where", inputs, condition.view.shape, node.dtype)


def _maximum(out: Prepared, node: Node, parts: list[Edge]) -> Edge:
    left = parts[0]
    for right in parts[1:]:
        made = Node("Maximum", (left, right), node.shape, node.dtype)
        left = Edge(out.add(made), identity(node.shape))
    return left


def _add_axis(axis: int, shape: tuple[Expr, ...]) -> View:
    """A new dimension of size 1 at `axis` (of `shape`, which has it)."""
    source = shape[:axis] + shape[axis + 1 :]
    axes = [to_expr(a) for a in axes_of(shape)]
    return View(shape, source, tuple(axes[:axis] + axes[axis + 1 :]))


def _drop(view: View, axis: int, value: int) -> View:
    """The slice of a view at `value` of one of its axes, which disappears."""
    shape = view.shape[:axis] + view.shape[axis + 1 :]
    old, new = axes_of(view.shape), axes_of(shape)
    env: dict[Var, Expr] = {old[axis]: const(value)}
    env |= {a: to_expr(b) for a, b in zip(old[:axis] + old[axis + 1 :], new, strict=True)}
    valid = [e.substitute(env) for e in view.valid]
    kept = tuple(e for e in valid if not is_nonnegative(e))
    return View(shape, view.source, tuple(e.substitute(env) for e in view.index), kept, view.fill)


def _stack_parts(out: Prepared, edge: Edge, axis: int) -> list[Edge] | None:
    """The slices along a short axis, if each is one input of a sum of padded parts."""
    extent = edge.view.shape[axis].value
    if extent is None or not 2 <= extent <= MAX_UNROLL or edge.view.valid:
        return None
    parts = [_resolve(out, Edge(edge.node, _drop(edge.view, axis, v)), 0) for v in range(extent)]
    if any(p is None for p in parts):
        return None
    return [p for p in parts if p is not None]


def _resolve(out: Prepared, edge: Edge, depth: int) -> Edge | None:
    """The one summand that a slice of a sum of padded parts shows."""
    node = out.nodes[edge.node]
    if node.op != "Add" or depth > MAX_UNROLL or edge.view.valid:
        return edge if depth else None
    active: list[Edge] = []
    for part in node.inputs:
        joined = part.view.then(edge.view)
        if joined is None:
            return edge if depth else None
        if not any(is_nonnegative(-1 - e) for e in joined.valid):
            active.append(Edge(part.node, joined))
        elif repr(joined.fill) not in ("-0.0", "0", "False"):
            return edge if depth else None
    if len(active) != 1:
        return edge if depth else None
    return _resolve(out, active[0], depth + 1)
