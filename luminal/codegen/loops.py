"""Loops over symbolic ranges: counted, tiled with tails, entered only when they run.

In: bounds as expressions, a body. Out: loop IR; a loop of one iteration becomes its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luminal.codegen.emitter import Emitter
from luminal.codegen.loopir import Literal, Operand, Value
from luminal.codegen.segments import Piece
from luminal.codegen.terms import Facts
from luminal.codegen.tile import Extent, extent_of
from luminal.ir.dtype import boolean, i64
from luminal.ir.expr import ZERO, Expr, Var, ceil_div, is_nonnegative, to_expr

Values = Sequence[Operand]
Body = Callable[[Expr, list[Operand]], Values]
TileBody = Callable[[Expr, Extent, Facts, list[Operand]], Values]


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
