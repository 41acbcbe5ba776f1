"""Views of a class as a product or a sum: what associativity would do, on demand, in linear time.

In: an e-graph class and the axes of a reduction. Out: parts that do and do not depend on those
axes, coefficients of a sum. Adds nodes for the parts, never unions. An axis set `own` stands for
the bound axes K below; "free of K" means that no axis of K occurs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from luminal.ir.expr import Var
from luminal.rewrite.egraph import EGraph, ENode

__all__ = [
    "Linear", "combination", "exponent", "linear", "regimes", "scaled", "split_product",
    "split_sum",
]  # fmt: skip

_DEPTH = 24
_TOLERANCE = 2e-6
_SWALLOWS = -1e30
"""An exponent below this stays what it is when a score is added."""
Own = frozenset[Var]


def _first(graph: EGraph, c: int, op: str) -> ENode | None:
    for node in graph.nodes(c):
        if node[0] == op:
            return node
    return None


def _depends(graph: EGraph, c: int, own: Own) -> bool:
    return not graph.free(c).isdisjoint(own)


def split_product(graph: EGraph, c: int, own: Own, depth: int = 0) -> tuple[int | None, int | None]:
    """c = free·rest with `free` free of K and no such factor left in `rest`; None stands for 1.

    Exact in the reals; one reassociation of the product.
    """
    c = graph.find(c)
    if not _depends(graph, c, own):
        return c, None
    node = _first(graph, c, "mul") if depth < _DEPTH else None
    if node is None:
        return None, c
    f1, r1 = split_product(graph, node[1][0], own, depth + 1)
    f2, r2 = split_product(graph, node[1][1], own, depth + 1)
    if f1 is None and f2 is None:
        return None, c
    return _both(graph, f1, f2), _both(graph, r1, r2)


def _both(graph: EGraph, a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return a if b is None else b
    return graph.mul(a, b)


def split_sum(graph: EGraph, c: int, own: Own, depth: int = 0) -> tuple[int | None, int | None]:
    """c = free + rest with `free` free of K and no such addend left in `rest`; None stands for 0.

    (a + b)·s with s constant is split inside. Exact in the reals.
    """
    c = graph.find(c)
    if not _depends(graph, c, own):
        return c, None
    if depth < _DEPTH:
        node = _first(graph, c, "add")
        if node is not None:
            parts = [split_sum(graph, a, own, depth + 1) for a in node[1]]
            if all(free is None for free, _ in parts):
                return None, c
            return tuple(_sum(graph, *pair) for pair in zip(*parts, strict=True))  # type: ignore[return-value]
        inner = _times_constant(graph, c)
        if inner is not None:
            free, rest = split_sum(graph, inner[1], own, depth + 1)
            if free is None:
                return None, c
            return _times(graph, free, inner[0]), _times(graph, rest, inner[0])
    return None, c


def _sum(graph: EGraph, a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return a if b is None else b
    return graph.plus(a, b)


def _times(graph: EGraph, c: int | None, factor: float) -> int | None:
    return None if c is None else graph.mul(c, graph.number(factor, graph.dtype(c)))


def _times_constant(graph: EGraph, c: int) -> tuple[float, int] | None:
    """(factor, x) if c = factor·x with a finite constant."""
    for node in graph.nodes(c):
        if node[0] == "mul":
            for a, b in (node[1], node[1][::-1]):
                value = graph.constant(a)
                if value is not None and isfinite(value) and graph.constant(b) is None:
                    return float(value), graph.find(b)
    return None


def exponent(graph: EGraph, c: int, own: Own, depth: int = 0) -> tuple[int, int | None] | None:
    """(y, rest) with c = exp2(y)·rest and y not free of K; rest None stands for 1."""
    c = graph.find(c)
    for node in graph.nodes(c):
        if node[0] == "exp2" and _depends(graph, node[1][0], own):
            return graph.find(node[1][0]), None
    node = _first(graph, c, "mul") if depth < _DEPTH else None
    if node is None:
        return None
    for a, b in (node[1], node[1][::-1]):
        found = exponent(graph, a, own, depth + 1)
        if found is not None:
            return found[0], _both(graph, found[1], graph.find(b))
    return None


def scaled(graph: EGraph, c: int, factor: float, depth: int = 0) -> int:
    """factor·c, with the factor inside selections of constants; a finite constant stays finite.

    factor·select(p, a, k) = select(p, factor·a, factor·k), and a finite factor·k that overflows
    becomes the largest finite number: as an exponent it is as good, and -inf there means that
    a term is absent. Exact but for rounding, and for NaN or inf in a masked place.
    """
    if factor == 1.0:
        return graph.find(c)
    value = graph.constant(c)
    if value is not None:
        product = factor * value
        limit = _largest(graph, c)
        if isfinite(value) and abs(product) > limit:
            product = limit if product > 0 else -limit
        return graph.number(product, graph.dtype(c))
    node = _first(graph, c, "select")
    if (
        node is not None
        and depth < _DEPTH
        and any(graph.constant(a) is not None for a in node[1][1:])
    ):
        a, b = (scaled(graph, x, factor, depth + 1) for x in node[1][1:])
        return graph.make("select", (node[1][0], a, b), node[2])
    node = _first(graph, c, "add")
    if node is not None and depth < _DEPTH and any(_selects_constant(graph, a) for a in node[1]):
        a, b = (scaled(graph, x, factor, depth + 1) for x in node[1])
        return _masked(graph, a, b) or _masked(graph, b, a) or graph.plus(a, b)
    inner = _times_constant(graph, c)
    if inner is not None:
        return graph.mul(inner[1], graph.number(inner[0] * factor, graph.dtype(c)))
    return graph.mul(c, graph.number(factor, graph.dtype(c)))


def _masked(graph: EGraph, a: int, b: int) -> int | None:
    """a + select(p, 0, k) = select(p, a, k) for an exponent and a k that swallows any a."""
    for op, args, dtype, _ in graph.nodes(b):
        if op == "select":
            kept, gone = graph.constant(args[1]), graph.constant(args[2])
            if kept == 0 and gone is not None and gone <= _SWALLOWS:
                return graph.make("select", (args[0], a, args[2]), dtype)
            if gone == 0 and kept is not None and kept <= _SWALLOWS:
                return graph.make("select", (args[0], args[1], a), dtype)
    return None


def _largest(graph: EGraph, c: int) -> float:
    return 3.4028234663852886e38 if graph.dtype(c).bits == 32 else 1.7976931348623157e308


def _selects_constant(graph: EGraph, c: int) -> bool:
    node = _first(graph, c, "select")
    if node is not None:
        return any(graph.constant(a) is not None for a in node[1][1:])
    node = _first(graph, c, "add")
    return node is not None and any(_selects_constant(graph, a) for a in node[1])


@dataclass(slots=True)
class Linear:
    """constant + Σ factor·class."""

    constant: float = 0.0
    factors: dict[int, float] = field(default_factory=dict)

    def add(self, other: Linear, scale: float = 1.0) -> Linear:
        """self + scale·other, without what cancels up to rounding."""
        out = Linear(_sum_of(self.constant, scale * other.constant), dict(self.factors))
        for c, f in other.factors.items():
            total = _sum_of(out.factors.get(c, 0.0), scale * f)
            out.factors.pop(c, None)
            if total:
                out.factors[c] = total
        return out

    def depends(self, graph: EGraph, own: Own) -> bool:
        """True if a class in it is not free of K."""
        return any(_depends(graph, c, own) for c in self.factors)


def _sum_of(a: float, b: float) -> float:
    total = a + b
    return 0.0 if abs(total) <= _TOLERANCE * max(abs(a), abs(b)) else total


def linear(graph: EGraph, c: int, depth: int = 0) -> Linear:
    """c as a linear combination: constants and constant factors of sums are taken out."""
    c = graph.find(c)
    value = graph.constant(c)
    if value is not None:
        return Linear(float(value)) if isfinite(value) else Linear(0.0, {c: 1.0})
    if depth < _DEPTH:
        node = _first(graph, c, "add")
        if node is not None:
            left, right = (linear(graph, a, depth + 1) for a in node[1])
            return left.add(right)
        inner = _times_constant(graph, c)
        if inner is not None:
            return Linear().add(linear(graph, inner[1], depth + 1), inner[0])
    return Linear(0.0, {c: 1.0})


def combination(graph: EGraph, form: Linear, like: int) -> int | None:
    """The class of a linear combination (dtype of class `like`); None if it is 0."""
    total: int | None = None
    for c, factor in form.factors.items():
        total = _sum(graph, total, graph.mul(c, graph.number(factor, graph.dtype(like))))
    if form.constant:
        total = _sum(graph, total, graph.number(form.constant, graph.dtype(like)))
    return total


def regimes(graph: EGraph, c: int) -> tuple[int, bool, bool, bool] | None:
    """(x, truth at -inf, at finite x, at +inf) if class c compares one x with ±inf only."""
    found: set[int] = set()

    def truth(p: int, x_is: float, depth: int) -> bool | None:
        for op, args, _, payload in graph.nodes(p):
            value: bool | None = None
            if op == "const":
                value = bool(payload[1])  # type: ignore[index]
            elif op == "lt":
                value = compared(args[0], args[1], x_is)
            elif op in ("and", "or", "not") and depth < _DEPTH:
                parts = [truth(a, x_is, depth + 1) for a in args]
                if None not in parts:
                    value = not parts[0] if op == "not" else (all if op == "and" else any)(parts)
            if value is not None:
                return value
        return None

    def compared(a: int, b: int, x_is: float) -> bool | None:
        left, right = graph.constant(a), graph.constant(b)
        if left is not None and right is None and abs(left) == float("inf"):
            found.add(graph.find(b))
            return left < x_is
        if right is not None and left is None and abs(right) == float("inf"):
            found.add(graph.find(a))
            return x_is < right
        return None

    values = [truth(c, x_is, 0) for x_is in (float("-inf"), 0.0, float("inf"))]
    if None in values or len(found) != 1:
        return None
    low, middle, high = (bool(v) for v in values)
    return found.pop(), low, middle, high
