"""The search with a real clock: kernels compiled, run and checked in the worker."""

from __future__ import annotations

import time
from dataclasses import replace

from luminal.config import Config
from luminal.runtime.device import select_target
from luminal.search.strategy import Outcome, Trial, choose
from luminal.search.worker import Worker, WorkerFailed
from tests.search_kernels import matmul
from tests.test_search_strategy import plan_of


def test_a_measured_plan_is_checked_and_in_time() -> None:
    target, trials = select_target("native"), []
    with Worker("luminal.workbench:run_trial") as worker:

        def measure(trial: Trial) -> Outcome:
            try:
                outcome = worker.call((replace(trial, repeats=min(2, trial.repeats)), target, 1, 0))
            except WorkerFailed as error:
                return Outcome(error=str(error))
            trials.append((trial, outcome))
            return outcome

        start = time.monotonic()
        plan = choose([plan_of(matmul(64, 256, 256))], target, Config(search="2"),
                      measure=measure)  # fmt: skip
    assert time.monotonic() - start < 20
    assert trials and all(not response.error for _, response in trials)
    assert trials[-1][0].check and trials[-1][0].kernel.schedule is not None
    best = min(r.time_us for t, r in trials if not t.check)
    assert plan.costs_us[0] < 3 * best
