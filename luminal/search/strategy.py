"""The strategy: which plan and which schedules, by model or by the clock.

In: plans without schedules, a Target, a Config, a function that measures. Out: one Plan with
schedules. Knows neither code generator nor device. Interrupting it keeps the best found so far."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from luminal.config import Config
from luminal.ir import Buffer, Kernel, Loop, Plan, Schedule, Target
from luminal.ir.text import kernel_text
from luminal.search.cache import Cache, digest
from luminal.search.schedule import Candidate
from luminal.search.tasks import Scheduled, Task, prepare
from luminal.search.whole import CLOSE, KEEP_DEFAULT, MeasureWhole, WholePlans

VERSION = 6
BUDGETS_S = {"fast": 34.0, "full": 900.0}
FAST_TRIALS, FULL_TRIALS = 8, 40
WORTH_SHARE, WORTH_US = 0.01, 20.0
LEAST_S, SECONDS_PER_MS = 3.0, 3.0
MUTATIONS, RUNNERS_UP = 24, 12
GIVE_UP, FINALISTS, ROUNDS = 1.5, 4, 3
WHOLE_SHARE = 0.3
INTERRUPTED = "the search was interrupted"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to make: a scheduled kernel, its buffers with layouts, sizes of its dims.

    The best of `repeats` after two that warm up counts (0: none is made); past `give_up_us` two are
    enough. With `check` sampled results are compared with the oracle."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    dims: tuple[tuple[str, int], ...]
    repeats: int = 5
    give_up_us: float = math.inf
    check: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best time (inf if there is none), why it may not win, and code by source."""

    time_us: float = math.inf
    error: str = ""
    code: tuple[tuple[str, bytes], ...] = ()


Measure = Callable[[Trial], Outcome]
Report = Callable[[float], None]


def choose(
    plans: Sequence[Plan], target: Target, config: Config, *, measure: Measure | None = None,
    cache: Cache | None = None, versions: str = "", hints: Mapping[str, int] | None = None,
    progress: Callable[[str, float], None] | None = None, whole: MeasureWhole | None = None,
) -> Plan:  # fmt: skip
    """The best plan, every kernel with a schedule. Without `measure`, or with search 'off', the
    model decides; else heavy kernels are measured within the time that `config.search` allows,
    alone, then (if given `whole`) in the plan; all are compared with the oracle. An interrupt ends
    the search and leaves a note.

    `measure` runs one `Trial` in a process that may die, `whole` whole plans. `versions` names
    everything that a measured winner in the `cache` depends on beside the kernel and the target."""
    known: dict[object, Task] = {}
    best = prepare(plans[0], target, hints or {}, known)
    if config.search == "off" or measure is None:
        return best.finish()
    search = _Search(best.total_us, target, config, measure, cache, versions, progress)
    others = (prepare(plan, target, hints or {}, known) for plan in plans[1:])
    tuned = [best]
    try:
        for found in chain([best], others):
            done = search.tune(found)
            tuned += [found] * (done and found is not best)
            if not done:
                break
        if whole is not None:
            search.report("whole plans", min(s.total_us for s in tuned))
            seconds = search.budget_s * WHOLE_SHARE / 3
            cached = 2 * (target.l3_bytes + target.cores * target.l2_bytes)
            in_turn = WholePlans(hints or {}, cached, seconds, whole, search.wrong)
            tuned = [in_turn.best(tuned)]
        best = min(tuned, key=lambda s: s.total_us)
        search.confirm(best.tasks)
    except KeyboardInterrupt:
        return min(tuned, key=lambda s: s.total_us).finish((INTERRUPTED,))
    return best.finish()


class _Search:
    """Budget, cache and progress of one call of `choose`."""

    def __init__(
        self, total_us: float, target: Target, config: Config, measure: Measure,
        cache: Cache | None, versions: str, progress: Callable[[str, float], None] | None,
    ) -> None:  # fmt: skip
        self.target, self.config, self.measure = target, config, measure
        self.cache, self.versions, self.progress = cache or Cache(None), versions, progress
        self.full = config.search == "full"
        self.budget_s = float(BUDGETS_S.get(config.search, config.search))
        self.trials = FULL_TRIALS if self.budget_s > 100 else FAST_TRIALS
        if config.search == "fast":  # a short call is not worth a long search
            self.budget_s = min(self.budget_s, LEAST_S + SECONDS_PER_MS * total_us / 1e3)
        self.end = time.monotonic() + self.budget_s * (1.0 - WHOLE_SHARE)

    def tune(self, found: Scheduled) -> bool:
        """Measure the kernels that matter, the heaviest first; False if time ran out."""
        least = max(found.total_us * WORTH_SHARE, WORTH_US)
        heavy = [
            t for t in found.tasks if t.weight >= least and not t.measured and not t.kernel.ordered
        ]
        todo = [t for t in sorted(heavy, key=lambda t: -t.weight) if not self._known(t, "winner")]
        for number, task in enumerate(todo):
            left = self.end - time.monotonic()
            if left <= 0:
                break
            rest = sum(t.weight for t in todo[number:])
            share = max(left * task.weight / rest, min(1.0, left / (len(todo) - number)))
            report = partial(self._better, found, task, f"kernel {number + 1}/{len(todo)}")
            self._tune_task(task, time.monotonic() + share, report)
        return all(t.measured for t in todo)

    def _better(self, found: Scheduled, task: Task, label: str, best_us: float) -> None:
        self.report(label, found.total_us + min(0.0, best_us - task.time_us) * task.uses)

    def report(self, label: str, best_us: float) -> None:
        """Tells what is measured, the best time of the plan and the time left."""
        if self.progress is not None:
            left = max(0.0, self.end - time.monotonic())
            text = f"search: {label}, best {best_us / 1e3:.3g} ms, {left:.0f} s left"
            self.progress(text, max(0.0, 1 - left / self.budget_s))

    def confirm(self, tasks: Sequence[Task]) -> None:
        """What was not worth measuring has to agree with the oracle, too."""
        until = max(self.end, time.monotonic()) + self.budget_s / 4  # more than tuning had
        for task in (t for t in tasks if not t.measured and not t.kernel.ordered):
            if not self._known(task, "right") and time.monotonic() < until:
                if self.wrong(task, task.winner):
                    others = [c.schedule for c in task.candidates(self.target)][1:FINALISTS]
                    right = (s for s in (*others, Schedule()) if not self.wrong(task, s))
                    task.winner = next(right, task.winner)
                self._keep(task, "right")

    def wrong(self, task: Task, schedule: Schedule) -> str:
        """What the oracle says of a schedule of the task; '' if it is right."""
        kernel = replace(task.kernel, schedule=schedule)
        return self.measure(Trial(kernel, task.buffers, task.hints, 0, check=True)).error

    def _tune_task(self, task: Task, deadline: float, report: Report) -> None:
        """Race a shortlist of candidates; the fastest that agrees with the oracle wins."""
        options = [c.schedule for c in shortlist(task.candidates(self.target), self.trials)]
        self._race(task, options, deadline, report)
        if self.full and task.measured:
            rng = random.Random(f"{self.config.seed} {digest(task.kernel)}")
            made = dict.fromkeys(mutate(task.winner, rng) for _ in range(MUTATIONS))
            fresh = [m for m in made if m is not None and m not in options]
            self._race(task, [task.winner, *fresh], deadline, report)
        if task.measured:
            self._keep(task, "winner")

    def _race(self, task: Task, options: list[Schedule], deadline: float, report: Report) -> None:
        """The fastest that agrees with the oracle wins; the first keeps what is nearly a tie."""
        trials = [Trial(replace(task.kernel, schedule=s), task.buffers, task.hints)
                  for s in options]  # fmt: skip
        found: dict[int, Outcome] = {}
        try:
            race(trials, self.measure, deadline, report, found)
        finally:  # an interrupt keeps the best of those that ran
            ran = [p for p in found if not found[p].error]
            for p in sorted(ran, key=lambda p: (found[p].time_us * (1 if p else KEEP_DEFAULT), p)):
                found[p] = replace(found[p], error=self.wrong(task, options[p]))
                if not found[p].error:
                    task.winner, task.time_us, task.measured = options[p], found[p].time_us, True
                    break
            else:
                task.winner = task.winner if self.wrong(task, Schedule()) else Schedule()
            tried = (*task.tried, *((options[p], o.time_us, o.error) for p, o in found.items()))
            task.tried = tuple(sorted(tried, key=lambda t: t[1])[:RUNNERS_UP])

    def _key(self, task: Task) -> str:
        text = kernel_text(replace(task.kernel, schedule=None))  # a repr would unfold shared terms
        axes = [(a.name, a.lo, a.hi, a.bound) for a in task.kernel.all_axes()]
        return digest(VERSION, self.versions, self.target, task.buffers, task.hints, text, axes,
                      self.config.threads, self.full)  # fmt: skip

    def _keep(self, task: Task, kind: str) -> None:
        self.cache.save(kind, self._key(task), (task.winner, task.time_us, task.tried))

    def _known(self, task: Task, kind: str) -> bool:
        """Take what is kept of a task from the cache, if it is there."""
        match self.cache.load(kind, self._key(task)):
            case (Schedule() as winner, float() as time_us, tuple() as tried):
                task.winner, task.time_us, task.tried = winner, time_us, tried
                task.measured = kind == "winner"
                return True
        return False


def race(
    trials: Sequence[Trial], measure: Measure, deadline: float, report: Report,
    found: dict[int, Outcome],
) -> None:  # fmt: skip
    """Fill in the best outcome of the trials that ran, by position. The first always runs.

    `deadline` is a value of `time.monotonic`; `report` is told the best after every run. Those
    that are not clearly slower run again, all in turn, so that a busy moment does not decide."""

    def best_us() -> float:
        return min((o.time_us for o in found.values()), default=math.inf)

    def run(position: int, give_up_us: float) -> None:
        outcome = measure(replace(trials[position], give_up_us=give_up_us))
        if outcome.error or outcome.time_us < found.get(position, Outcome()).time_us:
            found[position] = outcome
        report(best_us())

    for position in range(len(trials)):
        if not position or time.monotonic() <= deadline:
            run(position, best_us() * GIVE_UP)
    times = {p: o.time_us for p, o in found.items() if o.time_us < math.inf}
    close = [p for p in sorted(times, key=lambda p: (times[p], p)) if times[p] <= best_us() * CLOSE]
    close = sorted({*close[:FINALISTS], *(p for p in times if p == 0)})
    for turn in range(ROUNDS if len(close) > 1 else 0):
        for position in close if turn % 2 else reversed(close):
            if time.monotonic() <= deadline:
                run(position, math.inf)


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first candidate, the cheapest of each way to walk memory, then the next cheapest; never
    the last, the plain loops."""
    able = range(len(candidates) - 1)
    kinds: dict[tuple[object, ...], int] = {}
    for n in able:  # ways differ in kinds of items, order of axes and lanes, not in tile sizes
        schedule = candidates[n].schedule
        items = tuple((type(i).__name__, getattr(i, "axis", ""), getattr(i, "ahead", 0))
                      for i in schedule.items)  # fmt: skip
        kinds.setdefault((items, tuple((r.axis, r.role) for r in schedule.regs)), n)
    by_cost = sorted(kinds.values(), key=lambda n: candidates[n].cost)
    chosen = dict.fromkeys((0, *by_cost[: count // 2], *able))
    return [candidates[n] for n in list(chosen)[:count]]


def mutate(schedule: Schedule, rng: random.Random) -> Schedule | None:
    """The schedule with the tile of one loop halved or doubled; None if it has none to change.

    Only loops around another of their axis change, so that the registers keep their sizes."""
    loops = [(n, item) for n, item in enumerate(schedule.items) if isinstance(item, Loop)]
    able = [(n, loop, inner[0]) for n, loop in loops
            if (inner := [i.tile for m, i in loops if m > n and i.axis == loop.axis])]  # fmt: skip
    if not able:
        return None
    place, loop, step = rng.choice(able)
    tile = rng.choice((loop.tile // 2, loop.tile * 2)) // step * step
    items = list(schedule.items)
    items[place] = replace(loop, tile=max(step, tile))
    return replace(schedule, items=tuple(items))
