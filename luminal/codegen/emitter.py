"""Emitter: builds structured SSA with value numbering and hoisting by levels.

In: operations on operands. Out: loop IR blocks. A pure value lands in the outermost open scope that
defines its arguments, so loop-invariant code needs no pass. Loads never leave the innermost guard
(a branch). Knows nothing of terms or schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luminal.codegen.loopir import (
    Block,
    Fail,
    For,
    If,
    Let,
    Literal,
    Load,
    Operand,
    Prefetch,
    Statement,
    Store,
    Value,
)  # fmt: skip
from luminal.ir.dtype import DType, i64

__all__ = ["Emitter", "Scope"]

Key = tuple[object, ...]


class Scope:
    """One open block: its statements and the values it defines, by what computes them."""

    __slots__ = ("block", "guard", "known")

    def __init__(self, guard: bool) -> None:
        self.block, self.guard = Block(), guard
        self.known: dict[Key, Value] = {}


class Emitter:
    """Emits into a stack of scopes. `depth` counts them; the entry block is level 0."""

    def __init__(self) -> None:
        self.scopes = [Scope(True)]
        self.home: dict[str, tuple[int, Scope]] = {}
        self._count = 0

    @property
    def depth(self) -> int:
        """Level of the innermost open scope."""
        return len(self.scopes) - 1

    @property
    def guard_level(self) -> int:
        """Level of the innermost scope that loads must not leave."""
        return max(level for level, scope in enumerate(self.scopes) if scope.guard)

    def level(self, operand: Operand) -> int:
        """The level that defines an operand; 0 for literals."""
        return self.home[operand.name][0] if isinstance(operand, Value) else 0

    def alive(self, operand: Operand) -> bool:
        """Whether the scope that defines the operand is still open."""
        if not isinstance(operand, Value):
            return True
        level, scope = self.home[operand.name]
        return level < len(self.scopes) and self.scopes[level] is scope

    def fresh(
        self, dtype: DType, lanes: int = 1, level: int | None = None, name: str = "v"
    ) -> Value:
        """A new value that is defined at `level` (the current one if None)."""
        self._count += 1
        at = self.depth if level is None else level
        value = Value(f"{name}{self._count}", dtype, lanes)
        self.home[value.name] = (at, self.scopes[at])
        return value

    def let(
        self, op: str, args: Sequence[Operand], dtype: DType, lanes: int = 1,
        attr: tuple[int, ...] = (),
    ) -> Value:  # fmt: skip
        """op(args), once per scope, as far out as the arguments allow."""
        level = max((self.level(a) for a in args), default=0)
        scope = self.scopes[level]
        key = (op, dtype.name, lanes, attr, *map(_operand_key, args))
        if key not in scope.known:
            result = self.fresh(dtype, lanes, level)
            scope.block.body.append(Let(result, op, tuple(args), attr))
            scope.known[key] = result
        return scope.known[key]

    def load(
        self, base: str, dtype: DType, offset: Operand, result: DType, lanes: int,
        mask: Operand | None, floor: int, version: int,
    ) -> Value:  # fmt: skip
        """A load, not above level `floor`; `version` tells apart what a store may have changed."""
        level = max(floor, self.guard_level, self.level(offset))
        level = max(level, self.level(mask)) if mask is not None else level
        scope = self.scopes[level]
        masked = _operand_key(mask) if mask is not None else None
        key = ("load", base, version, lanes, _operand_key(offset), masked)
        if key not in scope.known:
            value = self.fresh(result, lanes, level)
            scope.block.body.append(Load(value, base, dtype, offset, mask))
            scope.known[key] = value
        return scope.known[key]

    def effect(self, statement: Store | Prefetch | Fail) -> None:
        """A statement with an effect, here."""
        self.scopes[-1].block.body.append(statement)

    def fail(self, condition: Operand) -> None:
        """Report an index error where `condition` holds, once per place."""
        scope = self.scopes[-1]
        key = ("fail", _operand_key(condition))
        if key not in scope.known:
            scope.known[key] = self.fresh(i64)
            scope.block.body.append(Fail(condition))

    def loop(
        self, lo: Operand, hi: Operand, carried: Sequence[Operand],
        body: Callable[[Value, list[Operand]], Sequence[Operand]], name: str,
    ) -> list[Operand]:  # fmt: skip
        """for name in lo..hi-1, lo < hi; `body` maps the carried values of a step to the next."""
        scope = Scope(guard=False)
        self.scopes.append(scope)
        var = self.fresh(i64, name=name)
        inside = [self.fresh(a.dtype, a.lanes, name="c") for a in carried]
        yields = tuple(body(var, list(inside)))
        self.scopes.pop()
        results = tuple(self.fresh(a.dtype, a.lanes, name="r") for a in carried)
        pairs = tuple(zip(inside, carried, strict=True))
        self._append(For(var, lo, hi, scope.block, pairs, yields, results))
        return list(results)

    def branch(
        self, condition: Operand, then: Callable[[], Sequence[Operand]],
        orelse: Callable[[], Sequence[Operand]] | None = None,
    ) -> list[Operand]:  # fmt: skip
        """if condition: then() else: orelse(); both return the same number of values."""
        blocks: list[Block] = []
        yields: list[tuple[Operand, ...]] = []
        for run in (then, orelse):
            scope = Scope(guard=True)
            self.scopes.append(scope)
            yields.append(tuple(run()) if run is not None else ())
            self.scopes.pop()
            blocks.append(scope.block)
        results = tuple(self.fresh(a.dtype, a.lanes, name="r") for a in yields[0])
        self._append(If(condition, blocks[0], blocks[1], yields[0], yields[1], results))
        return list(results)

    def _append(self, statement: Statement) -> None:
        self.scopes[-1].block.body.append(statement)


def _operand_key(operand: Operand) -> object:
    if isinstance(operand, Value):
        return operand.name
    return (repr(operand.value), operand.dtype.name)


def literal(value: float | int | bool, dtype: DType, lanes: int = 1) -> Literal:
    """A constant operand."""
    return Literal(value, dtype, lanes)
