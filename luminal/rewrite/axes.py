"""Rules about indices: splitting and joining axes of a sum where its indices ask for it.

In: a sum over named axes. Out: block sizes (`lower.py` forms the split sum), or the joined sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from luminal.ir.expr import Binary, Expr, Var, const, to_expr
from luminal.ir.term import Term, postorder, reduction, substitute
from luminal.ir.view import Shape

__all__ = ["Joined", "Split", "divisors", "joined"]

_SMALLEST = 8


@dataclass(frozen=True, slots=True)
class Split:
    """Σ_axis b = Σ_blocks Σ_within b[axis := blocks·size + within], where `parts` is that b.

    Exact in the reals (a reordering); `size` divides the extent of the axis.
    """

    whole: Term
    blocks: Var
    within: Var
    parts: Term


def divisors(body: Term, axis: Var) -> tuple[int, ...]:
    """Block sizes c for which the indices of the summand contain axis // c.

    Reason: a factor that varies by block only can then leave the inner sum. Side condition: c
    divides the extent. The smallest alone: it makes every coarser block visible too.
    """
    found: set[int] = set()
    for t in postorder(body):
        if t.op == "load" and axis in t.free:
            for e in t.indices:
                found |= _by(e, axis)
    extent = axis.hi + 1
    usable = sorted(c for c in found if c >= _SMALLEST and extent % c == 0 and c < extent)
    return tuple(usable[:1])


def _by(e: Expr, axis: Var) -> set[int]:
    found: set[int] = set()
    for atom in e.all_atoms():
        if isinstance(atom, Binary) and atom.op in ("div", "mod") and atom.b.value is not None:
            slope = atom.a.coefficient(axis)
            if slope is not None and slope.value == 1:
                found.add(atom.b.value)
    return found


@dataclass(frozen=True, slots=True)
class Joined:
    """Σ_{a,b} e = Σ_k e[a := k // |b|, b := k % |b|]: `whole` and `term`; `env` is that map.

    Reason: one long loop over memory that is contiguous. Exact in the reals (a reordering).
    Condition: every load that depends on b reads along k without a gap.
    """

    whole: Term
    term: Term
    env: Mapping[Var, Expr]


def joined(
    whole: Term, shapes: Mapping[str, Shape], fresh: Callable[[Expr, Iterable[Var]], Var]
) -> Joined | None:
    """`whole` with as many of its axes joined as possible; None if there are none."""
    term, env = whole, dict[Var, Expr]()
    while True:
        pair = _contiguous_pair(term, shapes)
        if pair is None:
            return Joined(whole, term, env) if env else None
        a, b = pair
        size = b.hi + 1
        used = set(whole.free).union(*(t.axes for t in postorder(term)))
        k = fresh(const((a.hi + 1) * size), used)
        step: dict[Var, Expr] = {a: to_expr(k) // size, b: to_expr(k) % size}
        env = {old: e.substitute(step) for old, e in env.items()} | step
        rest = tuple(x for x in term.axes if x not in pair)
        term = reduction(term.op, (*rest, k), substitute(term.args[0], step))


def _contiguous_pair(term: Term, shapes: Mapping[str, Shape]) -> tuple[Var, Var] | None:
    if term.op != "sum":
        return None
    loads = [t for t in postorder(term.args[0]) if t.op == "load"]
    for a in term.axes:
        for b in term.axes:
            fixed = a is not b and a.bound is None and b.bound is None
            both = [t for t in loads if b in t.free]
            if fixed and both and all(_adjoin(t, a, b, shapes) for t in both):
                return a, b
    return None


def _adjoin(t: Term, a: Var, b: Var, shapes: Mapping[str, Shape]) -> bool:
    """One step of `a` moves a load as far as all steps of `b`."""
    size = b.hi + 1
    for d, e in enumerate(t.indices):
        slope, other = e.coefficient(b), e.coefficient(a)
        if slope is None or other is None:
            return False
        if slope.terms:
            if other == slope * size:
                return True
            before = t.indices[d - 1].coefficient(a) if d else None
            alone = e == to_expr(b) and before == 1
            return alone and t.buffer in shapes and shapes[t.buffer][d] == size
    return False
