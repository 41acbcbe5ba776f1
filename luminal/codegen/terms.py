"""Rewrites of terms that lowering needs: replace, fold by facts, expand statistics, push masks.

In: terms. Out: terms with the same values (fold: under the given facts, and taking 0 * x for 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from luminal.codegen.arith import lowest
from luminal.ir.dtype import DType, accumulator
from luminal.ir.expr import Atom, Expr, Var, is_nonnegative, prod
from luminal.ir.term import (
    REDUCTIONS,
    Data,
    Term,
    binary,
    cast,
    constant,
    data_atoms,
    index,
    logical_not,
    postorder,
    rebuild,
    reduction,
    select,
    unary,
)  # fmt: skip

__all__ = [
    "Facts", "conditions", "data_atoms", "expand", "fold", "guard_reductions", "most_negative",
    "outer_reductions", "replace", "use_counts",
]  # fmt: skip

Facts = Mapping[Term, bool]
IsSafe = Callable[[Term], bool]


def most_negative(dtype: DType) -> float:
    """The running maximum that an rsum starts from: finite, so that -inf - it is -inf."""
    wide = accumulator(dtype)
    return -1.7976931348623157e308 if wide.bits == 64 else -3.4028234663852886e38


def replace(term: Term, mapping: Mapping[Term, Term]) -> Term:
    """The term with whole subterms exchanged, inside index data too."""
    if not mapping:
        return term
    memo: dict[Term, Term] = dict(mapping)

    def leaf(atom: Atom) -> Expr | None:
        return atom.with_term(visit(atom.term)) if isinstance(atom, Data) else None

    def visit(t: Term) -> Term:
        if t not in memo:
            memo[t] = rebuild(t, tuple(map(visit, t.args)), lambda e: e.map(leaf))
        return memo[t]

    return visit(term)


def fold(term: Term, facts: Facts) -> Term:
    """The term where the given conditions have known truth; 0 * x is 0 here."""
    if not facts:
        return term
    memo: dict[Term, Term] = {}

    def visit(t: Term) -> Term:
        if t in facts:
            return constant(facts[t], t.dtype)
        if t not in memo:
            memo[t] = _shrink(rebuild(t, tuple(visit(a) for a in t.args)))
        return memo[t]

    return visit(term)


def _shrink(t: Term) -> Term:
    if t.op == "mul" and any(a.op == "const" and a.value == 0 for a in t.args):
        return constant(0, t.dtype)
    if t.op == "sum" and t.args[0].op == "const" and t.args[0].value == 0:
        return t.args[0]
    if t.op == "rsum" and t.args[1].op == "const" and t.args[1].value == 0:
        return t.args[1]
    return t


def conditions(*terms: Term) -> list[Term]:
    """The cond subterms, in a fixed order."""
    return [t for t in postorder(*terms) if t.op == "cond"]


def outer_reductions(*terms: Term) -> list[Term]:
    """Reductions that are free of enclosing reduction axes, those that others need first."""
    found: dict[Term, None] = {}
    seen: set[tuple[Term, frozenset[Var]]] = set()

    def visit(t: Term, bound: frozenset[Var]) -> None:
        if (t, bound) in seen:
            return
        seen.add((t, bound))
        inner = bound.union(t.axes)
        for atom in data_atoms(*t.exprs):
            visit(atom.term, bound)
        for a in t.args:
            visit(a, inner)
        if t.op in REDUCTIONS and t.free.isdisjoint(bound):
            found.setdefault(t)

    for term in terms:
        visit(term, frozenset())
    return list(found)


def expand(term: Term, keep: frozenset[Term] = frozenset()) -> Term:
    """The term with rsum and wsum (except those in `keep`) as plain sums and maxima."""
    memo: dict[Term, Term] = {}

    def visit(t: Term) -> Term:
        if t not in memo:
            args = tuple(visit(a) for a in t.args)
            memo[t] = _expand_one(t, args) if t not in keep else rebuild(t, args)
        return memo[t]

    return visit(term)


def _expand_one(t: Term, args: tuple[Term, ...]) -> Term:
    wide = accumulator(t.dtype)
    if wide != t.dtype and t.op in ("rsum", "wsum"):
        args = tuple(cast(a, wide) for a in args)
    if t.op == "rsum":
        x, v = args
        floor = constant(most_negative(x.dtype), x.dtype)
        top = binary("max", reduction("rmax", t.axes, x), floor)
        shifted = binary("add", x, binary("mul", top, constant(-1.0, x.dtype)))
        weight = unary("exp2", shifted)
        unit = v.op == "const" and v.value == 1
        total = reduction("sum", t.axes, weight if unit else binary("mul", weight, v))
        return cast(total, t.dtype)
    if t.op == "wsum":
        (x,) = args
        count = cast(index(prod(tuple(a.extent for a in t.axes))), x.dtype)
        mean = binary("mul", reduction("sum", t.axes, x), unary("recip", count))
        delta = binary("add", x, binary("mul", mean, constant(-1.0, x.dtype)))
        return cast(reduction("sum", t.axes, binary("mul", delta, delta)), t.dtype)
    return rebuild(t, args)


def guard_reductions(term: Term, is_safe: IsSafe) -> Term:
    """Reductions under a select that read what only the select makes legal get its condition
    inside: they are computed before the select is."""
    memo: dict[tuple[Term, Term | None], Term] = {}

    def visit(t: Term, mask: Term | None) -> Term:
        key = (t, mask)
        if key in memo:
            return memo[key]
        if t.op == "select":
            c, a, b = t.args
            here, no = visit(c, mask), None
            if any(r.op in REDUCTIONS for r in postorder(a, b)):
                no = logical_not(here)
                yes = here if mask is None else binary("mul", mask, here)
                no = no if mask is None else binary("mul", mask, no)
                memo[key] = select(here, visit(a, yes), visit(b, no))
            else:
                memo[key] = select(here, a, b)
            return memo[key]
        if t.op in REDUCTIONS and mask is not None and not is_safe(t):
            empty = (lowest(t.dtype) if t.op in ("rmax", "rsum") else 0, 0)
            args = tuple(
                select(mask, visit(a, mask), constant(e, a.dtype)) for a, e in zip(t.args, empty)
            )
            memo[key] = reduction(t.op, t.axes, *args)
        else:
            memo[key] = rebuild(t, tuple(visit(a, mask) for a in t.args))
        return memo[key]

    return visit(term, None)


def loads_are_safe(t: Term, shapes: Mapping[str, tuple[Expr, ...]]) -> bool:
    """Whether every load of `t` outside its own selects is in range for all axis values."""

    def visit(s: Term) -> bool:
        if s.op == "select":
            return visit(s.args[0])
        if s.op == "load" and s.buffer in shapes:
            return in_range(s, shapes[s.buffer])
        return all(visit(a) for a in s.args)

    return visit(t)


def in_range(t: Term, shape: tuple[Expr, ...]) -> bool:
    """Whether a load can be proved in range from its axes alone."""
    return all(
        not any(True for _ in data_atoms(i)) and is_nonnegative(i) and is_nonnegative(n - 1 - i)
        for i, n in zip(t.indices, shape, strict=True)
    )


def use_counts(*terms: Term) -> dict[Term, int]:
    """How often each subterm occurs as an argument."""
    counts: dict[Term, int] = {}
    for t in postorder(*terms):
        for a in t.args:
            counts[a] = counts.get(a, 0) + 1
    return counts
