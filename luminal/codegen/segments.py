"""Range splits: where a loop crosses the point at which a mask changes its truth.

In: a loop's range and the conditions of the terms below it. Out: pieces of the range, each with the
conditions whose truth is known there. Nothing is assumed that intervals do not prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from luminal.codegen.arith import lowest
from luminal.codegen.terms import Facts, conditions, fold
from luminal.codegen.tile import Extent
from luminal.ir.expr import (
    ZERO,
    Expr,
    Var,
    const,
    floor_div,
    is_nonnegative,
    maximum,
    minimum,
    to_expr,
)
from luminal.ir.term import Term

__all__ = ["Piece", "pieces", "restricted", "settled"]

MOST_PIECES = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps lo .. hi-1 of a loop, and what holds there."""

    lo: Expr
    hi: Expr
    facts: Mapping[Term, bool]


@dataclass(frozen=True, slots=True)
class _Slope:
    """A condition as step * v + rest >= 0, with the least and greatest rest."""

    step: int
    least: Expr
    most: Expr


def pieces(
    values: Iterable[Term], axis: Var, tile: int, count: Expr, env: Mapping[Var, Expr],
    left: Mapping[Var, Extent],
) -> list[Piece]:  # fmt: skip
    """The range 0 .. count-1 of a loop over `axis`, cut where conditions in `values` change."""
    found = [Piece(ZERO, count, {})]
    for c in conditions(*values):
        if axis not in c.free:
            continue
        slope = _slope(c, axis, tile, count, env, left)
        if slope is None:
            continue
        cut = [p for piece in found for p in _cut(piece, c, slope)]
        if len(cut) > MOST_PIECES:
            break
        found = cut
    return found


def _slope(
    c: Term, axis: Var, tile: int, count: Expr, env: Mapping[Var, Expr], left: Mapping[Var, Extent]
) -> _Slope | None:
    step = Var("step?", 0, max(0, count.hi - 1))
    inner: dict[Var, int] = {}
    values: dict[Var, Expr] = {}
    for x in c.free:
        if x not in left:
            continue
        most = tile if x == axis else left[x].most
        if most is None:
            return None
        values[x] = env[x] + (to_expr(step) * tile if x == axis else ZERO)
        if most > 1:
            offset = Var(f"in?{x.name}", 0, most - 1)
            inner[offset] = most - 1
            values[x] = values[x] + to_expr(offset)
    e = c.expr.substitute(values)
    slope = e.coefficient(step)
    if slope is None or not slope.value:
        return None
    least = most = e - to_expr(step) * slope
    for offset, last in inner.items():
        by = least.coefficient(offset)
        if by is None or by.value is None:
            return None
        if by.value:
            ends = (const(0), const(last)) if by.value > 0 else (const(last), const(0))
            least = least.substitute({offset: ends[0]})
            most = most.substitute({offset: ends[1]})
    return _Slope(slope.value, least, most)


def _cut(piece: Piece, c: Term, slope: _Slope) -> list[Piece]:
    """The piece as up to three: before, across and after the change of `c`."""

    def clip(e: Expr) -> Expr:
        return minimum(maximum(e, piece.lo), piece.hi)

    k = abs(slope.step)
    if slope.step > 0:
        first, second = -slope.most, -slope.least
        a, b = clip(floor_div(first + (k - 1), k)), clip(floor_div(second + (k - 1), k))
    else:
        a, b = clip(floor_div(slope.least, k) + 1), clip(floor_div(slope.most, k) + 1)
    rising = slope.step > 0
    parts = [
        Piece(piece.lo, a, {**piece.facts, c: not rising}),
        Piece(a, b, piece.facts),
        Piece(b, piece.hi, {**piece.facts, c: rising}),
    ]
    return [p for p in parts if not is_nonnegative(p.lo - p.hi)]


def settled(
    values: Iterable[Term], env: Mapping[Var, Expr], left: Mapping[Var, Extent]
) -> dict[Term, bool]:
    """The conditions whose truth the ranges of all open axes prove."""
    found: dict[Term, bool] = {}
    for c in conditions(*values):
        here: dict[Var, Expr] = {}
        for x in c.free:
            if x in left:
                most = left[x].most
                inner = Var(f"in?{x.name}", 0, (most or 1 << 40) - 1)
                here[x] = env[x] + (to_expr(inner) if most != 1 else ZERO)
        e = c.expr.substitute(here)
        if is_nonnegative(e):
            found[c] = True
        elif is_nonnegative(-1 - e):
            found[c] = False
    return found


def restricted(
    nodes: list[Term], axis: Var, count: Expr, resolve: Callable[[Term, Var], Expr | None]
) -> tuple[Expr, Expr, Facts]:
    """Bounds of a reduction loop over `axis` (steps of 1) outside which every summand is 0.

    `resolve` gives a condition's expression in the loop's variable, or None if it varies inside.
    """
    lo, hi, facts = ZERO, count, dict[Term, bool]()
    for c in conditions(*(r.args[0] for r in nodes)):
        if axis not in c.free or not all(_vanishes(r, c) for r in nodes):
            continue
        step = Var("step?", 0, max(0, count.hi - 1))
        e = resolve(c, step)
        slope = e.coefficient(step) if e is not None else None
        if e is None or slope is None or not slope.value:
            continue
        rest, k = e - to_expr(step) * slope, abs(slope.value)
        if slope.value > 0:
            lo = maximum(lo, floor_div(-rest + (k - 1), k))
        else:
            hi = minimum(hi, floor_div(rest, k) + 1)
        facts[c] = True
    return lo, hi, facts


def _vanishes(r: Term, c: Term) -> bool:
    """Whether the reduced value is the identity wherever `c` is false."""
    body = fold(r.args[0], {c: False})
    if body.op != "const":
        return False
    return body.value == (0 if r.op == "sum" else lowest(r.dtype))
