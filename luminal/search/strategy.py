"""The strategy: which plan and which schedules, by model or by the clock.

In: plans without schedules, a Target, a Config, functions that measure. Out: one Plan with
schedules. Knows neither code generator nor device. Interrupting it keeps the best found so far.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from luminal.config import Config
from luminal.ir.expr import Var
from luminal.ir.plan import Item, Loop, Plan, Schedule
from luminal.ir.target import Target
from luminal.ir.text import kernel_text
from luminal.search.cache import Cache, digest
from luminal.search.model import shortlist
from luminal.search.tasks import Scheduled, Task, prepare
from luminal.search.timing import Measure, Trial, race

__all__ = ["Progress", "Tools", "choose"]

VERSION = 1
FAST_S, FULL_S = 60.0, 900.0
FAST_TRIALS, FULL_TRIALS = 8, 40
WORTH_SHARE = 0.01
WORTH_US = 20.0
LEAST_S, SECONDS_PER_MS = 3.0, 3.0
KEEP_DEFAULT = 0.97
MUTATIONS = 24

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Tools:
    """What the caller lends to the search.

    `measure` runs one `Trial` in a process that may die. `versions` names everything that a
    measured winner depends on beside the kernel and the target.
    """

    measure: Measure
    versions: str = ""


def choose(
    plans: Sequence[Plan], target: Target, config: Config, *, tools: Tools | None = None,
    cache: Cache | None = None, hints: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Plan:  # fmt: skip
    """The best plan, every kernel with a schedule. Without `tools`, or with search 'off', the
    model decides; else heavy kernels are measured within the time that `config.search` allows."""
    known: dict[object, Task] = {}
    if config.search == "off" or tools is None:
        return prepare(plans[0], target, hints or {}, known).finish()
    search = _Search(target, config, tools, cache, progress)
    best: Scheduled | None = None
    with suppress(KeyboardInterrupt):
        for plan in plans:
            found = prepare(plan, target, hints or {}, known)
            best = best or found
            if not search.tune(found):
                break
            if found.total_us < best.total_us:
                best = found
    assert best is not None
    return best.finish()


class _Search:
    """Budget, cache and progress of one call of `choose`."""

    def __init__(
        self, target: Target, config: Config, tools: Tools, cache: Cache | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self.target, self.config, self.tools, self.cache = target, config, tools, cache
        self.progress = progress
        self.full = config.search == "full"
        seconds = {"fast": FAST_S, "full": FULL_S}.get(config.search)
        self.budget_s = float(config.search) if seconds is None else seconds
        self.trials = FULL_TRIALS if self.budget_s > 2 * FAST_S else FAST_TRIALS
        self.end = 0.0

    def tune(self, found: Scheduled) -> bool:
        """Measure the kernels that matter, the heaviest first. False if time ran out before all
        of them were measured."""
        total = sum(t.weight for t in found.tasks)
        if not self.end:
            if self.config.search == "fast":  # a short call is not worth a long search
                self.budget_s = min(self.budget_s, LEAST_S + SECONDS_PER_MS * total / 1e3)
            self.end = time.monotonic() + self.budget_s
        todo = sorted((t for t in found.tasks if not t.measured), key=lambda t: -t.weight)
        todo = [t for t in todo if t.weight >= total * WORTH_SHARE and t.weight >= WORTH_US
                and not t.kernel.ordered]  # fmt: skip
        todo = [t for t in todo if not self._from_cache(t)]
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
            made = [m for _ in range(MUTATIONS) if (m := mutate(task.winner, rng)) is not None]
            fresh = [m for m in dict.fromkeys(made) if m not in options]
            self._race(task, [task.winner, *fresh], deadline, label)
        if task.measured:
            self._to_cache(task)

    def _race(self, task: Task, options: list[Schedule], deadline: float, label: str) -> None:
        trials = [Trial(replace(task.kernel, schedule=s), task.buffers, task.hints)
                  for s in options]  # fmt: skip
        ranked = race(trials, self.tools.measure, deadline, lambda: self._report(label))
        first = next((t for t, p in ranked if p == 0), None)
        if first is not None and ranked and ranked[0][0] > first * KEEP_DEFAULT:
            ranked.sort(key=lambda r: (r[1] != 0, r[0]))
        for time_us, position in ranked:
            checked = replace(trials[position], repeats=0, check=True)
            if not self.tools.measure(checked).error:
                task.winner, task.time_us, task.measured = options[position], time_us, True
                return
        plain = replace(trials[0], kernel=replace(task.kernel, schedule=Schedule()), check=True)
        if not self.tools.measure(replace(plain, repeats=0)).error:
            task.winner = Schedule()

    def _report(self, label: str) -> None:
        if self.progress is not None:
            left = max(0.0, self.end - time.monotonic())
            self.progress(f"search: {label}, {left:.0f} s left", 1 - left / self.budget_s)

    # ---- the cache of winners

    def _key(self, task: Task) -> str:
        text = kernel_text(replace(task.kernel, schedule=None))  # a repr would unfold shared terms
        axes = [(a.name, a.lo, a.hi, a.bound) for a in _axes(task)]
        return digest(VERSION, self.tools.versions, self.target, task.buffers, task.hints, text,
                      axes, self.config.threads, self.full)  # fmt: skip

    def _from_cache(self, task: Task) -> bool:
        data = self.cache.get("winner", self._key(task)) if self.cache is not None else None
        if data is None:
            return False
        try:
            winner, time_us = pickle.loads(data)
        except Exception:  # an entry of another version of Python or of luminal
            return False
        if not isinstance(winner, Schedule):
            return False
        task.winner, task.time_us, task.measured = winner, float(time_us), True
        return True

    def _to_cache(self, task: Task) -> None:
        if self.cache is not None:
            self.cache.put("winner", self._key(task), pickle.dumps((task.winner, task.time_us)))


def _axes(task: Task) -> list[Var]:
    bound = [a for t in task.kernel.subterms() for a in t.axes]
    return list(dict.fromkeys([*task.kernel.axes, *bound]))


def mutate(schedule: Schedule, rng: random.Random) -> Schedule | None:
    """The schedule with the tile of one loop halved or doubled; None if it has none to change.

    Only loops around the register level change, so that the registers keep their sizes.
    """
    items = list(schedule.items)
    able = [n for n, i in enumerate(items) if isinstance(i, Loop) and _is_outer(items, n)]
    if not able:
        return None
    place = rng.choice(able)
    loop = items[place]
    assert isinstance(loop, Loop)
    inner = [i.tile for i in items[place + 1 :] if isinstance(i, Loop) and i.axis == loop.axis]
    tile = rng.choice((loop.tile // 2, loop.tile * 2))
    step = inner[0]
    items[place] = replace(loop, tile=max(step, tile // step * step))
    return replace(schedule, items=tuple(items))


def _is_outer(items: Sequence[Item], place: int) -> bool:
    loop = items[place]
    return isinstance(loop, Loop) and any(
        isinstance(i, Loop) and i.axis == loop.axis for i in items[place + 1 :]
    )
