"""Checks that a Graph or a Plan is well formed; run between stages.

In: one of the hand-over types. Out: nothing, or InternalError that names the first rule broken:
what fails here is a bug of ours, never of the user."""

from collections.abc import Iterator

from luminal.errors import InternalError
from luminal.ir.expr import Expr
from luminal.ir.graph import Edge, Graph, Node
from luminal.ir.ops import LEAVES, PRIMITIVES, result_dtype
from luminal.ir.plan import Kernel, Plan
from luminal.ir.view import axes_of

Rules = Iterator[tuple[bool, object, str]]
"""Whether a rule holds, for what, and what it says."""


def _require(stage: str, rules: Rules) -> None:
    for holds, where, rule in rules:
        if not holds:
            raise InternalError(f"[verify {stage}] {where}: {rule}. This is a bug in luminal.")


def verify_graph(graph: Graph) -> None:
    """Order, arity, views, shapes and dtypes of every node and output."""
    _require("graph", _of_graph(graph))


def verify_plan(plan: Plan) -> None:
    """Names, order of definition and use, aliases, and every kernel."""
    _require("plan", _of_plan(plan))


def _of_graph(graph: Graph) -> Rules:
    inputs = [n.name for n in graph.nodes if n.op == "Input"]
    yield len(set(inputs)) == len(inputs), inputs, "inputs have names of their own"
    for number, node in enumerate(graph.nodes):
        where = f"n{number} = {node.op}"
        for edge in node.inputs:
            yield 0 <= edge.node < number, where, "a node reads nodes before it"
            yield from _of_view(edge, graph, where)
        yield from _of_node(node, graph, where)
    for output in graph.outputs:
        where = f"output {output.name}"
        yield 0 <= output.edge.node < len(graph.nodes), where, "an output reads a node"
        yield from _of_view(output.edge, graph, where)
        yield not output.updates or output.updates in inputs, where, "an output updates an input"


def _of_view(edge: Edge, graph: Graph, where: str) -> Rules:
    view, source = edge.view, graph.nodes[edge.node].shape
    yield view.source == source, where, f"a view is laid on the shape of n{edge.node}"
    yield len(view.index) == len(source), where, "a view has an index for every dimension"
    known = set(axes_of(view.shape)).union(*(e.variables() for e in (*view.shape, *source)))
    used = {v for e in (*view.index, *view.valid) for v in e.variables() if v.name.startswith("i")}
    yield used <= known, where, "the index of a view is made of its axes"


def _of_node(node: Node, graph: Graph, where: str) -> Rules:
    if node.op in LEAVES:
        yield not node.inputs, where, "a leaf has no inputs"
        return
    fact = PRIMITIVES.get(node.op)
    arity = fact.arity if fact is not None else None
    yield len(node.inputs) == arity, where, "a node is a primitive with its number of inputs"
    assert fact is not None
    shapes = [e.view.shape for e in node.inputs]
    dtypes = tuple(graph.nodes[e.node].dtype for e in node.inputs)
    yield fact.ints or dtypes[0].is_float, where, "it takes floats"
    if node.op not in ("Cast", "Iota"):
        yield node.dtype == result_dtype(node.op, dtypes), where, "its dtype follows from inputs"
    match fact.kind:
        case "unary" | "binary":
            yield all(s == node.shape for s in shapes), where, "its inputs have its shape"
            yield len(set(dtypes)) == 1, where, "its inputs have one dtype"
        case "reduce":
            yield _without(shapes[0], node.axis) == node.shape, where, "it removes its axis"
        case "index":
            rest = [_without(s, node.axis) for s in shapes[:2]]
            yield rest[0] == rest[1], where, "source and index differ along the axis alone"
            yield dtypes[1].is_int, where, "its index is an integer"
            gathers = node.op == "Gather"
            yield node.shape == shapes[1 if gathers else 0], where, "its shape is that of an input"
            fits = gathers or (shapes[2] == shapes[1] and dtypes[2] == dtypes[0])
            yield fits, where, "what is scattered has the index's shape and the result's dtype"


def _without(shape: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _of_plan(plan: Plan) -> Rules:
    ranks = {b.name: len(b.shape) for b in plan.buffers}
    yield len(ranks) == len(plan.buffers), sorted(ranks), "buffers have names of their own"
    for name in (*plan.inputs, *plan.outputs):
        yield name in ranks, name, "an argument is a buffer"
    written = {b.name for b in plan.buffers if b.kind in ("input", "constant") or b.alias}
    written |= {b.name for b in plan.buffers if any(e.value == 0 for e in b.shape)}
    for kernel in plan.kernels:
        yield from _of_kernel(kernel, ranks)
        yield written.issuperset(kernel.reads()), kernel.name, "what is read was written before"
        written.update(kernel.writes())
    yield written.issuperset(plan.outputs), plan.outputs, "outputs are written"
    for b in plan.buffers:
        yield all(e.hi >= 0 for e in b.shape), b.name, "extents are not negative"


def _of_kernel(kernel: Kernel, ranks: dict[str, int]) -> Rules:
    where, axes, free = kernel.name, kernel.all_axes(), set(kernel.axes)
    yield len({a.name for a in axes}) == len(axes), where, f"axes of one name are one: {axes}"
    for t in kernel.subterms():
        yield free.isdisjoint(t.axes), where, "no reduction binds a free axis"
    for store in kernel.stores:
        bound = store.value.free.intersection(axes) - free
        yield not bound, where, f"the stored value is free of the bound axes {bound}"
    used = [(t.buffer, t.indices) for t in kernel.subterms() if t.op == "load"]
    for name, index in (*used, *((s.buffer, s.index) for s in kernel.stores)):
        yield ranks.get(name) == len(index), where, f"{name} exists and has {len(index)} dimensions"
