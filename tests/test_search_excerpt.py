"""Excerpts: as much of a plan as caches cannot hold, which runs alone and tells of the rest."""

from collections import Counter

import numpy as np
import pytest

import luminal.frontend.functional as F
from luminal.frontend.tensor import Tensor, tensor, to_graph, update
from luminal.ir import Graph
from luminal.ir.dtype import f32, i64
from luminal.ir.expr import ExprLike, Var
from luminal.ir.verify import verify_plan
from luminal.rewrite import rewrite
from luminal.runtime.device import select_target
from luminal.search.excerpt import Excerpt, excerpt
from luminal.search.extract import extract
from luminal.search.tasks import Scheduled, prepare
from luminal.search.whole import Whole
from luminal.workbench import run

LAYERS, WIDTH = 12, 64
NATIVE = select_target("native")


def layers(rows: ExprLike = 8) -> Graph:
    """Products with weights of their own, each after a softmax and a row put into a cache."""
    x = start = Tensor.from_input("x", (rows, WIDTH), f32)
    place = Tensor.from_input("place", (1,), i64)
    outputs, caches, rng = [], [], np.random.default_rng(0)
    for n in range(LAYERS):
        cache = Tensor.from_input(f"cache{n}", (16, WIDTH), f32)
        row = F.expand(F.unsqueeze(place, -1), 1, WIDTH)
        written = F.scatter(cache, 0, row, F.sum(x, 0, keepdim=True))
        weights = tensor(rng.random((WIDTH, WIDTH), np.float32), name=f"w{n}")
        x = F.matmul(F.softmax(x, 1), weights) + F.sum(written, 0)
        caches.append(cache)
        outputs.append(update(cache, written))
    return to_graph([F.tanh(x), *outputs], [start, place, *caches])


def prepared(graph: Graph, **hints: int) -> Scheduled:
    plan = extract(rewrite(graph, numerics="exact"), NATIVE, hints=hints, k=1)[0]
    return prepare(plan, NATIVE, hints, {})


def part_of(found: Scheduled, cached_bytes: int, **hints: int) -> Excerpt:
    part = excerpt(found, hints, cached_bytes)
    assert part is not None
    return part


@pytest.mark.parametrize("cached_bytes", [0, 40_000, 100_000, 1 << 40])
def test_every_task_is_called_and_data_fill_the_caches(cached_bytes: int) -> None:
    found = prepared(layers())
    part = part_of(found, cached_bytes)
    assert set(part.calls) == set(found.calls)
    plan = part.plan_of({})
    size_bytes = sum(int(np.prod([e.evaluate({}) for e in b.shape])) * b.dtype.bits // 8
                     for b in plan.buffers)  # fmt: skip
    whole = len(part.positions) == len(found.calls)
    assert whole == (cached_bytes == 1 << 40) and (whole or size_bytes >= cached_bytes)
    assert list(part.positions) == sorted(part.positions)


@pytest.mark.parametrize("cached_bytes", [1, 40_000, 100_000, 1 << 40])
@pytest.mark.parametrize("rows", [8, Var("n", 1, 64)])
def test_an_excerpt_is_a_plan_that_runs(cached_bytes: int, rows: ExprLike) -> None:
    hints = {"n": 8} if isinstance(rows, Var) else {}
    found = prepared(layers(rows), **hints)
    plan = part_of(found, cached_bytes, **hints).plan_of({})
    verify_plan(plan)
    assert all(b.data is None for b in plan.buffers)
    (times,) = run((Whole((plan,), tuple(hints.items()), 3), NATIVE, 1, 0))
    assert len(times) == 1 + len(plan.kernels) and min(times) > 0


def test_calls_that_are_left_out_take_what_those_of_their_task_took() -> None:
    found = prepared(layers())
    part = part_of(found, 1)
    kept, uses = Counter(part.calls), Counter(found.calls)
    cost = {task: 10.0 + n for n, task in enumerate(found.tasks)}
    timed = part.timed((1000.0, *(cost[t] for t in part.calls)))
    assert timed.each_us == cost
    left = sum(cost[t] * (uses[t] - kept[t]) for t in cost)
    assert left > 0 and timed.total_us == pytest.approx(1000.0 + left)


def test_unknown_sizes_have_no_excerpt() -> None:
    assert excerpt(prepared(layers(Var("n", 1, 64)), n=8), {}, 1) is None
