"""Prepare: the graph with implicit selections made explicit and every output a node of its own.

In: a Graph. Out: a Graph without dead nodes (inputs stay) that also uses Where(c, a, b),
Maximum(a, b), Copy(x): choices that the 15 primitives spell with stacks, and copies where an output
or a scatter needs a buffer of its own. Computes no terms."""

from dataclasses import dataclass, field, replace

from luminal.errors import InternalError
from luminal.ir import Shape, View, axes_of, boolean, const, identity, is_nonnegative, to_expr
from luminal.ir.graph import ConstantData, Edge, Graph, Node, Output

MAX_UNROLL = 4
"""Reductions of at most this constant extent that select on their axis are written out."""


def is_leaf(node: Node) -> bool:
    """Nodes that are read, not computed."""
    return node.op == "Input" or isinstance(node.value, ConstantData)


@dataclass(slots=True)
class _Builder:
    """Nodes in order; equal ones are one."""

    nodes: list[Node] = field(default_factory=list)
    known: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> Edge:
        number = self.known.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return Edge(number, identity(node.shape))

    def view(self, edge: Edge, view: View) -> Edge:
        joined = edge.view.then(view)
        if joined is None:
            raise InternalError("[prepare] two paddings meet on one edge.")
        return Edge(edge.node, joined)


def prepare(graph: Graph) -> Graph:
    """The prepared form of a graph; its outputs are nodes seen whole, Inputs if nothing changes."""
    out = _Builder()
    placed: list[Edge] = []
    for node in graph.nodes:
        inputs = tuple(out.view(placed[e.node], e.view) for e in node.inputs)
        placed.append(_prepared(out, replace(node, inputs=inputs)))
    wanted = [replace(o, edge=out.view(placed[o.edge.node], o.edge.view)) for o in graph.outputs]
    return _without_dead(out.nodes, _own_nodes(out, wanted), graph)


def _without_dead(nodes: list[Node], outputs: list[Output], graph: Graph) -> Graph:
    live = {o.edge.node for o in outputs}
    for n in reversed(range(len(nodes))):
        if n in live:
            live |= {e.node for e in nodes[n].inputs}
    out, moved = _Builder(), dict[int, Edge]()
    for n, node in enumerate(nodes):
        if n in live or node.op == "Input":
            inputs = tuple(Edge(moved[e.node].node, e.view) for e in node.inputs)
            moved[n] = out.add(replace(node, inputs=inputs))
    placed = tuple(replace(o, edge=moved[o.edge.node]) for o in outputs)
    return Graph(tuple(out.nodes), placed, graph.dims)


def _alone(out: _Builder, node: Node) -> Edge:
    """A node that is shared with no equal one."""
    return out.add(replace(node, name=str(len(out.nodes))))


def _copy(out: _Builder, edge: Edge) -> Edge:
    return _alone(out, Node("Copy", (edge,), edge.view.shape, out.nodes[edge.node].dtype))


def _own_nodes(out: _Builder, outputs: list[Output]) -> list[Output]:
    """Every output gets a node that no other has; those that overwrite an input choose first."""
    taken: set[int] = set()
    found = list(outputs)
    for position in sorted(range(len(outputs)), key=lambda p: not outputs[p].updates):
        o = outputs[position]
        edge, node = o.edge, out.nodes[o.edge.node]
        unchanged = node.op == "Input" and node.name == o.updates
        own = node.op not in ("Input", "Constant", "Copy") and edge.node not in taken
        if not (edge.view.is_identity and (own or unchanged)):
            edge = _copy(out, edge)
        taken.add(edge.node)
        found[position] = replace(o, edge=edge)
    return found


def _prepared(out: _Builder, node: Node) -> Edge:
    made = None
    if node.op == "Gather":
        made = _where(out, node)
    elif node.op == "MaxReduce":
        made = _maximum(out, node)
    elif node.op == "Scatter":  # its dest is a stored tensor, seen whole
        dest = node.inputs[0]
        held = out.nodes[dest.node]
        computed = held.op in ("Constant", "Iota") and not is_leaf(held)
        if computed or not dest.view.is_identity:
            dest = _copy(out, dest)
        made = _alone(out, replace(node, inputs=(dest, *node.inputs[1:])))
    return out.add(node) if made is None else made


def _where(out: _Builder, node: Node) -> Edge | None:
    """Gather of a 2-stack at a truth value, as Where(condition, slice 1, slice 0)."""
    src, index = node.inputs
    cast = out.nodes[index.node]
    if node.shape[node.axis].value != 1 or cast.op != "Cast" or index.view.valid:
        return None
    parts = _stack_parts(out, src, node.axis)
    if len(parts) != 2 or out.nodes[cast.inputs[0].node].dtype != boolean:
        return None
    condition = _slice(out, out.view(cast.inputs[0], index.view), node.axis, 0)
    inputs = (condition, parts[1], parts[0])
    made = out.add(Node("Where", inputs, condition.view.shape, node.dtype))
    kept = axes_of(node.shape)[: node.axis] + axes_of(node.shape)[node.axis + 1 :]
    return Edge(made.node, View(node.shape, made.view.shape, tuple(map(to_expr, kept))))


def _maximum(out: _Builder, node: Node) -> Edge | None:
    """The maximum of a short stack, as Maximum(slice, slice)."""
    left: Edge | None = None
    for part in _stack_parts(out, node.inputs[0], node.axis):
        both = Node("Maximum", (left or part, part), node.shape, node.dtype)
        left = part if left is None else out.add(both)
    return left


def _slice(out: _Builder, edge: Edge, axis: int, at: int) -> Edge:
    """An edge at one value of an axis, which disappears."""
    shape = edge.view.shape
    rest: Shape = shape[:axis] + shape[axis + 1 :]
    axes = tuple(map(to_expr, axes_of(rest)))
    return out.view(edge, View(rest, shape, (*axes[:axis], const(at), *axes[axis:])))


def _stack_parts(out: _Builder, edge: Edge, axis: int) -> list[Edge]:
    """The slices along a short axis, if each is one input of a sum of padded parts."""
    extent = edge.view.shape[axis].value or 0
    if not 2 <= extent <= MAX_UNROLL or edge.view.valid:
        return []
    slices = (_shown(out, _slice(out, edge, axis, at)) for at in range(extent))
    parts = [part for part in slices if part is not None]
    return parts if len(parts) == extent else []


def _shown(out: _Builder, edge: Edge) -> Edge | None:
    """The one summand that a slice of a sum of padded parts shows."""
    found: Edge | None = None
    while out.nodes[edge.node].op == "Add" and not edge.view.valid:
        shown: list[Edge] = []
        for part in out.nodes[edge.node].inputs:
            view = part.view.then(edge.view)
            if view is None:
                return found
            if not any(is_nonnegative(-1 - e) for e in view.valid):
                shown.append(Edge(part.node, view))
            elif repr(view.fill) not in ("-0.0", "0", "False"):
                return found
        if len(shown) != 1:
            return found
        edge = found = shown[0]
    return found
