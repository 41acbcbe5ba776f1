"""Loops over symbolic ranges: counted, tiled with tails, entered only when they run.

In: bounds as expressions, a body. Out: loop IR; a loop of one iteration becomes its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luminal.codegen.emitter import Emitter
from luminal.codegen.integers import Integers
from luminal.codegen.loopir import Literal, Operand, Value
from luminal.codegen.tile import Extent, extent_of, inner_extent, steps
from luminal.ir.dtype import boolean, i64
from luminal.ir.expr import ZERO, Expr, Var, floor_div, is_nonnegative, maximum, to_expr

__all__ = ["Body", "LoopBuilder", "TileBody"]

_BOOL = boolean
Body = Callable[[Expr, list[Operand]], Sequence[Operand]]
TileBody = Callable[[Expr, Extent, list[Operand]], Sequence[Operand]]


class LoopBuilder:
    """Emits loops and branches whose bounds are expressions."""

    def __init__(self, emitter: Emitter, integers: Integers) -> None:
        self.emit, self.integers = emitter, integers
        self._count = 0

    def unique(self, name: str) -> str:
        """A name that no other variable has."""
        self._count += 1
        return f"{name}.{self._count}"

    def bind(self, name: str, value: Operand, lo: int, hi: int, bound: Expr | None = None) -> Expr:
        """An index variable that stands for an operand."""
        var = Var(self.unique(name), lo, max(lo, hi), bound)
        self.integers.variables[var] = value
        return to_expr(var)

    def run(
        self, lo: Expr, hi: Expr, carried: Sequence[Operand], body: Body, name: str
    ) -> list[Operand]:
        """for name in lo .. hi-1."""
        count = (hi - lo).value
        if (count is not None and count <= 0) or is_nonnegative(lo - hi):
            return list(carried)
        if count == 1:
            return list(body(lo, list(carried)))
        sure = is_nonnegative(hi - lo - 1)
        if not sure:
            return self.when(
                hi - lo - 1, lambda: self._loop(lo, hi, carried, body, name), lambda: carried
            )
        return self._loop(lo, hi, carried, body, name)

    def _loop(
        self, lo: Expr, hi: Expr, carried: Sequence[Operand], body: Body, name: str
    ) -> list[Operand]:
        first, last = self.integers.operand(lo), self.integers.operand(hi)

        def inside(var: Value, values: list[Operand]) -> Sequence[Operand]:
            bound = hi if hi.value is None else None
            return body(self.bind(name, var, lo.lo, hi.hi - 1, bound), values)

        return self.emit.loop(first, last, carried, inside, name)

    def when(
        self, e: Expr, then: Callable[[], Sequence[Operand]],
        orelse: Callable[[], Sequence[Operand]] | None = None,
    ) -> list[Operand]:  # fmt: skip
        """then() if e >= 0 else orelse(); decided now if it can be proved."""
        if is_nonnegative(e):
            return list(then())
        if is_nonnegative(-1 - e):
            return list(orelse()) if orelse is not None else []
        condition = self.emit.let("le", (Literal(0, i64), self.integers.operand(e)), _BOOL)
        return self.emit.branch(condition, then, orelse)

    def outer_tiles(
        self, whole: Extent, tile: int, carried: Sequence[Operand], body: TileBody, name: str,
        least: int = 0,
    ) -> list[Operand]:  # fmt: skip
        """Steps of `tile` of an axis that is tiled again inside: the last one may be smaller.
        There are at least `least` of them, be the extent 0."""

        def step(v: Expr, values: list[Operand]) -> Sequence[Operand]:
            return body(v * tile, inner_extent(whole, tile, v * tile), values)

        return self.run(ZERO, maximum(steps(whole, tile), least), carried, step, name)

    def full_tiles(
        self, whole: Extent, tile: int, carried: Sequence[Operand], body: TileBody, name: str
    ) -> list[Operand]:
        """The complete steps of the innermost loop of an axis."""

        def step(v: Expr, values: list[Operand]) -> Sequence[Operand]:
            return body(v * tile, extent_of(tile), values)

        return self.run(ZERO, floor_div(whole.expr, tile), carried, step, name)

    def tail(
        self, whole: Extent, tile: int, carried: Sequence[Operand], body: TileBody, dynamic: bool,
        name: str,
    ) -> list[Operand]:  # fmt: skip
        """What the complete steps leave: a body of every possible static size; else, with
        `dynamic`, one of run-time size, without it one step at a time."""
        full = floor_div(whole.expr, tile)
        start, values = full * tile, list(carried)
        if whole.value is not None:
            rest = whole.value % tile
            return list(body(start, extent_of(rest), values)) if rest else values
        left = whole.expr - start
        sizes = sorted({p % tile for p in whole.possible})
        if whole.possible:
            for size in (s for s in sizes if s):
                values = self._sized(left, size, sizes == [size], start, values, body)
            return values
        if tile == 1:
            return values
        if not dynamic:

            def single(v: Expr, inner: list[Operand]) -> Sequence[Operand]:
                return body(start + v, extent_of(1), inner)

            return self.run(ZERO, left, values, single, name)

        def partial() -> Sequence[Operand]:
            rest = self.bind("left", self.integers.operand(left), 1, tile - 1)
            return body(start, extent_of(rest), values)

        return self.when(left - 1, partial, lambda: values)

    def _sized(
        self, left: Expr, size: int, sure: bool, start: Expr, values: list[Operand], body: TileBody
    ) -> list[Operand]:
        def sized() -> Sequence[Operand]:
            return body(start, extent_of(size), list(values))

        if sure:
            return list(sized())
        equal = self.emit.let("eq", (self.integers.operand(left), Literal(size, i64)), _BOOL)
        return self.emit.branch(equal, sized, lambda: values)
