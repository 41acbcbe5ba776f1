"""Every spelling of weighted averages over keys becomes one pass over the keys, in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import luminal.frontend.functional as F
from luminal.frontend.tensor import Tensor, broadcast, scalar
from luminal.ir.dtype import f16, f32
from luminal.ir.expr import Var
from luminal.ir.plan import Plan
from tests.rewrite_programs import check, graph_of, plans_of

S = Var("s", 1, 8192)
NONE = float("-inf")
Case = tuple[Callable[..., Any], tuple[tuple[Any, str], ...]]


def scores(q: Tensor, k: Tensor, scale: float = 0.125) -> Tensor:
    return F.mul(F.matmul(q, F.transpose(k, -1, -2)), scale)


def positions(s: Tensor) -> tuple[Tensor, Tensor]:
    return F.unsqueeze(F.arange(s.dims[-2]), -1), F.arange(s.dims[-1])


def later(s: Tensor) -> Tensor:
    i, j = positions(s)
    return F.gt(j, i)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.matmul(F.softmax(scores(q, k), -1), v)


def causal_where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    return F.matmul(F.softmax(F.where(later(s), NONE, s), -1), v)


def large_negative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    return F.matmul(F.softmax(F.where(later(s), -1e9, s), -1), v)


def lowest_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    bias = F.mul(F.cast(later(s), f32), -3.4028234663852886e38)
    return F.matmul(F.softmax(F.add(s, bias), -1), v)


def triangle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    kept = F.tril(broadcast(scalar(1.0, f32), s.dims[-2:]))
    return F.matmul(F.softmax(F.where(F.eq(kept, 0.0), NONE, s), -1), v)


def mask_input(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.matmul(F.softmax(F.where(m, scores(q, k), NONE), -1), v)


def added_input(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.matmul(F.softmax(F.add(scores(q, k), m), -1), v)


def linear_bias(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    s = scores(q, k)
    i, j = positions(s)
    slope = F.unsqueeze(F.unsqueeze(slopes, -1), -1)
    s = F.add(s, F.mul(slope, F.cast(F.sub(j, i), f32)))
    return F.matmul(F.softmax(F.where(F.gt(j, i), NONE, s), -1), v)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = F.mul(F.tanh(F.div(scores(q, k), 30.0)), 30.0)
    return F.matmul(F.softmax(F.where(later(s), NONE, s), -1), v)


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    i, j = positions(s)
    near = F.logical_and(F.le(j, i), F.gt(j, F.sub(i, 31)))
    return F.matmul(F.softmax(F.where(near, s, NONE), -1), v)


def scale_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = F.matmul(q, F.transpose(k, -1, -2))
    e = F.exp(F.mul(F.sub(s, F.amax(s, -1, keepdim=True)), 0.125))
    return F.div(F.matmul(e, v), F.sum(e, -1, keepdim=True))


def no_shift(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = F.exp(scores(q, k))
    return F.matmul(F.div(e, F.sum(e, -1, keepdim=True)), v)


def temperature(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
    s = F.mul(F.matmul(q, F.transpose(k, -1, -2)), F.unsqueeze(t, -1))
    return F.matmul(F.softmax(s, -1), v)


def weighted_keys(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return F.matmul(F.mul(F.softmax(scores(q, k), -1), w), v)


def guarded_shift(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    s = F.where(later(s), NONE, s)
    top = F.amax(s, -1, keepdim=True)
    e = F.exp(F.sub(s, F.where(F.eq(top, NONE), 0.0, top)))
    total = F.sum(e, -1, keepdim=True)
    return F.div(F.matmul(e, v), F.where(F.eq(total, 0), 1.0, total))


def hidden_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    root = 0.125**0.5
    s = F.matmul(F.mul(q, root), F.transpose(F.mul(k, root), -1, -2))
    i, j = positions(s)
    s = F.add(s, F.where(F.ge(F.sub(i, j), 0), scalar(0.0, f32), scalar(NONE, f32)))
    none = F.all(F.eq(s, NONE), -1, keepdim=True)
    return F.matmul(F.where(none, scalar(0.0, f32), F.softmax(s, -1)), v)


def hidden_rows_input(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    s = F.add(scores(q, k), m)
    none = F.all(F.eq(s, NONE), -1, keepdim=True)
    return F.matmul(F.where(none, scalar(0.0, f32), F.softmax(s, -1)), v)


def half_precision(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = F.softmax(F.cast(scores(q, k), f32), -1)
    return F.matmul(F.cast(p, f16), v)


def shared_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


CASES: list[Case] = [
    (plain, ()), (causal_where, ()), (large_negative, ()), (lowest_added, ()), (triangle, ()),
    (mask_input, (((S, S), "bool"),)), (added_input, (((S, S), "f32"),)),
    (linear_bias, (((4,), "f32"),)), (capped, ()), (window, ()), (scale_after, ()),
    (no_shift, ()), (temperature, (((4, S), "f32"),)), (weighted_keys, (((S,), "f32"),)),
    (guarded_shift, ()), (hidden_rows, ()), (hidden_rows_input, (((S, S), "f32"),)),
    (half_precision, ()), (shared_keys, ()),
]  # fmt: skip


def operands(fn: Callable[..., Any], width: int) -> list[tuple[Any, str]]:
    dtype = "f16" if fn is half_precision else "f32"
    keys = 2 if fn is shared_keys else 4
    return [((2, h, S, width), dtype) for h in (4, keys, keys)]


def one_pass(plan: Plan) -> None:
    (kernel,) = plan.kernels
    ops = [t.op for t in kernel.subterms() if t.axes]
    assert ops.count("rsum") == 2 and "rmax" not in ops
    assert ops.count("sum") == 1  # the scores, once


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_one_pass_over_the_keys(case: Case) -> None:
    fn, extra = case
    graph = graph_of(fn, *operands(fn, 64), *extra)
    for length in (128, 2048, 4096):
        one_pass(plans_of(graph, {"s": length})[0])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_plans_compute_the_graph(case: Case) -> None:
    fn, extra = case
    tolerance = 3e-3 if fn is half_precision else 2e-4
    check(fn, *operands(fn, 8), *extra, dims={"s": 21}, tolerance=tolerance)


def test_large_static_grouped_heads_need_one_kernel() -> None:
    graph = graph_of(
        shared_keys, ((1, 8, 4096, 64), "f32"), ((1, 2, 4096, 64), "f32"), ((1, 2, 4096, 64), "f32")
    )
    one_pass(plans_of(graph)[0])
