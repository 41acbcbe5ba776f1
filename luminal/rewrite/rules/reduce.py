"""Rules about reductions over a set K of axes: what leaves a sum, and sums that need one pass.

In: an e-graph, a class and a reduction node of it. Out: classes equal to it. Directed: a rule
adds a form that may be cheaper, never its inverse. Floating point: each holds up to the rounding
of a reordered sum unless its docstring says exact. "Free of K": no axis of K occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from luminal.ir.dtype import boolean, f32, f64
from luminal.ir.expr import Expr, Var, prod, to_expr
from luminal.rewrite.egraph import EGraph, ENode
from luminal.rewrite.rules.algebra import (
    Linear,
    combination,
    exponent,
    linear,
    regimes,
    scaled,
    split_product,
    split_sum,
)  # fmt: skip
from luminal.rewrite.rules.dtype import cast_of_wider_integer, integer_sum_narrows

__all__ = ["RULES", "Rule"]

Rule = Callable[[EGraph, int, ENode], Iterator[int]]


def _count(node: ENode) -> Expr:
    return prod(tuple(a.extent for a in node[3]))  # type: ignore[attr-defined]


def _wide(node: ENode) -> bool:
    return node[2] in (f32, f64)


def _axes(node: ENode) -> tuple[tuple[Var, ...], frozenset[Var]]:
    return node[3], frozenset(node[3])  # type: ignore[arg-type,return-value]


def factor_leaves_sum(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """R1: Σ_K f·r = f·Σ_K r, f free of K; also inside rsum's values.

    Reason: f is multiplied once, and Σ r may be shared. Condition: sums in f32, f64 or integers,
    so that f does not decide where a narrow accumulator rounds.
    """
    if node[2] == boolean or (node[2].is_float and not _wide(node)):
        return
    axes, own = _axes(node)
    free, rest = split_product(graph, node[1][-1], own)
    if free is None or graph.constant(free) == 1:
        return
    if rest is None:
        if node[0] == "rsum":
            one = graph.number(1, node[2])
            yield graph.mul(free, graph.make("rsum", (node[1][0], one), node[2], axes))
        return
    yield graph.mul(free, graph.make(node[0], (*node[1][:-1], rest), node[2], axes))


def factor_leaves_inner_loops(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """R1 for some of the axes: Σ_{K,I} f·r = Σ_K f·Σ_I r, f free of I but not of K.

    Reason: f (a scale per block) is multiplied once per block. Condition: as in R1.
    """
    axes, _ = _axes(node)
    if len(axes) < 2 or not _wide(node):
        return
    for inner in axes:
        own = frozenset((inner,))
        free, rest = split_product(graph, node[1][0], own)
        if free is not None and rest is not None and not graph.free(free).isdisjoint(axes):
            outer = tuple(a for a in axes if a != inner)
            body = graph.mul(free, graph.make("sum", (rest,), node[2], (inner,)))
            yield graph.make("sum", (body,), node[2], outer)


def sum_of_invariant(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """R2: Σ_K f = |K|·f, f free of K.

    Reason: no loop. Exact in the reals. Condition: floats and a constant |K|, or any integer type.
    """
    body = node[1][0]
    if node[2] == boolean or not graph.free(body).isdisjoint(node[3]):  # type: ignore[arg-type]
        return
    count = _count(node).value
    if count is not None and (_wide(node) or node[2].is_int):
        yield graph.mul(body, graph.number(count, node[2]))


def maximum_of_invariant(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """max_K f = f, f free of K. Exact. Condition: K is not empty."""
    body = node[1][0]
    axes, own = _axes(node)
    if graph.free(body).isdisjoint(own) and all(a.extent.lo >= 1 for a in axes):
        yield body


def constant_leaves_maximum(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """R3, R4: max_K (s·x + f) = s·max_K x + f, s a constant > 0, f free of K.

    Reason: the maximum of the bare x is the one that others share. Exact up to the rounding
    of s·x + f. Condition: K is not empty, floats.
    """
    axes, own = _axes(node)
    if not _wide(node) or any(a.extent.lo < 1 for a in axes):
        return
    free, rest = split_sum(graph, node[1][0], own)
    if free is None or rest is None or graph.constant(free) == 0:
        return
    yield graph.plus(graph.make("rmax", (rest,), node[2], axes), free)


def sum_of_powers(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """R5: Σ_K exp2(d + f)·v = exp2(f + max_K d)·rsum_K(d, v), f free of K.

    Reason: rsum needs one pass over K with no maximum known before. No exponent above 0 is formed
    in it. If f holds -max_K d in any spelling (s·max_K x with d = s·x + g, g free of K), the
    factor is exp2 of what is left, usually nothing. Condition: floats of 32 bits or more; d < inf
    (where d is +inf or NaN both sides are NaN); K is not empty, or both sides are 0.
    """
    axes, own = _axes(node)
    if not _wide(node):
        return
    found = exponent(graph, node[1][0], own)
    if found is None:
        return
    power, values = found
    free, rest = split_sum(graph, power, own)
    if rest is None or graph.dtype(rest) != node[2]:
        return
    values = graph.number(1.0, node[2]) if values is None else values
    left = Linear() if free is None else linear(graph, free)
    settled = _settle(graph, left, linear(graph, rest), axes, own)
    rest = _gathered(graph, rest)
    total = graph.make("rsum", (rest, values), node[2], axes)
    if settled is None:
        top = graph.make("rmax", (rest,), node[2], axes)
        factor = top if free is None else graph.plus(free, top)
        yield graph.mul(graph.unary("exp2", factor), total)
        return
    residue = combination(graph, settled, rest)
    yield total if residue is None else graph.mul(graph.unary("exp2", residue), total)


def _gathered(graph: EGraph, c: int) -> int:
    """s·x with the constant s moved to where it costs least."""
    for op, args, _, _ in graph.nodes(c):
        if op == "mul":
            for a, b in (args, args[::-1]):
                value = graph.constant(a)
                if value is not None and graph.constant(b) is None:
                    return scaled(graph, b, float(value))
    return c


def _settle(
    graph: EGraph, free: Linear, rest: Linear, axes: tuple[Var, ...], own: frozenset[Var]
) -> Linear | None:
    """free + max_K rest, if `free` has a maximum over K of the same thing to a constant factor."""
    for m, factor in free.factors.items():
        for x in _maximised(graph, m, axes) if factor < 0 else ():
            shift = rest.add(linear(graph, x), factor)
            if not shift.depends(graph, own):
                without = Linear(free.constant, {k: v for k, v in free.factors.items() if k != m})
                return without.add(shift)
    return None


def _maximised(graph: EGraph, m: int, axes: tuple[Var, ...]) -> Iterator[int]:
    """x if class m is max_K x, or a selection of something else only where that is not finite.

    Where it is -inf every exponent is -inf, and both sides of R5 are 0 times anything finite.
    """
    for op, args, _, payload in graph.nodes(m):
        if op == "rmax" and payload == axes:
            yield args[0]
        if op == "select":
            found = regimes(graph, args[0])
            if found is not None:
                kept, other = (args[1], args[2]) if found[2] else (args[2], args[1])
                if graph.find(kept) == found[0] and graph.constant(other) is not None:
                    for op2, args2, _, payload2 in graph.nodes(kept):
                        if op2 == "rmax" and payload2 == axes:
                            yield args2[0]


def squares_from_mean(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """R6: Σ_K (x - (Σ_K x)/|K|)² = wsum_K x.

    Reason: wsum needs one pass and merges partial results without cancellation. Exact in the
    reals. Condition: floats of 32 bits or more; the factor of Σ_K x is -1/|K|, as a number or as
    recip of the symbolic count.
    """
    axes, _ = _axes(node)
    if not _wide(node):
        return
    for op, args, _, _ in graph.nodes(node[1][0]):
        if op == "mul" and graph.find(args[0]) == graph.find(args[1]):
            x = _centred(graph, args[0], axes, _count(node))
            if x is not None:
                yield graph.make("wsum", (x,), node[2], axes)


def _centred(graph: EGraph, delta: int, axes: tuple[Var, ...], count: Expr) -> int | None:
    """x if delta = x - mean_K x."""
    form = linear(graph, delta)
    for m, factor in form.factors.items():
        for x, weight in _sums(graph, m, axes, count):
            if abs(factor * weight + 1) < 1e-5:
                rest = form.add(Linear(0.0, {m: factor}), -1.0)
                difference = rest.add(linear(graph, x), -1.0)
                if not difference.factors and not difference.constant:
                    return x
    return None


def _sums(graph: EGraph, m: int, axes: tuple[Var, ...], count: Expr) -> Iterator[tuple[int, float]]:
    """(x, w) such that class m is w times the mean of x over K."""
    for op, args, _, payload in graph.nodes(m):
        if op == "sum" and payload == axes and count.value is not None:
            yield args[0], float(count.value)
        if op == "mul":
            for a, b in (args, args[::-1]):
                if _is_inverse_of(graph, b, count):
                    for inner in graph.nodes(a):
                        if inner[0] == "sum" and inner[3] == axes:
                            yield inner[1][0], 1.0


def _is_inverse_of(graph: EGraph, c: int, count: Expr) -> bool:
    """True if class c is 1/count for a symbolic count."""
    for op, args, _, _ in graph.nodes(c):
        if op == "recip":
            for op2, args2, _, _ in graph.nodes(args[0]):
                if op2 == "cast":
                    return any(
                        n[0] == "index" and to_expr(n[3]) == count  # type: ignore[arg-type]
                        for n in graph.nodes(args2[0])
                    )
    return False


def choice_leaves_sum(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """Σ_K select(p, a, b)·r = select(p, Σ_K a·r, Σ_K b·r), p free of K.

    Reason: p is decided once, and each sum is then free for other rules. A branch that is the
    constant 0 makes its sum 0. Condition: floats of 32 bits or more, r finite where that happens.
    """
    axes, own = _axes(node)
    if not _wide(node):
        return
    found = _chosen(graph, node[1][0], own, 0)
    if found is None:
        return
    (p, a, b), rest = found
    sums = []
    for branch in (a, b):
        if graph.constant(branch) == 0:
            sums.append(graph.number(0.0, node[2]))
        else:
            body = branch if rest is None else graph.mul(branch, rest)
            sums.append(graph.make("sum", (body,), node[2], axes))
    yield graph.make("select", (p, *sums), node[2])


def _chosen(
    graph: EGraph, c: int, own: frozenset[Var], depth: int
) -> tuple[tuple[int, ...], int | None] | None:
    """(the select, the other factors) if a factor of c chooses by something free of K."""
    for op, args, _, _ in graph.nodes(c):
        if op == "select" and graph.free(args[0]).isdisjoint(own):
            if not graph.free(c).isdisjoint(own):
                return args, None
        if op == "mul" and depth < 8:
            for a, b in (args, args[::-1]):
                found = _chosen(graph, a, own, depth + 1)
                if found is not None:
                    rest = b if found[1] is None else graph.mul(found[1], b)
                    return found[0], graph.find(rest)
    return None


def any_above(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """∃_K p(x) = not (rsum_K(x, 1) < 1/2), where p(x) says that x is above -inf.

    Reason: rsum_K(x, 1) is often needed anyway. It is at least 1 if some x is above -inf (the
    largest contributes exp2(0)) and 0 if none is. Exact. Condition: p compares x with ±inf only;
    floats of 32 bits or more; a NaN counts as above -inf.
    """
    axes, own = _axes(node)
    if node[2] != boolean:
        return
    found = regimes(graph, node[1][0])
    if found is None or found[1] or not found[2] or not found[3]:
        return
    x = found[0]
    if graph.dtype(x) not in (f32, f64) or graph.free(x).isdisjoint(own):
        return
    one, half = (graph.number(v, graph.dtype(x)) for v in (1.0, 0.5))
    for power in _powers(graph, x, axes):
        total = graph.make("rsum", (power, one), graph.dtype(x), axes)
        yield graph.make("not", (graph.make("lt", (total, half), boolean),), boolean)


def _powers(graph: EGraph, x: int, axes: tuple[Var, ...]) -> list[int]:
    """First arguments of rsums over K that come from x times a positive constant."""
    found: list[int] = []
    for c in graph.classes():
        for op, args, _, payload in graph.nodes(c):
            if op == "rsum" and payload == axes and args[0] not in found:
                if any(
                    scaled(graph, x, f) == graph.find(args[0]) for f in _factors(graph, args[0], x)
                ):
                    found.append(args[0])
    return found


def _factors(graph: EGraph, power: int, x: int) -> list[float]:
    """Positive constants f for which `power` may be f·x."""
    theirs, ours = _plain(graph, power), _plain(graph, x)
    return [theirs[c] / f for c, f in ours.items() if f and theirs.get(c, 0.0) / f > 0][:2]


def _plain(graph: EGraph, c: int) -> dict[int, float]:
    """Factors of the classes in c, selections looked through."""
    out: dict[int, float] = {}
    for m, factor in linear(graph, c).factors.items():
        picks = [args[1:] for op, args, _, _ in graph.nodes(m) if op == "select"]
        inner = [a for a in picks[0] if graph.constant(a) is None] if picks else []
        if inner:
            out |= {k: v * factor for k, v in linear(graph, inner[0]).factors.items()}
        else:
            out[m] = factor
    return out


def common_power_cancels(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """(2^m·a) / (2^m·b) = a / b.

    Reason: where a source sums powers without a stabiliser, R5 leaves the maximum in both sums.
    Exact up to rounding. Condition: 2^m is neither 0 nor inf; where it is, the source is NaN.
    """
    if not _wide(node):
        return
    for top, inverse in (node[1], node[1][::-1]):
        for op, args, _, _ in graph.nodes(inverse):
            if op != "recip":
                continue
            above, below = dict(_powered(graph, top)), dict(_powered(graph, args[0]))
            for power in above.keys() & below.keys():
                yield graph.mul(above[power], graph.unary("recip", below[power]))


def _powered(graph: EGraph, c: int) -> Iterator[tuple[int, int]]:
    """(p, rest) for every product p·rest in class c with p a power of two."""
    for op, args, _, _ in graph.nodes(c):
        if op == "mul":
            for a, b in (args, args[::-1]):
                if any(n[0] == "exp2" for n in graph.nodes(a)):
                    yield graph.find(a), graph.find(b)


RULES: dict[str, tuple[Rule, ...]] = {
    "sum": (
        factor_leaves_sum,
        factor_leaves_inner_loops,
        sum_of_invariant,
        sum_of_powers,
        squares_from_mean,
        choice_leaves_sum,
        any_above,
        integer_sum_narrows,
    ),
    "rsum": (factor_leaves_sum,),
    "rmax": (maximum_of_invariant, constant_leaves_maximum),
    "mul": (common_power_cancels,),
    "cast": (cast_of_wider_integer,),
}
