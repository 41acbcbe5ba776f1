"""Checks that a Graph, a Space's plan or a Plan is well formed; run between stages.

In: one of the hand-over types. Out: nothing, or InternalError that names the first thing wrong:
what fails here is a bug of ours, never of the user.
"""

from __future__ import annotations

from collections.abc import Mapping

from luminal.errors import InternalError
from luminal.ir.dtype import DType, boolean
from luminal.ir.expr import Expr, Var, is_nonnegative
from luminal.ir.graph import Edge, Graph, Node
from luminal.ir.ops import LEAVES, PRIMITIVES
from luminal.ir.plan import Kernel, Plan
from luminal.ir.term import Term
from luminal.ir.view import axes_of

__all__ = ["verify_graph", "verify_kernel", "verify_plan"]


def _fail(stage: str, text: str) -> None:
    raise InternalError(f"[verify {stage}] {text} This is a bug in luminal.")


def _without(shape: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    return shape[:axis] + shape[axis + 1 :]


def verify_graph(graph: Graph) -> None:
    """Order, arity, views, shapes and dtypes of every node and output."""
    for number, node in enumerate(graph.nodes):
        for edge in node.inputs:
            if not 0 <= edge.node < number:
                _fail("graph", f"n{number} reads n{edge.node}, which is not before it.")
            _verify_view(edge, graph, f"n{number}")
        _verify_node(number, node, graph)
    names = [n.name for n in graph.nodes if n.op == "Input"]
    if len(set(names)) != len(names):
        _fail("graph", f"two inputs share a name: {names}.")
    for output in graph.outputs:
        if not 0 <= output.edge.node < len(graph.nodes):
            _fail("graph", f"output {output.name} reads n{output.edge.node}, which does not exist.")
        _verify_view(output.edge, graph, output.name)
        if output.updates and output.updates not in names:
            _fail("graph", f"output {output.name} updates {output.updates}, which is no input.")


def _verify_view(edge: Edge, graph: Graph, user: str) -> None:
    view, source = edge.view, graph.nodes[edge.node].shape
    if view.source != source:
        _fail("graph", f"{user}: a view of {view.source} is laid on n{edge.node} of {source}.")
    if len(view.index) != len(source):
        _fail("graph", f"{user}: a view has {len(view.index)} indices for {len(source)} dims.")
    known = set(axes_of(view.shape)) | {v for e in (*view.shape, *source) for v in e.variables()}
    for e in (*view.index, *view.valid):
        stray = [v for v in e.variables() if v not in known and v.name.startswith("i")]
        if stray:
            _fail("graph", f"{user}: index {e} uses {stray}, which are no axes of {view.shape}.")


def _verify_node(number: int, node: Node, graph: Graph) -> None:
    where = f"n{number} = {node.op}"
    if node.op in LEAVES:
        if node.inputs:
            _fail("graph", f"{where} is a leaf with inputs.")
        return
    fact = PRIMITIVES.get(node.op)
    if fact is None or len(node.inputs) != fact.arity:
        _fail("graph", f"{where}: not a primitive with {len(node.inputs)} inputs.")
        return
    shapes = [e.view.shape for e in node.inputs]
    dtypes = [graph.nodes[e.node].dtype for e in node.inputs]
    if not fact.ints and not dtypes[0].is_float:
        _fail("graph", f"{where} takes floats, not {dtypes[0]}.")
    good = True
    match fact.kind:
        case "unary" | "binary":
            good = all(s == node.shape for s in shapes) and len(set(dtypes)) == 1
            if node.op == "LessThan":
                good &= node.dtype == boolean
            elif node.op != "Cast":
                good &= node.dtype == dtypes[0]
        case "reduce":
            good = _without(shapes[0], node.axis) == node.shape and node.dtype == dtypes[0]
        case "index":
            pairs = (shapes[0], shapes[1])
            good = _without(pairs[0], node.axis) == _without(pairs[1], node.axis)
            good &= dtypes[1].is_int and node.dtype == dtypes[0]
            good &= node.shape == (shapes[1] if node.op == "Gather" else shapes[0])
            if node.op == "Scatter":
                good &= shapes[2] == shapes[1] and dtypes[2] == dtypes[0]
    if not good:
        _fail("graph", f"{where}: shapes {shapes}, dtypes {dtypes} do not give {node.shape} "
              f"{node.dtype}.")  # fmt: skip


def verify_kernel(kernel: Kernel, plan: Plan | None = None) -> None:
    """Axes are distinct and bound once, loads and stores fit their buffers."""
    seen: dict[str, Var] = {}
    for axis in (*kernel.axes, *(a for t in kernel.subterms() for a in t.axes)):
        if seen.setdefault(axis.name, axis) != axis:
            _fail("plan", f"{kernel.name}: axis name {axis.name} is used for two axes.")
    free = set(kernel.axes)
    for term in kernel.subterms():
        if term.axes and free & set(term.axes):
            _fail("plan", f"{kernel.name}: {term.op} binds the free axis {term.axes}.")
    for store in kernel.stores:
        stray = [v for v in store.value.free if v in seen.values() and v not in free]
        if stray:
            _fail("plan", f"{kernel.name}: the stored value depends on bound axes {stray}.")
    if plan is None:
        return
    ranks = {b.name: (len(b.shape), b.dtype) for b in plan.buffers}
    for term in kernel.subterms():
        if term.op == "load":
            _verify_access(kernel, term.buffer, len(term.indices), term, ranks)
    for store in kernel.stores:
        _verify_access(kernel, store.buffer, len(store.index), store.value, ranks)


def _verify_access(
    kernel: Kernel, buffer: str, rank: int, value: Term, ranks: Mapping[str, tuple[int, DType]]
) -> None:
    if buffer not in ranks:
        _fail("plan", f"{kernel.name} uses buffer {buffer}, which does not exist.")
    if ranks[buffer][0] != rank:
        _fail("plan", f"{kernel.name}: {buffer} has {ranks[buffer][0]} dims, indexed by {rank}.")


def verify_plan(plan: Plan) -> None:
    """Names, order of definition and use, aliases, and every kernel."""
    names = [b.name for b in plan.buffers]
    if len(set(names)) != len(names):
        _fail("plan", f"two buffers share a name: {sorted(names)}.")
    for name in (*plan.inputs, *plan.outputs):
        if name not in names:
            _fail("plan", f"{name} is an argument but no buffer.")
    written = {b.name for b in plan.buffers if b.kind in ("input", "constant") or b.alias}
    written |= {b.name for b in plan.buffers if any(e.value == 0 for e in b.shape)}
    for kernel in plan.kernels:
        verify_kernel(kernel, plan)
        for name in kernel.reads():
            if name not in written:
                _fail("plan", f"{kernel.name} reads {name} before anything wrote it.")
        written.update(kernel.writes())
    for name in plan.outputs:
        if name not in written:
            _fail("plan", f"output {name} is never written.")
    for buffer in plan.buffers:
        for extent in buffer.shape:
            if not is_nonnegative(extent) and extent.hi < 0:
                _fail("plan", f"{buffer.name} has the negative extent {extent}.")
