"""The search with a real clock: kernels compiled, run and checked in the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from luminal import workbench
from luminal.config import Config
from luminal.ir.expr import Var
from luminal.ir.layout import Layout
from luminal.ir.plan import Kernel, Plan, Schedule
from luminal.ir.program import Program
from luminal.ir.target import Target
from luminal.runtime.device import select_target
from luminal.runtime.executor import Executor
from luminal.search.cache import digest
from luminal.search.strategy import Outcome, Trial, choose, shortlist
from luminal.search.tasks import Task, prepare
from luminal.search.worker import Worker, WorkerFailed
from tests.search_kernels import convolution, layernorm, matmul
from tests.test_search_strategy import plan_of
from tests.wrong_bench import RIGHT, spoiled


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


def measured_by(worker: Worker, target: Target) -> Callable[[Trial], Outcome]:
    def measure(trial: Trial) -> Outcome:
        return worker.call((replace(trial, repeats=min(2, trial.repeats)), target, 1, 0))

    return measure


def test_fast_and_wrong_candidates_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate but one is miscompiled into a much faster kernel."""
    target, source = select_target("native"), plan_of(matmul(128, 256, 512))
    found = prepare(source, target, {}, {})
    options = [c.schedule for c in shortlist(found.tasks[0].candidates(target), 8)]
    for right in (options[0], options[2], Schedule()):
        monkeypatch.setenv(RIGHT, digest(right))
        with Worker("tests.wrong_bench:run_trial") as worker:
            plan = choose(
                [source], target, Config(search="60"), measure=measured_by(worker, target)
            )
        assert plan.kernels[0].schedule == found.forms[0].restored(right)
        wrong = [schedule for schedule, _, error in plan.tried[0] if "the oracle" in error]
        assert wrong and right not in wrong


def test_what_is_too_light_to_measure_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    target, source = select_target("native"), plan_of(layernorm(4, 40))
    source = replace(source, costs_us=(1.0,))
    monkeypatch.setenv(RIGHT, digest(Schedule()))
    with Worker("tests.wrong_bench:run_trial") as worker:
        plan = choose([source], target, Config(search="60"), measure=measured_by(worker, target))
    assert plan.tried == ((),) and plan.kernels[0].schedule == Schedule()


def task_of(plan: Plan, target: Target) -> Task:
    return prepare(plan, target, {}, {}).tasks[0]


def test_a_packed_result_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    target = select_target("native")
    alone = replace(plan_of(convolution(16, 32, 9, 3)), inputs=("X0",), outputs=())
    task = task_of(alone, target)
    assert any(b.layout for b in task.buffers if b.name in task.kernel.writes())
    trial = Trial(replace(task.kernel, schedule=task.winner), task.buffers, (), 0, check=True)
    assert workbench.run_trial((trial, target, 1, 0)).error == ""

    def generate(plan: Plan, target: Target, **options: object) -> Program:
        kernels: tuple[Kernel, ...] = (spoiled(plan.kernels[0]), *plan.kernels[1:])
        return honest(replace(plan, kernels=kernels), target, **options)

    honest = workbench.generate
    monkeypatch.setattr(workbench, "generate", generate)
    workbench._bench.cache_clear()
    assert "differ from the oracle" in workbench.run_trial((trial, target, 1, 0)).error
    workbench._bench.cache_clear()


@pytest.mark.parametrize("layout", [(), ((1, 16), (0, 1), (1, 1)), ((0, 4), (1, 1), (0, 1))])
def test_an_operand_of_symbolic_size_is_measured_in_any_layout(layout: Layout) -> None:
    target, rows = select_target("native"), Var("m", 1, 64)
    task = prepare(plan_of(matmul(rows, 48, 32)), target, {"m": 13}, {}).tasks[0]
    moved = {task.buffers[0].name: layout}
    buffers = tuple(replace(b, layout=moved.get(b.name, b.layout)) for b in task.buffers)
    assert [bool(e.variables()) for e in buffers[0].shape] == [True, False]
    trial = Trial(replace(task.kernel, schedule=Schedule()), buffers, task.hints, 1, check=True)
    outcome = workbench.run_trial((trial, target, 1, 0))
    assert outcome.error == "" and 0 < outcome.time_us < 1e6


def test_a_candidate_is_not_given_up_for_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which finds neither data nor code in the caches."""
    target, runs = select_target("native"), [900.0, 10.0, 8.0, 9.0, 7.0, 800.0, 300.0, 250.0]
    task = task_of(plan_of(layernorm(8, 40)), target)

    def time_us(*_: object, repeats: int) -> list[float]:
        return [min(runs.pop(0) for _ in range(repeats))]

    monkeypatch.setattr(Executor, "time_us", time_us)
    trial = Trial(replace(task.kernel, schedule=task.winner), task.buffers, (), 3, give_up_us=20.0)
    assert workbench.run_trial((trial, target, 1, 0)) == Outcome(7.0)
    assert workbench.run_trial((trial, target, 1, 0)) == Outcome(300.0)  # slow when warm, too


def test_the_results_of_another_candidate_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    target = select_target("native")
    task = task_of(plan_of(layernorm(8, 40)), target)
    trial = Trial(replace(task.kernel, schedule=task.winner), task.buffers, (), 0, check=True)
    found = workbench.run_trial((trial, target, 1, 0))
    assert found.error == "" and found.code[0][0].startswith((";", "target", "define", "declare"))
    monkeypatch.setattr(Executor, "run_pointers", lambda *a: None)
    workbench._bench.cache_clear()
    assert "differ from the oracle" in workbench.run_trial((trial, target, 1, 0)).error
    workbench._bench.cache_clear()
