"""Cuts: which nodes are always stored, which may be, and which are always computed in place; and
the regions between stored nodes, each unique one found once.

In: prepared nodes. Out: `Cuts`, `Part`s. A stored node ends a kernel. The rules keep work from
being multiplied and terms small; what could become one pass over an axis stays open (`soft`) and is
decided by cost. Looks at structure only, never at what a node is for."""

from dataclasses import dataclass, field, replace

from luminal.ir import PRIMITIVES, Edge, Graph, Node, Shape, View, depth_first, prod
from luminal.rewrite.prepare import MAX_UNROLL, is_leaf

LARGEST_DEPTH = 80
"""The longest chain of nodes computed in place."""
LARGEST_MULTIPLE = 4
"""How often one node may be read at different places for one element."""
CHEAP = 8
"""Flops an element that a second reader may spend again instead of loading it."""
NEARLY_FREE = 2
"""Flops an element that may be spent for every element of a broadcast."""
SHORT = 32
"""Steps of a contraction that may be computed in place for another one."""
MANY = 3
"""Readers for which elementwise work is done once, so that it does not tie them together."""
_ANYWHERE = (("Gather", 0), ("Gather", 1), ("Scatter", 0), ("Scatter", 1))


@dataclass(slots=True)
class Cuts:
    """Sets of node numbers. `stored` and `soft` become buffers; `shared` are cheap nodes that
    every reader computes for itself."""

    stored: set[int] = field(default_factory=set)
    soft: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Facts:
    """What is known of the nodes that are computed in place for a node: their set as bits, their
    longest chain, their work for an element, how often one of them is computed for it."""

    cone: int = 0
    depth: int = 0
    flops: int = 0
    multiple: int = 1
    reduces: bool = False
    loops: frozenset[Shape] = frozenset()
    """The extents that contractions among them sum over."""
    over: bool = False
    """A soft node is read that a contraction is computed for."""


def _reduces(node: Node) -> bool:
    loops = node.op in ("SumReduce", "MaxReduce")
    return loops and node.inputs[0].view.shape[node.axis].value not in (0, 1)


def _elementwise(node: Node) -> bool:
    return node.op not in ("SumReduce", "MaxReduce", "Gather", "Scatter")


def _expands(view: View, padded: int = MAX_UNROLL) -> bool:
    """True if source elements are read more than once (padding, up to `padded` times, aside)."""
    used = {v.name for e in view.index for v in e.variables()}
    if any(e.value != 1 and f"i{d}" not in used for d, e in enumerate(view.shape)):
        return True
    many, few = prod(view.shape).value, prod(view.source).value
    padded = padded if view.valid else 1
    return many is not None and few is not None and many > few * padded


class _Chooser:
    """Chooses cuts: first, from the outputs up, who reads a node; then, from the inputs down,
    what is computed in place for it."""

    def __init__(self, graph: Graph, trivial: frozenset[int]) -> None:
        self.nodes = graph.nodes
        self.cuts = Cuts({o.edge.node for o in graph.outputs}, set(), set(trivial))
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for n, node in enumerate(self.nodes):
            for slot, edge in enumerate(node.inputs):
                self.users[edge.node].append((n, slot))
            if is_leaf(node):
                self.cuts.stored.add(n)
            elif node.op == "Scatter":
                self.cuts.stored |= {n, node.inputs[0].node}
        count = len(self.nodes)
        self.plain: dict[int, bool] = {}
        self.place = list(range(count))  # what a node with one reader is computed in place for
        self.readers, self.facts = [0] * count, [_Facts() for _ in self.nodes]
        self.candidate, self.repeated, self.powers = ([False] * count for _ in range(3))
        for n in reversed(range(count)):
            self._group(n)
        for n, node in enumerate(self.nodes):
            if node.inputs and n not in trivial:
                self._visit(n, node)

    def _plain(self, view: View) -> bool:
        if id(view) not in self.plain:
            self.plain[id(view)] = view.is_identity
        return self.plain[id(view)]

    def _repeats(self, view: View) -> bool:
        return not self._plain(view) and _expands(view)

    def _group(self, n: int) -> None:
        """The places that read a node, whether one reads it repeatedly, and whether powers of it
        (elementwise) are summed as they are, which may need no pass over it of their own."""
        keys: set[object] = set()
        for user, slot in self.users[n]:
            node, view = self.nodes[user], self.nodes[user].inputs[slot].view
            self.repeated[n] |= self._repeats(view) or (node.op, slot) in _ANYWHERE
            if _elementwise(node):
                self.powers[n] |= self.powers[user]
            elif node.op == "SumReduce":
                self.powers[n] |= self._below(n, "Cast").op == "Exp2"
            if user in self.cuts.shared:
                keys.add(user)
                self.repeated[n] |= self.repeated[user]
            elif _elementwise(node):
                keys.add(self.place[user] if self._plain(view) else (self.place[user], view))
            else:
                keys.add((user, slot))
        self.readers[n] = len(keys)
        if n in self.cuts.stored:
            return
        if self.repeated[n] or len(keys) > 1 or keys & self.cuts.shared:
            widens = self._widens(n)  # what it is made from is stored instead
            self.candidate[n] = not widens
            if widens:
                self.cuts.shared.add(n)
        elif self.users[n]:
            user = self.users[n][0][0]
            self.place[n] = self.place[user] if _elementwise(self.nodes[user]) else user

    def _below(self, n: int, op: str) -> Node:
        """The first node from n on down that is no `op`."""
        while self.nodes[n].op == op:
            n = self.nodes[n].inputs[0].node
        return self.nodes[n]

    def _widens(self, n: int) -> bool:
        """A cast to more bits, which costs less to repeat than to store."""
        node = self.nodes[n]
        return node.op == "Cast" and node.dtype.bits > self.nodes[node.inputs[0].node].dtype.bits

    def _visit(self, n: int, node: Node) -> None:
        self._guard(node)
        facts = self._merge(n, node)
        while facts.multiple > LARGEST_MULTIPLE or facts.depth > LARGEST_DEPTH:
            open_inputs = [e.node for e in node.inputs if self.facts[e.node].depth]
            if not open_inputs:
                break
            self._store(max(open_inputs, key=self._weight))
            facts = self._merge(n, node)
        if len(facts.loops) > 1:  # contractions over different axes may end different kernels
            inputs = {e.node for e in node.inputs}
            self.cuts.soft |= {m for m in inputs - self.cuts.stored if self.facts[m].loops}
        if n not in self.cuts.stored:
            self.facts[n] = facts
            if self.candidate[n]:
                self._settle(n, facts)

    def _weight(self, n: int) -> tuple[int, int, int]:
        return self.facts[n].multiple, self.facts[n].depth, n

    def _guard(self, node: Node) -> None:
        """Stores what must not be computed inside this node: costly indices, contractions that
        another one reads, or that are scattered (rows stored in order cannot share operands)."""
        if node.op in ("Gather", "Scatter"):
            facts = self.facts[node.inputs[1].node]
            if facts.reduces or facts.flops > CHEAP:
                self._store(node.inputs[1].node)
        scatters = node.op == "Scatter"
        for edge in (node.inputs[2],) if scatters else self._operands(node):
            m = edge.node
            if self.facts[m].loops and (scatters or not self.facts[m].over):
                sizes = [prod(extents).hi for extents in self.facts[m].loops]
                once = not scatters and max(sizes) <= SHORT and not _expands(edge.view, padded=1)
                (self._soften if once else self._store)(m)

    def _operands(self, node: Node) -> tuple[Edge, ...]:
        """What a reduction combines: the factors of a product, or its one argument."""
        if not _reduces(node):
            return ()
        body = node.inputs[0].node
        inner, inside = self.nodes[body], not self.candidate[body]
        if inner.op == node.op and inside:
            return ()
        if inner.op == "Mul" and inside and body not in self.cuts.stored:
            return inner.inputs
        return node.inputs

    def _settle(self, n: int, facts: _Facts) -> None:
        """Stored, soft or shared, for a node that several places read."""
        costly = facts.flops > (NEARLY_FREE if self.repeated[n] else CHEAP)
        open_ = facts.over or facts.reduces
        if not self.powers[n] if facts.loops else costly and not open_ and self.readers[n] >= MANY:
            self._store(n)
        elif facts.loops or facts.reduces or costly:
            self._soften(n, facts)
        else:
            self.cuts.shared.add(n)

    def _soften(self, n: int, facts: _Facts | None = None) -> None:
        """Leaves it to the cost whether node n is stored."""
        facts = facts or self.facts[n]
        self.cuts.soft.add(n)
        over = facts.over or bool(facts.loops)
        self.facts[n] = _Facts(0, facts.depth, facts.flops, 1, facts.reduces, over=over)

    def _store(self, n: int) -> None:
        """Stores node n, or the value with fewer bits that it is cast from."""
        self.facts[n] = _Facts()
        while self._widens(n) and not is_leaf(self.nodes[self.nodes[n].inputs[0].node]):
            self.cuts.soft.discard(n)
            self.cuts.shared.add(n)
            n = self.nodes[n].inputs[0].node
        self.cuts.stored.add(n)
        self.cuts.soft.discard(n)
        self.cuts.shared.discard(n)
        self.facts[n] = _Facts()

    def _merge(self, n: int, node: Node) -> _Facts:
        """The facts of a node from those of its inputs."""
        cost = PRIMITIVES[node.op].cost if node.op in PRIMITIVES else 0
        free = node.dtype.kind == "b" or node.op == "Cast"
        out = _Facts(1 << n, 0, 0 if free else cost, 1, _reduces(node))
        for edge in node.inputs:
            f = self.facts[edge.node]
            if out.cone & f.cone and not self._plain(edge.view):
                out.multiple += f.multiple
            out.multiple = max(out.multiple, f.multiple)
            out.cone |= f.cone
            out.depth = max(out.depth, f.depth + 1)
            out.flops += f.flops
            out.reduces |= f.reduces
            out.loops |= f.loops
            out.over |= f.over
        out.loops = self._contracted(node) or out.loops
        return out

    def _contracted(self, node: Node) -> frozenset[Shape]:
        """The extents of a sum of products in which a factor is read repeatedly."""
        inner, extents = node, ()
        while inner.op == "SumReduce":
            extents += (inner.inputs[0].view.shape[inner.axis],)
            inner = self.nodes[inner.inputs[0].node]
        while inner.op == "Cast":
            inner = self.nodes[inner.inputs[0].node]
        tensors = (e.view for e in inner.inputs if e.view.source)
        sums = node.op == "SumReduce" and _reduces(node) and inner.op == "Mul"
        return frozenset([extents] if sums and any(map(self._repeats, tensors)) else [])


def choose_cuts(graph: Graph, trivial: frozenset[int] = frozenset()) -> Cuts:
    """The cuts of a prepared graph; `trivial` ones are always computed in place."""
    return _Chooser(graph, trivial).cuts


# ---- regions: parts of the graph between stored nodes


@dataclass(frozen=True, slots=True)
class Part:
    """A region by itself, numbered canonically, so that equal layers are equal: nodes in order
    (buffers it reads are Inputs), those that have a buffer here, which of those only may."""

    nodes: tuple[Node, ...]
    cuts: tuple[int, ...]
    soft: frozenset[int]


def split(graph: Graph, cuts: Cuts) -> tuple[list[Part], list[tuple[int, tuple[int, ...]]]]:
    """The distinct regions, and where they occur, in the order of their last stored nodes: which
    region, and what its nodes are in the graph. Empty tensors need none."""
    parts: dict[Part, int] = {}
    found = [_extract(graph, cuts, roots) for roots in _components(graph, cuts)]
    uses = [(parts.setdefault(part, len(parts)), numbers) for part, numbers in found]
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
