"""Layouts through a chain: what is beside a division may lie in blocks, elementwise work keeps the
blocks of its operand, and statistics of groups are made once for a group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import luminal
import luminal.frontend.functional as F
from luminal.config import Config
from luminal.frontend.tensor import Tensor
from luminal.ir.expr import Var
from luminal.ir.plan import Loop, Plan
from luminal.search.strategy import choose
from luminal.search.tasks import prepare
from tests.rewrite_programs import graph_of, plans_of
from tests.search_kernels import AVX512


def is_blocked(plan: Plan, name: str) -> bool:
    """Channels, the third dimension from the last, lie in blocks of 16 inside a pixel."""
    channels, layout = len(plan.buffer(name).shape) - 3, plan.buffer(name).layout
    return (channels, 16) in layout and layout[-1] == (channels, 1)


def block(x: Tensor, w: Tensor, gain: Tensor, u: Tensor) -> Tensor:
    y = F.silu(F.group_norm(F.conv2d(x, w, padding=1), 4, gain))
    return F.conv2d(y, u, padding=1)


def plans(channels: int, size: int) -> list[Plan]:
    """The plans of a block whose weights are constants, without schedules."""
    shapes = [(1, 16, size, size), (channels, 16, 3, 3), (channels,), (16, channels, 3, 3)]
    found = plans_of(graph_of(block, *((s, "f32") for s in shapes)))
    return [
        replace(plan, inputs=plan.inputs[:1], buffers=tuple(
            replace(b, kind="constant") if b.name in plan.inputs[1:] else b for b in plan.buffers
        ))
        for plan in found
    ]  # fmt: skip


def test_convolutions_around_a_group_norm_stay_blocked() -> None:
    plan = choose(plans(96, 32)[:1], AVX512, Config(search="off"))
    assert [len(k.axes) for k in plan.kernels] == [3, 1, 1, 3, 3]
    conv, mean, deviation, norm, last = plan.kernels
    for name in (conv.writes()[0], norm.writes()[0]):
        assert is_blocked(plan, name)
    for statistic in (mean, deviation):
        assert [a.extent.value for a in statistic.axes] == [4]
        assert plan.buffer(statistic.writes()[0]).layout == ()
    schedule = norm.schedule
    assert schedule is not None
    lane = next(r.axis for r in schedule.regs if r.role == "vector")
    assert lane == norm.axes[0].name
    loops = [i.axis for i in schedule.items if isinstance(i, Loop)]
    assert loops[0] == lane  # pixels inside: what groups hold stays in registers


def test_a_dimension_that_a_kernel_divides_is_not_cut() -> None:
    def divides(plan: Plan, name: str) -> bool:
        loads = (t for k in plan.kernels for t in k.subterms() if t.op == "load")
        channels = [t.indices[-3] for t in loads if t.buffer == name]
        return any(not isinstance(a, Var) for e in channels for a in e.atoms())

    found = {}
    for plan in plans(32, 32):
        first = plan.kernels[0].writes()[0]
        found[divides(plan, first)] = is_blocked(prepare(plan, AVX512, {}, {}).plan, first)
    assert found == {False: True, True: False}


def test_blocked_chains_compute_what_the_graph_does() -> None:
    rng = np.random.default_rng(0)
    for channels, size in ((32, 12), (24, 7), (48, 9)):
        shapes = [(1, 16, size, size), (channels, 16, 3, 3), (channels,), (16, channels, 3, 3)]
        x, *weights = (rng.standard_normal(s).astype(np.float32) for s in shapes)
        run = luminal.compile(block, [x, *weights], search="off")
        w, gain, u = weights
        y = luminal.compile(lambda a, b: F.conv2d(a, b, padding=1), [x, w], search="off")(x, w)
        groups = np.asarray(y, np.float64).reshape(1, 4, -1)
        centred = groups - groups.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
        z = scaled.reshape(np.shape(y)) * gain[:, None, None]
        z = (z / (1 + np.exp(-z))).astype(np.float32)
        last = luminal.compile(lambda a, b: F.conv2d(a, b, padding=1), [z, u], search="off")
        np.testing.assert_allclose(run(x, *weights), last(z, u), rtol=1e-3, atol=1e-3)
