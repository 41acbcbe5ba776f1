"""Roofline: an estimate of a kernel's time from its term alone, before it has a schedule.

In: kernels, buffer sizes, a Target, values for symbolic dimensions. Out: microseconds, good for
ranking programs against each other. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from luminal.ir.expr import Expr, Var
from luminal.ir.target import Target
from luminal.ir.term import REDUCTIONS, Term, postorder

__all__ = ["Machine", "NEVER", "POWER", "SMALL_LOOP", "WEIGHTS", "kernel_us", "value_of"]

WEIGHTS = {
    "log2": 12.0, "exp2": 12.0, "sin": 16.0, "sqrt": 6.0, "recip": 5.0, "add": 1.0, "mul": 1.0,
    "mod": 10.0, "lt": 1.0, "max": 1.0, "and": 0.5, "or": 0.5, "not": 0.5, "select": 0.5,
    "cast": 0.5, "cond": 0.5, "index": 0.5, "load": 0.0, "const": 0.0, "sum": 1.0, "rmax": 1.0,
    "rsum": 2.0, "wsum": 5.0,
}  # fmt: skip
"""Flops of one application of each operation."""
POWER = 13.0
"""Flops of an rsum for each element of x: the maximum, the difference and exp2."""
_OPERAND_TILE = 32
_ROW_TILE = 256
SMALL_LOOP = 32
"""A reduction up to this size may run for every step of another that it depends on."""
_TYPICAL = 512
_OVERLAP = 0.3
"""The part of the smaller of compute and memory time that the larger does not hide."""
_LARGEST_TERM = 400
_OPERATION, _STATISTIC, _SECOND_LOOP = 0.01, 0.02, 0.2
"""The part of a kernel's time that one more thing costs: a flop in a contraction's loop, a
reduction that it waits for, a contraction over other axes."""
NEVER = 1e15


def value_of(e: Expr, hints: Mapping[str, int]) -> int:
    """A size under the hints; symbols without one get a typical value in their range."""
    env = dict(hints)
    for v in e.variables():
        if v.name not in env:
            env[v.name] = min(max(v.lo, _TYPICAL), v.hi)
    return max(0, e.evaluate(env))


@dataclass(slots=True)
class Machine:
    """The rates of a target and the sizes of axes under the hints."""

    target: Target
    hints: Mapping[str, int]
    _extents: dict[Var, int] = field(default_factory=dict)

    def extent(self, axis: Var) -> int:
        """The size of an axis."""
        found = self._extents.get(axis)
        if found is None:
            found = self._extents[axis] = value_of(axis.extent, self.hints)
        return found

    def points(self, axes: frozenset[Var] | set[Var]) -> float:
        """Number of points of a set of axes."""
        total = 1  # an integer: the order of a set must not show in the last digit
        for axis in axes:
            total *= self.extent(axis)
        return float(total)

    def time_us(self, flops: float, bytes_: float) -> float:
        """One launch that does this work."""
        t = self.target
        small = bytes_ < t.l2_bytes
        rate = t.bandwidth_gbs * (4 if small else 1)
        compute, memory = flops / (t.gflops * t.cores), bytes_ / rate
        return t.launch_us + (max(compute, memory) + _OVERLAP * min(compute, memory)) / 1e3


def kernel_us(
    machine: Machine, axes: tuple[Var, ...], value: Term, item_bytes: float,
    buffers: Callable[[str], tuple[float, float]],
) -> float:  # fmt: skip
    """The time to store `value` for every point of `axes`; `buffers` gives elements and bytes
    an element of a buffer."""
    walk = _Walk(machine, frozenset(axes))
    walk.visit(value, _Place())
    if walk.illegal or len(walk.seen) > _LARGEST_TERM:
        return NEVER
    bytes_ = machine.points(walk.free) * item_bytes
    for name, points in walk.loads.items():
        elements, size = buffers(name)
        bytes_ += min(elements, points) * size
    loops = max(0, len(walk.contractions) - 1)
    clutter = 1 + walk.clutter + _SECOND_LOOP * loops
    launch = machine.target.launch_us
    return launch + (machine.time_us(walk.flops, bytes_) - launch) * clutter


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a subterm stands: the axes bound around it, and per enclosing reduction the axes of
    its result with the number of result points that share one evaluation."""

    bound: frozenset[Var] = frozenset()
    shared: tuple[tuple[frozenset[Var], int], ...] = ()
    online: bool = False


class _Walk:
    """Adds up the work of every distinct subterm."""

    def __init__(self, machine: Machine, free: frozenset[Var]) -> None:
        self.machine, self.free = machine, free
        self.seen: set[Term] = set()
        self.flops = 0.0
        self.loads: dict[str, float] = {}
        self.illegal = False
        self.clutter = 0.0
        self.contractions: set[tuple[Var, ...]] = set()

    def visit(self, t: Term, place: _Place) -> None:
        """Adds the work of a subterm, once."""
        if t in self.seen:
            return
        self.seen.add(t)
        if t.op in REDUCTIONS:
            self._reduction(t, place)
            return
        axes = t.free & (self.free | place.bound)
        if WEIGHTS[t.op]:
            self.flops += WEIGHTS[t.op] * self.machine.points(axes) * self._again(axes, place)
            if place.shared and not place.online and t.op not in ("cast", "cond", "index"):
                self.clutter += _OPERATION * WEIGHTS[t.op]
        if t.op == "load":
            for inner in postorder(t):
                if inner.op == "load":
                    points = self.machine.points(inner.free & (self.free | place.bound))
                    self.loads[inner.buffer] = max(self.loads.get(inner.buffer, 0.0), points)
        for a in t.args:
            self.visit(a, place)

    def _again(self, axes: frozenset[Var], place: _Place) -> float:
        """How often a value is computed again for results that do not depend on it."""
        factor = 1.0
        for domain, tile in place.shared:
            factor *= max(1.0, self.machine.points(domain - axes) / tile)
        return factor

    def _reduction(self, t: Term, place: _Place) -> None:
        own = frozenset(t.axes)
        known = self.free | place.bound
        rows = tuple((domain, _ROW_TILE) for domain, _ in place.shared)
        result = t.free & known
        points = self.machine.points
        if not place.online and not t.free.isdisjoint(place.bound):
            self.illegal |= points(own) > SMALL_LOOP or not self.free <= result
        if any(a.op == "mul" for a in t.args[-1:]) and not place.bound:
            self.contractions.add(t.axes)
        outer = _Place(place.bound, rows)
        if place.shared and not place.online and t.free.isdisjoint(place.bound):
            self.clutter += _STATISTIC
        inside = frozenset().union(*(a.free for a in t.args)) & (known | own)
        self.flops += WEIGHTS[t.op] * points(inside) * self._again(result, outer)
        bound = place.bound | own
        body = _Place(bound, (*rows, (result, _OPERAND_TILE)))
        if t.op == "rsum":
            x, v = t.args
            logits = _Place(bound, (*rows, (result, _ROW_TILE)), online=True)
            axes = x.free & (known | own)
            self.flops += POWER * points(axes) * self._again(axes, logits)
            self.visit(x, logits)
            self.visit(v, body)
            return
        for a in t.args:
            self.visit(a, body)
