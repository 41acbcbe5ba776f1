"""Whole plans by the clock: winners chosen in the plan, with a clock of the test's own."""

from dataclasses import replace

import numpy as np
import pytest

from luminal.config import Config
from luminal.ir import Plan, Schedule
from luminal.ir.graph import ConstantData
from luminal.runtime.device import select_target
from luminal.search.excerpt import excerpt
from luminal.search.strategy import INTERRUPTED, Outcome, Trial, choose, shortlist
from luminal.search.tasks import Scheduled, prepare
from luminal.search.whole import Times, Whole, WholePlans
from luminal.workbench import run
from tests.search_kernels import AVX512, ZOO
from tests.test_search_strategy import plan_of

CACHED = 1 << 40


def measured(*names: str, tried: int = 3) -> Scheduled:
    """A plan whose tasks took 100 µs by default and less with each of the next schedules."""
    found = prepare(plan_of(*(ZOO[n] for n in names)), AVX512, {}, {})
    for task in found.tasks:
        schedules = [c.schedule for c in shortlist(task.candidates(AVX512), tried)]
        assert schedules[0] == task.default and len(schedules) == tried
        task.tried = tuple((s, 100.0 - n, "") for n, s in enumerate(schedules))[::-1]
        task.winner, task.time_us, task.measured = schedules[-1], task.tried[0][1], True
    return found


class Clock:
    """Runs nothing: each kernel takes what its schedule costs, or 100 µs."""

    def __init__(self, found: Scheduled, us: dict[Schedule, float]) -> None:
        self.us = {found.forms[0].restored(s): t for s, t in us.items()}
        self.log = list[Whole]()

    def __call__(self, whole: Whole) -> Times:
        self.log.append(whole)
        kernels = [
            [self.us.get(k.schedule or Schedule(), 100.0) for k in p.kernels] for p in whole.plans
        ]
        return tuple((sum(us), *us) for us in kernels)


def plans(clock: Clock, wrong: Schedule | None = None) -> WholePlans:
    return WholePlans({}, CACHED, 1.0, clock, lambda task, s: "differs" if s == wrong else "")


def test_a_task_takes_what_is_fastest_in_the_plan() -> None:
    found = measured("matmul")
    (task,) = found.tasks
    second = task.tried[1][0]
    assert second not in (task.winner, task.default)
    clock = Clock(found, {second: 50.0, task.winner: 90.0})
    assert plans(clock).best([found]) is found
    assert task.winner == second and task.time_us == 50.0
    schedules = [found.forms[0].restored(second)]
    assert [k.schedule for k in found.finish().kernels] == schedules
    assert all(b.data is None for w in clock.log for p in w.plans for b in p.buffers)


def test_the_default_stays_where_others_gain_nothing_in_the_plan() -> None:
    found = measured("matmul")
    (task,) = found.tasks
    plans(Clock(found, {task.winner: 99.0})).best([found])
    assert task.winner == task.default


def test_a_wrong_schedule_never_wins() -> None:
    found = measured("matmul")
    (task,) = found.tasks
    second, alone = task.tried[1][0], task.winner
    plans(Clock(found, {second: 10.0, alone: 50.0}), wrong=second).best([found])
    assert task.winner == alone


def test_all_winners_together_have_to_beat_all_defaults() -> None:
    found = measured("matmul")
    (task,) = found.tasks
    turns: list[Whole] = []

    def clock(whole: Whole) -> Times:  # the winner is fast in the first turn only
        turns.append(whole)
        total = 50.0 if len(turns) == 1 else 150.0  # but each kernel alone stays fast
        return tuple((100.0, 100.0) if p.kernels[0].schedule == task.default else (total, 50.0)
                     for p in whole.plans)  # fmt: skip

    WholePlans({}, CACHED, 1.0, clock, lambda task, s: "").best([found])
    assert len(turns) == 2 and task.winner == task.default


def test_of_plans_nearly_as_fast_the_faster_whole_wins() -> None:
    one, two, slow = measured("matmul"), measured("matmul"), measured("matmul")
    two.tasks[0].time_us *= 1.05
    slow.tasks[0].time_us *= 1.5
    two.plan = replace(two.plan, notes=("two",))
    log: list[Whole] = []

    def clock(whole: Whole) -> Times:
        log.append(whole)
        return tuple((50.0 if p.notes else 100.0, 100.0) for p in whole.plans)

    assert WholePlans({}, CACHED, 1.0, clock, lambda task, s: "").best([slow, two, one]) is two
    assert len(log[0].plans) == 2


def test_plans_that_cannot_be_run_keep_what_was_found_alone() -> None:
    found = measured("matmul")
    alone = found.tasks[0].winner
    assert WholePlans({}, CACHED, 1.0, lambda whole: (), lambda task, s: "").best([found]) is found
    assert found.tasks[0].winner == alone


def test_large_plans_and_plans_of_unknown_sizes_are_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured("matmul")
    assert excerpt(found, {}, CACHED)
    monkeypatch.setattr("luminal.search.excerpt.BYTES", 100)
    assert not excerpt(found, {}, CACHED)
    clock = Clock(found, {})
    plans(clock).best([found])
    assert not clock.log


def test_an_interrupt_while_whole_plans_run_keeps_the_best() -> None:
    def measure(trial: Trial) -> Outcome:
        return Outcome(50.0)

    def whole(whole: Whole) -> Times:
        raise KeyboardInterrupt

    plan = choose([plan_of(ZOO["matmul"])], AVX512, Config(), measure=measure, whole=whole)
    assert plan.notes == (INTERRUPTED,) and plan.kernels[0].schedule is not None


def test_the_workbench_times_every_kernel_of_every_plan() -> None:
    target = select_target("native")
    found = prepare(plan_of(ZOO["matmul"], ZOO["softmax"]), target, {}, {})
    constant = found.plan.buffer("W0")
    data = ConstantData("W0", np.ones([e.evaluate({}) for e in constant.shape], np.float32))
    kinds = {"temp": "input"}
    parts = [replace(b, kind=kinds.get(b.kind, b.kind)) for b in found.plan.buffers]
    parts = [replace(b, data=data) if b.name == "W0" else b for b in parts]
    with_data = replace(found.finish(), buffers=tuple(parts))
    bare = replace(with_data, buffers=tuple(replace(b, data=None) for b in with_data.buffers))
    times = run((Whole((bare, bare), (), 3), target, 1, 0))
    assert len(times) == 2 and all(len(t) == 3 and min(t) > 0 for t in times)


def test_the_workbench_gives_nothing_for_a_plan_that_cannot_be_lowered() -> None:
    target = select_target("native")
    plan: Plan = prepare(plan_of(ZOO["matmul"]), target, {}, {}).finish()
    bad = replace(plan.kernels[0], schedule=Schedule((), plan.kernels[0].schedule.regs[::-1] * 9))
    assert run((Whole((replace(plan, kernels=(bad,)),), (), 3), target, 1, 0)) == ()
