"""The rules: what leaves a reduction over a set K of axes, and sums that need one pass.

In: an e-graph and a node of it. Out: classes equal to the node. Directed: a rule adds a form that
may be cheaper, never its inverse. Floating point: each holds up to the rounding of a reordered sum
unless its docstring says exact. "Free of K": no axis of K occurs."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import permutations

from luminal.ir import Choice, Expr, Var, boolean, f32, f64, i32, i64, prod
from luminal.rewrite.egraph import EGraph
from luminal.rewrite.forms import (
    Form,
    added,
    class_of,
    exponent,
    factors,
    linear,
    regimes,
    scaled,
    split,
)

Rule = Callable[[EGraph, Choice], Iterator[int]]


def _floats(rule: Rule) -> Rule:
    """The rule for floats of 32 bits or more only: narrower sums round where they are."""

    @wraps(rule)
    def checked(graph: EGraph, node: Choice) -> Iterator[int]:
        return rule(graph, node) if node.dtype in (f32, f64) else iter(())

    return checked


def _count(axes: tuple[Var, ...]) -> Expr:
    return prod(tuple(a.extent for a in axes))


def factor_leaves_sum(graph: EGraph, node: Choice) -> Iterator[int]:
    """R1: Σ_K f·r = f·Σ_K r, f free of K; also inside rsum's values.

    Reason: f is multiplied once, and Σ r may be shared. Condition: sums in f32, f64 or integers,
    so that f does not decide where a narrow accumulator rounds."""
    if node.dtype in (f32, f64) or node.dtype.is_int:
        free, rest = split(graph, "mul", node.args[-1], frozenset(node.axes))
        if rest is None and node.op == "rsum":
            rest = graph.number(1, node.dtype)
        if free is not None and rest is not None and graph.constant(free) != 1:
            inner = graph.make(node.op, (*node.args[:-1], rest), node.dtype, node.axes)
            yield graph.combine("mul", free, inner)


@_floats
def factor_leaves_inner_loops(graph: EGraph, node: Choice) -> Iterator[int]:
    """R1 for some of the axes: Σ_{K,I} f·r = Σ_K f·Σ_I r, f free of I but not of K.

    Reason: f (a scale per block) is multiplied once per block. Condition: as in R1."""
    for inner in node.axes if len(node.axes) > 1 else ():
        free, rest = split(graph, "mul", node.args[0], frozenset((inner,)))
        if free is not None and rest is not None and graph.depends(free, node.axes):
            outer = tuple(a for a in node.axes if a != inner)
            body = graph.make("sum", (rest,), node.dtype, (inner,))
            yield graph.make("sum", (graph.combine("mul", free, body),), node.dtype, outer)


@_floats
def addend_leaves_inner_loops(graph: EGraph, node: Choice) -> Iterator[int]:
    """R7: Σ_{K,I} r·(a + f) = Σ_K (Σ_I r·a + f·Σ_I r), f free of I.

    Reason: f (a minimum per block) is multiplied once per block, and Σ r may be shared. Condition:
    as in R1."""
    for inner in node.axes if len(node.axes) > 1 else ():
        for part, others in factors(graph, node.args[0]):
            free, rest = split(graph, "add", part, frozenset((inner,)))
            r = graph.joined("mul", others)
            if free is not None and rest is not None and r is not None:
                bodies = graph.combine("mul", rest, r), r
                a, b = (graph.make("sum", (x,), node.dtype, (inner,)) for x in bodies)
                both = graph.combine("add", a, graph.combine("mul", free, b))
                outer = tuple(a for a in node.axes if a != inner)
                yield graph.make("sum", (both,), node.dtype, outer)


def sum_of_invariant(graph: EGraph, node: Choice) -> Iterator[int]:
    """R2: Σ_K f = |K|·f, f free of K.

    Reason: no loop. Exact in the reals. Condition: a constant |K|; f32, f64 or any integer type."""
    count = _count(node.axes).value
    if (node.dtype in (f32, f64) or node.dtype.is_int) and count is not None:
        if not graph.depends(node.args[0], node.axes):
            yield graph.combine("mul", node.args[0], graph.number(count, node.dtype))


def maximum_of_invariant(graph: EGraph, node: Choice) -> Iterator[int]:
    """max_K f = f, f free of K. Exact. Condition: K is not empty."""
    if not graph.depends(node.args[0], node.axes) and all(a.extent.lo >= 1 for a in node.axes):
        yield node.args[0]


@_floats
def constant_leaves_maximum(graph: EGraph, node: Choice) -> Iterator[int]:
    """R3: max_K s·x = s·max_K x, s a constant > 0.

    Reason: the maximum of the bare x is the one that others share. Exact up to the rounding of
    s·x. Condition: K is not empty, floats."""
    x, scale = graph.times_constant(node.args[0])
    if 0 < scale < math.inf and scale != 1 and all(a.extent.lo >= 1 for a in node.axes):
        yield scaled(graph, graph.make("rmax", (x,), node.dtype, node.axes), scale)


@_floats
def sum_of_powers(graph: EGraph, node: Choice) -> Iterator[int]:
    """R5: Σ_K exp2(d + f)·v = exp2(f + max_K d)·rsum_K(d, v), f free of K.

    Reason: rsum needs one pass over K with no maximum known before. No exponent above 0 is formed
    in it, and of d = s·x with s > 1 only differences of x are scaled: s·x may overflow. If f holds
    -max_K d in any spelling (s·max_K x with d = s·x + g, g free of K), the factor is exp2 of what
    is left, usually nothing. Condition: floats of 32 bits or more; d < inf (where d is +inf or NaN
    both sides are NaN); K is not empty, or both sides are 0."""
    power, others = next(_exponents(graph, node), (None, ()))
    if power is None or graph.dtype(power) != node.dtype:
        return
    whole = _stabilised(graph, power, node.axes)
    free, rest = split(graph, "add", power, frozenset(node.axes))
    settled: Form | None = {}
    if whole is None and rest is not None:
        left = {} if free is None else linear(graph, free)
        settled = _settled(graph, left, linear(graph, rest), node.axes)
        whole = graph.times_constant(rest)
    if whole is None:
        return
    x, scale = exponent(graph, *whole)
    values = graph.joined("mul", others)
    values = graph.number(1, node.dtype) if values is None else values
    scales = (graph.number(scale, node.dtype),) * (scale != 1)
    total = graph.make("rsum", (x, *scales, values), node.dtype, node.axes)
    if settled is None:
        top = graph.make("rmax", (x,), node.dtype, node.axes)
        if free is not None and scales:
            y, factor = graph.times_constant(free)
            free = graph.combine("mul", y, graph.number(factor / scale, node.dtype))
        residue = graph.joined("mul", (graph.joined("add", (free, top)), *scales))
    else:
        residue = class_of(graph, settled, node.dtype)
    yield total if residue is None else graph.combine("mul", graph.power(residue), total)


def _exponents(graph: EGraph, node: Choice) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(y, others) for every way to write the summand as exp2(y)·others, y not free of K."""
    for part, others in factors(graph, node.args[0]):
        for (y,) in graph.args(part, "exp2"):
            if graph.depends(y, node.axes):
                yield y, others


def _stabilised(graph: EGraph, power: int, axes: tuple[Var, ...]) -> tuple[int, float] | None:
    """(x, s) if class `power` is s·(x - max_K x): x as it is, so that a row which is infinite or
    absorbs what is added to it stays so."""
    inner, scale = graph.times_constant(power)
    for a, b in graph.args(inner, "add"):
        for (x, s), (m, factor) in permutations(map(graph.times_constant, (a, b))):
            if s == -factor and s * scale > 0 and x in _maximised(graph, m, axes):
                return x, s * scale
    form = linear(graph, power)
    for m, factor in form.items():
        for x in _maximised(graph, m, axes) if m is not None and factor < 0 else ():
            if added(form, linear(graph, x), factor) == {m: factor}:
                return x, -factor
    return None


def _settled(graph: EGraph, free: Form, rest: Form, axes: tuple[Var, ...]) -> Form | None:
    """free + max_K rest, if `free` has a maximum over K of the same thing to a constant factor."""
    for m, factor in free.items():
        for x in _maximised(graph, m, axes) if m is not None and factor < 0 else ():
            shift = added(rest, linear(graph, x), factor)
            if not any(graph.depends(c, axes) for c in shift):
                return added({c: f for c, f in free.items() if c != m}, shift)
    return None


def _maximised(graph: EGraph, m: int, axes: tuple[Var, ...]) -> Iterator[int]:
    """x if class m is max_K x, or a selection of something else only where that is not finite.

    Where it is -inf every exponent is -inf, and both sides of R5 are 0 times anything finite."""
    yield from (graph.find(x) for (x,) in graph.args(m, "rmax", axes))
    for p, *ways in graph.args(m, "select"):
        found = regimes(graph, p)
        if found is not None:
            kept, other = ways if found[2] else ways[::-1]
            if graph.find(kept) == found[0] and graph.constant(other) is not None:
                yield from (graph.find(x) for (x,) in graph.args(kept, "rmax", axes))


@_floats
def squares_from_mean(graph: EGraph, node: Choice) -> Iterator[int]:
    """R6: Σ_K (x - (Σ_K x)/|K|)² = wsum_K x.

    Reason: wsum needs one pass and merges partial results without cancellation. Exact in the
    reals. Condition: floats of 32 bits or more; the factor of Σ_K x is -1/|K|, as a number or as
    recip of the symbolic count."""
    for delta, other in graph.args(node.args[0], "mul"):
        form = linear(graph, delta) if graph.find(delta) == graph.find(other) else {}
        for m, factor in form.items():
            for x, weight in _means(graph, m, node.axes) if m is not None else ():
                rest = added(form, linear(graph, x), -1.0)
                if abs(factor * weight + 1) < 1e-5 and rest == {m: factor}:
                    yield graph.make("wsum", (x,), node.dtype, node.axes)


def _means(graph: EGraph, m: int, axes: tuple[Var, ...]) -> Iterator[tuple[int, float]]:
    """(x, w) such that class m is w times the mean of x over K."""
    count = _count(axes)
    if count.value is not None:
        yield from ((x, float(count.value)) for (x,) in graph.args(m, "sum", axes))
    for a, b in graph.products(m):
        counts = (c for (y,) in graph.args(b, "recip") for (c,) in graph.args(y, "cast"))
        if any(graph.args(c, "index", count) for c in counts):
            yield from ((x, 1.0) for (x,) in graph.args(a, "sum", axes))


@_floats
def choice_leaves_sum(graph: EGraph, node: Choice) -> Iterator[int]:
    """Σ_K select(p, a, b)·r = select(p, Σ_K a·r, Σ_K b·r), p free of K.

    Reason: p is decided once, and each sum is then free for other rules. A branch that is the
    constant 0 makes its sum 0. Condition: floats of 32 bits or more, r finite where that happens.
    """
    for part, others in factors(graph, node.args[0]):
        for p, *ways in graph.args(part, "select") if graph.depends(part, node.axes) else ():
            if not graph.depends(p, node.axes):
                sums, rest = [], graph.joined("mul", others)
                for way in ways:
                    body = way if rest is None else graph.combine("mul", way, rest)
                    zero = graph.constant(way) == 0
                    sums.append(way if zero else graph.make("sum", (body,), node.dtype, node.axes))
                yield graph.make("select", (p, *sums), node.dtype)
                return


def any_above(graph: EGraph, node: Choice) -> Iterator[int]:
    """∃_K p(x) = not (rsum_K(x, 1) < 1/2), where p(x) says that x is above -inf.

    Reason: rsum_K(x, 1) is often needed anyway. It is at least 1 if some x is above -inf (the
    largest contributes exp2(0)) and 0 if none is. Exact. Condition: p compares x with ±inf only;
    floats of 32 bits or more; a NaN counts as above -inf."""
    found = regimes(graph, node.args[0]) if node.dtype == boolean else None
    if found is None or found[1:] != (False, True, True):
        return
    x, dtype = found[0], graph.dtype(found[0])
    if dtype in (f32, f64) and graph.depends(x, node.axes):
        one, half = graph.number(1.0, dtype), graph.number(0.5, dtype)
        for power in _powers(graph, x, node.axes):
            total = graph.make("rsum", (*power, one), dtype, node.axes)
            yield graph.make("not", (graph.make("lt", (total, half), boolean),), boolean)


def _powers(graph: EGraph, x: int, axes: tuple[Var, ...]) -> list[tuple[int, ...]]:
    """Exponents and scales of rsums over K whose exponents are x times a positive constant."""
    found: list[tuple[int, ...]] = []
    ours = _plain(graph, x)
    for power in {a[:-1]: 0 for c in graph.classes() for a in graph.args(c, "rsum", axes)}:
        theirs = _plain(graph, power[0])
        ratios = [theirs[c] / f for c, f in ours.items() if theirs.get(c, 0.0) / f > 0][:2]
        if any(scaled(graph, x, ratio) == graph.find(power[0]) for ratio in ratios):
            found.append(power)
    return found


def _plain(graph: EGraph, c: int) -> dict[int, float]:
    """Factors of the classes in c, selections looked through."""
    out: dict[int, float] = {}
    for m, factor in linear(graph, c).items():
        if m is not None:
            picks = [w for _, *ways in graph.args(m, "select")[:1] for w in ways]
            inner = [w for w in picks if graph.constant(w) is None] or [m]
            out |= {k: v * factor for k, v in linear(graph, inner[0]).items() if k is not None}
    return out


@_floats
def common_power_cancels(graph: EGraph, node: Choice) -> Iterator[int]:
    """(2^m·a) / (2^m·b) = a / b.

    Reason: where a source sums powers without a stabiliser, R5 leaves the maximum in both sums.
    Exact up to rounding. Condition: 2^m is neither 0 nor inf; where it is, the source is NaN."""
    for top, inverse in (node.args, node.args[::-1]):
        for (bottom,) in graph.args(inverse, "recip"):
            above, below = _powered(graph, top), _powered(graph, bottom)
            for power in sorted(above.keys() & below.keys()):
                rest = graph.make("recip", (below[power],), node.dtype)
                yield graph.combine("mul", above[power], rest)


def _powered(graph: EGraph, c: int) -> dict[int, int]:
    """The rest by p, for every product p·rest in class c with p a power of two."""
    return {graph.find(a): b for a, b in graph.products(c) if graph.nodes(a, "exp2")}


def integer_sum_narrows(graph: EGraph, node: Choice) -> Iterator[int]:
    """Σ_K (x: i32 -> i64) = (Σ_K x): i32 -> i64.

    Reason: twice the lanes, and byte products may use dot-product instructions. Exact. Condition:
    |x|·|K| < 2^31, from the dtypes that x is made of."""
    for (x,) in graph.args(node.args[0], "cast") if node.dtype == i64 else ():
        if graph.dtype(x) == i32 and _magnitude(graph, x, 0) * _count(node.axes).hi < 1 << 31:
            total = graph.make("sum", (x,), i32, node.axes)
            yield graph.make("cast", (total,), i64)


def cast_of_wider_integer(graph: EGraph, node: Choice) -> Iterator[int]:
    """(x: i32 -> i64) -> t = x: i32 -> t.

    Reason: the wider integer need not exist. Exact: the value is the same."""
    for (x,) in graph.args(node.args[0], "cast"):
        if (graph.dtype(x), graph.dtype(node.args[0])) == (i32, i64) and node.dtype != i64:
            yield x if node.dtype == i32 else graph.make("cast", (x,), node.dtype)


def _magnitude(graph: EGraph, c: int, depth: int) -> int:
    """A bound of |x| for integers x of a class."""
    dtype, value = graph.dtype(c), graph.constant(c)
    if value is not None:
        return abs(int(value))
    bound = 1 if dtype.kind == "b" else 1 << (dtype.bits - (dtype.kind == "i"))
    for node in graph.nodes(c) if depth < 6 else ():
        if node.op in ("cast", "mul", "add", "select") and dtype.is_int:
            if not graph.dtype(node.args[-1]).is_float:
                sizes = [_magnitude(graph, a, depth + 1) for a in node.args]
                bound = min(bound, _SIZES[node.op](sizes))
    return bound


_SIZES = {"cast": max, "mul": math.prod, "add": sum, "select": lambda sizes: max(sizes[1:])}
RULES: dict[str, tuple[Rule, ...]] = {
    "sum": (factor_leaves_sum, factor_leaves_inner_loops, addend_leaves_inner_loops,
            sum_of_invariant, sum_of_powers,
            squares_from_mean, choice_leaves_sum, any_above, integer_sum_narrows),
    "rsum": (factor_leaves_sum,),
    "rmax": (maximum_of_invariant, constant_leaves_maximum),
    "mul": (common_power_cancels,),
    "cast": (cast_of_wider_integer,),
}  # fmt: skip
MAX_CLASSES, MAX_ROUNDS = 20_000, 12
"""Limits of `saturate`; larger graphs may grow to four times their size."""


def saturate(graph: EGraph, matches: Counter[str] | None = None) -> tuple[str, ...]:
    """Applies every rule to every node of its operation, round by round, until nothing new follows;
    notes if a limit stopped it. `matches` counts by rule what was new."""
    limit = max(MAX_CLASSES, 4 * len(graph))
    for _ in range(MAX_ROUNDS):
        before = (len(graph), graph.unions)
        for c in graph.classes():
            for node in graph.nodes(c):
                for rule in RULES.get(node.op, ()):
                    for equal in rule(graph, node):
                        if graph.union(c, equal) and matches is not None:
                            matches[rule.__name__] += 1
            if len(graph) > limit:
                graph.rebuild()
                return (f"rules stopped at {len(graph)} classes",)
        graph.rebuild()
        if (len(graph), graph.unions) == before:
            return ()
    return (f"rules stopped after {MAX_ROUNDS} rounds",)
