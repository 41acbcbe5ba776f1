"""Rules about indices: splitting and joining axes of a sum where its indices ask for it.

In: a sum over named axes. Out: block sizes (`lower.py` forms the split sum), or the joined sum."""

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations

from luminal.ir import Binary, Expr, Term, Var, const, postorder, reduction, substitute, to_expr
from luminal.ir.view import Shape

_SMALLEST = 8


Split = tuple[Term, Var, Var, Term]
"""(whole, blocks, within, parts): Σ_axis b = Σ_blocks Σ_within b[axis := blocks·size + within],
where `whole` is that sum and `parts` that summand. Exact in the reals (a reordering)."""


def divisors(body: Term, axis: Var) -> list[int]:
    """The block size c for a `Split` if the indices of the summand contain axis // c or axis % c.

    Reason: a factor that varies by block only can then leave the inner sum. Condition: c divides
    the extent. The smallest alone: it makes every coarser block visible too."""
    loads = [t for t in postorder(body) if t.op == "load" and axis in t.free]
    atoms = (atom for t in loads for e in t.indices for atom in e.all_atoms())
    found = (a.b.value for a in atoms if isinstance(a, Binary) and a.op in ("div", "mod")
             and a.a.coefficient(axis) == 1)  # fmt: skip
    extent = axis.hi + 1
    return sorted(c for c in found if c and _SMALLEST <= c < extent and extent % c == 0)[:1]


def joined(
    whole: Term, shapes: Mapping[str, Shape], fresh: Callable[[Expr, Iterable[Var]], Var]
) -> tuple[Term, dict[Var, Expr]]:
    """Σ_{a,b} e = Σ_k e[a := k // |b|, b := k % |b|], for as many pairs as possible; and that map.

    Reason: one long loop over memory that is contiguous. Exact in the reals (a reordering).
    Condition: every load that depends on b reads along k without a gap."""
    term, env = whole, dict[Var, Expr]()
    while pair := _contiguous_pair(term, shapes):
        a, b = pair
        size = b.hi + 1
        used = set(whole.free).union(*(t.axes for t in postorder(term)))
        k = fresh(const((a.hi + 1) * size), used)
        step: dict[Var, Expr] = {a: to_expr(k) // size, b: to_expr(k) % size}
        env = {old: e.substitute(step) for old, e in env.items()} | step
        rest = tuple(x for x in term.axes if x not in pair)
        term = reduction(term.op, (*rest, k), substitute(term.args[0], step))
    return term, env


def _contiguous_pair(term: Term, shapes: Mapping[str, Shape]) -> tuple[Var, Var] | None:
    if term.op != "sum" or len(term.axes) < 2:
        return None
    loads = [t for t in postorder(term.args[0]) if t.op == "load"]
    pairs = permutations((x for x in term.axes if x.bound is None), 2)
    readers = (((a, b), [t for t in loads if b in t.free]) for a, b in pairs)
    return next((p for p, r in readers if r and all(_adjoin(t, *p, shapes) for t in r)), None)


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
            alone = e == to_expr(b) and before == 1 and d == len(t.indices) - 1
            return alone and t.buffer in shapes and shapes[t.buffer][d] == size
    return False
