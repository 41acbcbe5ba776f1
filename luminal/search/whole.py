"""Whole plans by the clock: what a kernel takes among the others, whose data fills the caches.

In: `Scheduled`s whose tasks were measured alone, a function that runs plans in turn. Out: the
fastest, the winner of each of its tasks chosen among the best of those; never slower than the
model's choice of schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from luminal.ir import Plan, Schedule
from luminal.search.excerpt import Excerpt, Timed, excerpt
from luminal.search.tasks import Scheduled, Task

FINALISTS, CLOSE, KEEP_DEFAULT = 5, 2.0, 0.97
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
Picks = Mapping[Task, Schedule]


@dataclass(frozen=True, slots=True)
class WholePlans:
    """Runs plans, or as much of them as caches of so many bytes cannot hold, for `seconds` at most,
    not counting that they are compiled. `wrong` compares a schedule with the oracle."""

    hints: Mapping[str, int]
    cached_bytes: int
    seconds: float
    measure: MeasureWhole
    wrong: Callable[[Task, Schedule], str]

    def run(self, *picked: tuple[Excerpt, Picks]) -> list[Timed]:
        """Times with picked schedules, one for each or none at all; the more often each kernel is
        called, the fewer rounds."""
        part = picked[0][0]
        once_us = sum(t.time_us for t in part.found.tasks)
        part_us = max(1.0, sum(t.time_us for t in part.calls))
        most = min(ROUNDS[1], self.seconds * 1e6 / (len(picked) * part_us))
        dims = tuple((v.name, self.hints[v.name]) for v in part.found.plan.dims)
        rounds = max(ROUNDS[0], int(most * once_us / part_us))
        times = self.measure(Whole(tuple(e.plan_of(p) for e, p in picked), dims, rounds))
        return [e.timed(t) for (e, _), t in zip(picked, times, strict=True)] if times else []

    def best(self, found: Sequence[Scheduled]) -> Scheduled:
        """The fastest with its tasks settled; `found` are not empty."""
        found = sorted(found, key=lambda f: f.total_us)
        near = [f for f in found if f.total_us <= CLOSE_PLANS * found[0].total_us][:RIVALS]
        parts = [excerpt(f, self.hints, self.cached_bytes) for f in near]
        runs = [p for p in parts if p is not None]
        if len(runs) < len(near):
            return found[0]
        if len(runs) > 1 and (times := self.run(*((p, {}) for p in runs))):
            best = min(range(len(runs)), key=lambda n: times[n].total_us)
            runs = [runs[best]]
        self.settle(runs[0])
        return runs[0].found

    def settle(self, part: Excerpt) -> None:
        """Choose each task's winner among its fastest and its default, in the plan; then all
        winners together have to beat all defaults."""
        options = {t: _finalists(t) for t in part.found.tasks if t.measured}
        count = max(map(len, options.values()), default=1)
        picks = [{t: o[n % len(o)] for t, o in options.items()} for n in range(count)]
        times = self.run(*((part, p) for p in picks)) if count > 1 else []
        for task, schedules in options.items() if times else ():
            us = [t.each_us[task] for t in times[: len(schedules)]]
            order = sorted(range(len(us)), key=lambda n: us[n] * (1 if n else KEEP_DEFAULT))
            self._take(task, [(schedules[n], us[n]) for n in order])
        if times and (times := self.run((part, {t: t.default for t in options}), (part, {}))):
            default, winners = times
            for task in options if winners.total_us > default.total_us else ():
                self._take(task, [(task.default, default.each_us[task])])

    def _take(self, task: Task, timed: Sequence[tuple[Schedule, float]]) -> None:
        """The first schedule that is right becomes the winner."""
        right = (p for p in timed if p[0] == task.winner or not self.wrong(task, p[0]))
        task.winner, task.time_us = next(right, (task.winner, task.time_us))


def _finalists(task: Task) -> list[Schedule]:
    """The model's choice, the winner, and what is nearly as fast."""
    close = (s for s, us, error in task.tried if not error and us <= CLOSE * task.time_us)
    return list(dict.fromkeys((task.default, task.winner, *close)))[:FINALISTS]
