"""Rule R10: what comes before (or after) a position is reduced in blocks, and rightly so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import luminal
import luminal.frontend.functional as F
from luminal.frontend.tensor import Tensor
from luminal.ir.expr import Var
from luminal.ir.plan import Plan
from tests.rewrite_programs import check, check_graph, graph_of, random_feed

S = Var("s", 1, 4096)


def longest(plan: Plan) -> int:
    """The largest extent of a reduction in the plan."""
    return max(a.hi + 1 for k in plan.kernels for t in k.subterms() for a in t.axes)


def before(x: Tensor) -> Tensor:
    return F.cumsum(x, -1)


def after(x: Tensor) -> Tensor:
    return F.flip(F.cumsum(F.flip(x, (-1,)), -1), (-1,))


def excluded(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return F.matmul(x, F.cast(F.lt(F.unsqueeze(F.arange(n), -1), F.arange(n)), x.dtype))


def at_least(x: Tensor) -> Tensor:
    """Sums of all from a position on, by a mask that is multiplied."""
    n = x.shape[-1]
    return F.matmul(x, F.cast(F.ge(F.unsqueeze(F.arange(n), -1), F.arange(n)), x.dtype))


def beyond(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return F.matmul(x, F.cast(F.gt(F.unsqueeze(F.arange(n), -1), F.arange(n)), x.dtype))


def highest(x: Tensor) -> Tensor:
    n = x.shape[-1]
    seen = F.le(F.arange(n), F.unsqueeze(F.arange(n), -1))
    return F.amax(F.where(seen, F.unsqueeze(x, -2), float("-inf")), -1)


@pytest.mark.parametrize("net", [before, after, excluded, at_least, beyond, highest])
@pytest.mark.parametrize("n", [128, 129, 159, 160, 4101])
def test_every_plan_is_right_and_some_reduce_blocks(net: Any, n: int) -> None:
    if n > 1000 and net is not before:
        pytest.skip("the oracle takes n² elements")
    plans = check(net, ((2, n), "f32"), tolerance=2e-3)
    assert min(map(longest, plans)) <= max(32, n // 32 + 1)
    assert n < 1000 or longest(plans[0]) < 200
    assert any(note.startswith("rule scan") for note in plans[0].notes)


@pytest.mark.parametrize("n", [7, 64, 127])
def test_short_ones_are_one_kernel(n: int) -> None:
    (plan, *_) = check(before, ((3, n), "f32"))
    assert len(plan.kernels) == 1 and longest(plan) == n


def test_integers_are_exact_and_wrap() -> None:
    x = np.random.default_rng(0).integers(-(2**62), 2**62, (3, 700))
    run = luminal.compile(before, [x], search="off")
    with np.errstate(over="ignore"):
        assert np.array_equal(run(x), np.cumsum(x, -1))


def test_what_is_masked_does_not_matter() -> None:
    """Infinities and NaN reach only what comes after them."""
    x = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    x[0, 100], x[1, 250] = np.inf, np.nan
    for net in (before, highest):
        found = luminal.compile(net, [x], search="off")(x)
        expected = np.cumsum(x, -1) if net is before else np.maximum.accumulate(x, -1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_symbolic_sizes() -> None:
    graph = graph_of(before, ((2, S), "f32"))
    for s in (1, 31, 32, 33, 500):
        feed = random_feed(graph, {"s": s}, np.random.default_rng(s))
        check_graph(graph, feed, {"s": s}, tolerance=1e-3)


def test_a_mask_that_the_values_vary_with_stays() -> None:
    """Causal attention sums weights that depend on the row: no block can be shared."""

    def net(x: Tensor, v: Tensor) -> Tensor:
        n = x.shape[-1]
        seen = F.le(F.arange(n), F.unsqueeze(F.arange(n), -1))
        return F.matmul(F.where(seen, x, 0.0), v)

    plans = check(net, ((130, 130), "f32"), ((130, 8), "f32"), tolerance=1e-3)
    assert longest(plans[0]) == 130


def test_a_running_sum_inside_of_a_norm() -> None:
    def net(x: Tensor) -> Tensor:
        return F.softmax(F.cumsum(x * 2, -1) - x, -1)

    check(net, ((3, 200), "f32"), tolerance=1e-3)
