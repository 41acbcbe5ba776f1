"""E-graph: classes of equal terms over named axes, built for directed rules.

In: terms and unions. Out: classes, their nodes, free axes; frozen into `ir.space` values. Knows
no rule. A class is an int; a node is (op, classes, dtype, payload) as in `ir.term.Term`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from luminal.ir.dtype import DType
from luminal.ir.expr import Var
from luminal.ir.space import Choice, Value
from luminal.ir.term import REDUCTIONS, Scalar, Term

__all__ = ["EGraph", "ENode"]

ENode = tuple[str, tuple[int, ...], DType, object]
_LEAVES = ("load", "const", "index", "cond")


class EGraph:
    """Hash-consed nodes with union-find; `rebuild` restores congruence after unions."""

    def __init__(self) -> None:
        self._above: list[int] = []
        self._nodes: dict[int, dict[ENode, None]] = {}
        self._users: dict[int, dict[ENode, int]] = {}
        self._free: list[frozenset[Var]] = []
        self._dtype: list[DType] = []
        self._table: dict[ENode, int] = {}
        self._terms: dict[Term, int] = {}
        self._dirty: list[int] = []
        self.unions = 0

    def __len__(self) -> int:
        return len(self._above)

    def find(self, c: int) -> int:
        """The representative of a class."""
        above = self._above
        while above[c] != c:
            above[c] = above[above[c]]
            c = above[c]
        return c

    def nodes(self, c: int) -> list[ENode]:
        """The nodes of a class, oldest first."""
        return list(self._nodes[self.find(c)])

    def classes(self) -> list[int]:
        """All classes, oldest first."""
        return list(self._nodes)

    def free(self, c: int) -> frozenset[Var]:
        """Axes and dimensions that every value of the class depends on at most."""
        return self._free[self.find(c)]

    def dtype(self, c: int) -> DType:
        """The dtype of a class."""
        return self._dtype[self.find(c)]

    def _canonical(self, node: ENode) -> ENode:
        op, args, dtype, payload = node
        return op, tuple(self.find(a) for a in args), dtype, payload

    def make(self, op: str, args: tuple[int, ...], dtype: DType, payload: object = None) -> int:
        """The class of a node; `free` of a leaf comes from `term`."""
        return self._insert((op, args, dtype, payload), None)

    def _insert(self, node: ENode, free: frozenset[Var] | None) -> int:
        node = self._canonical(node)
        found = self._table.get(node)
        if found is not None:
            return self.find(found)
        c = len(self._above)
        self._above.append(c)
        self._table[node] = c
        self._nodes[c] = {node: None}
        self._users[c] = {}
        self._free.append(self._free_of(node) if free is None else free)
        self._dtype.append(node[2])
        for a in node[1]:
            self._users[a][node] = c
        return c

    def _free_of(self, node: ENode) -> frozenset[Var]:
        free: frozenset[Var] = frozenset()
        for a in node[1]:
            free |= self._free[self.find(a)]
        return free.difference(node[3]) if node[0] in REDUCTIONS else free  # type: ignore[arg-type]

    def add(self, term: Term) -> int:
        """The class of a term."""
        c = self._terms.get(term)
        if c is None:
            args = tuple(self.add(a) for a in term.args)
            payload = term.payload
            if term.op == "const":
                payload = (repr(payload), payload)
            free = term.free if term.op in _LEAVES else None
            c = self._terms[term] = self._insert((term.op, args, term.dtype, payload), free)
        return self.find(c)

    def union(self, a: int, b: int) -> bool:
        """States that two classes are equal; True if that is new."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        a, b = min(a, b), max(a, b)
        self._above[b] = a
        self._nodes[a].update(self._nodes.pop(b))
        self._users[a].update(self._users.pop(b))
        self._free[a] &= self._free[b]
        self._dirty.append(a)
        self.unions += 1
        return True

    def rebuild(self) -> None:
        """Makes nodes with equal arguments equal again, and narrows free axes."""
        while self._dirty:
            todo = dict.fromkeys(self.find(c) for c in self._dirty)
            self._dirty = []
            for c in todo:
                self._repair(self.find(c))

    def _repair(self, c: int) -> None:
        users = self._users[c]
        self._users[c] = {}
        for node, owner in users.items():
            new, owner = self._canonical(node), self.find(owner)
            if new != node:
                self._table.pop(node, None)
                held = self._nodes[owner]
                if node in held:
                    del held[node]
                held[new] = None
            other = self._table.get(new)
            if other is not None and self.find(other) != owner:
                self.union(other, owner)
                owner = self.find(owner)
            self._table[new] = owner
            self._users[self.find(c)][new] = owner
            narrowed = self._free[owner] & self._free_of(new)
            if narrowed != self._free[owner]:
                self._free[owner] = narrowed
                self._dirty.append(owner)

    def constant(self, c: int) -> Scalar | None:
        """The value of a class that holds a constant."""
        for node in self._nodes[self.find(c)]:
            if node[0] == "const":
                return node[3][1]  # type: ignore[index]
        return None

    def number(self, value: float, dtype: DType) -> int:
        """The class of a constant."""
        v: Scalar = float(value) if dtype.is_float else int(value)
        return self.make("const", (), dtype, (repr(v), v))

    def mul(self, a: int, b: int) -> int:
        """a·b; constants fold, 1 vanishes."""
        x, y = self.constant(a), self.constant(b)
        if x == 1:
            return self.find(b)
        if y == 1:
            return self.find(a)
        if x is not None and y is not None and isfinite(x * y):
            return self.number(x * y, self.dtype(a))
        return self.make("mul", (a, b), self.dtype(a))

    def plus(self, a: int, b: int) -> int:
        """a + b; constants fold, 0 vanishes."""
        x, y = self.constant(a), self.constant(b)
        if x == 0:
            return self.find(b)
        if y == 0:
            return self.find(a)
        if x is not None and y is not None:
            return self.number(x + y, self.dtype(a))
        return self.make("add", (a, b), self.dtype(a))

    def unary(self, op: str, a: int) -> int:
        """log2, exp2, sin, sqrt, recip or not; exp2 of 0 is 1."""
        if op == "exp2" and self.constant(a) == 0:
            return self.number(1.0, self.dtype(a))
        return self.make(op, (a,), self.dtype(a))

    def reduce(self, op: str, axes: tuple[Var, ...], *args: int) -> int:
        """A reduction over `axes`."""
        return self.make(op, args, self.dtype(args[-1]), axes)

    def freeze(
        self, roots: list[int], axes: frozenset[Var] = frozenset()
    ) -> tuple[tuple[Value, ...], dict[int, int]]:
        """The classes that `roots` reach as plain values, and the number of each class; `axes` are
        all variables that are no dims."""
        number: dict[int, int] = {}
        order: list[int] = []
        for c in self._reach(roots):
            number[c] = len(order)
            order.append(c)
        values = []
        kept = self._bounded(order, axes)
        for c in order:
            choices = [
                Choice(op, tuple(number[self.find(a)] for a in args), dtype,
                       payload[1] if op == "const" else payload)  # type: ignore[index]
                for op, args, dtype, payload in kept[c]
            ]  # fmt: skip
            values.append(Value(self._dtype[c], self._free[c], tuple(choices)))
        return tuple(values), number

    def _bounded(self, order: list[int], axes: frozenset[Var]) -> dict[int, list[ENode]]:
        """The nodes of classes without those that name an axis on which the value does not
        depend (a load of a repeated value): users may stand outside of that axis. A class that
        would need itself keeps all of its nodes."""
        kept: dict[int, list[ENode]] = {}
        for c in order:
            free, nodes = self._free[c], list(self._nodes[c])
            kept[c] = [n for n in nodes if (_axes(n) | self._free_of(n)) & axes <= free] or nodes
        if all(len(kept[c]) == len(self._nodes[c]) for c in order):
            return kept
        built: set[int] = set()
        before = -1
        while before < len(built):
            before = len(built)
            for c in order:  # a value that is stored may be loaded, but has to be computed first
                leaf = all(n[0] == "load" for n in self._nodes[c])
                ways = (n[1] for n in kept[c] if leaf or n[0] != "load")
                if any(all(self.find(a) in built for a in args) for args in ways):
                    built.add(c)
        return {c: nodes if c in built else list(self._nodes[c]) for c, nodes in kept.items()}

    def _reach(self, roots: list[int]) -> Iterator[int]:
        """Classes below `roots`, arguments of their first node before them where possible."""
        seen: set[int] = set()
        for root in roots:
            stack = [(self.find(root), False)]
            while stack:
                c, ready = stack.pop()
                if ready:
                    yield c
                elif c not in seen:
                    seen.add(c)
                    stack.append((c, True))
                    below = [self.find(a) for node in self._nodes[c] for a in node[1]]
                    stack += [(b, False) for b in reversed(below) if b not in seen]


def _axes(node: ENode) -> frozenset[Var]:
    """The axes that a leaf names."""
    op, _, _, payload = node
    exprs = payload[1] if op == "load" else (payload,) if op in ("index", "cond") else ()  # type: ignore[index]
    return frozenset(v for e in exprs for v in e.variables())  # type: ignore[attr-defined]
