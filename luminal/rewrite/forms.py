"""Views of a class as a product or a sum: what associativity would do, on demand, in linear time.

In: an e-graph class and the axes of a reduction. Out: parts that do and do not depend on those
axes, coefficients of a sum. Adds nodes for the parts, never unions. An axis set `own` stands for
the bound axes K below; "free of K" means that no axis of K occurs."""

from collections.abc import Iterator
from math import inf, isfinite

import numpy as np

from luminal.ir import Choice, DType, Var
from luminal.rewrite.egraph import EGraph

_DEPTH = 24
_TOLERANCE = 2e-6
_SWALLOWS = -1e30
"""An exponent below this stays what it is when a score is added."""
_AMPLIFIES = 1e4
"""A factor from here on makes the rounding of a difference's parts matter."""
_LOGIC = {"and": all, "or": any, "not": lambda parts: not parts[0]}
Own = frozenset[Var]
Form = dict[int | None, float]
"""Σ factor·class, a linear combination; the factor of None is the constant."""


def factors(graph: EGraph, c: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(a, others) for everything that c is a product of: c = a·others."""
    stack: list[tuple[int, tuple[int, ...]]] = [(c, ())]
    seen: set[int] = set()
    while stack:
        c, others = stack.pop()
        c = graph.find(c)
        if c not in seen:
            seen.add(c)
            yield c, others
            stack += reversed([(a, (b, *others)) for a, b in graph.products(c)])


def _first(graph: EGraph, c: int, op: str, depth: int) -> Choice | None:
    return next(iter(graph.nodes(c, op)), None) if depth < _DEPTH else None


def split(
    graph: EGraph, op: str, c: int, own: Own, depth: int = 0
) -> tuple[int | None, int | None]:
    """c = free·rest ('mul') or free + rest ('add') with `free` free of K and no such part left in
    `rest`; None stands for 1 or 0.

    (a + b)·s with s constant is split inside unless a·s + b·s could cancel what a + b does not
    (a mask (1 - kept)·lowest). Exact in the reals; one reassociation."""
    c = graph.find(c)
    if not graph.depends(c, own):
        return c, None
    node = _first(graph, c, op, depth)
    if node is not None:
        frees, rests = zip(*(split(graph, op, a, own, depth + 1) for a in node.args), strict=True)
        if any(free is not None for free in frees):
            return graph.joined(op, frees), graph.joined(op, rests)
    elif op == "add" and depth < _DEPTH:
        inner, factor = graph.times_constant(c)
        if inner != c and abs(factor) < _AMPLIFIES:
            free, rest = split(graph, op, inner, own, depth + 1)
            if free is not None:
                inside = None if rest is None else _times(graph, rest, factor)
                return _times(graph, free, factor), inside
    return None, c


def _times(graph: EGraph, c: int, factor: float) -> int:
    return graph.combine("mul", c, graph.number(factor, graph.dtype(c)))


def scaled(graph: EGraph, c: int, factor: float, depth: int = 0) -> int:
    """factor·c, with the factor inside selections of constants; a finite constant stays finite.

    factor·select(p, a, k) = select(p, factor·a, factor·k), and a finite factor·k that overflows
    becomes the largest finite number: as an exponent it is as good, and -inf there means that
    a term is absent. Exact but for rounding, and for NaN or inf in a masked place."""
    value, dtype = graph.constant(c), graph.dtype(c)
    if value is not None:
        limit, product = float(np.finfo(dtype.np).max), factor * value
        return graph.number(min(max(product, -limit), limit) if isfinite(value) else product, dtype)
    node = _first(graph, c, "select", depth)
    if node is not None and _selects_constant(graph, c):
        a, b = (scaled(graph, x, factor, depth + 1) for x in node.args[1:])
        return graph.make("select", (node.args[0], a, b), dtype)
    node = _first(graph, c, "add", depth)
    if node is not None and _selects_constant(graph, c):
        a, b = (scaled(graph, x, factor, depth + 1) for x in node.args)
        return _masked(graph, a, b) or _masked(graph, b, a) or graph.combine("add", a, b)
    inner, known = graph.times_constant(c)
    return _times(graph, inner, known * factor)


def exponent(graph: EGraph, c: int, factor: float) -> tuple[int, float]:
    """(x, s) with s·x = factor·c, where s is 1 if no number of c grows by the factor, which
    `scaled` then brings inside; else x is c, finite where the source is: s·x might overflow."""
    x, known = graph.times_constant(c)
    scale = 1.0 if _growth(graph, x, factor * known) <= 1 else abs(factor)
    return scaled(graph, x, factor * known / scale), scale


def _growth(graph: EGraph, c: int, factor: float, depth: int = 0) -> float:
    """The largest factor that `scaled` would multiply a number with, constants apart unless they
    overflow."""
    value = graph.constant(c)
    if value is not None:
        limit = float(np.finfo(graph.dtype(c).np).max)
        return abs(factor) if isfinite(value) and abs(factor * value) > limit else 0.0
    node = _first(graph, c, "select", depth) or _first(graph, c, "add", depth)
    if node is not None and _selects_constant(graph, c):
        parts = node.args[node.op == "select" :]
        return max(_growth(graph, a, factor, depth + 1) for a in parts)
    return abs(graph.times_constant(c)[1] * factor)


def _selects_constant(graph: EGraph, c: int) -> bool:
    node = _first(graph, c, "select", 0)
    if node is not None:
        return any(graph.constant(a) is not None for a in node.args[1:])
    node = _first(graph, c, "add", 0)
    return node is not None and any(_selects_constant(graph, a) for a in node.args)


def _masked(graph: EGraph, a: int, b: int) -> int | None:
    """a + select(p, 0, k) = select(p, a, k) for an exponent and a k that swallows any a."""
    for p, *ways in graph.args(b, "select"):
        values = [graph.constant(w) for w in ways]
        if 0 in values and None not in values and min(values) <= _SWALLOWS:  # type: ignore[type-var]
            kept = (a if v == 0 else w for v, w in zip(values, ways, strict=True))
            return graph.make("select", (p, *kept), graph.dtype(a))
    return None


def linear(graph: EGraph, c: int, depth: int = 0) -> Form:
    """c as a linear combination: constants and constant factors of sums are taken out."""
    c = graph.find(c)
    value = graph.constant(c)
    if value is not None:
        return {c: 1.0} if not isfinite(value) else added({}, {None: float(value)})
    node = _first(graph, c, "add", depth)
    if node is not None:
        left, right = (linear(graph, a, depth + 1) for a in node.args)
        return added(left, right)
    inner, factor = graph.times_constant(c)
    if inner != c and depth < _DEPTH:
        return added({}, linear(graph, inner, depth + 1), factor)
    return {c: 1.0}


def added(a: Form, b: Form, scale: float = 1.0) -> Form:
    """a + scale·b, without what cancels up to rounding."""
    out = dict(a)
    for c, factor in b.items():
        x, y = out.pop(c, 0.0), scale * factor
        if abs(x + y) > _TOLERANCE * max(abs(x), abs(y)):
            out[c] = x + y
    return out


def class_of(graph: EGraph, form: Form, dtype: DType) -> int | None:
    """The class of a linear combination; None if it is 0."""
    terms = [_times(graph, c, f) for c, f in form.items() if c is not None]
    constant = [graph.number(form[None], dtype)] if None in form else []
    return graph.joined("add", terms + constant)


def regimes(graph: EGraph, c: int) -> tuple[int, bool, bool, bool] | None:
    """(x, truth at -inf, at finite x, at +inf) if class c compares one x with ±inf only."""
    compared: set[int] = set()

    def truth(p: int, x: float, depth: int) -> bool | None:
        for node in graph.nodes(p):
            if node.op == "lt":
                known = [graph.constant(a) for a in node.args]
                if None in known and not {inf, -inf}.isdisjoint(known):
                    compared.add(graph.find(node.args[known.index(None)]))
                    left, right = (x if v is None else v for v in known)
                    return left < right
            elif node.op in _LOGIC and depth < _DEPTH:
                parts = [truth(a, x, depth + 1) for a in node.args]
                if None not in parts:
                    return _LOGIC[node.op](parts)
        value = graph.constant(p)
        return None if value is None else bool(value)

    low, middle, high = (truth(c, x, 0) for x in (-inf, 0.0, inf))
    if low is None or middle is None or high is None or len(compared) != 1:
        return None
    return compared.pop(), low, middle, high
