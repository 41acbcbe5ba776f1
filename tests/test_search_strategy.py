"""The strategy with a clock that the test owns: budgets, ties, wrong results, cache, interrupts."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from luminal.config import Config
from luminal.ir.plan import Kernel, Loop, Plan, Schedule
from luminal.ir.term import Renaming
from luminal.search.cache import Cache
from luminal.search.schedule import candidates
from luminal.search.strategy import Outcome, Trial, choose, mutate, race, shortlist
from luminal.search.tasks import prepare
from tests.search_kernels import AVX512, ZOO, Case, convolution


def plan_of(*cases: Case) -> Plan:
    """The kernels one after another, with buffers of their own."""
    kernels, buffers = [], []
    for n, case in enumerate(cases):
        new = {name: f"{name}{n}" for name in case.buffers}
        kernels.append(_rename(case, new))
        buffers += [replace(b, name=new[b.name]) for b in case.buffers.values()]
    names = [b.name for b in buffers]
    inputs = tuple(b.name for b in buffers if b.kind in ("input", "temp"))
    outputs = tuple(b.name for b in buffers if b.kind == "output")
    assert len(set(names)) == len(names)
    costs_us = (1e3,) * len(kernels)
    return Plan(tuple(kernels), tuple(buffers), inputs, outputs, costs_us=costs_us)


def _rename(case: Case, names: dict[str, str]) -> Kernel:
    stores = tuple(replace(s, buffer=names[s.buffer], value=Renaming({}, names).term(s.value))
                   for s in case.kernel.stores)  # fmt: skip
    return replace(case.kernel, stores=stores)


def by_cost(prefer: Schedule | None = None, wrong: Schedule | None = None, log: list | None = None):
    """A clock by which later candidates are slower, except one."""

    def measure(trial: Trial) -> Outcome:
        schedule = trial.kernel.schedule
        if log is not None:
            log.append(trial)
        if trial.check:
            return Outcome(error="differs" if schedule == wrong else "")
        time_us = 100.0 if schedule != prefer else 50.0
        return Outcome(time_us)

    return measure


def matmul_options() -> list[Schedule]:
    task = prepare(plan_of(ZOO["matmul"]), AVX512, {}, {}).tasks[0]
    return [c.schedule for c in shortlist(task.candidates(AVX512), 8)]


def test_off_never_measures() -> None:
    log: list[Trial] = []
    plan = choose([plan_of(ZOO["matmul"])], AVX512, Config(search="off"), measure=by_cost(log=log))
    assert not log and plan.kernels[0].schedule is not None
    assert plan.buffer("W0").layout == ((1, 16), (0, 1), (1, 1))
    assert plan.buffer("A0").layout == () and plan.buffer("C0").layout == ()


def test_the_fastest_wins_and_ties_keep_the_default() -> None:
    options = matmul_options()
    source = plan_of(ZOO["matmul"])
    won = choose([source], AVX512, Config(), measure=by_cost(prefer=options[3]))
    tied = choose([source], AVX512, Config(), measure=by_cost())
    off = choose([source], AVX512, Config(search="off"))
    assert won.kernels[0].schedule != off.kernels[0].schedule
    assert won.costs_us == (50.0,)
    assert tied.kernels[0].schedule == off.kernels[0].schedule


def test_a_wrong_candidate_cannot_win() -> None:
    options = matmul_options()
    measure = by_cost(prefer=options[3], wrong=options[3])
    plan = choose([plan_of(ZOO["matmul"])], AVX512, Config(), measure=measure)
    off = choose([plan_of(ZOO["matmul"])], AVX512, Config(search="off"))
    assert plan.kernels[0].schedule == off.kernels[0].schedule


def test_if_all_are_wrong_the_plain_loops_win() -> None:
    def measure(trial: Trial) -> Outcome:
        wrong = trial.check and trial.kernel.schedule != Schedule()
        return Outcome(10.0, "differs" if wrong else "")

    plan = choose([plan_of(ZOO["matmul"])], AVX512, Config(), measure=measure)
    assert plan.kernels[0].schedule == Schedule()


def test_a_broken_worker_leaves_the_model_in_charge() -> None:
    plan = choose([plan_of(ZOO["matmul"])], AVX512, Config(),
                  measure=lambda trial: Outcome(math.inf, "crashed"))  # fmt: skip
    off = choose([plan_of(ZOO["matmul"])], AVX512, Config(search="off"))
    assert plan.kernels[0].schedule == off.kernels[0].schedule


def test_a_plan_that_was_not_measured_cannot_win() -> None:
    def measure(trial: Trial) -> Outcome:
        time.sleep(0.3)
        return Outcome(1e6)

    slow, fast = plan_of(ZOO["matmul"]), plan_of(ZOO["softmax"])
    plan = choose([slow, fast], AVX512, Config(search="0.2"), measure=measure)
    assert len(plan.buffers) == len(slow.buffers)


def test_equal_kernels_are_measured_once() -> None:
    log: list[Trial] = []
    plan = plan_of(ZOO["matmul"], ZOO["matmul"], ZOO["elementwise"])
    found = choose([plan], AVX512, Config(), measure=by_cost(log=log))
    assert found.kernels[0].schedule == found.kernels[1].schedule
    kernels = {id(t.kernel.axes) for t in log}
    assert len({t.kernel.stores for t in log}) == 2 and kernels


def test_winners_come_back_from_the_cache(tmp_path: Path) -> None:
    options = matmul_options()
    source, cache = plan_of(ZOO["matmul"]), Cache(tmp_path)
    first = choose([source], AVX512, Config(), measure=by_cost(prefer=options[2]), cache=cache)
    log: list[Trial] = []
    again = choose([source], AVX512, Config(), measure=by_cost(log=log), cache=Cache(tmp_path))
    assert not log and again == first
    for path in tmp_path.glob("winner/*/*"):
        path.write_bytes(b"garbage")
    choose([source], AVX512, Config(), measure=by_cost(log=log), cache=Cache(tmp_path))
    assert log


def test_an_interrupt_keeps_the_best_so_far() -> None:
    def measure(trial: Trial) -> Outcome:
        raise KeyboardInterrupt

    plan = choose([plan_of(ZOO["matmul"])], AVX512, Config(), measure=measure)
    off = choose([plan_of(ZOO["matmul"])], AVX512, Config(search="off"))
    assert plan.kernels[0].schedule == off.kernels[0].schedule


def test_the_budget_is_kept_and_progress_told() -> None:
    said: list[tuple[str, float]] = []

    def measure(trial: Trial) -> Outcome:
        time.sleep(0.05)
        return Outcome(1e5)

    cases = [ZOO[n] for n in ("matmul", "linear", "gate", "conv 3x3")]
    start = time.monotonic()
    choose([plan_of(*cases)], AVX512, Config(search="0.5"), measure=measure,
           progress=lambda text, part: said.append((text, part)))  # fmt: skip
    assert time.monotonic() - start < 2.5
    assert said and all(0 <= part <= 1.1 for _, part in said) and "kernel 1/" in said[0][0]


def test_the_faster_plan_wins() -> None:
    def measure(trial: Trial) -> Outcome:
        return Outcome(900.0 if len(trial.kernel.axes) == 2 and len(trial.buffers) == 4 else 20.0)

    slow, fast = plan_of(ZOO["matmul"]), plan_of(ZOO["softmax"])
    assert len(choose([slow, fast], AVX512, Config(), measure=measure).buffers) == 2


def test_a_race_gives_up_the_slow_and_repeats_the_close() -> None:
    kernel = ZOO["matmul"].kernel
    trials = [Trial(replace(kernel, name=str(n)), (), ()) for n in range(4)]
    runs: list[tuple[str, float]] = []

    def measure(trial: Trial) -> Outcome:
        runs.append((trial.kernel.name, trial.give_up_us))
        return Outcome({"0": 100.0, "1": 50.0, "2": 52.0, "3": math.inf}[trial.kernel.name])

    found: dict[int, Outcome] = {}
    best: list[float] = []
    race(trials, measure, time.monotonic() + 5, best.append, found)
    assert {p: o.time_us for p, o in found.items()} == {0: 100.0, 1: 50.0, 2: 52.0}
    assert best[:3] == [100.0, 50.0, 50.0]
    assert runs[1][1] == 150.0 and runs[2][1] == 75.0
    counts = {n: [name for name, _ in runs].count(n) for n in "0123"}
    assert counts == {"0": 4, "1": 4, "2": 4, "3": 1}


def test_a_busy_moment_does_not_decide() -> None:
    kernel = ZOO["matmul"].kernel
    trials = [Trial(replace(kernel, name=str(n)), (), ()) for n in range(2)]
    answers = {"0": iter((130.0, 50.0, 51.0, 52.0)), "1": iter((100.0, 99.0, 98.0, 97.0))}
    found: dict[int, Outcome] = {}
    race(trials, lambda t: Outcome(next(answers[t.kernel.name])), time.monotonic() + 5,
         lambda best_us: None, found)  # fmt: skip
    assert {p: o.time_us for p, o in found.items()} == {0: 50.0, 1: 97.0}


@pytest.mark.parametrize("name", ["matmul big", "conv 3x3", "softmax"])
def test_mutations_change_one_outer_loop(name: str) -> None:
    import random

    case = ZOO[name]
    schedule = candidates(case.kernel, case.buffers, AVX512)[0].schedule
    rng = random.Random(0)
    for _ in range(10):
        other = mutate(schedule, rng)
        if other is not None:
            changed = [(a, b) for a, b in zip(schedule.items, other.items) if a != b]
            assert len(changed) <= 1 and other.regs == schedule.regs
            assert all(isinstance(b, Loop) and b.tile > 0 for _, b in changed)


def test_producers_decide_the_layout_of_temporaries() -> None:
    conv = convolution(32, 64, 28, 1)
    depth = convolution(64, 64, 28, 3, depthwise=True)
    first = plan_of(conv, depth)
    kernels = (first.kernels[0], _rename_all(first.kernels[1], {"X1": "Y0"}))
    buffers = tuple(b for b in first.buffers if b.name != "X1")
    plan = Plan(kernels, buffers, ("X0",), ("Y1",), (), (1.0, 100.0))
    found = choose([plan], AVX512, Config(search="off"))
    assert found.buffer("Y0").layout == ((0, 1), (1, 16), (2, 1), (3, 1), (1, 1))
    assert found.buffer("W1").layout == ((0, 16), (1, 1), (2, 1), (3, 1), (0, 1))
    schedule = found.kernels[1].schedule
    assert schedule is not None and {r.axis for r in schedule.regs if r.role == "vector"} == {"o"}


def _rename_all(kernel: Kernel, names: dict[str, str]) -> Kernel:
    stores = tuple(replace(s, value=Renaming({}, names).term(s.value)) for s in kernel.stores)
    return replace(kernel, stores=stores)
