"""Random cases in many processes: `python -m tests.fuzz --count 10000`, or `run` from a test.

In: numbers of cases; each is a seed. Out: what failed, made small and kept in tests/corpus, where
`test_corpus` runs it from then on. Half of the cases are random graphs over all primitives, half
programs of the tensor API; stored cuts, terms, layouts and schedules are drawn at random.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any

from luminal.errors import DeviceError
from luminal.runtime.device import select_target
from luminal.search.worker import Worker, WorkerFailed
from tests.random_cases import Case
from tests.random_graphs import random_case
from tests.random_programs import random_program

__all__ = ["Failure", "options_of", "problems", "run"]

CORPUS = Path(__file__).parent / "corpus"
ISAS = ("native", "avx2", "baseline")
TIMEOUT_S = 180.0
SHRINKS, SHRINK_S = 200, 300.0


@dataclass(frozen=True)
class Failure:
    """A case that failed, smaller than it was found; `problems` of the smaller one."""

    number: int
    text: str
    problems: list[str]

    def __str__(self) -> str:
        return "\n".join([f"case {self.number}:", *self.problems, self.text])


@dataclass
class _Picks:
    """Draws integers from a list, then from a generator (or the least), and keeps them."""

    known: Sequence[int] = ()
    rng: random.Random | None = None
    drawn: list[int] = field(default_factory=list)

    def __call__(self, lo: int, hi: int) -> int:
        n = len(self.drawn)
        if n < len(self.known):
            value = min(max(self.known[n], lo), hi)
        else:
            value = self.rng.randint(lo, hi) if self.rng is not None else lo
        self.drawn.append(value)
        return value


def _draw(number: int, picks: _Picks) -> Case:
    if number % 2:
        return random_case(picks, 20 if number % 8 == 1 else 10)
    return random_program(picks)


def _isa(number: int) -> str:
    wanted = ISAS[number // 2 % len(ISAS)]
    try:
        select_target(wanted)
    except DeviceError:
        return "native"
    return wanted


def options_of(text: str) -> dict[str, Any]:
    """The options that a case of the corpus failed with: its line `# check name=value ...`."""
    line = re.search(r"^# check (.*)$", text, re.M)
    found = dict(part.split("=") for part in line[1].split()) if line else {}
    return {k: int(v) if v.isdigit() else v for k, v in found.items()}


def problems(worker: Worker, text: str, **options: object) -> list[str]:
    """What is wrong with a case; a crash or a hang of the worker is, too."""
    try:
        return worker.call((text, options))
    except WorkerFailed as error:
        return [f"the worker failed: {error}"]


def _shrunk(drawn: list[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """Fewer and smaller picks for which `fails` still holds; a hang takes long to be seen again."""
    left, size, end = SHRINKS, len(drawn), time.monotonic() + SHRINK_S
    while size and left:
        for start in range(0, len(drawn), size):
            part = drawn[start : start + size]
            tries = [drawn[:start] + drawn[start + size :]]
            tries += [drawn[:start] + [0] * len(part) + drawn[start + size :]] if any(part) else []
            for other in tries:
                if left and other != drawn and time.monotonic() < end and fails(other):
                    drawn = other
                    break
            left = max(0, left - len(tries))
        size //= 2
    return drawn


def _examine(number: int, worker: Worker, thorough: bool) -> Failure | None:
    picks = _Picks(rng=random.Random(number))
    case = _draw(number, picks)
    options = {"seed": number, "isa": _isa(number)}
    options |= {"plans": 3, "random": 3} if thorough else {"plans": 1, "random": 1}
    found = problems(worker, str(case), **options)
    if not found:
        return None

    def fails(drawn: list[int]) -> bool:
        try:
            return bool(problems(worker, str(_draw(number, _Picks(drawn))), **options))
        except Exception:  # the picks fit no graph
            return False

    small = str(_draw(number, _Picks(_shrunk(picks.drawn, fails))))
    again = problems(worker, small, **options)
    line = "# check " + " ".join(f"{k}={v}" for k, v in options.items())
    text, found = (small, again) if again else (str(case), found)
    return Failure(number, f"{line}\n{text}", found)


def run(numbers: Iterable[int], jobs: int = 0, thorough: bool = False) -> Iterator[Failure | None]:
    """Check these cases in `jobs` processes, in order; None for each that is right."""
    mine, made = local(), list[Worker]()

    def one(number: int) -> Failure | None:
        if not hasattr(mine, "worker"):
            mine.worker = Worker("tests.fuzz_check:check", TIMEOUT_S)
            made.append(mine.worker)
        return _examine(number, mine.worker, thorough)

    pool = ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)))
    try:
        yield from pool.map(one, numbers)
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in made:
            worker.close()


def main() -> int:
    """Print progress and failures; the exit status says if there were any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one for each core")
    parser.add_argument("--quick", action="store_true", help="fewer plans of each case")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where failures are kept")
    args = parser.parse_args()
    start, bad = time.monotonic(), 0
    cases = range(args.first, args.first + args.count)
    for number, failure in zip(cases, run(cases, args.jobs, not args.quick)):
        if failure is not None:
            bad += 1
            (args.corpus / f"found_{number}.txt").write_text(failure.text)
            print(failure, flush=True)
        if number % 100 == 99:
            spent = time.monotonic() - start
            print(f"{number + 1 - args.first} cases, {bad} failures, {spent:.0f} s", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
