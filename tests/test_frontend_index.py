"""Gather, scatter, tensors as indices, sorting and cache updates against PyTorch."""

import math

import pytest
import torch

import luminal.frontend.functional as F
from luminal.errors import ArgumentError, OutOfRangeError
from luminal.frontend.tensor import Tensor, to_graph
from luminal.ir.dtype import f32
from tests.frontend_harness import check, evaluate

NAN = math.nan
TF = torch.nn.functional
torch.manual_seed(5)
IDX = torch.tensor([[0, 2, 1], [1, 1, 0]])


def test_gather_and_scatter():
    x, idx3 = torch.randn(4, 3), torch.tensor([[0, 2, 1], [3, 1, 0]])
    check(lambda x, i: x.gather(0, i), lambda x, i: x.gather(0, i), x, idx3)
    check(lambda x, i: x.gather(1, i), lambda x, i: x.gather(1, i), x, IDX)
    check(lambda x, i: x.gather(1, i[:, :2]), lambda x, i: x.gather(1, i[:, :2]), x, IDX)
    check(
        lambda x, i: F.take_along_dim(x, i, 1),
        lambda x, i: torch.take_along_dim(x, i, 1),
        x,
        IDX[:1],
    )
    check(lambda x, i: F.take(x, i), lambda x, i: torch.take(x, i), x, IDX)
    src = torch.randn(2, 3)
    check(lambda x, i, s: x.scatter(0, i, s), lambda x, i, s: x.scatter(0, i, s), x, idx3, src)
    check(
        lambda x, i, s: x.scatter(1, i[:, :1], s),
        lambda x, i, s: x.scatter(1, i[:, :1], s),
        x,
        IDX,
        src,
    )
    check(lambda x, i: x.scatter(0, i, 5.0), lambda x, i: x.scatter(0, i, 5.0), x, idx3)
    check(
        lambda x, i, s: x.scatter_add(1, i, s),
        lambda x, i, s: x.scatter_add(1, i, s),
        x[:2],
        IDX,
        src,
    )
    for kind in ("sum", "amax", "amin", "mean"):
        for own in (True, False):
            check(
                lambda x, i, s: F.scatter_reduce(x, 1, i, s, kind, include_self=own),
                lambda x, i, s: torch.scatter_reduce(x, 1, i, s, kind, include_self=own),
                x[:2],
                IDX,
                src,
            )


def test_index_operations():
    x, i, s = torch.randn(4, 3), torch.tensor([2, 0]), torch.randn(2, 3)
    for name in ("index_copy", "index_add"):
        f = lambda x, i, s, n=name: getattr(x, n)(0, i, s)  # noqa: E731
        check(f, f, x, i, s)
    check(lambda x, i: x.index_select(1, i), lambda x, i: x.index_select(1, i), x, i, symbolic=True)
    check(lambda x, i: x.index_fill(1, i, 9.0), lambda x, i: x.index_fill(1, i, 9.0), x, i)
    check(
        lambda x, s: F.slice_scatter(x, s, 0, 1, 3),
        lambda x, s: torch.slice_scatter(x, s, 0, 1, 3),
        x,
        s,
    )
    check(
        lambda x, s: F.slice_scatter(x, s, 0, 0, 4, 2),
        lambda x, s: torch.slice_scatter(x, s, 0, 0, 4, 2),
        x,
        s,
    )
    check(
        lambda x, s: F.select_scatter(x, s, 0, -1),
        lambda x, s: torch.select_scatter(x, s, 0, -1),
        x,
        s[0],
    )
    check(lambda x, i: x[i], lambda x, i: x[i], x, torch.tensor([[0, -1], [2, -4]]))
    check(
        lambda x, i: x[i, i],
        lambda x, i: x[i, i],
        x,
        torch.tensor([[0, -1], [2, 1]]),
        symbolic=True,
    )
    check(lambda x, i: x[:, i], lambda x, i: x[:, i], x.bfloat16(), i)
    check(F.embedding, TF.embedding, IDX, torch.randn(5, 4), symbolic=True)
    check(lambda x: F.one_hot(x, 4), lambda x: TF.one_hot(x, 4), IDX)
    check(lambda x: F.isin(x, F.tensor([0, 2])), lambda x: torch.isin(x, torch.tensor([0, 2])), IDX)
    check(lambda x: F.bincount(x, 4), lambda x: torch.bincount(x, minlength=4), IDX.flatten())


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate):
    x = torch.randn(3, 4, 5)
    i, j = torch.tensor([0, 2]), torch.tensor([1, -1])
    for index, value in (
        ((i,), torch.randn(2, 4, 5)),
        ((i, j), torch.randn(2, 5)),
        ((None, i, j), torch.randn(3, 2)),
        ((i, None, j), torch.randn(2, 4)),
        ((i[:, None], j), torch.randn(5)),
    ):
        lazy = [F.tensor(t.numpy()) if t is not None else None for t in index]
        check(
            lambda x, v, k=lazy: F.index_put(x, k, v, accumulate),
            lambda x, v, k=index: torch.ops.aten.index_put(x, k, v, accumulate),
            x,
            value,
        )
    mask = x > 0
    check(
        lambda x, m: F.index_put(x, [m], 2.0),
        lambda x, m: x.index_put((m,), torch.tensor(2.0)),
        x,
        mask,
    )


SORTED = torch.tensor([[3.0, 1.0, NAN, 2.0, 1.0], [0.0, -0.0, math.inf, -math.inf, 5.0]])


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending):
    check(
        lambda x: F.sort(x, 1, descending),
        lambda x: torch.sort(x, dim=1, descending=descending, stable=True),
        SORTED,
        symbolic=True,
    )
    ints = torch.randint(0, 5, (3, 6))
    check(
        lambda x: F.argsort(x, 0, descending),
        lambda x: torch.argsort(x, dim=0, descending=descending, stable=True),
        ints,
    )
    check(
        lambda x: F.sort(x, 0, descending),
        lambda x: torch.sort(x, dim=0, descending=descending, stable=True),
        ints > 2,
    )


def test_topk_and_medians():
    x = torch.randn(3, 7)
    for largest in (True, False):
        check(lambda x: F.topk(x, 3, 1, largest), lambda x: torch.topk(x, 3, 1, largest), x)
    check(lambda x: F.kthvalue(x, 2, 1), lambda x: torch.kthvalue(x, 2, 1), x)
    check(lambda x: F.median(x), lambda x: torch.median(x), x)
    check(lambda x: F.median(x, 1), lambda x: torch.median(x, 1), x)
    check(lambda x: F.median(x, 1)[0], lambda x: torch.median(x, 1)[0], SORTED)
    check(lambda x: F.msort(x), lambda x: torch.msort(x), x)


def test_cache_update_is_declared():
    cache = Tensor.from_input("cache", (8, 2), f32)
    row = Tensor.from_input("row", (1, 2), f32)
    new = F.index_copy(cache, 0, F.tensor([3]), row)
    graph = to_graph([new.sum(), F.update(cache, new)], [cache, row], ["total", "cache"])
    assert [o.updates for o in graph.outputs] == ["", "cache"]
    assert [n.name for n in graph.nodes[:2]] == ["cache", "row"]
    with pytest.raises(ArgumentError, match=r"\[update\]"):
        F.update(new, new)


def test_symbolic_cache_update():
    x, i, s = torch.randn(8, 3), torch.tensor([5, 6]), torch.randn(2, 3)
    check(
        lambda x, i, s: x.index_copy(0, i, s),
        lambda x, i, s: x.index_copy(0, i, s),
        x,
        i,
        s,
        symbolic=True,
    )
    check(lambda x, i: x.index_add(0, i, x[:2]), lambda x, i: x.index_add(0, i, x[:2]), x, i)


def test_index_out_of_range():
    with pytest.raises(OutOfRangeError):
        evaluate(lambda x, i: x.index_select(0, i), torch.ones(3), torch.tensor([3]))
