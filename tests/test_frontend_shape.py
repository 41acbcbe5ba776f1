"""Views, movement, indexing and sorting against PyTorch, with fixed and symbolic sizes."""

import math

import numpy as np
import pytest
import torch

import luminal.frontend.functional as F
from luminal.errors import ArgumentError, ShapeError, UnsupportedError
from luminal.frontend.tensor import Tensor
from luminal.ir.dtype import f32
from luminal.ir.expr import dim
from tests.frontend_harness import check, evaluate

NAN = math.nan
TF = torch.nn.functional
torch.manual_seed(1)
X = torch.randn(2, 3, 4)
SAME = {
    "reshape": lambda x: x.reshape(6, 4),
    "reshape -1": lambda x: x.reshape(2, -1),
    "split dims": lambda x: x.reshape(2, 3, 2, 2),
    "merge": lambda x: x.reshape(24),
    "odd reshape": lambda x: x.reshape(4, 6),
    "ones": lambda x: x.reshape(1, 2, 1, 3, 4, 1),
    "view": lambda x: x.view(3, 8),
    "flatten": lambda x: x.flatten(1),
    "ravel": lambda x: x.ravel(),
    "unflatten": lambda x: x.unflatten(2, (2, -1)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "T then reshape": lambda x: x.permute(2, 1, 0).reshape(4, 6),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim((0, 1), (2, 0)),
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze dim": lambda x: x[:1].squeeze(0).squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "expand": lambda x: x[:, :1].expand(5, -1, 7, 4),
    "slice": lambda x: x[1:, ::2, 1:-1],
    "negative": lambda x: x[-1, ..., -3:],
    "none": lambda x: x[:, None, 1],
    "ellipsis": lambda x: x[..., 0],
    "empty slice": lambda x: x[3:],
    "over": lambda x: x[:10, -10:2],
    "int": lambda x: x[1, 2, 3],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "select": lambda x: x.select(1, -1),
    "split": lambda x: x.split(3, -1),
    "split sizes": lambda x: x.split([1, 3], 2),
    "chunk": lambda x: x.chunk(3, 2),
    "tensor_split": lambda x: x.tensor_split(3, 2),
    "unbind": lambda x: x.unbind(1),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((1, -5), (0, 2)),
    "roll flat": lambda x: x.roll(5),
    "rot90": lambda x: x.rot90(1, [0, 2]),
    "rot270": lambda x: x.rot90(3, [1, 2]),
    "rot180": lambda x: x.rot90(2, [1, 2]),
    "tril": lambda x: x.tril(),
    "tril -1": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "diagonal -": lambda x: x.diagonal(-1, 0, 2),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "repeat more": lambda x: x.repeat(2, 1, 1, 1),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "interleave flat": lambda x: x.repeat_interleave(2),
    "unfold": lambda x: x.unfold(2, 2, 1).unfold(1, 3, 2),
    "list index": lambda x: x[:, [0, 2]],
    "pairs": lambda x: x[[0, 1], [2, -1]],
    "apart": lambda x: x[[0, 1], :, [3, -4]],
    "slice+list": lambda x: x[1:, [0, 0, 1], ::2],
    "expand_as": lambda x: x[:1, :1].expand_as(x),
    "sum of views": lambda x: x.flip(0) + x.roll(1, 1),
    "iterate": lambda x: [row * 2 for row in x],
}
SYMBOLIC = {
    "flatten": lambda x: x.flatten(1),
    "merge all": lambda x: x.reshape(-1),
    "permute": lambda x: x.permute(2, 0, 1),
    "split back": lambda x: x.flatten(1).reshape(*x.shape),
    "slice": lambda x: x[:, 1:, :-1],
    "last": lambda x: x[:, -1],
    "roll": lambda x: x.roll(1, 2),
    "flip": lambda x: x.flip(1),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1),
    "unsqueeze": lambda x: x.unsqueeze(1) * x.unsqueeze(2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "heads": lambda x: x.permute(0, 2, 1).flatten(0, 1).unsqueeze(0),
    "interleave": lambda x: x.repeat_interleave(2, 1),
    "ellipsis": lambda x: x[..., 0],
    "list": lambda x: x[:, [0, 1]],
    "gather last": lambda x: x[:, [-1]],
}


@pytest.mark.parametrize("name", SAME)
def test_views(name):
    check(SAME[name], SAME[name], X)


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_views(name):
    check(SYMBOLIC[name], SYMBOLIC[name], X, symbolic=True)


def test_joining():
    y = torch.randn(2, 5, 4)
    for f, g in ((F.cat, torch.cat), (F.concat, torch.concat)):
        check(lambda a, b: f([a, b], 1), lambda a, b: g([a, b], 1), X, y, symbolic=True)
    check(
        lambda a: F.stack([a, a * 2, -a], 1),
        lambda a: torch.stack([a, a * 2, -a], 1),
        X,
        symbolic=True,
    )
    check(lambda a: F.cat([a[:0], a]), lambda a: torch.cat([a[:0], a]), X)
    check(
        lambda a, b: F.cat([a, b]),
        lambda a, b: torch.cat([a, b]),
        torch.tensor([1, 2]),
        torch.ones(2),
    )
    check(lambda a: F.cat([a, a > 0]), lambda a: torch.cat([a, a > 0]), torch.tensor([1.0, -0.0]))
    zero = evaluate(lambda a: F.cat([a, a]), torch.tensor([-0.0, 0.0]))
    assert torch.signbit(zero).tolist() == [True, False, True, False]
    check(lambda a: F.hstack([a, a]), lambda a: torch.hstack([a, a]), X)
    check(lambda a: F.vstack([a[0, 0], a[1, 1]]), lambda a: torch.vstack([a[0, 0], a[1, 1]]), X)


PADS = [
    ((1, 2), "constant"),
    ((1, 2, 0, 1), "constant"),
    ((-1, 1), "constant"),
    ((2, 1), "reflect"),
    ((2, 3), "replicate"),
    ((3, 4), "circular"),
]


@pytest.mark.parametrize("pad,mode", PADS)
def test_pad(pad, mode):
    value = 1.5 if mode == "constant" else None
    check(
        lambda x: F.pad(x, pad, mode, value),
        lambda x: TF.pad(x, pad, mode, value),
        X,
        symbolic=min(pad) >= 0,
    )


def test_pad_twice_with_different_fills():
    check(
        lambda x: F.pad(F.pad(x, (1, 1), value=2.0), (1, 1), value=3.0),
        lambda x: TF.pad(TF.pad(x, (1, 1), value=2.0), (1, 1), value=3.0),
        X,
    )


def test_creation():
    same = [
        (lambda L: L.arange(5), "i64"),
        (lambda L: L.arange(1, 10, 3), "i64"),
        (lambda L: L.arange(5, 0, -2), "i64"),
        (lambda L: L.arange(0.0, 1.0, 0.3), "f32"),
        (lambda L: L.arange(4.0), "f32"),
        (lambda L: L.eye(3, 4), "f32"),
        (lambda L: L.full((2, 2), 7), "i64"),
        (lambda L: L.zeros(2, 3), "f32"),
        (lambda L: L.ones((2, 3)), "f32"),
        (lambda L: L.linspace(0, 1, 5), "f32"),
        (lambda L: L.diag(L.arange(3)), "i64"),
        (lambda L: L.diag(L.ones(2), 1), "f32"),
        (lambda L: L.meshgrid(L.arange(2), L.arange(3), indexing="xy"), ""),
        (lambda L: L.meshgrid(L.arange(2), L.arange(3), indexing="ij"), ""),
        (lambda L: L.tril(L.ones(3, 3)), "f32"),
        (lambda L: L.zeros_like(L.arange(3)), "i64"),
    ]
    for make, _ in same:
        check(lambda x, m=make: m(F), lambda x, m=make: m(torch), torch.ones(1))


def test_symbolic_creation():
    check(
        lambda x: F.arange(x.shape[0]) + F.arange(1, x.shape[0] + 1),
        lambda x: 2 * torch.arange(len(x)) + 1,
        torch.ones(5),
        symbolic=True,
    )
    check(
        lambda x: F.eye(x.shape[0]) * x,
        lambda x: torch.eye(len(x)) * x,
        torch.randn(5),
        symbolic=True,
    )


def test_pixel_shuffle():
    x = torch.randn(2, 8, 3, 3)
    check(lambda x: F.pixel_shuffle(x, 2), lambda x: TF.pixel_shuffle(x, 2), x)
    check(
        lambda x: F.pixel_unshuffle(x, 2),
        lambda x: TF.pixel_unshuffle(x, 2),
        torch.randn(2, 3, 4, 6),
    )


def test_errors():
    n = dim("n", 1, 9)
    x = Tensor.from_input("x", (2, n), f32)
    bad = [
        (lambda: X4().reshape(5, 5), ShapeError, r"\[reshape\].*\[2, 3\]"),
        (lambda: x + F.ones(2, 3), ShapeError, r"\[add\].*n"),
        (lambda: X4().permute(0, 0), ArgumentError, "twice"),
        (lambda: X4()[5], ArgumentError, r"\[select\]"),
        (lambda: X4()[0, 0, 0], ShapeError, "too many"),
        (lambda: X4().sum(3), ArgumentError, r"\[sum\]"),
        (lambda: x.unbind(1), UnsupportedError, "symbolic"),
        (lambda: F.cat([X4(), F.ones(3, 4)]), ShapeError, r"\[cat\]"),
        (lambda: X4()[F.ones(2, 3) > 0], ArgumentError, "mask"),
        (lambda: x.numpy(), ArgumentError, "inputs"),
        (lambda: X4().split([1, 1, 1], 0), ShapeError, "add up"),
        (lambda: X4().expand(3, 3), ShapeError, r"\[expand\]"),
    ]
    for run, kind, text in bad:
        with pytest.raises(kind, match=text):
            run()


def X4():
    return F.ones(2, 3)


def test_values_of_constants():
    x = F.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (x @ x).numpy().tolist() == [[7.0, 10.0], [15.0, 22.0]]
    assert x.sum().item() == 10.0 and bool((x > 0).all())
    assert F.tensor(np.float64(1.0)).dtype.name == "f64" and F.tensor([1]).dtype.name == "i64"
    half = F.tensor([1.5, 2.25], "bf16")
    assert half.numpy().tolist() == [1.5, 2.25] and (half * 2).numpy().tolist() == [3.0, 4.5]
    assert x.realize().source.op == "Constant"
    assert (np.ones((2, 2), np.float32) + x).numpy().tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert np.asarray(x[:, 1]).tolist() == [2.0, 4.0] and x[0].tolist() == [1.0, 2.0]
    assert F.tensor(np.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(UnsupportedError, match=r"\[setitem\]"):
        x[0] = 1.0
