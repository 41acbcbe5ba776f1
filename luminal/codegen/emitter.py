"""Emitter: builds structured SSA with value numbering and hoisting by levels.

In: operations on operands, index expressions over loop variables. Out: loop IR blocks. A pure value
lands in the outermost open scope that defines its arguments, so loop-invariant code needs no
pass; neutral constants fold. Loads never leave the innermost branch. Knows nothing of schedules."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import groupby

from luminal.codegen import loopir
from luminal.codegen.loopir import Literal, Operand, Value
from luminal.errors import InternalError
from luminal.ir import Atom, Binary, Data, DType, Expr, Var, accumulator, boolean, i32, i64, maximum
from luminal.ir.numeric import lowest

Key = tuple[object, ...]
Yields = Callable[[], Sequence[Operand]]

# What leaves the other operand as it is, and what decides the result alone, as printed.
_NEUTRAL = {"add": ("0", "-0.0"), "mul": ("1", "1.0"), "and": ("True",), "or": ("False",)}
_DECIDES = {"mul": ("0",), "and": ("False",), "or": ("True",)}
_OF_BOOLS = {"add": "or", "max": "or", "mul": "and"}
_WHOLE = {"add": operator.add, "mul": operator.mul}


@dataclass(slots=True, eq=False)
class Scope:
    """One open block: its statements and the values it defines, by what computes them."""

    branch: bool
    block: loopir.Block = field(default_factory=loopir.Block)
    known: dict[Key, Value] = field(default_factory=dict)


class Emitter:
    """Emits into a stack of scopes, the entry block at level 0. `variables` maps index variables to
    their values, dimensions at first; `data_value` gives that of a data atom under a mask."""

    def __init__(self, dims: Iterable[Var] = ()) -> None:
        self.scopes = [Scope(True)]
        self.home: dict[str, tuple[int, Scope]] = {}
        self.variables: dict[Atom, Operand] = {}
        self.data_value: Callable[[Data, Operand | None], Operand] | None = None
        self._indices: dict[tuple[Expr, Operand | None], Operand] = {}
        self._count = 0
        for v in dims:
            self.variables[v] = Value(v.name, i64)
            self.home[v.name] = (0, self.scopes[0])

    @property
    def depth(self) -> int:
        """Level of the innermost open scope."""
        return len(self.scopes) - 1

    @property
    def branch_level(self) -> int:
        """Level of the innermost branch, which loads must not leave."""
        return max(level for level, scope in enumerate(self.scopes) if scope.branch)

    def level(self, operand: Operand) -> int:
        """The level that defines an operand; 0 for literals."""
        return self.home[operand.name][0] if isinstance(operand, Value) else 0

    def alive(self, operand: Operand) -> bool:
        """Whether the scope that defines the operand is still open."""
        if not isinstance(operand, Value):
            return True
        level, scope = self.home[operand.name]
        return level < len(self.scopes) and self.scopes[level] is scope

    # ---- statements

    def fresh(
        self, dtype: DType, lanes: int = 1, level: int | None = None, name: str = "v"
    ) -> Value:
        """A new value that is defined at `level` (the current one if None)."""
        self._count += 1
        at = self.depth if level is None else level
        value = Value(f"{name}{self._count}", dtype, lanes)
        self.home[value.name] = (at, self.scopes[at])
        return value

    def once(
        self, level: int, key: Key, dtype: DType, lanes: int,
        make: Callable[[Value], loopir.Statement],
    ) -> Value:  # fmt: skip
        """The value known in a scope as `key`, or else what `make` defines there."""
        scope = self.scopes[level]
        if key not in scope.known:
            result = scope.known[key] = self.fresh(dtype, lanes, level)
            scope.block.body.append(make(result))
        return scope.known[key]

    def let(
        self, op: str, args: Sequence[Operand], dtype: DType, lanes: int = 1,
        attr: tuple[int, ...] = (),
    ) -> Value:  # fmt: skip
        """op(args), once per scope, as far out as the arguments allow."""
        level = max((self.level(a) for a in args), default=0)
        key = (op, dtype.name, lanes, attr, *map(key_of, args))
        return self.once(level, key, dtype, lanes, lambda v: loopir.Let(v, op, tuple(args), attr))

    def fail(self, condition: Operand) -> None:
        """Report an index error where `condition` holds, once per place."""
        self.once(self.depth, ("fail", key_of(condition)), i64, 1, lambda _: loopir.Fail(condition))

    def effect(self, statement: loopir.Statement) -> None:
        self.scopes[-1].block.body.append(statement)

    def _results(self, values: Sequence[Operand], name: str = "r") -> tuple[Value, ...]:
        return tuple(self.fresh(a.dtype, a.lanes, name=name) for a in values)

    def loop(
        self, lo: Operand, hi: Operand, carried: Sequence[Operand],
        body: Callable[[Value, list[Operand]], Sequence[Operand]], name: str,
    ) -> list[Operand]:  # fmt: skip
        """for name in lo..hi-1, lo < hi; `body` maps the carried values of a step to the next."""
        self.scopes.append(Scope(False))
        var, inside = self.fresh(i64, name=name), self._results(carried, "c")
        yields = tuple(body(var, list(inside)))
        block, results = self.scopes.pop().block, self._results(carried)
        pairs = tuple(zip(inside, carried, strict=True))
        self.effect(loopir.For(var, lo, hi, block, pairs, yields, results))
        return list(results)

    def branch(self, condition: Operand, then: Yields, orelse: Yields = tuple) -> list[Operand]:
        """if condition: then() else: orelse(); both return the same number of values."""
        blocks: list[loopir.Block] = []
        yields: list[tuple[Operand, ...]] = []
        for run in (then, orelse):
            self.scopes.append(Scope(True))
            yields.append(tuple(run()))
            blocks.append(self.scopes.pop().block)
        results = self._results(yields[0])
        self.effect(loopir.If(condition, blocks[0], blocks[1], yields[0], yields[1], results))
        return list(results)

    # ---- arithmetic

    def splat(self, a: Operand, lanes: int) -> Operand:
        """The operand with this many lanes."""
        if a.lanes == lanes:
            return a
        if isinstance(a, Literal):
            return Literal(a.value, a.dtype, lanes)
        return self.let("splat", (a,), a.dtype, lanes)

    def apply(self, op: str, *args: Operand) -> Operand:
        """op(args) with the lanes of the widest; constants fold where that is exact. On bools `add`
        and `max` are `or`, `mul` is `and`."""
        lanes, first = max(a.lanes for a in args), args[0]
        op = _OF_BOOLS.get(op, op) if first.dtype == boolean else op
        found = self._folded(op, *args)
        if found is not None:
            return self.splat(found, lanes)
        dtype = boolean if op in ("lt", "le", "eq") else args[-1].dtype
        return self.let(op, [self.splat(a, lanes) for a in args], dtype, lanes)

    def _folded(self, op: str, *args: Operand) -> Operand | None:
        """One of the operands, or a constant, that is op(args)."""
        match op, *args:
            case "not", Literal(value):
                return Literal(not value, boolean)
            case "select", Literal(value), a, b:
                return a if value else b
            case "fma", a, b, Literal(value) if value == 0:
                return self.apply("mul", a, b)
            case (("add" | "mul" | "max" | "and" | "or"), a, b):
                pass
            case _:
                return None
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Literal):
                text = repr(bool(x.value) if x.dtype == boolean else x.value)
                if text in _NEUTRAL.get(op, ()) or (op == "max" and x.value == lowest(x.dtype)):
                    return y
                if text in _DECIDES.get(op, ()):
                    return x
        if isinstance(a, Literal) and isinstance(b, Literal) and a.dtype == i64 and op in _WHOLE:
            return Literal(_WHOLE[op](a.value, b.value), i64)
        return a if op in ("and", "or") and a == b else None

    def convert(self, a: Operand, dtype: DType) -> Operand:
        if a.dtype == dtype:
            return a
        if isinstance(a, Literal) and dtype in (i64, i32) and not a.dtype.is_float:
            return Literal(int(a.value), dtype, a.lanes)
        return self.let("cast", (a,), dtype, a.lanes)

    def rounded(self, a: Operand, dtype: DType) -> Operand:
        """A result of `dtype` as registers hold it: f16 and bf16 round and stay f32."""
        wide = accumulator(dtype)
        return a if wide == dtype else self.convert(self.convert(a, dtype), wide)

    def across(self, op: str, a: Operand) -> Operand:
        """The sum or maximum of the lanes of a reduction's accumulator."""
        return a if a.lanes == 1 else self.let(
            "reduce_add" if op == "sum" else "reduce_max", (a,), a.dtype
        )  # fmt: skip

    # ---- index expressions

    def index(self, e: Expr, mask: Operand | None = None) -> Operand:
        """The value of `e`; `mask` says where data atoms may be read."""
        if e.value is not None:
            return Literal(e.value, i64)
        found = self._indices.get((e, mask))
        if found is None or not self.alive(found):
            found = self._indices[e, mask] = self._sum(e, mask)
        return found

    def _sum(self, e: Expr, mask: Operand | None) -> Operand:
        """Partial sums by level, the constant last: what is outside of a loop is added there."""

        def rank(a: Operand) -> tuple[bool, int]:
            return a.lanes > 1, self.level(a)

        add, mul = partial(self.apply, "add"), partial(self.apply, "mul")
        parts: list[Operand] = []
        for monomial, coef in (t for t in e.terms if t[0]):
            atoms = sorted((self._atom(a, mask) for a in monomial), key=rank)
            parts.append(reduce(mul, (*atoms, Literal(coef, i64))))
        parts.sort(key=rank)
        groups = (reduce(add, group) for _, group in groupby(parts[1:], rank))
        constant = e.terms[-1][1] if not e.terms[-1][0] else 0
        return add(reduce(add, groups, parts[0]), Literal(constant, i64))

    def _atom(self, atom: Atom, mask: Operand | None) -> Operand:
        if isinstance(atom, Data) and self.data_value is not None:
            return self.data_value(atom, mask)
        if not isinstance(atom, Binary):
            if atom not in self.variables:
                raise InternalError(f"[codegen] no value for index atom {atom!r}.")
            return self.variables[atom]
        op, divisor = atom.op, atom.b
        if op in ("div", "mod"):
            divisor = divisor if divisor.lo >= 1 else maximum(divisor, 1)
            op = {"div": "udiv", "mod": "urem"}[op] if atom.a.lo >= 0 else f"floor{op}"
        return self.apply(op, self.index(atom.a, mask), self.index(divisor, mask))


def key_of(operand: Operand) -> object:
    """What tells operands apart; 0.0 and -0.0 are two."""
    if isinstance(operand, Value):
        return operand.name
    return (repr(operand.value), operand.dtype.name)
