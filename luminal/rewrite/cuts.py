"""Cuts: which nodes are always stored, which may be, and which are always computed in place.

In: prepared nodes. Out: `Cuts`. A stored node ends a kernel. The rules keep work from being
multiplied and terms small; what could become one pass over an axis stays open (`soft`) and is
decided by cost. Looks at structure only, never at what a node is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luminal.ir.expr import is_nonnegative, prod
from luminal.ir.graph import ConstantData, Node
from luminal.ir.ops import PRIMITIVES
from luminal.ir.view import Shape, View
from luminal.rewrite.prepare import MAX_UNROLL, Prepared

__all__ = ["Cuts", "choose_cuts", "is_leaf"]

LARGEST_CONE = 128
"""Nodes computed in place for one stored node, at most."""
LARGEST_DEPTH = 80
"""The longest chain of such nodes."""
LARGEST_MULTIPLE = 4
"""How often one node may be read at different places for one element."""
CHEAP = 8
"""Flops an element that a second reader may spend again instead of loading it."""
NEARLY_FREE = 2
"""Flops an element that may be spent for every element of a broadcast."""
_REACH, _MANY = 8, 3


@dataclass(slots=True)
class Cuts:
    """Sets of node numbers. `stored` and `soft` become buffers; `shared` are cheap nodes that
    every reader computes for itself."""

    stored: set[int] = field(default_factory=set)
    soft: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Facts:
    """What is known of a node's cone, the nodes computed in place for it."""

    cone: int = 0
    depth: int = 0
    flops: int = 0
    multiple: int = 1
    reduces: bool = False
    heavy: bool = False
    """A contraction is computed in place for it."""
    loops: frozenset[Shape] = frozenset()
    """The extents that those contractions sum over."""
    over: bool = False
    """It reads a soft node that a contraction is computed for."""
    reads: bool = False
    """It reads memory: it is not made of counters and constants alone."""


def is_leaf(node: Node) -> bool:
    """Nodes that are read, not computed."""
    return node.op == "Input" or isinstance(node.value, ConstantData)


def _free(node: Node) -> bool:
    return is_leaf(node) or node.op in ("Constant", "Iota")


def _reduces(node: Node, nodes: list[Node]) -> bool:
    if node.op not in ("SumReduce", "MaxReduce"):
        return False
    extent = node.inputs[0].view.shape[node.axis].value
    return extent is None or extent > 1


def _elementwise(node: Node) -> bool:
    return node.op not in ("SumReduce", "MaxReduce", "Gather", "Scatter")


def _expands(view: View) -> bool:
    """True if source elements are read more than once (padding aside)."""
    used = {v for e in view.index for v in e.variables()}
    for d, extent in enumerate(view.shape):
        if extent.value != 1 and not any(v.name == f"i{d}" for v in used):
            return True
    many, few = prod(view.shape), prod(view.source)
    if many == few:
        return False
    if many.value is not None and few.value is not None:
        return many.value > few.value * (MAX_UNROLL if view.valid else 1)
    return not view.valid and sum(e.value != 1 for e in view.shape) > sum(
        e.value != 1 for e in view.source
    )


class _Chooser:
    """Holds the tables while cuts are chosen; see `choose_cuts`."""

    def __init__(self, prepared: Prepared, trivial: frozenset[int]) -> None:
        self.nodes = prepared.nodes
        self.free = [_free(node) or n in trivial for n, node in enumerate(self.nodes)]
        self.cuts = Cuts()
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for n, node in enumerate(self.nodes):
            for slot, edge in enumerate(node.inputs):
                self.users[edge.node].append((n, slot))
        self.identical: dict[int, bool] = {}
        self.candidate = [False] * len(self.nodes)
        self.repeated = [False] * len(self.nodes)
        self.readers = [0] * len(self.nodes)
        self.facts = [_Facts() for _ in self.nodes]
        for wanted in prepared.outputs:
            self.cuts.stored.add(wanted.node)
        for node in self.nodes:
            if node.op == "Scatter":
                self.cuts.stored.add(node.inputs[0].node)
        self.cuts.stored |= {n for n, node in enumerate(self.nodes) if node.op == "Scatter"}

    def run(self) -> Cuts:
        self._group()
        for n, node in enumerate(self.nodes):
            if is_leaf(node):
                self.cuts.stored.add(n)
            elif not self.free[n]:
                self._visit(n, node)
            elif node.inputs:
                self.cuts.shared.add(n)
        return self.cuts

    def _group(self) -> None:
        """Marks nodes that several places read, or one place reads repeatedly."""
        root: list[int] = list(range(len(self.nodes)))
        for n in range(len(self.nodes) - 1, -1, -1):
            keys: set[object] = set()
            repeated = False
            for user, slot in self.users[n]:
                key, again = self._use(n, user, slot, root)
                keys.add(key)
                repeated |= again
            if n in self.cuts.stored:
                continue
            self.candidate[n] = repeated or len(keys) > 1 or keys & self.cuts.shared != set()
            self.repeated[n] = repeated
            self.readers[n] = len(keys)
            if self.candidate[n] and self._widens(n):  # what it is made from is stored instead
                self.candidate[n] = False
                self.cuts.shared.add(n)
                continue
            if not self.candidate[n] and self.users[n]:
                user = self.users[n][0][0]
                root[n] = root[user] if _elementwise(self.nodes[user]) else user

    def _plain(self, view: View) -> bool:
        """`view.is_identity`, remembered."""
        if id(view) not in self.identical:
            self.identical[id(view)] = view.is_identity
        return self.identical[id(view)]

    def _repeats(self, view: View) -> bool:
        return not self._plain(view) and _expands(view)

    def _widens(self, n: int) -> bool:
        """A cast to more bits, which costs less to repeat than to store."""
        node = self.nodes[n]
        if node.op != "Cast":
            return False
        return node.dtype.bits > self.nodes[node.inputs[0].node].dtype.bits

    def _use(self, n: int, user: int, slot: int, root: list[int]) -> tuple[object, bool]:
        node = self.nodes[user]
        view = node.inputs[slot].view
        if user in self.cuts.shared:
            return user, self.repeated[user] or self._repeats(view)
        if node.op == "Gather":
            return (user, slot), True
        if node.op == "Scatter":
            return (user, slot), slot != 2 or self._repeats(view)
        if not _elementwise(node):
            return (user, slot), self._repeats(view)
        key = root[user] if self._plain(view) else (root[user], view)
        return key, self._repeats(view)

    def _visit(self, n: int, node: Node) -> None:
        self._guard_inputs(n, node)
        facts = self._merge(n, node)
        self._limit(n, node, facts)
        facts = self._merge(n, node)
        if len(facts.loops) > 1:  # contractions over different axes may end different kernels
            self.cuts.soft |= {
                e.node for e in node.inputs
                if self.facts[e.node].heavy and e.node not in self.cuts.stored
            }  # fmt: skip
        self.facts[n] = facts
        if n in self.cuts.stored:
            self.facts[n] = _Facts()
        elif self.candidate[n]:
            self._settle(n, facts)

    def _settle(self, n: int, facts: _Facts) -> None:
        """Stored, soft or shared, for a node that several places read."""
        if facts.heavy:
            stays = self._reaches_maximum(n) or self._is_summed_power(n)
        else:
            stays = facts.over or facts.reduces or not self._is_table(n, facts)
        if not stays:
            self._store(n)
        elif facts.heavy or facts.reduces or facts.flops > self._allowance(n):
            self.cuts.soft.add(n)
            over = facts.heavy or facts.over
            kept = _Facts(depth=facts.depth, flops=facts.flops, reduces=facts.reduces, over=over)
            kept.reads = True
            self.facts[n] = kept
        else:
            self.cuts.shared.add(n)

    def _is_table(self, n: int, facts: _Facts) -> bool:
        """Elementwise work that many read: computed once, so that it does not tie them together."""
        return facts.flops > self._allowance(n) and self.readers[n] >= _MANY

    def _allowance(self, n: int) -> int:
        return NEARLY_FREE if self.repeated[n] else CHEAP

    def _store(self, n: int) -> None:
        """Stores node n, or the value with fewer bits that it is cast from or to."""
        self.facts[n] = _Facts()
        while self._widens(n) and not is_leaf(self.nodes[self.nodes[n].inputs[0].node]):
            self.cuts.soft.discard(n)
            self.cuts.shared.add(n)
            n = self.nodes[n].inputs[0].node
        while len(self.users[n]) == 1 and self._narrowed(n, self.users[n][0][0]):
            n = self.users[n][0][0]
        self.cuts.stored.add(n)
        self.cuts.soft.discard(n)
        self.cuts.shared.discard(n)
        self.facts[n] = _Facts()

    def _guard_inputs(self, n: int, node: Node) -> None:
        """Stores what must not be computed inside this node."""
        if node.op == "Gather":
            for slot, m in enumerate(e.node for e in node.inputs):
                facts = self.facts[m]
                if self.free[m] or not (facts.reduces or facts.flops > CHEAP):
                    continue
                if slot == 1 or facts.heavy or not self._narrows(node, m):
                    self._store(m)
        if node.op == "Scatter":
            chosen, source = (e.node for e in node.inputs[1:])
            if self.facts[chosen].reduces or self.facts[chosen].flops > CHEAP:
                self._store(chosen)
            if self.facts[source].heavy:  # rows stored in order cannot share operands
                self._store(source)
        if not _reduces(node, self.nodes):
            return
        for m in self._operands(node):
            facts = self.facts[m]
            held = m in self.cuts.stored or not (facts.heavy or facts.over)
            if not held and not self._may_stay(node, m, facts):
                self._store(m)

    def _narrowed(self, n: int, user: int) -> bool:
        """Whether `user` is a cast of node n to fewer bits."""
        node = self.nodes[user]
        plain = node.op == "Cast" and self._plain(node.inputs[0].view)
        return plain and node.dtype.bits < self.nodes[n].dtype.bits

    def _narrows(self, node: Node, source: int) -> bool:
        """A gather that reads no more elements than its source has."""
        read, held = prod(node.shape), prod(self.nodes[source].shape)
        return source in self.cuts.soft and is_nonnegative(held - read)

    def _operands(self, node: Node) -> list[int]:
        """What a reduction combines: the factors of a product, or its one argument."""
        body = node.inputs[0].node
        inner = self.nodes[body]
        if inner.op == node.op and not self.candidate[body]:
            return []
        if inner.op == "Mul" and not self.candidate[body] and body not in self.cuts.stored:
            return [e.node for e in inner.inputs]
        return [body]

    def _may_stay(self, node: Node, m: int, facts: _Facts) -> bool:
        inner = self.nodes[m]
        if inner.dtype.kind == "b":
            return True
        if node.op == "MaxReduce":
            return facts.over
        return self._has_power(m) if facts.over else self._is_power(m)

    def _merge(self, n: int, node: Node) -> _Facts:
        """The facts of a node from those of its inputs."""
        out = _Facts(cone=1 << n, reduces=_reduces(node, self.nodes))
        for edge in node.inputs:
            f = self.facts[edge.node]
            out.reads |= f.reads or edge.node in self.cuts.stored
            if edge.node in self.cuts.stored or self.free[edge.node]:
                continue
            elsewhere = out.cone & f.cone and not self._plain(edge.view)
            out.multiple = max(
                out.multiple + f.multiple if elsewhere else 1, out.multiple, f.multiple
            )
            out.cone |= f.cone
            out.depth = max(out.depth, f.depth + 1)
            out.flops += f.flops
            out.reduces |= f.reduces
            out.heavy |= f.heavy
            out.over |= f.over
            out.loops |= f.loops
        out.flops += self._own_flops(node, out.reads)
        if self._contracts(node):
            out.heavy, out.loops = True, frozenset([self._summed(node)])
        return out

    def _summed(self, node: Node) -> Shape:
        shape: Shape = ()
        while node.op == "SumReduce":
            shape += (node.inputs[0].view.shape[node.axis],)
            node = self.nodes[node.inputs[0].node]
        return shape

    def _has_power(self, n: int) -> bool:
        """An Exp2 in the cone of node n."""
        seen, stack = set(), [n]
        while stack:
            m = stack.pop()
            if m in seen or m in self.cuts.stored:
                continue
            seen.add(m)
            if self.nodes[m].op == "Exp2":
                return True
            stack += [e.node for e in self.nodes[m].inputs]
        return False

    def _own_flops(self, node: Node, reads: bool) -> int:
        """Work of one element; truth values, and integers that only count, are free."""
        if node.op == "Maximum":
            return 1
        free = node.dtype.kind == "b" or (node.dtype.is_int and not reads)
        if free or node.op == "Cast" or node.op not in PRIMITIVES:
            return 0
        return PRIMITIVES[node.op].cost

    def _contracts(self, node: Node) -> bool:
        """A sum of products in which a factor is read repeatedly."""
        if node.op != "SumReduce" or not _reduces(node, self.nodes):
            return False
        inner = self.nodes[node.inputs[0].node]
        while inner.op == "SumReduce":
            inner = self.nodes[inner.inputs[0].node]
        while inner.op == "Cast":
            inner = self.nodes[inner.inputs[0].node]
        if inner.op != "Mul":
            return False
        return any(self._repeats(e.view) for e in inner.inputs) and all(
            self.nodes[e.node].shape for e in inner.inputs
        )

    def _limit(self, n: int, node: Node, facts: _Facts) -> None:
        """Stores the largest input while the cone of this node is too large."""
        while (
            facts.cone.bit_count() > LARGEST_CONE
            or facts.multiple > LARGEST_MULTIPLE
            or facts.depth > LARGEST_DEPTH
        ):
            open_inputs = [
                e.node for e in node.inputs
                if e.node not in self.cuts.stored and not self.free[e.node]
                and (self.facts[e.node].cone or self.facts[e.node].depth)
            ]  # fmt: skip
            if not open_inputs:
                return
            self._store(max(open_inputs, key=self._weight))
            facts = self._merge(n, node)

    def _weight(self, n: int) -> tuple[int, int, int, int]:
        facts = self.facts[n]
        return facts.multiple, facts.depth, facts.cone.bit_count(), n

    def _reaches_maximum(self, n: int) -> bool:
        """A maximum along an axis and a power read this node, directly or elementwise."""
        level, seen = {n}, {n}
        maximum = power = False
        for _ in range(_REACH):
            following: set[int] = set()
            for m in level:
                for user, _slot in self.users[m]:
                    node = self.nodes[user]
                    maximum |= node.op == "MaxReduce" and _reduces(node, self.nodes)
                    power |= node.op == "Exp2"
                    if maximum and power:
                        return True
                    if _elementwise(node) and user not in seen:
                        following.add(user)
            seen |= following
            level = following
        return False

    def _is_summed_power(self, n: int) -> bool:
        """An Exp2 whose sum is taken as it is."""
        summed = any(self.nodes[u].op == "SumReduce" for u, _ in self.users[n])
        return summed and self._is_power(n)

    def _is_power(self, n: int) -> bool:
        inner = self.nodes[n]
        while inner.op == "Cast":
            inner = self.nodes[inner.inputs[0].node]
        return inner.op == "Exp2"


def choose_cuts(prepared: Prepared, trivial: frozenset[int] = frozenset()) -> Cuts:
    """The cuts of prepared nodes; `trivial` ones are always computed in place."""
    return _Chooser(prepared, trivial).run()
