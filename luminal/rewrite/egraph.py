"""E-graph: classes of equal terms over named axes, built for directed rules.

In: terms and unions. Out: classes, their nodes, free axes; frozen into `ir.space` values. Knows
no rule. A class is an int; classes are made of nodes as terms are made of terms."""

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from math import isfinite

from luminal.ir import Choice, DType, Scalar, Term, Value, Var, depth_first

_LEAVES = ("load", "const", "index", "cond")


class EGraph:
    """Hash-consed nodes with union-find; `rebuild` restores congruence after unions."""

    def __init__(self) -> None:
        self._above: list[int] = []
        self._nodes: dict[int, dict[Choice, None]] = {}
        self._users: dict[int, dict[Choice, int]] = {}
        self._free: list[frozenset[Var]] = []
        self._table: dict[Choice, int] = {}
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

    def classes(self) -> list[int]:
        """All classes, oldest first."""
        return list(self._nodes)

    def nodes(self, c: int, op: str = "") -> list[Choice]:
        """The nodes of a class, oldest first; those of operation `op` if given."""
        return [n for n in self._nodes[self.find(c)] if not op or n.op == op]

    def args(self, c: int, op: str, payload: object = None) -> list[tuple[int, ...]]:
        """The arguments of the nodes of a class with this operation and payload."""
        return [n.args for n in self.nodes(c, op) if n.payload == payload]

    def products(self, c: int) -> Iterator[tuple[int, int]]:
        """(a, b) with c = a·b, both ways round."""
        for a, b in self.args(c, "mul"):
            yield a, b
            yield b, a

    def free(self, c: int) -> frozenset[Var]:
        """Axes and dimensions that every value of the class depends on at most."""
        return self._free[self.find(c)]

    def depends(self, c: int | None, own: Iterable[Var]) -> bool:
        """True unless class c is free of the axes `own`."""
        return c is not None and not self.free(c).isdisjoint(own)

    def dtype(self, c: int) -> DType:
        return next(iter(self._nodes[self.find(c)])).dtype

    def constant(self, c: int) -> Scalar | None:
        for node in self.nodes(c, "const"):
            return node.payload[1]
        return None

    def make(self, op: str, args: tuple[int, ...], dtype: DType, payload: object = None) -> int:
        return self._insert(Choice(op, args, dtype, payload), None)

    def add(self, term: Term) -> int:
        c = self._terms.get(term)
        if c is None:
            args = tuple(self.add(a) for a in term.args)
            payload = (repr(term.payload), term.payload) if term.op == "const" else term.payload
            node = Choice(term.op, args, term.dtype, payload)
            c = self._terms[term] = self._insert(node, term.free if term.op in _LEAVES else None)
        return self.find(c)

    def _insert(self, node: Choice, free: frozenset[Var] | None) -> int:
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
        for a in node.args:
            self._users[a][node] = c
        return c

    def _canonical(self, node: Choice) -> Choice:
        return Choice(node.op, tuple(map(self.find, node.args)), node.dtype, node.payload)

    def _free_of(self, node: Choice) -> frozenset[Var]:
        return frozenset().union(*(self.free(a) for a in node.args)).difference(node.axes)

    def union(self, a: int, b: int) -> bool:
        """States that two classes are equal; True if that is new."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return False
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
            if other is not None and self.union(other, owner):
                owner = self.find(owner)
            self._table[new] = owner
            self._users[self.find(c)][new] = owner
            narrowed = self._free[owner] & self._free_of(new)
            if narrowed != self._free[owner]:
                self._free[owner] = narrowed
                self._dirty.append(owner)

    def number(self, value: float, dtype: DType) -> int:
        v: Scalar = float(value) if dtype.is_float else int(value)
        return self.make("const", (), dtype, (repr(v), v))

    def combine(self, op: str, a: int, b: int) -> int:
        """a + b ('add') or a·b ('mul'); constants fold, 0 or 1 vanishes."""
        x, y, neutral = self.constant(a), self.constant(b), int(op == "mul")
        if x == neutral or y == neutral:
            return self.find(b if x == neutral else a)
        if x is not None and y is not None and (op == "add" or isfinite(x * y)):
            return self.number(x + y if op == "add" else x * y, self.dtype(a))
        return self.make(op, (a, b), self.dtype(a))

    def joined(self, op: str, parts: Iterable[int | None]) -> int | None:
        """The sum ('add') or product ('mul') of classes; None stands for 0 or 1."""
        some = [c for c in parts if c is not None]
        return reduce(partial(self.combine, op), some) if some else None

    def times_constant(self, c: int) -> tuple[int, float]:
        """(x, factor) with c = x·factor and a finite constant, 1 if there is none."""
        for a, b in self.products(c):
            value = self.constant(a)
            if value is not None and isfinite(value) and self.constant(b) is None:
                return self.find(b), float(value)
        return self.find(c), 1.0

    def power(self, a: int) -> int:
        """exp2 of a; 1 if a is 0."""
        dtype = self.dtype(a)
        return self.number(1, dtype) if self.constant(a) == 0 else self.make("exp2", (a,), dtype)

    def freeze(
        self, roots: list[int], axes: frozenset[Var] = frozenset(), cuts: Iterable[str] = ()
    ) -> tuple[tuple[Value, ...], dict[int, int]]:
        """The classes that `roots` reach as plain values, and the number of each class; `axes` are
        all variables that are no dims, `cuts` the buffers whose values are computed here."""
        order = list(depth_first(map(self.find, roots), self._below))
        number = {c: n for n, c in enumerate(order)}

        def choice(n: Choice) -> Choice:
            payload = n.payload[1] if n.op == "const" else n.payload
            return n._replace(args=tuple(number[self.find(a)] for a in n.args), payload=payload)

        kept = self._bounded(order, axes, frozenset(cuts))
        values = (Value(self.dtype(c), self._free[c], tuple(map(choice, kept[c]))) for c in order)
        return tuple(values), number

    def _bounded(
        self, order: list[int], axes: frozenset[Var], cuts: frozenset[str]
    ) -> dict[int, list[Choice]]:
        """The nodes of classes without those that name an axis on which the value does not
        depend (a load of a repeated value): users may stand outside of that axis. A class that
        would need itself keeps all of its nodes."""

        def names(node: Choice) -> frozenset[Var]:
            leaf = frozenset(v for e in node.indices for v in e.variables())
            return (leaf | self._free_of(node)) & axes

        kept = {}
        for c in order:
            kept[c] = [n for n in self.nodes(c) if names(n) <= self._free[c]] or self.nodes(c)
        built: set[int] = set()
        before = -1
        while before < len(built) < len(order):
            before = len(built)
            for c in order:  # a value of a cut may be loaded, but has to be computed first
                leaf = all(n.op == "load" for n in self._nodes[c])
                ways = (n.args for n in kept[c]
                        if leaf or n.op != "load" or n.payload[0] not in cuts)  # fmt: skip
                if any(all(self.find(a) in built for a in args) for args in ways):
                    built.add(c)
        return {c: nodes if c in built else self.nodes(c) for c, nodes in kept.items()}

    def _below(self, c: int) -> list[int]:
        return [self.find(a) for node in self._nodes[c] for a in node.args]
