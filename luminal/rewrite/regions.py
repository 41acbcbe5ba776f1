"""Regions: parts of the graph between stored nodes, each unique one found once.

In: a prepared graph and its cuts. Out: `Part`s, self-contained copies of a region with canonical
numbering, and for every use the graph's numbers. Equal layers give equal parts."""

from dataclasses import dataclass, replace

from luminal.ir.graph import Edge, Graph, Node, depth_first
from luminal.rewrite.cuts import Cuts
from luminal.rewrite.prepare import is_leaf


@dataclass(frozen=True, slots=True)
class Part:
    """A region by itself: nodes in order (buffers it reads are Inputs), those that have a buffer
    here, and which of those only may have one."""

    nodes: tuple[Node, ...]
    cuts: tuple[int, ...]
    soft: frozenset[int]


@dataclass(frozen=True, slots=True)
class Use:
    """One occurrence of part number `part`; `numbers[i]` is what its node i is in the graph."""

    part: int
    numbers: tuple[int, ...]


def split(graph: Graph, cuts: Cuts) -> tuple[list[Part], list[Use]]:
    """All regions, in the order of their last stored node; empty tensors need none."""
    parts: dict[Part, int] = {}
    uses: list[Use] = []
    for roots in _components(graph, cuts):
        part, numbers = _extract(graph, cuts, roots)
        uses.append(Use(parts.setdefault(part, len(parts)), numbers))
    return list(parts), uses


def _components(graph: Graph, cuts: Cuts) -> list[list[int]]:
    """Stored nodes grouped by what they compute in common: `below` are the soft nodes that a node
    reads, directly or through what is computed in place."""
    above = list(range(len(graph.nodes)))

    def find(n: int) -> int:
        while above[n] != n:
            above[n] = above[above[n]]
            n = above[n]
        return n

    below: list[frozenset[int]] = []
    groups: dict[int, list[int]] = {}
    for n, node in enumerate(graph.nodes):
        inner = [e.node for e in node.inputs if e.node not in cuts.stored]
        reached = (frozenset((m,)) if m in cuts.soft else below[m] for m in inner)
        below.append(frozenset().union(*reached))
        if n not in cuts.shared:
            for m in inner:
                for other in below[m] if m in cuts.shared else (m,):
                    if graph.nodes[other].inputs:
                        above[find(n)] = find(other)
    for n in sorted(cuts.stored):
        if not is_leaf(graph.nodes[n]) and all(e.value != 0 for e in graph.nodes[n].shape):
            groups.setdefault(find(n), []).append(n)
    return list(groups.values())


def _extract(graph: Graph, cuts: Cuts, roots: list[int]) -> tuple[Part, tuple[int, ...]]:
    def read(n: int) -> bool:
        return is_leaf(graph.nodes[n]) or (n in cuts.stored and n not in roots)

    def below(n: int) -> list[int]:
        return [] if read(n) else [e.node for e in graph.nodes[n].inputs]

    local: dict[int, int] = {}
    nodes: list[Node] = []
    for n in depth_first(roots, below):
        node, name = graph.nodes[n], str(len(nodes))
        if read(n):
            node = Node("Input", (), node.shape, node.dtype, name=name)
        else:
            inputs = tuple(Edge(local[e.node], e.view) for e in node.inputs)
            node = replace(node, inputs=inputs, name=name if n in roots else "")
        local[n] = len(nodes)
        nodes.append(node)
    soft = frozenset(local[n] for n in local if n in cuts.soft)
    stored = frozenset(local[n] for n in roots)
    return Part(tuple(nodes), tuple(sorted(soft | stored)), soft - stored), tuple(local)
