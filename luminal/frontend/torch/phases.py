"""Phases: which nodes are compiled together, and which run in eager between them.

In: an ATen graph and a predicate for what can be compiled. Out: phases in order, each compiled or
eager, free of cycles by construction. Views, sizes and epilogue copies belong to no phase: views
are translated where they are used, sizes are Python arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from luminal.frontend.torch.nodes import (
    has_effect,
    is_epilogue_copy,
    is_scalar_math,
    value_of,
    view_base,
)
from luminal.frontend.torch.symbols import Symbols

__all__ = ["Phase", "Split", "split"]


@dataclass(slots=True)
class Phase:
    """Nodes that run together, in graph order; `compiled` or eager."""

    compiled: bool
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Split:
    """Phases in order and the copies into inputs that come after all of them."""

    phases: list[Phase]
    copies: list[Node]
    refused: set[Node]

    def phase_of(self) -> dict[Node, int]:
        """The position of each node's phase."""
        return {n: i for i, p in enumerate(self.phases) for n in p.nodes}


def split(
    graph: Graph, symbols: Symbols, supports: Callable[[Node], bool], refused: set[Node]
) -> Split:
    """The earliest phase for every node: even ones are compiled, odd ones eager."""
    level: dict[Node, int] = {}
    copies: list[Node] = []
    last_effect = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            level[node] = -1
        if node.op != "call_function":
            continue
        if is_epilogue_copy(node):
            copies.append(node)
            continue
        if is_scalar_math(node) and symbols.known(value_of(node)):
            continue
        base = max((level[a] for a in node.all_input_nodes if a in level), default=-1)
        if view_base(node, refused) is not None:
            level[node] = base
            continue
        if node.target is operator.getitem:
            level[node] = base
            continue
        wanted = 0 if node not in refused and supports(node) else 1
        place = max(base, 0)
        place += (place - wanted) % 2
        if has_effect(node):
            place = max(place, last_effect)
            place += (place - wanted) % 2
            last_effect = place
        level[node] = place
    return Split(_collect(graph, level, refused), copies, refused)


def _collect(graph: Graph, level: dict[Node, int], refused: set[Node]) -> list[Phase]:
    found: dict[int, Phase] = {}
    for node in graph.nodes:
        if node.op != "call_function" or node not in level:
            continue
        if view_base(node, refused) is not None:
            continue
        number = level[node]
        found.setdefault(number, Phase(number % 2 == 0)).nodes.append(node)
    return [found[n] for n in sorted(found)]
