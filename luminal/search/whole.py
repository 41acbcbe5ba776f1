"""Whole plans by the clock: what a kernel takes among the others, whose data fills the caches.

In: `Scheduled`s whose tasks were measured alone, a function that runs plans in turn. Out: the
fastest, the winner of each of its tasks chosen among the best of those; never slower than the
model's choice of schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from luminal.ir import Plan, Schedule
from luminal.search.tasks import Scheduled, Task

BYTES = 1 << 30
FINALISTS, CLOSE, KEEP_DEFAULT = 3, 1.3, 0.97
CLOSE_PLANS, RIVALS = 1.1, 2
ROUNDS = (3, 15)


@dataclass(frozen=True, slots=True)
class Whole:
    """Plans that differ in schedules, to run in turn `rounds` times; sizes of their dims."""

    plans: tuple[Plan, ...]
    dims: tuple[tuple[str, int], ...]
    rounds: int


Times = tuple[tuple[float, ...], ...]
"""Median microseconds of a call of each plan, then those of its kernels one by one; empty if they
could not be run."""
MeasureWhole = Callable[[Whole], Times]


def fits(plan: Plan, hints: Mapping[str, int]) -> bool:
    """Whether a copy of all its buffers, of typical sizes, is small enough to make."""
    if any(v.name not in hints for v in plan.dims):
        return False
    sizes = ((*(e.evaluate(hints) for e in b.shape), b.dtype.bits) for b in plan.buffers)
    return sum(map(prod, sizes)) // 8 <= BYTES


@dataclass(frozen=True, slots=True)
class WholePlans:
    """Runs plans for `seconds` at most, not counting that they are compiled. `wrong` compares a
    schedule with the oracle."""

    hints: Mapping[str, int]
    seconds: float
    measure: MeasureWhole
    wrong: Callable[[Task, Schedule], str]

    def run(self, found: Scheduled, *plans: Plan) -> Times:
        """Times of plans like `found`; the more often it calls each kernel, the fewer rounds."""
        bare = (replace(p, buffers=tuple(replace(b, data=None) for b in p.buffers)) for p in plans)
        dims = tuple((v.name, self.hints[v.name]) for v in plans[0].dims)
        each = sum(t.time_us for t in found.tasks) / max(1.0, found.total_us)
        rounds = int(self.seconds * 1e6 * each / (len(plans) * max(1.0, found.total_us)))
        return self.measure(Whole(tuple(bare), dims, min(ROUNDS[1], max(ROUNDS[0], rounds))))

    def best(self, found: Sequence[Scheduled]) -> Scheduled:
        """The fastest with its tasks settled; `found` are not empty."""
        found = sorted(found, key=lambda f: f.total_us)
        first = found[0]
        if not fits(first.plan, self.hints):
            return first
        close = [f for f in found if f.total_us <= CLOSE_PLANS * first.total_us][:RIVALS]
        if len(close) > 1:
            times = self.run(first, *(f.plan_of({}) for f in close))
            totals = [t[0] for t in times] or [f.total_us for f in close]
            first = min(zip(totals, close, strict=True), key=lambda pair: pair[0])[1]
        self.settle(first)
        return first

    def settle(self, found: Scheduled) -> None:
        """Choose each task's winner among its fastest and its default, in the plan; then all
        winners together have to beat all defaults."""
        options = {t: _finalists(t) for t in found.tasks if t.measured}
        count = max(map(len, options.values()), default=1)
        picks = [{t: o[n % len(o)] for t, o in options.items()} for n in range(count)]
        times = self.run(found, *map(found.plan_of, picks)) if count > 1 else ()
        for task, schedules in options.items() if times else ():
            us = [_each(found, task, t) for t in times[: len(schedules)]]
            order = sorted(range(len(us)), key=lambda n: us[n] * (1 if n else KEEP_DEFAULT))
            self._take(task, [(schedules[n], us[n]) for n in order])
        if times:
            defaults = found.plan_of({t: t.default for t in options})
            times = self.run(found, defaults, found.plan_of({}))
            totals = [t[0] for t in times]
            for task in options if totals and totals[1] > totals[0] else ():
                self._take(task, [(task.default, _each(found, task, times[0]))])

    def _take(self, task: Task, timed: Sequence[tuple[Schedule, float]]) -> None:
        """The first schedule that is right becomes the winner."""
        right = (p for p in timed if p[0] == task.winner or not self.wrong(task, p[0]))
        task.winner, task.time_us = next(right, (task.winner, task.time_us))


def _each(found: Scheduled, task: Task, times: tuple[float, ...]) -> float:
    """What a call of the task took on average."""
    calls = zip(found.calls, times[1:], strict=True)
    return sum(us for call, us in calls if call is task) / task.uses


def _finalists(task: Task) -> list[Schedule]:
    """The model's choice, the winner, and what is nearly as fast."""
    close = (s for s, us, error in task.tried if not error and us <= CLOSE * task.time_us)
    return list(dict.fromkeys((task.default, task.winner, *close)))[:FINALISTS]
