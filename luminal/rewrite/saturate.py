"""Saturation: applies the rules to an e-graph until nothing new follows.

In: an e-graph. Out: the same one, grown; notes if a budget stopped it. Rules are functions
(graph, class, node) -> classes equal to that class; which rules there are is `rules/`'s matter.
"""

from __future__ import annotations

from collections import Counter

from luminal.rewrite.egraph import EGraph
from luminal.rewrite.rules.reduce import RULES

__all__ = ["MAX_CLASSES", "MAX_ROUNDS", "saturate"]

MAX_CLASSES = 20_000
"""Beyond this many classes no rule is applied any more."""
MAX_ROUNDS = 12


def saturate(graph: EGraph, matches: Counter[str] | None = None) -> tuple[str, ...]:
    """Applies every rule to every node of its operation, round by round.

    `matches` counts by rule what was new.
    """
    limit = max(MAX_CLASSES, 4 * len(graph))
    for _ in range(MAX_ROUNDS):
        before = (len(graph), graph.unions)
        for c in graph.classes():
            for node in graph.nodes(c):
                for rule in RULES.get(node[0], ()):
                    for equal in rule(graph, c, node):
                        if graph.union(c, equal) and matches is not None:
                            matches[rule.__name__] += 1
            if len(graph) > limit:
                graph.rebuild()
                return (f"rules stopped at {len(graph)} classes",)
        graph.rebuild()
        if (len(graph), graph.unions) == before:
            return ()
    return (f"rules stopped after {MAX_ROUNDS} rounds",)
