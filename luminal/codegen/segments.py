"""Range splits: where a loop crosses the point at which a mask changes its truth.

In: a loop's range and the conditions of the terms below it. Out: pieces of the range, each with the
conditions whose truth is known there. Nothing is assumed that intervals do not prove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from luminal.codegen.terms import Facts
from luminal.codegen.tile import Extent, extent_of
from luminal.ir.expr import ZERO, Expr, Var, const, is_nonnegative, maximum, minimum, to_expr
from luminal.ir.term import Term, postorder

MOST_PIECES = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps lo .. hi-1 of a loop, and what holds there."""

    lo: Expr
    hi: Expr
    facts: Facts


def conditions(*terms: Term) -> list[Term]:
    """The cond subterms, in a fixed order."""
    return [t for t in postorder(*terms) if t.op == "cond"]


def pieces(
    found: Iterable[Term], axis: Var, tile: int, count: Expr, env: Mapping[Var, Expr],
    left: Mapping[Var, Extent], exact: bool = False,
) -> list[Piece]:  # fmt: skip
    """The range 0 .. count-1 of a loop over `axis`, cut where the conditions `found` change.

    `left` bounds what is left of each open axis inside the loop. With `exact`, conditions that
    change at different steps for different values of the other axes are passed over.
    """
    cuts = [Piece(ZERO, count, {})]
    step = Var("step?", 0, max(0, count.hi - 1))
    for c in found:
        ends = _ends(c, axis, to_expr(step) * tile, env, {**left, axis: extent_of(tile)})
        slope = ends[0].coefficient(step) if ends is not None and axis in c.free else None
        if ends is None or slope is None or not slope.value or (exact and ends[0] != ends[1]):
            continue
        least, most = (e - to_expr(step) * slope for e in ends)
        new = [p for piece in cuts for p in _cut(piece, c, slope.value, least, most)]
        if len(new) > MOST_PIECES:
            break
        cuts = new
    return cuts


def _ranged(c: Term, env: Mapping[Var, Expr], left: Mapping[Var, Extent]) -> tuple[Expr, list[Var]]:
    """The condition's expression inside a loop nest, and the variables of what is left inside."""
    values: dict[Var, Expr] = {}
    inner: list[Var] = []
    for x in (x for x in c.free if x in left):
        values[x] = env[x]
        most = left[x].most
        if most != 1:
            inner.append(Var(f"in?{x.name}", 0, (most or 1 << 40) - 1))
            values[x] = values[x] + to_expr(inner[-1])
    return c.expr.substitute(values), inner


def _ends(
    c: Term, axis: Var, moved: Expr, env: Mapping[Var, Expr], left: Mapping[Var, Extent]
) -> tuple[Expr, Expr] | None:
    """The least and the greatest value of the condition's expression inside a loop, if they are
    linear in what is left of every axis."""
    if any(left[x].most is None for x in c.free if x in left):
        return None
    least, inner = _ranged(c, {**env, axis: env[axis] + moved}, left)
    most = least
    for offset in inner:
        by = least.coefficient(offset)
        if by is None or by.value is None:
            return None
        low, high = (ZERO, const(offset.hi)) if by.value > 0 else (const(offset.hi), ZERO)
        least, most = least.substitute({offset: low}), most.substitute({offset: high})
    return least, most


def _cut(piece: Piece, c: Term, step: int, least: Expr, most: Expr) -> list[Piece]:
    """The piece as up to three: before, across and after the change of `c`, which is
    step * v + rest >= 0 with rest between `least` and `most`."""

    def clip(e: Expr) -> Expr:
        return minimum(maximum(e, piece.lo), piece.hi)

    k, rising = abs(step), step > 0
    if rising:
        a, b = clip((k - 1 - most) // k), clip((k - 1 - least) // k)
    else:
        a, b = clip(least // k + 1), clip(most // k + 1)
    parts = [
        Piece(piece.lo, a, {**piece.facts, c: not rising}),
        Piece(a, b, piece.facts),
        Piece(b, piece.hi, {**piece.facts, c: rising}),
    ]
    return [p for p in parts if not is_nonnegative(p.lo - p.hi)]


def settled(
    found: Iterable[Term], env: Mapping[Var, Expr], left: Mapping[Var, Extent]
) -> dict[Term, bool]:
    """The conditions whose truth the ranges of all open axes prove."""
    truths: dict[Term, bool] = {}
    for c in found:
        e, _ = _ranged(c, env, left)
        if is_nonnegative(e):
            truths[c] = True
        elif is_nonnegative(-1 - e):
            truths[c] = False
    return truths
