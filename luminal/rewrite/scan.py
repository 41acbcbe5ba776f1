"""Rule R10: reductions over what comes before (or after) a position, in blocks.

In: a term, and fresh axes. Out: an equal term that adds whole blocks and a part of one, and the
values that have to be stored for it to pay: one for every block, one for all blocks before it."""

from collections.abc import Iterator

from luminal.ir import Cut, Expr, Term, Var, f32, f64, is_nonnegative, postorder, to_expr
from luminal.ir.expr import ceil_div, minimum
from luminal.ir.numeric import lowest
from luminal.ir.term import binary, cast, cond, constant, load, reduction, select, substitute
from luminal.rewrite.lower import Axes

BLOCK = 32
"""Elements of a block: the part of one costs that much for every position."""
SHORTEST = 4 * BLOCK
"""Shorter reductions stay whole."""
_Masked = tuple[list[Expr], Term]
"""Conditions (each >= 0) outside of which a value is neutral, and the value inside."""


Equal = tuple[Cut | None, Term, Term]
"""Two equal terms; the second loads the first from a buffer of its own, if there is a cut."""


def scans(root: Term, name: str, axes: Axes, seen: set[Term]) -> Iterator[Equal]:
    """Every reduction in `root`, but for those `seen`, over what comes before or after a position,
    and first what is stored for it, in buffers called `name`, a dot and a number."""
    for t in [t for t in postorder(root) if t.axes and t not in seen]:
        seen.add(t)
        if (made := _scan(t, f"{name}.{len(seen)}", axes)) is not None:
            one, rest, whole = made
            yield one
            yield from scans(rest[1], name, axes, seen)  # is one itself
            yield from (rest, whole)


def _scan(t: Term, name: str, axes: Axes) -> tuple[Equal, Equal, Equal] | None:
    """⊕_k [k <= f] x(k) = (⊕_b [b < f//T] ⊕_w x(bT + w)) ⊕ (⊕_w [w <= f%T] x(f//T·T + w)), and
    the same for <, >= and >; x does not vary with what f does.

    Reason: n·T steps instead of n², or n + (n/T)²: each block is reduced once and what comes before
    a block is too. Exact in the reals (a reordering); where a masked NaN or infinity would have
    been multiplied by 0 the source is NaN. Condition: sums of f32, f64 and integers, or maxima;
    0 <= f < n, so that no element outside of x is read."""
    if t.op not in ("sum", "rmax") or len(t.axes) != 1 or t.axes[0].hi + 1 < SHORTEST:
        return None
    if not (t.dtype in (f32, f64) or t.dtype.is_int):
        return None
    (k,), neutral = t.axes, 0 if t.op == "sum" else lowest(t.dtype)
    conditions, x = _masked(t.args[0], neutral)
    mine = [e for e in conditions if k in e.variables() and e.variables() - {k} - x.free]
    slope = mine[0].coefficient(k) if len(mine) == 1 else None
    if slope is None or slope.value not in (1, -1):
        return None
    before, f = slope.value < 0, mine[0] * -slope + to_expr(k)
    for e in conditions:
        x = x if e in mine else select(cond(e), x, constant(neutral, t.dtype))
    if k in f.variables() or not x.free.isdisjoint(f.variables() & t.free):
        return None
    for strict in (0, 1):
        at = f + (strict if before else -strict)
        if is_nonnegative(at) and is_nonnegative(k.extent - 1 - at):
            return _blocked(t, k, at, x, before, strict, name, axes)
    return None


def _masked(t: Term, neutral: object) -> _Masked:
    """The conditions of a value that is neutral where one of them does not hold."""
    if t.op == "cast":
        conditions, x = _masked(t.args[0], neutral)
        return conditions, cast(x, t.dtype)
    if t.op == "mul" and neutral == 0 and t.dtype.kind != "b":
        (c, x), (d, y) = (_masked(a, neutral) for a in t.args)
        return [*c, *d], binary("mul", x, y)
    if t.op == "select":
        p, *ways = t.args
        for way, other, sign in ((*ways, 1), (*ways[::-1], -1)):
            bounds = _bounds(p, sign)
            if bounds and other.op == "const" and other.payload == neutral:
                conditions, x = _masked(way, neutral)
                return [*bounds, *conditions], x
    if t.op in ("cond", "and") and neutral == 0 and (bounds := _bounds(t, 1)):
        return bounds, constant(True, t.dtype)
    return [], t


def _bounds(p: Term, sign: int) -> list[Expr]:
    """Expressions that are all >= 0 where p holds (or, with sign -1, does not); [] if unknown."""
    if p.op == "cond":
        return [p.expr if sign > 0 else -p.expr - 1]
    parts = [_bounds(a, sign) for a in p.args] if p.op == "and" and sign > 0 else []
    return [e for part in parts for e in part] if all(parts) else []


def _blocked(
    t: Term, k: Var, f: Expr, x: Term, before: bool, strict: int, name: str, axes: Axes
) -> tuple[Equal, Equal, Equal]:  # fmt: skip
    n, count = k.extent, ceil_div(k.extent, BLOCK)
    other = constant(0 if t.op == "sum" else lowest(t.dtype), t.dtype)
    block = axes.fresh(count, x.free)
    within = axes.fresh(to_expr(BLOCK), {*t.free, *x.free, block})
    end = axes.fresh(count, {*x.free, block, within})

    def masked(value: Term, *bounds: Expr) -> Term:
        for e in bounds:
            value = select(cond(e), value, other)
        return value

    def stored(suffix: str, value: Term) -> Equal:
        found = sorted(value.free.intersection(axes.names.values()), key=lambda a: a.name)
        index = tuple(map(to_expr, found))
        cut = Cut(
            name + suffix, tuple(a.extent for a in found), t.dtype, (*found,), index, 0, False
        )
        return cut, value, load(cut.name, index, t.dtype)

    place = to_expr(block) * BLOCK + within
    inside = masked(substitute(x, {k: place}), n - 1 - place)
    one = stored("a", reduction(t.op, (within,), inside))
    step = to_expr(end) - block - 1 if before else to_expr(block) - end - 1
    rest = stored("b", reduction(t.op, (block,), masked(one[2], step)))
    quotient = f // BLOCK
    place = quotient * BLOCK + within
    bounds = (f - strict - place,) if before else (place - f - strict, n - 1 - place)
    inside = substitute(x, {k: minimum(place, n - 1)})  # loads without a mask stay in range
    tail = reduction(t.op, (within,), masked(inside, *bounds))
    op = "add" if t.op == "sum" else "max"
    parts = binary(op, substitute(rest[2], {end: quotient}), tail)
    return one, rest, (None, t, parts)
