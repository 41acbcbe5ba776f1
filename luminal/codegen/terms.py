"""Rewrites of terms that lowering needs: replace, fold by facts, expand statistics, push masks.

In: terms. Out: terms with the same values (fold: under the given facts, and taking 0 * x for 0)."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial, reduce

from luminal.ir import DType, Expr, Var, accumulator, boolean, depth_first, is_nonnegative, prod
from luminal.ir import term as tm
from luminal.ir.numeric import lowest
from luminal.ir.term import REDUCTIONS, Data, Term, binary, constant, data_atoms, postorder, rebuild

Facts = Mapping[Term, bool]
Shapes = Mapping[str, tuple[Expr, ...]]
_Place = tuple[Term, frozenset[Expr], bool]
TRUE = constant(True, boolean)


def most_negative(dtype: DType) -> float:
    """The running maximum that an rsum starts from: finite, so that -inf - it is -inf."""
    wide = accumulator(dtype)
    return -1.7976931348623157e308 if wide.bits == 64 else -3.4028234663852886e38


def rewrite(term: Term, known: Mapping[Term, Term], change: Callable[[Term], Term]) -> Term:
    """The term with subterms exchanged as in `known`, and `change` made to all others once their
    arguments are; inside index data too."""
    memo = dict(known)

    def visit(t: Term) -> Term:
        if t not in memo:
            memo[t] = change(rebuild(t, tuple(map(visit, t.args)), partial(_map_data, visit=visit)))
        return memo[t]

    return visit(term)


def replace(term: Term, mapping: Mapping[Term, Term]) -> Term:
    """The term with whole subterms exchanged."""
    return rewrite(term, mapping, lambda t: t) if mapping else term


def fold(term: Term, facts: Facts) -> Term:
    """The term where the given conditions have known truth; 0 * x is 0 here."""
    known = {c: constant(truth, c.dtype) for c, truth in facts.items()}
    return rewrite(term, known, _shrink) if facts else term


def _shrink(t: Term) -> Term:
    deciding = t.args[-1:] if t.op in ("sum", "rsum") else t.args if t.op == "mul" else ()
    zero = any(a.op == "const" and a.value == 0 for a in deciding)
    return constant(0, t.dtype) if zero else t


def expand(term: Term, online: Collection[str] = ()) -> Term:
    """The term with rsum and wsum as plain sums and maxima, but for rsums over an `online` axis."""

    def change(t: Term) -> Term:
        carried = t.op == "rsum" and len(t.axes) == 1 and t.axes[0].name in online
        return _expanded(t) if t.op in ("rsum", "wsum") and not carried else t

    return rewrite(term, {}, change)


def _expanded(t: Term) -> Term:
    x, *others = (tm.cast(a, accumulator(t.dtype)) for a in t.args)
    minus = constant(-1.0, x.dtype)
    if t.op == "rsum":
        floor = constant(most_negative(x.dtype), x.dtype)
        top = binary("max", tm.reduction("rmax", t.axes, x), floor)
        *scales, value = others
        total = binary("mul", power_below(x, top, scales), value)
    else:
        count = tm.cast(tm.index(prod(tuple(a.extent for a in t.axes))), x.dtype)
        mean = binary("mul", tm.reduction("sum", t.axes, x), tm.unary("recip", count))
        delta = binary("add", x, binary("mul", mean, minus))
        total = binary("mul", delta, delta)
    return tm.cast(tm.reduction("sum", t.axes, total), t.dtype)


def power_below(x: Term, top: Term, scales: Iterable[Term]) -> Term:
    """exp2(s·(x - top)), the weight of x in an rsum; s is the product of the scales."""
    below = binary("add", x, binary("mul", top, constant(-1.0, top.dtype)))
    return tm.unary("exp2", reduce(partial(binary, "mul"), scales, below))


def outer_reductions(*terms: Term) -> list[Term]:
    """Reductions that are free of enclosing reduction axes, those that others need first."""

    def below(place: tuple[Term, frozenset[Var]]) -> Iterator[tuple[Term, frozenset[Var]]]:
        t, bound = place
        yield from ((atom.term, bound) for atom in data_atoms(*t.exprs))
        yield from ((a, bound.union(t.axes)) for a in t.args)

    places = depth_first(((t, frozenset[Var]()) for t in terms), below)
    outer = (t for t, bound in places if t.op in REDUCTIONS and t.free.isdisjoint(bound))
    return list(dict.fromkeys(outer))


# ---- loads in range


def in_range(t: Term, shape: tuple[Expr, ...]) -> bool:
    """Whether a load can be proved in range from its axes alone."""
    return not any(data_atoms(*t.indices)) and all(map(is_nonnegative, _ends(t, shape)))


def _ends(t: Term, shape: tuple[Expr, ...]) -> list[Expr]:
    """What must not be negative for a load to be in range; data are clamped by themselves."""
    pairs = zip(t.indices, shape, strict=True)
    return [e for i, n in pairs if not any(data_atoms(i)) for e in (i, n - 1 - i)]


def unproved(term: Term, shapes: Shapes) -> dict[Term, list[Expr]]:
    """The loads that only masks around the term keep in range, and what these must not let be
    negative: what neither the axes nor the term's own selects prove."""

    def below(place: _Place) -> Iterator[_Place]:
        t, known, masked = place
        if t.op != "select":
            yield from ((a, known, masked) for a in t.args)
        else:
            c, yes, no = t.args
            yield c, known, masked
            yield yes, known | _holding(c), True
            yield no, known | _holding(tm.logical_not(c)), True

    found: dict[Term, list[Expr]] = {}
    for t, known, masked in depth_first(((term, frozenset[Expr](), False),), below):
        if t.op == "load" and t.buffer in shapes:
            ends = [e for e in _ends(t, shapes[t.buffer]) if not is_nonnegative(e)]
            ends = [e for e in ends if not any(is_nonnegative(e - k) for k in known)]
            if ends or (any(data_atoms(*t.indices)) and not masked):
                found.setdefault(t, []).extend(ends)
    return found


def _holding(c: Term) -> frozenset[Expr]:
    """What is not negative where a condition holds."""
    if c.op == "and":
        return _holding(c.args[0]) | _holding(c.args[1])
    return frozenset((c.expr,)) if c.op == "cond" else frozenset()


def checked(term: Term, shapes: Shapes) -> Term:
    """The term, its loads made 0 where they would be out of range: for a stage, which does not
    see the masks around its uses."""
    mapping: dict[Term, Term] = {}
    for t, ends in unproved(term, shapes).items():
        mapping[t] = t
        for e in ends:
            mapping[t] = tm.select(tm.cond(e), mapping[t], constant(0, t.dtype))
    return replace(term, mapping)


def guarded(term: Term, shapes: Shapes) -> Term:
    """The term where reductions under a select that read what only the select makes legal have
    its condition inside: they are computed before the select is."""
    memo: dict[tuple[Term, Term], Term] = {}
    deep: set[Term] = set()
    for t in postorder(term):
        if t.op in REDUCTIONS or any(a in deep for a in _parts(t)):
            deep.add(t)

    def visit(t: Term, mask: Term) -> Term:
        if t.op in REDUCTIONS and (t, TRUE) in memo:
            mask = TRUE  # it is computed whether or not the mask holds: once
        key = (t, mask)
        if t not in deep or key in memo:
            return memo.get(key, t)
        if t.op == "select":
            c = visit(t.args[0], mask)
            yes, no = binary("mul", mask, c), binary("mul", mask, tm.logical_not(c))
            args = (c, visit(t.args[1], yes), visit(t.args[2], no))
        else:
            args = tuple(visit(a, mask) for a in t.args)
        if t.op in REDUCTIONS and mask is not TRUE and unproved(t, shapes):
            empty = constant(lowest(t.dtype) if t.op in ("rmax", "rsum") else 0, args[0].dtype)
            first = tm.select(mask, args[0], empty)
            last = tm.select(mask, args[-1], constant(0, args[-1].dtype))
            args = (first, *args[1:-1], last) if t.op == "rsum" else (first,)
        memo[key] = new = rebuild(t, args, partial(_map_data, visit=lambda x: visit(x, mask)))
        return new

    return visit(term, TRUE)


def _parts(t: Term) -> list[Term]:
    return [*t.args, *(atom.term for atom in data_atoms(*t.exprs))]


def _map_data(e: Expr, visit: Callable[[Term], Term]) -> Expr:
    """The expression with the terms of its data atoms changed."""
    return e.map(lambda a: a.with_term(visit(a.term)) if isinstance(a, Data) else None)


def use_counts(*terms: Term) -> Counter[Term]:
    """How often each subterm occurs as an argument."""
    return Counter(a for t in postorder(*terms) for a in t.args)
