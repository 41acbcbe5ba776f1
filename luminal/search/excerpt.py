"""The part of a plan that stands for all of it: layers that repeat need not all be run.

In: a `Scheduled`, sizes of its dims, what caches hold. Out: an `Excerpt`, which makes plans of some
of the calls and tells from their times what all would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from luminal.ir import Plan, Schedule
from luminal.search.tasks import Scheduled, Task

BYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class Timed:
    """Microseconds of a whole call, and of a call of each task on average."""

    total_us: float
    each_us: Mapping[Task, float]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The calls at `positions` of a plan, in order; the other calls are of the same tasks."""

    found: Scheduled
    positions: tuple[int, ...]

    @property
    def calls(self) -> list[Task]:
        return [self.found.calls[p] for p in self.positions]

    def plan_of(self, picks: Mapping[Task, Schedule]) -> Plan:
        """The part of the plan with schedules for some tasks, and the winners of the others. What
        is no longer computed is an input, in a layout a constant; contents are left out."""
        plan = self.found.plan_of(picks)
        kernels = tuple(plan.kernels[p] for p in self.positions)
        written, given = set[str](), set[str]()
        for kernel in kernels:
            given |= {*kernel.reads()} - written
            written |= {*kernel.writes()}
        alias = {b.name: b.alias for b in plan.buffers}
        for name in [*given, *written]:
            while (name := alias[name]) and name not in written:
                given.add(name)
        buffers = [replace(b, data=None) for b in plan.buffers if b.name in given | written]
        for n, b in enumerate(buffers):
            if b.name in given and b.kind in ("temp", "output"):
                buffers[n] = replace(b, kind="constant" if b.layout else "input", alias="")
        seen = {b.name: b.kind for b in buffers}
        inputs = tuple(name for name, kind in seen.items() if kind == "input")
        outputs = tuple(n for n in plan.outputs if seen.get(n) in ("input", "output"))
        return Plan(kernels, tuple(buffers), inputs, outputs, plan.dims, notes=plan.notes)

    def timed(self, times: Sequence[float]) -> Timed:
        """From the time of a call of the part, then of its kernels one by one."""
        kept, uses = Counter(self.calls), Counter(self.found.calls)
        sums = dict.fromkeys(kept, 0.0)
        for task, us in zip(self.calls, times[1:], strict=True):
            sums[task] += us
        each = {task: us / kept[task] for task, us in sums.items()}
        return Timed(times[0] + sum(us * (uses[t] - kept[t]) for t, us in each.items()), each)


def excerpt(found: Scheduled, hints: Mapping[str, int], cached_bytes: int) -> Excerpt | None:
    """The first calls of every task, as few as have data that caches cannot hold (else all); None
    where a size is unknown or copies of that data would be large."""
    if any(v.name not in hints for v in found.plan.dims):
        return None
    shapes = {b.name: (*(e.evaluate(hints) for e in b.shape), b.dtype.bits)
              for b in found.plan.buffers}  # fmt: skip
    seen, turns = Counter[Task](), list[int]()
    for task in found.calls:
        turns.append(seen[task])
        seen[task] += 1
    limit, size_bytes, positions = 1, 0, tuple[int, ...]()
    while len(positions) < len(turns) and (not positions or size_bytes < cached_bytes):
        positions = tuple(p for p, turn in enumerate(turns) if turn < limit)
        names = {name for p in positions for name in found.plan.kernels[p].arguments()}
        size_bytes, limit = sum(prod(shapes[name]) for name in names) // 8, 2 * limit
    return Excerpt(found, positions) if size_bytes <= BYTES else None
