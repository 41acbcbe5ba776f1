"""Arithmetic on operands: scalars widen to vectors, half types compute in f32, neutral constants
fold. In: operands. Out: operands. No terms, no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.codegen.emitter import Emitter
from luminal.codegen.loopir import Literal, Operand
from luminal.ir.dtype import DType, accumulator, boolean, i32, i64

__all__ = ["Arithmetic", "lowest"]

_LOGIC = {"lt", "le", "eq"}


def lowest(dtype: DType) -> float | int | bool:
    """The identity of the maximum."""
    if dtype.is_float:
        return float("-inf")
    if dtype == boolean:
        return False
    return -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0


class Arithmetic:
    """Emits arithmetic through an emitter."""

    def __init__(self, emitter: Emitter) -> None:
        self.emit = emitter

    def splat(self, a: Operand, lanes: int) -> Operand:
        """The operand with this many lanes."""
        if a.lanes == lanes:
            return a
        if isinstance(a, Literal):
            return Literal(a.value, a.dtype, lanes)
        return self.emit.let("splat", (a,), a.dtype, lanes)

    def widen(self, args: Sequence[Operand]) -> tuple[list[Operand], int]:
        """All operands with the largest lane count among them."""
        lanes = max(a.lanes for a in args)
        return [self.splat(a, lanes) for a in args], lanes

    def apply(self, op: str, *args: Operand, dtype: DType | None = None) -> Operand:
        """op(args); the result has the first argument's dtype, or bool for comparisons."""
        result = dtype or (boolean if op in _LOGIC else args[0].dtype)
        wide, lanes = self.widen(args)
        return self.emit.let(op, wide, result, lanes)

    def add(self, a: Operand, b: Operand) -> Operand:
        """a + b; a zero integer or a negative zero folds."""
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Literal) and repr(x.value) in ("0", "-0.0"):
                return self.splat(y, max(a.lanes, b.lanes))
        if isinstance(a, Literal) and isinstance(b, Literal) and a.dtype == i64:
            return Literal(int(a.value) + int(b.value), i64, max(a.lanes, b.lanes))
        return self.apply("add", a, b)

    def mul(self, a: Operand, b: Operand) -> Operand:
        """a * b; a factor 1 folds, and an integer 0."""
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Literal):
                if repr(x.value) in ("1", "1.0"):
                    return self.splat(y, max(a.lanes, b.lanes))
                if repr(x.value) == "0":
                    return self.splat(x, max(a.lanes, b.lanes))
        if isinstance(a, Literal) and isinstance(b, Literal) and a.dtype == i64:
            return Literal(int(a.value) * int(b.value), i64, max(a.lanes, b.lanes))
        return self.apply("mul", a, b)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Operand:
        """a * b + c; an accumulator that is still 0 costs nothing."""
        if isinstance(c, Literal) and c.value == 0:
            return self.splat(self.mul(a, b), max(a.lanes, b.lanes, c.lanes))
        return self.apply("fma", a, b, c)

    def larger(self, a: Operand, b: Operand) -> Operand:
        """max(a, b), NaN wins; or for bools."""
        if a.dtype == boolean:
            return self.either(a, b)
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Literal) and x.value == lowest(x.dtype):
                return self.splat(y, max(a.lanes, b.lanes))
        return self.apply("max", a, b)

    def both(self, a: Operand, b: Operand) -> Operand:
        """a and b."""
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Literal):
                kept = y if x.value else x
                return self.splat(kept, max(a.lanes, b.lanes))
        return self.apply("and", a, b) if a != b else a

    def either(self, a: Operand, b: Operand) -> Operand:
        """a or b."""
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Literal):
                kept = x if x.value else y
                return self.splat(kept, max(a.lanes, b.lanes))
        return self.apply("or", a, b) if a != b else a

    def negate(self, a: Operand) -> Operand:
        """not a, for bools."""
        return (
            Literal(not a.value, boolean, a.lanes)
            if isinstance(a, Literal)
            else self.apply("not", a)
        )

    def choose(self, condition: Operand, a: Operand, b: Operand) -> Operand:
        """condition ? a : b."""
        if isinstance(condition, Literal):
            return a if condition.value else b
        return self.apply("select", condition, a, b, dtype=a.dtype)

    def convert(self, a: Operand, dtype: DType) -> Operand:
        """The operand as `dtype`."""
        if a.dtype == dtype:
            return a
        if isinstance(a, Literal) and dtype in (i64, i32) and not a.dtype.is_float:
            return Literal(int(a.value), dtype, a.lanes)
        return self.emit.let("cast", (a,), dtype, a.lanes)

    def rounded(self, a: Operand, dtype: DType) -> Operand:
        """A result of `dtype` as registers hold it: f16 and bf16 round and stay f32."""
        wide = accumulator(dtype)
        return a if wide == dtype else self.convert(self.convert(a, dtype), wide)

    def across(self, op: str, a: Operand) -> Operand:
        """The sum or maximum of the lanes of a reduction's accumulator."""
        if a.lanes == 1:
            return a
        if a.dtype == boolean:
            ones = self.choose(a, Literal(1, i32), Literal(0, i32))
            return self.apply("lt", Literal(0, i32), self._reduce("reduce_max", ones))
        return self._reduce("reduce_add" if op == "sum" else "reduce_max", a)

    def _reduce(self, op: str, a: Operand) -> Operand:
        return self.emit.let(op, (a,), a.dtype, 1)
