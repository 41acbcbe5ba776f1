"""Timing: how candidates are compared by the clock.

In: candidates and a function that runs one trial. Out: candidates with their times, fastest first.
Slow ones are given up after their first run; the others are measured again in turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from luminal.ir.plan import Buffer, Kernel

GIVE_UP = 1.5
CLOSE = 1.3
FINALISTS = 4
ROUNDS = 3


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
