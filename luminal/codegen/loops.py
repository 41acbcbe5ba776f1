"""Loops over symbolic ranges: tiled with tails, cut where a mask below changes its truth.

In: bounds as expressions, a body; the conditions of the terms below. Out: loop IR; a loop of one
iteration becomes its body. Nothing is assumed of a condition that intervals do not prove."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from luminal.codegen.emitter import Emitter
from luminal.codegen.loopir import Literal, Operand, Value
from luminal.codegen.terms import Facts
from luminal.codegen.tile import Extent, extent_of
from luminal.ir import ZERO, Expr, Var, ceil_div, const, is_nonnegative, maximum, minimum, to_expr
from luminal.ir.dtype import boolean, i64
from luminal.ir.term import Term, postorder

MOST_PIECES = 16
Values = Sequence[Operand]
Body = Callable[[Expr, list[Operand]], Values]
TileBody = Callable[[Expr, Extent, Facts, list[Operand]], Values]


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps lo .. hi-1 of a loop, and what holds there."""

    lo: Expr
    hi: Expr
    facts: Facts


class LoopBuilder:
    """Emits loops and branches whose bounds are expressions."""

    def __init__(self, emit: Emitter) -> None:
        self.emit = emit
        self._count = 0

    def unique(self, name: str) -> str:
        """A name that no other variable has."""
        self._count += 1
        return f"{name}.{self._count}"

    def bind(self, name: str, value: Operand, lo: int, hi: int, bound: Expr | None = None) -> Expr:
        """An index variable that stands for an operand."""
        var = Var(self.unique(name), lo, max(lo, hi), bound)
        self.emit.variables[var] = value
        return to_expr(var)

    def run(self, lo: Expr, hi: Expr, carried: Values, body: Body, name: str) -> list[Operand]:
        """for name in lo .. hi-1."""
        if is_nonnegative(lo - hi):
            return list(carried)
        if (hi - lo).value == 1:
            return list(body(lo, list(carried)))

        def loop() -> list[Operand]:
            first, last = self.emit.index(lo), self.emit.index(hi)
            return self.emit.loop(first, last, carried, inside, name)

        def inside(var: Value, values: list[Operand]) -> Values:
            bound = hi if hi.value is None else None
            return body(self.bind(name, var, lo.lo, hi.hi - 1, bound), values)

        return self.when(hi - lo - 1, loop, lambda: carried)

    def when(
        self, e: Expr, then: Callable[[], Values], orelse: Callable[[], Values] = list
    ) -> list[Operand]:
        """then() if e >= 0 else orelse(); decided now if it can be proved."""
        if is_nonnegative(e):
            return list(then())
        if is_nonnegative(-1 - e):
            return list(orelse())
        condition = self.emit.let("le", (Literal(0, i64), self.emit.index(e)), boolean)
        return self.emit.branch(condition, then, orelse)

    def tiles(
        self, whole: Extent, tile: int, carried: Values, body: TileBody, name: str, *,
        again: bool = False, ragged: bool = False, cuts: Sequence[Piece] | None = None,
        step: Expr | None = None,
    ) -> list[Operand]:  # fmt: skip
        """body(offset, extent, facts, values) for every step of `tile` of an axis, the last one
        perhaps smaller; `step` says which one to run, instead of all.

        If the axis is tiled `again` inside, the last step is like the others. Otherwise the
        complete steps are run (those in the pieces `cuts`), then the rest: a body of every static
        size that it can have; else in one of run-time size if `ragged` allows that, or in halves.
        """
        count = ceil_div(whole.expr, tile) if again else whole.expr // tile

        def part(facts: Facts) -> Body:
            def one(v: Expr, values: list[Operand]) -> Values:
                extent = whole.inside(tile, v * tile) if again else extent_of(tile)
                return body(v * tile, extent, facts, values)

            return one

        def rest(values: list[Operand]) -> list[Operand]:
            return values if again else self._rest(whole, tile, values, body, name, ragged)

        if step is not None:
            inside = ZERO if again or whole.expr % tile == 0 else count - 1 - step
            return self.when(inside, lambda: part({})(step, []), lambda: rest([]))
        values = list(carried)
        for piece in [Piece(ZERO, count, {})] if cuts is None else cuts:
            values = self.run(piece.lo, piece.hi, values, part(piece.facts), name)
        return rest(values)

    def _rest(
        self, whole: Extent, tile: int, values: list[Operand], body: TileBody, name: str,
        ragged: bool,
    ) -> list[Operand]:  # fmt: skip
        start, sizes = whole.expr // tile * tile, sorted({p % tile for p in whole.possible})
        left, parts = whole.expr - start, extent_of(whole.expr % tile)

        def sized(size: Expr | int) -> Values:
            return body(start, extent_of(size), {}, list(values))

        def later(offset: Expr, extent: Extent, _: Facts, v: list[Operand]) -> Values:
            return body(start + offset, extent, {}, v)

        if tile == 1 or sizes == [0]:
            return values
        if len(sizes) == 1:
            return list(sized(*sizes))
        if not sizes and not ragged:
            return self.tiles(parts, tile // 2, values, later, name)
        number = self.emit.index(left)
        if not sizes:
            return self.when(left - 1, lambda: sized(self.bind("left", number, 1, tile - 1)),
                             lambda: values)  # fmt: skip
        for size in sizes[sizes[0] == 0 :]:
            equal = self.emit.let("eq", (number, Literal(size, i64)), boolean)
            values = self.emit.branch(equal, lambda n=size: sized(n), lambda v=values: v)
        return values


# ---- range splits


def conditions(*terms: Term) -> list[Term]:
    """The cond subterms, in a fixed order."""
    return [t for t in postorder(*terms) if t.op == "cond"]


def pieces(
    found: Iterable[Term], axis: Var, tile: int, count: Expr, env: Mapping[Var, Expr],
    left: Mapping[Var, Extent], exact: bool = False,
) -> list[Piece]:  # fmt: skip
    """The range 0 .. count-1 of a loop over `axis`, cut where the conditions `found` change.

    `left` bounds what is left of each open axis inside the loop. With `exact`, conditions that
    change at different steps for different values of the other axes are passed over."""
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
