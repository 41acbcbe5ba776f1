"""Roofline: an estimate of a kernel's time from its term alone, before it has a schedule.

In: kernels, buffer sizes, a Target, values for symbolic dimensions. Out: microseconds, good for
ranking programs against each other. Measures nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from luminal.ir import REDUCTIONS, Binary, Choice, Expr, Target, Term, Var, postorder, to_expr
from luminal.ir.term import substitute

WEIGHTS = {
    "log2": 12.0, "exp2": 12.0, "sin": 16.0, "sqrt": 6.0, "recip": 5.0, "add": 1.0, "mul": 1.0,
    "mod": 10.0, "lt": 1.0, "max": 1.0, "and": 0.5, "or": 0.5, "not": 0.5, "select": 0.5,
    "cast": 0.5, "cond": 0.5, "index": 0.5, "load": 0.0, "const": 0.0, "sum": 1.0, "rmax": 1.0,
    "rsum": 2.0, "wsum": 5.0,
}  # fmt: skip
"""Flops of one application of each operation."""
POWER = 13.0
"""Flops of an rsum for each element of x: the maximum, the difference and exp2."""
SMALL_LOOP = 32
"""A reduction up to this size may run for every step of another that it depends on."""
KEPT = 1 << 12
"""Results of such a reduction that are kept where it does not depend on every free axis."""
NEVER = 1e15
_NONE: frozenset[Var] = frozenset()
_OPERAND_TILE, _ROW_TILE, _ROWS, _TWICE = 32, 256, 8, 0.5
"""With fewer `_ROWS`, each thread of a GPU makes an rsum's weights for itself, and twice."""
_TYPICAL = 512
_NEAR = 1024
"""Elements that stay in the nearest cache until the next of a block reads them again."""
_OVERLAP = 0.3
"""The part of the smaller of compute and memory time that the larger does not hide."""
_LARGEST_TERM = 400
_OPERATION, _STATISTIC, _SECOND_LOOP = 0.01, 0.02, 0.2
"""The part of a kernel's time that one more thing costs: a flop in a contraction's loop, a
reduction that it waits for, a contraction over other axes."""


@dataclass(slots=True)
class Machine:
    """The rates of a target and the sizes of axes under the hints."""

    target: Target
    hints: Mapping[str, int]
    _extents: dict[Var, int] = field(default_factory=dict)

    def size(self, e: Expr) -> int:
        """A size under the hints; symbols without one get a typical value in their range."""
        return max(0, e.typical(self.hints, _TYPICAL))

    def points(self, axes: Iterable[Var]) -> float:
        total = 1  # an integer: the order of a set must not show in the last digit
        for axis in axes:
            if axis not in self._extents:
                self._extents[axis] = self.size(axis.extent)
            total *= self._extents[axis]
        return float(total)

    def repeats(self, r: Term | Choice, result: frozenset[Var], free: frozenset[Var]) -> bool:
        """Whether a reduction inside another, for the axes of its `result`, is long or does the
        same again for other `free` axes, too much of it to be kept. Only sums of floats that all
        results share are kept: beside others no sum of integers could be dot products."""
        shared = r.op == "sum" and r.dtype.is_float and free.isdisjoint(result)
        most = KEPT if shared else 0
        again = not free <= result and prod(a.hi + 1 for a in result) > most
        return again or self.points(r.axes) > SMALL_LOOP

    def kernel_us(self, flops: float, bytes_: float, clutter: float = 1.0) -> float:
        """A launch that does this work, `clutter` times as slowly as the machine can."""
        t = self.target
        rate = t.bandwidth_gbs * (4 if bytes_ < t.l2_bytes else 1)
        least, most = sorted((flops / (t.gflops * t.cores), bytes_ / rate))
        return t.launch_us + (most + _OVERLAP * least) / 1e3 * clutter


def kernel_us(
    machine: Machine, axes: tuple[Var, ...], value: Term, item_bytes: float,
    buffers: Mapping[str, tuple[float, float]],
) -> float:  # fmt: skip
    """The time to store `value` for every point of `axes`; `buffers` gives elements and bytes
    an element of a buffer."""
    walk = _Walk(machine, frozenset(axes))
    walk.visit(value, _Place())
    if walk.illegal or len(walk.seen) > _LARGEST_TERM:
        return NEVER
    bytes_ = machine.points(axes) * item_bytes
    for (name, repeats), points in walk.loads.items():
        elements, size = buffers[name]
        bytes_ += (points if repeats else min(elements, points)) * size
    clutter = 1 + walk.clutter + _SECOND_LOOP * max(0, len(walk.contractions) - 1)
    return machine.kernel_us(walk.flops, bytes_, clutter)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a subterm stands: the axes bound around it, and per enclosing reduction the axes of
    its result with the number of result points that share one evaluation."""

    bound: frozenset[Var] = frozenset()
    shared: tuple[tuple[frozenset[Var], float], ...] = ()
    online: bool = False


class _Walk:
    """Adds up the work of every distinct subterm."""

    def __init__(self, machine: Machine, free: frozenset[Var]) -> None:
        self.machine, self.points, self.free = machine, machine.points, free
        self.seen: set[Term] = set()
        self.loads: dict[tuple[str, bool], float] = {}
        self.contractions: set[tuple[Var, ...]] = set()
        self.illegal, self.threads = False, machine.target.warp > 1
        self.flops = self.clutter = 0.0

    def visit(self, t: Term, place: _Place) -> None:
        if t in self.seen:
            return
        self.seen.add(t)
        if t.op in REDUCTIONS:
            self._reduction(t, place)
            return
        known = self.free | place.bound
        self._count(WEIGHTS[t.op], t.free & known, place)
        if place.shared and not place.online and t.op not in ("cast", "cond", "index"):
            self.clutter += _OPERATION * WEIGHTS[t.op]
        for inner in [x for x in postorder(t) if x.op == "load"] if t.op == "load" else ():
            blocks = (a for e in inner.indices for a in e.atoms() if isinstance(a, Binary))
            near = self.points(inner.free & place.bound) <= _NEAR
            whole = near or all(self.free.isdisjoint(a.variables()) for a in blocks)
            key = inner.buffer, bool(place.shared) and not whole  # each of a block sums again
            self.loads[key] = max(self.loads.get(key, 0.0), self.points(inner.free & known))
        # a subterm counts where it is met first; a GPU's threads repeat what has the most axes
        for a in sorted(t.args, key=lambda a: -len(a.free) * self.threads):
            self.visit(a, place)

    def _count(
        self, flops: float, axes: frozenset[Var], place: _Place, kept: frozenset[Var] | None = None
    ) -> None:
        """Adds `flops` for every point of `axes`, and again for the results that do not depend on
        the axes of the value (`kept` if it has fewer)."""
        again = 1.0
        for domain, tile in place.shared:
            again *= max(1.0, self.points(domain - (axes if kept is None else kept)) / tile)
        self.flops += flops * self.points(axes) * again

    def _reduction(self, t: Term, place: _Place) -> None:
        own, known = frozenset(t.axes), self.free | place.bound
        bound, result = place.bound | own, t.free & known
        rows = tuple((domain, _ROW_TILE if tile > 1 else tile) for domain, tile in place.shared)
        if not place.online and not t.free.isdisjoint(place.bound):
            self.illegal |= self.machine.repeats(t, result, self.free)
        elif place.shared and not place.online:
            self.clutter += _STATISTIC
        if t.args[-1].op == "mul" and not place.bound:
            self.contractions.add(t.axes)
        inside = _NONE.union(*(a.free for a in t.args)) & (known | own)
        self._count(WEIGHTS[t.op], inside, _Place(place.bound, rows), result)
        args = self._twins(t)
        if t.op == "rsum":
            few = self.points(known & t.args[0].free - t.args[1].free) < _ROWS and self.threads
            logits = _Place(bound, (*rows, (result, _TWICE if few else _ROW_TILE)), online=True)
            self._count(POWER, t.args[0].free & (known | own), logits)
            self.visit(args[0], logits)
        for a in args[t.op == "rsum" :]:
            self.visit(a, _Place(bound, (*rows, (result, _OPERAND_TILE))))

    def _twins(self, t: Term) -> tuple[Term, ...]:
        """What is reduced, along the axis of the result in which a row of it can be shared: the
        same value there is made only once."""
        own, *others = t.axes
        rest = [a for a in self.free - t.free if a.extent == own.extent]
        inside = any(x.op in REDUCTIONS and own in x.free for x in postorder(*t.args))
        if others or len(rest) != 1 or inside:
            return t.args
        return tuple(substitute(a, {own: to_expr(rest[0])}) for a in t.args)
