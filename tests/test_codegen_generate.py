"""Generation: kernels that are equal up to names share code, and illegal schedules are replaced."""

import numpy as np
import pytest

from luminal.codegen.generate import generate
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.ir import term as T
from luminal.ir.dtype import f32
from luminal.ir.expr import axis_var, const, to_expr
from luminal.ir.interp import run_plan
from luminal.ir.plan import Buffer, Kernel, Loop, Plan, Reg, Schedule, Store
from luminal.runtime.cpu import compile_object
from luminal.runtime.device import baseline_target, host_target
from luminal.runtime.executor import Executor

ROWS, DEPTH = 5, 7


def sums(suffix, source, result, schedule):
    """Row sums of `source` under axis names of its own."""
    i, k = axis_var("i" + suffix, ROWS), axis_var("k" + suffix, DEPTH)
    body = T.load(source, (to_expr(i), to_expr(k)), f32)
    store = Store(result, (to_expr(i),), T.reduction("sum", (k,), body))
    return Kernel(result, (i,), (store,), schedule(i.name, k.name))


def plan(schedule):
    buffers = [Buffer(n, (const(ROWS), const(DEPTH)), f32, "input") for n in "xy"]
    buffers += [Buffer(n, (const(ROWS),), f32, "output") for n in "uv"]
    kernels = (sums("1", "x", "u", schedule), sums("2", "y", "v", schedule))
    return Plan(kernels, tuple(buffers), ("x", "y"), ("u", "v"))


def illegal(row, depth):
    return Schedule((), (Reg(row, 1, "vector"), Reg(depth, 1, "vector")))


def test_equal_kernels_share_code():
    program = generate(plan(lambda i, k: Schedule((Loop(i, 2),))), baseline_target("x86_64-linux"))
    assert len(program.codes) == 1 and program.calls == (0, 0)


def test_an_illegal_schedule_is_refused():
    with pytest.raises(IllegalSchedule):
        generate(plan(illegal), host_target())


def test_an_alternative_takes_each_kernel_s_own_names():
    given = plan(illegal)

    def alternatives(kernel):
        return [illegal(kernel.axes[0].name, "k1"), Schedule((Loop(kernel.axes[0].name, 2),))]

    program = generate(given, host_target(), alternatives)
    loops = [k.schedule.items[0].axis for k in program.plan.kernels]
    assert loops == ["i1", "i2"] and program.calls == (0, 0)
    objects = [compile_object(c.source, host_target()) for c in program.codes]
    x, y = (np.random.default_rng(n).standard_normal((ROWS, DEPTH)).astype("f") for n in (0, 1))
    want = run_plan(given, {"x": x, "y": y})
    for got, expected in zip(Executor(program, objects, 1)(x, y), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
