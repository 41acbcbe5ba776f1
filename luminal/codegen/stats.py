"""Statistics of loop IR: what a function will cost, without compiling it.

In: a Function, a Target, sizes of symbolic dimensions. Out: `Stats`: cycles from operation counts
times trip counts, live vectors of the innermost blocks, bytes moved. The cost model's estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from luminal.codegen.loopir import (
    Block,
    For,
    Function,
    If,
    Let,
    Literal,
    Load,
    Operand,
    Statement,
    Store,
    Value,
)  # fmt: skip
from luminal.ir.dtype import i64
from luminal.ir.target import Target

__all__ = ["Stats", "stats"]

WEIGHT = {"exp2": 12, "log2": 16, "sin": 20, "div": 5, "recip": 5, "sqrt": 6, "mod": 20,
          "udiv": 8, "urem": 8, "floordiv": 12, "floormod": 12, "max": 2, "dot4": 1}  # fmt: skip
SHUFFLES = ("shuffle", "extract", "insert", "reduce_add", "reduce_max", "cast")
FREE = ("lanes", "splat")
UNKNOWN_TRIPS = 64.0
GHZ = 3.0
_INTEGER: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "udiv": lambda a, b: a // max(b, 1),
    "floordiv": lambda a, b: a // max(b, 1),
    "urem": lambda a, b: a % max(b, 1),
    "floormod": lambda a, b: a % max(b, 1),
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "eq": lambda a, b: float(a == b),
}


@dataclass(frozen=True, slots=True)
class Stats:
    """`cycles` of one thread for everything, the largest `live` vector count of an innermost
    block that does arithmetic, `bytes` loaded and stored (each access counted), `code_size`
    statements."""

    cycles: float
    live: int
    bytes: float
    code_size: int

    @property
    def time_us(self) -> float:
        """The estimate as a time on one core."""
        return self.cycles / (GHZ * 1e3)


def stats(function: Function, target: Target, dims: Mapping[str, int] | None = None) -> Stats:
    """Counts a function; unknown trip counts are taken as 64, unknown branches as even."""
    counter = _Counter(target, dict(dims or {}))
    counter.block(function.grid, 1.0)
    chunks = counter.number(function.grid_value)
    counter.cycles = counter.bytes = 0.0
    counter.known[function.lo.name] = 0.0
    counter.known[function.hi.name] = chunks if chunks is not None else UNKNOWN_TRIPS
    counter.block(function.body, 1.0)
    return Stats(counter.cycles, counter.live, counter.bytes, counter.size)


@dataclass(slots=True)
class _Counts:
    arithmetic: float = 0.0
    fma: int = 0
    loads: float = 0.0
    stores: float = 0.0
    shuffles: float = 0.0
    integers: float = 0.0


class _Counter:
    def __init__(self, target: Target, dims: Mapping[str, int]) -> None:
        self.target = target
        self.known: dict[str, float] = {name: float(v) for name, v in dims.items()}
        self.cycles = self.bytes = 0.0
        self.live = self.size = 0

    def number(self, operand: Operand) -> float | None:
        """The value of an integer, if it can be told."""
        if isinstance(operand, Literal):
            return float(operand.value)
        return self.known.get(operand.name)

    def block(self, block: Block, trips: float, loop: For | None = None) -> None:
        """Counts a block that runs `trips` times."""
        counts, innermost = _Counts(), True
        for s in block.body:
            self.size += 1
            match s:
                case For():
                    innermost = False
                    self.loop(s, trips)
                case If():
                    innermost = innermost and not s.then.body and not s.orelse.body
                    self.branch(s, trips)
                case _:
                    self.count(s, counts, trips)
        self.cycles += trips * self.cost(block, counts, innermost, loop)

    def loop(self, s: For, trips: float) -> None:
        """Counts a loop, its variable standing in the middle."""
        lo, hi = self.number(s.lo), self.number(s.hi)
        count = max(0.0, hi - lo) if lo is not None and hi is not None else UNKNOWN_TRIPS
        self.known[s.var.name] = (lo or 0.0) + count // 2
        self.block(s.body, trips * count, s)

    def branch(self, s: If, trips: float) -> None:
        """Counts the side that is taken, or both by halves."""
        truth = self.number(s.condition)
        share = 0.5 if truth is None else float(truth > 0)
        self.block(s.then, trips * share)
        self.block(s.orelse, trips * (1 - share))

    def count(self, s: Statement, counts: _Counts, trips: float) -> None:
        """Adds one statement."""
        match s:
            case Load():
                gathered = isinstance(s.offset, Value) and s.offset.lanes > 1
                counts.loads += s.result.lanes if gathered else self.registers(s.result)
                self.bytes += trips * s.result.lanes * s.dtype.bits / 8
            case Store():
                gathered = isinstance(s.offset, Value) and s.offset.lanes > 1
                counts.stores += 2 * s.value.lanes if gathered else self.registers(s.value)
                self.bytes += trips * s.value.lanes * s.dtype.bits / 8
            case Let():
                self.let(s, counts)

    def let(self, s: Let, counts: _Counts) -> None:
        """Adds one operation; integers are evaluated where they can be."""
        if s.result.lanes == 1 and s.op in _INTEGER and len(s.args) == 2:
            a, b = (self.number(x) for x in s.args)
            if a is not None and b is not None:
                self.known[s.result.name] = _INTEGER[s.op](a, b)
        width = max([self.registers(a) for a in s.args] + [self.registers(s.result)])
        if s.op in FREE:
            return
        if s.op in SHUFFLES:
            counts.shuffles += width * (4 if s.op.startswith("reduce") else 1)
        elif s.result.lanes == 1 and s.result.dtype == i64:
            counts.integers += WEIGHT.get(s.op, 1) * 0.5
        else:
            counts.arithmetic += width * WEIGHT.get(s.op, 1)
            counts.fma += s.op in ("fma", "add", "max", "dot4")

    def registers(self, operand: Operand) -> int:
        """Vector registers that an operand takes; 1 for scalars."""
        bits = operand.lanes * max(8, operand.dtype.bits)
        return 1 if operand.lanes == 1 else -(-bits // self.target.vector_bits)

    def cost(self, block: Block, counts: _Counts, innermost: bool, loop: For | None) -> float:
        """Cycles of one run of a block, loops inside not counted."""
        everything = counts.arithmetic + counts.loads + counts.stores + counts.shuffles
        cycles = max(
            counts.arithmetic / 2, counts.loads / 2, counts.stores, counts.shuffles,
            (everything + counts.integers) / 4,
        )  # fmt: skip
        if innermost and loop is not None and loop.carried and counts.fma:
            cycles = max(cycles, 4.0 * counts.fma / len(loop.carried))
        if innermost and counts.fma >= 8:
            live = self.pressure(block, loop)
            self.live = max(self.live, live)
            over = live - self.target.vector_registers
            if over > 0:
                cycles *= min(2.5, 1.3 + 0.1 * over)
        return cycles + 1.0

    def pressure(self, block: Block, loop: For | None) -> int:
        """The most vector values that are alive at once; operands that feed one operation only
        are read from memory by it."""
        inside = {v.name for v, _ in loop.carried} if loop is not None else set()
        last: dict[str, int] = {}
        uses: dict[str, int] = {}
        for n, s in enumerate(block.body):
            for name in _vectors(_operands(s)):
                last[name] = n
                uses[name] = uses.get(name, 0) + 1
        last |= dict.fromkeys(_vectors(loop.yields if loop is not None else ()), len(block.body))
        events = [0] * (len(block.body) + 2)
        defined: set[str] = set()
        for n, s in enumerate(block.body):
            if isinstance(s, Let | Load) and s.result.name in last and s.result.lanes > 1:
                defined.add(s.result.name)
                if not (isinstance(s, Load) and uses.get(s.result.name) == 1):
                    events[n + 1] += self.registers(s.result)
                    events[last[s.result.name] + 1] -= self.registers(s.result)
        for name in last:
            if name not in defined:
                events[0] += 1
                if name in inside:
                    events[last[name] + 1] -= 1
        alive = most = 0
        for change in events:
            alive += change
            most = max(most, alive)
        return most


def _vectors(operands: tuple[Operand, ...]) -> list[str]:
    return [o.name for o in operands if isinstance(o, Value) and o.lanes > 1]


def _operands(s: Statement) -> tuple[Operand, ...]:
    match s:
        case Let():
            return s.args
        case Load():
            return (s.offset,)
        case Store():
            return (s.value,)
    return ()
