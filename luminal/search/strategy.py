"""The strategy: which plan and which schedules, by model or by the clock.

In: plans without schedules, a Target, a Config, a function that measures. Out: one Plan with
schedules. Knows neither code generator nor device. Interrupting it keeps the best found so far.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from luminal.config import Config
from luminal.ir.plan import Buffer, Kernel, Loop, Plan, Schedule
from luminal.ir.target import Target
from luminal.ir.text import kernel_text
from luminal.search.cache import Cache, digest
from luminal.search.schedule import Candidate
from luminal.search.tasks import Task, prepare

VERSION = 2
FAST_S, FULL_S = 60.0, 900.0
FAST_TRIALS, FULL_TRIALS = 8, 40
WORTH_SHARE, WORTH_US = 0.01, 20.0
LEAST_S, SECONDS_PER_MS = 3.0, 3.0
KEEP_DEFAULT = 0.97
MUTATIONS = 24
GIVE_UP, CLOSE = 1.5, 1.3
FINALISTS, ROUNDS = 4, 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to make: a scheduled kernel, its buffers with layouts, sizes of its dims.

    After one warm-up the best of `repeats` counts (0: none is made); past `give_up_us` one run is
    enough. With `check` sampled results are compared with the oracle.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    dims: tuple[tuple[str, int], ...]
    repeats: int = 5
    give_up_us: float = math.inf
    check: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best time (inf if there is none) and, if it may not win, why."""

    time_us: float = math.inf
    error: str = ""


Measure = Callable[[Trial], Outcome]


def choose(
    plans: Sequence[Plan], target: Target, config: Config, *, measure: Measure | None = None,
    cache: Cache | None = None, versions: str = "", hints: Mapping[str, int] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:  # fmt: skip
    """The best plan, every kernel with a schedule. Without `measure`, or with search 'off', the
    model decides; else heavy kernels are measured within the time that `config.search` allows.

    `measure` runs one `Trial` in a process that may die. `versions` names everything that a
    measured winner in the `cache` depends on beside the kernel and the target.
    """
    known: dict[object, Task] = {}
    best = prepare(plans[0], target, hints or {}, known)
    if config.search == "off" or measure is None:
        return best.finish()
    search = _Search(target, config, measure, cache or Cache(None), versions, progress)
    others = (prepare(plan, target, hints or {}, known) for plan in plans[1:])
    with suppress(KeyboardInterrupt):
        for found in chain([best], others):
            if not search.tune(found.tasks):
                break
            best = min(best, found, key=lambda s: s.total_us)
    return best.finish()


class _Search:
    """Budget, cache and progress of one call of `choose`."""

    def __init__(
        self, target: Target, config: Config, measure: Measure, cache: Cache, versions: str,
        progress: Callable[[str, float], None] | None,
    ) -> None:  # fmt: skip
        self.target, self.config, self.measure, self.cache = target, config, measure, cache
        self.versions, self.progress = versions, progress
        self.full = config.search == "full"
        seconds = {"fast": FAST_S, "full": FULL_S}.get(config.search)
        self.budget_s = float(config.search) if seconds is None else seconds
        self.trials = FULL_TRIALS if self.budget_s > 2 * FAST_S else FAST_TRIALS
        self.end = 0.0

    def tune(self, tasks: Sequence[Task]) -> bool:
        """Measure the kernels that matter, the heaviest first. False if time ran out before all
        of them were measured."""
        total = sum(t.weight for t in tasks)
        if not self.end:
            if self.config.search == "fast":  # a short call is not worth a long search
                self.budget_s = min(self.budget_s, LEAST_S + SECONDS_PER_MS * total / 1e3)
            self.end = time.monotonic() + self.budget_s
        least = max(total * WORTH_SHARE, WORTH_US)
        heavy = [t for t in tasks if t.weight >= least and not t.measured and not t.kernel.ordered]
        todo = [t for t in sorted(heavy, key=lambda t: -t.weight) if not self._known(t)]
        for number, task in enumerate(todo):
            left = self.end - time.monotonic()
            if left <= 0:
                break
            rest = sum(t.weight for t in todo[number:])
            share = max(left * task.weight / rest, min(1.0, left / (len(todo) - number)))
            self._tune_task(task, time.monotonic() + share, f"kernel {number + 1}/{len(todo)}")
        return all(t.measured for t in todo)

    def _tune_task(self, task: Task, deadline: float, label: str) -> None:
        """Race a shortlist of candidates; the fastest that agrees with the oracle wins."""
        options = [c.schedule for c in shortlist(task.candidates(self.target), self.trials)]
        self._race(task, options, deadline, label)
        if self.full and task.measured:
            rng = random.Random(f"{self.config.seed} {digest(task.kernel)}")
            made = dict.fromkeys(mutate(task.winner, rng) for _ in range(MUTATIONS))
            fresh = [m for m in made if m is not None and m not in options]
            self._race(task, [task.winner, *fresh], deadline, label)
        if task.measured:
            self.cache.save("winner", self._key(task), (task.winner, task.time_us))

    def _race(self, task: Task, options: list[Schedule], deadline: float, label: str) -> None:
        def report() -> None:
            if self.progress is not None:
                left = max(0.0, self.end - time.monotonic())
                self.progress(f"search: {label}, {left:.0f} s left", 1 - left / self.budget_s)

        def is_right(schedule: Schedule) -> bool:
            kernel = replace(task.kernel, schedule=schedule)
            return not self.measure(Trial(kernel, task.buffers, task.hints, 0, check=True)).error

        trials = [Trial(replace(task.kernel, schedule=s), task.buffers, task.hints)
                  for s in options]  # fmt: skip
        ranked = race(trials, self.measure, deadline, report)
        first = next((t for t, p in ranked if p == 0), None)
        if first is not None and ranked[0][0] > first * KEEP_DEFAULT:
            ranked.sort(key=lambda r: (r[1] != 0, r[0]))
        for time_us, position in ranked:
            if is_right(options[position]):
                task.winner, task.time_us, task.measured = options[position], time_us, True
                return
        if is_right(Schedule()):
            task.winner = Schedule()

    def _key(self, task: Task) -> str:
        text = kernel_text(replace(task.kernel, schedule=None))  # a repr would unfold shared terms
        axes = [(a.name, a.lo, a.hi, a.bound) for a in task.kernel.all_axes()]
        return digest(VERSION, self.versions, self.target, task.buffers, task.hints, text, axes,
                      self.config.threads, self.full)  # fmt: skip

    def _known(self, task: Task) -> bool:
        """Take the winner from the cache, if it is there."""
        match self.cache.load("winner", self._key(task)):
            case (Schedule() as winner, float() as time_us):
                task.winner, task.time_us, task.measured = winner, time_us, True
        return task.measured


def race(
    trials: Sequence[Trial], measure: Measure, deadline: float, tick: Callable[[], None]
) -> list[tuple[float, int]]:
    """(time in µs, position) of the trials that ran, fastest first. The first always runs.

    `deadline` is a value of `time.monotonic`; `tick` is called after every run. Those that are
    not clearly slower run again, all in turn, so that a busy moment does not decide.
    """
    times: dict[int, float] = {}

    def run(position: int, give_up_us: float) -> None:
        outcome = measure(replace(trials[position], give_up_us=give_up_us))
        tick()
        if not outcome.error and outcome.time_us < math.inf:
            times[position] = min(outcome.time_us, times.get(position, math.inf))

    for position in range(len(trials)):
        if not position or time.monotonic() <= deadline:
            run(position, min(times.values(), default=math.inf) * GIVE_UP)
    best = min(times.values(), default=math.inf)
    close = [p for p in sorted(times, key=lambda p: (times[p], p)) if times[p] <= best * CLOSE]
    close = sorted({*close[:FINALISTS], *(p for p in times if p == 0)})
    for turn in range(ROUNDS if len(close) > 1 else 0):
        for position in close if turn % 2 else reversed(close):
            if time.monotonic() <= deadline:
                run(position, math.inf)
    return sorted((t, p) for p, t in times.items())


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first candidate, the cheapest of each way to walk memory, then the next cheapest; never
    the last, the plain loops."""
    able = range(len(candidates) - 1)
    kinds: dict[tuple[object, ...], int] = {}
    for n in able:  # ways differ in kinds of items, order of axes and lanes, not in tile sizes
        schedule = candidates[n].schedule
        items = tuple((type(i).__name__, getattr(i, "axis", "")) for i in schedule.items)
        kinds.setdefault((items, tuple((r.axis, r.role) for r in schedule.regs)), n)
    by_cost = sorted(kinds.values(), key=lambda n: candidates[n].cost)
    chosen = dict.fromkeys((0, *by_cost[: count // 2], *able))
    return [candidates[n] for n in list(chosen)[:count]]


def mutate(schedule: Schedule, rng: random.Random) -> Schedule | None:
    """The schedule with the tile of one loop halved or doubled; None if it has none to change.

    Only loops around another of their axis change, so that the registers keep their sizes.
    """
    loops = [(n, item) for n, item in enumerate(schedule.items) if isinstance(item, Loop)]
    able = []
    for n, loop in loops:
        inner = [other.tile for m, other in loops if m > n and other.axis == loop.axis]
        able += [(n, loop, inner[0])] if inner else []
    if not able:
        return None
    place, loop, step = rng.choice(able)
    tile = rng.choice((loop.tile // 2, loop.tile * 2)) // step * step
    items = list(schedule.items)
    items[place] = replace(loop, tile=max(step, tile))
    return replace(schedule, items=tuple(items))
