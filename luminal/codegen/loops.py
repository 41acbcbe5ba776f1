"""Loops over symbolic ranges: counted, tiled with tails, entered only when they run.

In: bounds as expressions, a body. Out: loop IR; a loop of one iteration becomes its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from luminal.codegen.emitter import Emitter
from luminal.codegen.loopir import Literal, Operand, Value
from luminal.codegen.segments import Piece
from luminal.codegen.tile import Extent, extent_of
from luminal.ir.dtype import boolean, i64
from luminal.ir.expr import ZERO, Expr, Var, ceil_div, is_nonnegative, to_expr
from luminal.ir.term import Term

Values = Sequence[Operand]
Body = Callable[[Expr, list[Operand]], Values]
TileBody = Callable[[Expr, Extent, Mapping[Term, bool], list[Operand]], Values]


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
        if again:

            def part(v: Expr, values: list[Operand]) -> Values:
                return body(v * tile, whole.inside(tile, v * tile), {}, values)

            if step is not None:
                return list(part(step, []))
            return self.run(ZERO, ceil_div(whole.expr, tile), carried, part, name)
        full, values = whole.expr // tile, list(carried)
        if step is not None:
            return self.when(
                full - 1 - step if whole.value is None or whole.value % tile else ZERO,
                lambda: body(step * tile, extent_of(tile), {}, []),
                lambda: self._rest(whole, tile, [], body, name, ragged),
            )
        for piece in [Piece(ZERO, full, {})] if cuts is None else cuts:

            def complete(v: Expr, inner: list[Operand], piece: Piece = piece) -> Values:
                return body(v * tile, extent_of(tile), piece.facts, inner)

            values = self.run(piece.lo, piece.hi, values, complete, name)
        return self._rest(whole, tile, values, body, name, ragged)

    def _rest(
        self, whole: Extent, tile: int, values: list[Operand], body: TileBody, name: str,
        ragged: bool,
    ) -> list[Operand]:  # fmt: skip
        start = whole.expr // tile * tile
        left = whole.expr - start

        def sized(size: Expr | int) -> Values:
            return body(start, extent_of(size), {}, list(values))

        if whole.possible:
            sizes = sorted({p % tile for p in whole.possible})
            for size in (s for s in sizes if s):
                if sizes == [size]:
                    return list(sized(size))
                pair = (self.emit.index(left), Literal(size, i64))
                equal = self.emit.let("eq", pair, boolean)
                values = self.emit.branch(equal, lambda n=size: sized(n), lambda v=values: v)
            return values
        if ragged:
            return self.when(left - 1, lambda: sized(self.bind(
                "left", self.emit.index(left), 1, tile - 1)), lambda: values)  # fmt: skip

        def later(offset: Expr, extent: Extent, _: Mapping[Term, bool], v: list[Operand]) -> Values:
            return body(start + offset, extent, {}, v)

        half, parts = max(1, tile // 2), extent_of(whole.expr % tile)
        return values if tile == 1 else self.tiles(parts, half, values, later, name)
