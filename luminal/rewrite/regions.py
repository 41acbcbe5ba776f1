"""Regions: parts of the graph between stored nodes, each unique one found once.

In: prepared nodes and their cuts. Out: `Part`s, self-contained copies of a region with canonical
numbering, and for every use the graph's numbers. Equal layers give equal parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.ir.graph import Edge, Node
from luminal.rewrite.cuts import Cuts, is_leaf
from luminal.rewrite.prepare import Prepared

__all__ = ["Part", "Use", "split"]


@dataclass(frozen=True, slots=True)
class Part:
    """A region by itself: nodes in order (buffers it reads are Inputs), those that are stored
    here, and those that may be."""

    nodes: tuple[Node, ...]
    stored: tuple[int, ...]
    soft: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """One occurrence of part number `part`; `numbers[i]` is what its node i is in the graph."""

    part: int
    numbers: tuple[int, ...]


def split(prepared: Prepared, cuts: Cuts) -> tuple[list[Part], list[Use]]:
    """All regions, in the order of their last stored node; empty tensors need none."""
    parts: dict[Part, int] = {}
    uses: list[Use] = []
    for roots in _components(prepared, cuts):
        part, numbers = _extract(prepared, cuts, roots)
        uses.append(Use(parts.setdefault(part, len(parts)), numbers))
    return list(parts), uses


def _components(prepared: Prepared, cuts: Cuts) -> list[list[int]]:
    """Stored nodes grouped by what they compute in common: `below` are the soft nodes that a node
    reads, directly or through what is computed in place."""
    above = list(range(len(prepared.nodes)))

    def find(n: int) -> int:
        while above[n] != n:
            above[n] = above[above[n]]
            n = above[n]
        return n

    below: list[frozenset[int]] = []
    for n, node in enumerate(prepared.nodes):
        inner = [e.node for e in node.inputs if e.node not in cuts.stored]
        reached = (frozenset((m,)) if m in cuts.soft else below[m] for m in inner)
        below.append(frozenset().union(*reached))
        if n not in cuts.shared:
            for m in inner:
                for other in below[m] if m in cuts.shared else (m,):
                    if prepared.nodes[other].inputs:
                        above[find(n)] = find(other)
    groups: dict[int, list[int]] = {}
    for n in sorted(cuts.stored):
        node = prepared.nodes[n]
        if not is_leaf(node) and all(e.value != 0 for e in node.shape):
            groups.setdefault(find(n), []).append(n)
    return list(groups.values())


def _extract(prepared: Prepared, cuts: Cuts, roots: list[int]) -> tuple[Part, tuple[int, ...]]:
    own = set(roots)
    numbers: list[int] = []
    local: dict[int, int] = {}
    nodes: list[Node] = []

    def visit(n: int) -> None:
        stack: list[tuple[int, bool]] = [(n, False)]
        while stack:
            m, ready = stack.pop()
            if m in local:
                continue
            node = prepared.nodes[m]
            outside = is_leaf(node) or (m in cuts.stored and m not in own)
            if not outside and not ready:
                stack.append((m, True))
                stack += [(e.node, False) for e in reversed(node.inputs)]
                continue
            local[m] = len(nodes)
            numbers.append(m)
            nodes.append(_local(node, local, outside, m in own))

    for root in roots:
        visit(root)
    inside = [m for m in numbers if m in own]
    soft = [m for m in numbers if m in cuts.soft]
    part = Part(tuple(nodes), tuple(local[m] for m in inside), tuple(local[m] for m in soft))
    return part, tuple(numbers)


def _local(node: Node, local: dict[int, int], outside: bool, own: bool) -> Node:
    if outside:
        return Node("Input", (), node.shape, node.dtype, name=str(len(local)))
    inputs = tuple(Edge(local[e.node], e.view) for e in node.inputs)
    name = str(len(local)) if own else ""
    return replace(node, inputs=inputs, name=name)
