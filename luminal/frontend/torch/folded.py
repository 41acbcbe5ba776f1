"""Layers that repeat are traced once: AOTAutograd sees one call of an operator for each of them.

In: a graph from Dynamo that needs no gradients. Out: one with a call in place of each segment that
repeats, and the traced bodies; `expand` puts these in place of the calls in AOTAutograd's result.
Segments that write into operands or return views of them stay as they are.
"""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from luminal.frontend.torch.nodes import has_effect, value_of
from luminal.frontend.torch.repeats import Segment, repeats

__all__ = ["Folded", "expand", "fold"]

log = logging.getLogger("luminal.torch")
_LIBRARY = torch.library.Library("luminal", "FRAGMENT")
_LIBRARY.define("repeated(Tensor[] operands, int body, str results) -> Tensor[]")

Tracer = Callable[[GraphModule, Sequence[object]], GraphModule | None]
"""Traces a graph by itself; None if its results alias, or if it writes into its inputs."""


@torch.library.register_fake("luminal::repeated", lib=_LIBRARY)
def _results(operands: list[Tensor], body: int, results: str) -> list[Tensor]:
    return [
        torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype), device=operands[0].device)
        for sizes, strides, dtype in json.loads(results)
    ]


@dataclass(slots=True)
class Folded:
    """A graph with calls in place of segments, and what they call, by number."""

    module: GraphModule
    bodies: list[GraphModule]


def fold(gm: GraphModule, trace: Tracer) -> Folded | None:
    """The folded copy of a graph, or None if nothing repeats."""
    bodies: list[GraphModule] = []
    results: dict[str, tuple[int, str] | None] = {}
    starts: dict[Node, tuple[Segment, tuple[int, str]]] = {}
    for run in repeats(gm):
        first = run[0]
        key = first.text + str([first.nodes.index(r) for r in first.results])
        if key not in results:
            results[key] = _body(gm, first, trace, bodies)
        found = results[key]
        if found is not None:
            starts |= {s.nodes[0]: (s, found) for s in run}
    return Folded(_with_calls(gm, starts), bodies) if starts else None


def _body(
    gm: GraphModule, segment: Segment, trace: Tracer, bodies: list[GraphModule]
) -> tuple[int, str] | None:
    """(number, what it returns) of the traced body of a segment; None if it must not be folded."""
    graph, env = Graph(), {}
    for number, node in enumerate(segment.operands):
        env[node] = graph.placeholder(f"operand_{number}")
    for node in segment.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(tuple(env[r] for r in segment.results))
    fakes = [n.meta.get("example_value") for n in segment.operands]
    if not all(isinstance(f, Tensor) for f in fakes) or not segment.results:
        return None
    try:
        traced = trace(GraphModule(gm, graph), fakes)
    except Exception as error:  # what AOTAutograd cannot do alone it may do as part of the whole
        log.info("a repeated part of the graph is not traced once: %s", error)
        return None
    if traced is None or any(has_effect(n) for n in traced.graph.nodes):
        return None
    facts = []
    for node in _output(traced):
        value = value_of(node) if isinstance(node, Node) else None
        if not isinstance(value, Tensor) or value.storage_offset() or not _fills(value):
            return None
        facts.append((list(value.shape), list(value.stride()), str(value.dtype)[6:]))
    bodies.append(traced)
    return len(bodies) - 1, json.dumps(facts)


def _output(gm: GraphModule) -> Sequence[Any]:
    return next(iter(reversed(gm.graph.nodes))).args[0]


def _fills(value: Tensor) -> bool:
    """True if the tensor has all of its storage."""
    return value.untyped_storage().nbytes() == value.numel() * value.dtype.itemsize


def _with_calls(
    gm: GraphModule, starts: dict[Node, tuple[Segment, tuple[int, str]]]
) -> GraphModule:
    graph, env = Graph(), {}
    inside = {n for s, _ in starts.values() for n in s.nodes}
    for node in gm.graph.nodes:
        if node in starts:
            segment, (body, results) = starts[node]
            operands = [env[n] for n in segment.operands]
            call = graph.call_function(
                torch.ops.luminal.repeated.default, (operands, body, results)
            )
            for number, result in enumerate(segment.results):
                env[result] = graph.call_function(operator.getitem, (call, number))
        elif node not in inside:
            env[node] = graph.node_copy(node, env.__getitem__)
            if hasattr(node, "_dynamo_source"):
                env[node]._dynamo_source = node._dynamo_source
    made = GraphModule(gm, graph)
    made.meta = gm.meta
    if hasattr(gm, "_param_name_to_source"):
        made._param_name_to_source = gm._param_name_to_source
    return made


def expand(gm: GraphModule, bodies: Sequence[GraphModule]) -> None:
    """Puts the bodies in place of the calls, and likewise those of regions that the user marked
    with `torch.compiler.nested_compile_region`."""
    calls = (torch.ops.luminal.repeated.default, torch.ops.higher_order.invoke_subgraph)
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in calls]
    for node in found:
        if node.target is calls[0]:
            operands, body = node.args[0], bodies[node.args[1]]
        else:
            operands, body = node.args[2:], getattr(gm, node.args[0].target)
            expand(body, ())
        with gm.graph.inserting_before(node):
            results = _inlined(gm, body, operands)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
    if found:
        gm.graph.eliminate_dead_code(lambda n: n.op != "get_attr" or bool(n.users))
        gm.graph.lint()


def _inlined(gm: GraphModule, body: GraphModule, operands: Sequence[Node]) -> list[Node]:
    env: dict[Node, Node] = {}
    given = iter(operands)
    for node in body.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            name = f"{node.target}_{len(gm.graph.nodes)}"
            value = getattr(body, str(node.target))
            add = gm.register_buffer if isinstance(value, Tensor) else gm.add_module
            add(name, value)
            env[node] = gm.graph.get_attr(name)
            env[node].meta = dict(node.meta)
        elif node.op == "call_function":
            env[node] = gm.graph.node_copy(node, env.__getitem__)
    return [env[n] for n in _output(body)]
