"""Reductions, scans, softmax, norms, contractions and losses against PyTorch."""

import math

import pytest
import torch

import luminal.frontend.functional as F
from luminal.errors import DTypeError, ShapeError
from tests.frontend_harness import check, evaluate

INF, NAN = math.inf, math.nan
TF = torch.nn.functional
torch.manual_seed(2)
X = torch.randn(2, 3, 4)
NANS = torch.tensor([[1.0, NAN, 3.0, NAN], [-INF, 2.0, 2.0, 0.0], [INF, INF, 1.0, -1.0]])
REDUCE = {
    "sum": lambda x: x.sum(),
    "sum dims": lambda x: x.sum((0, 2)),
    "sum keep": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(),
    "mean dim": lambda x: x.mean(-1),
    "var": lambda x: x.var(),
    "var dim": lambda x: x.var(1),
    "var 0": lambda x: x.var(1, correction=0),
    "std": lambda x: x.std((0, 1), keepdim=True),
    "std pop": lambda x: x.std(2, unbiased=False),
    "prod": lambda x: x.prod(),
    "prod dim": lambda x: x.prod(1),
    "any": lambda x: (x > 2).any(),
    "all": lambda x: (x > -9).all(1),
    "amax": lambda x: x.amax((0, 1)),
    "amin": lambda x: x.amin(2, keepdim=True),
    "max": lambda x: x.max(),
    "max dim": lambda x: tuple(x.max(1)),
    "min dim": lambda x: tuple(x.min(2, keepdim=True)),
    "argmax": lambda x: x.argmax(),
    "argmax dim": lambda x: x.argmax(1, keepdim=True),
    "argmin": lambda x: x.argmin(2),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(2),
    "cummax": lambda x: tuple(x.cummax(2)),
    "cummin": lambda x: tuple(x.cummin(1)),
    "logsumexp": lambda x: x.logsumexp((1, 2)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "norm": lambda x: x.norm(),
    "norm 3": lambda x: x.norm(3, 1),
    "norm inf": lambda x: x.norm(INF, 1),
    "norm 1": lambda x: x.norm(1, (0, 1)),
    "norm 0": lambda x: x.norm(0, 1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "count": lambda x: x.count_nonzero(1),
    "nansum": lambda x: x.nansum(1),
    "aminmax": lambda x: tuple(x.aminmax(dim=1)),
    "softmax dtype": lambda x: x.softmax(
        -1, dtype={True: torch.float64, False: "f64"}[isinstance(x, torch.Tensor)]
    ),
}
FIXED = {"prod", "cumprod"}


@pytest.mark.parametrize("name", REDUCE)
def test_reductions(name):
    check(REDUCE[name], REDUCE[name], X, symbolic=True)


NAN_OK = [
    "sum",
    "mean",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "logsumexp",
    "nansum",
    "nanmean",
    "softmax",
]


@pytest.mark.parametrize("name", NAN_OK)
def test_nan_and_inf(name):
    f = lambda x: getattr(x, name)(1)  # noqa: E731
    check(f, f, NANS)


def test_more_nan():
    check(lambda x: x.cummax(1), lambda x: tuple(x.cummax(1)), NANS)
    check(lambda x: x.cumsum(1), lambda x: x.cumsum(1), NANS)
    check(lambda x: x.max(1), lambda x: tuple(x.max(1)), NANS)
    check(lambda x: x.prod(1), lambda x: x.prod(1), NANS)
    full = torch.full((2, 3), -INF)
    check(lambda x: x.logsumexp(1), lambda x: x.logsumexp(1), full)
    check(lambda x: x.softmax(1), lambda x: x.softmax(1), full)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integer_reductions(dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 9, (3, 4)).to(dtype)
    for f in (
        lambda x: x.sum(1),
        lambda x: x.prod(0),
        lambda x: x.amax(1),
        lambda x: x.amin(1),
        lambda x: x.cumsum(0),
        lambda x: x.any(1),
        lambda x: x.all(0),
        lambda x: x.sum(),
    ):
        check(f, f, x)
    if dtype != torch.bool:
        for f in (
            lambda x: x.argmax(1),
            lambda x: x.argmin(0),
            lambda x: tuple(x.min(1)),
            lambda x: x.cumprod(1),
        ):
            check(f, f, x)
    low = torch.tensor([[-(2**63), 2**63 - 1, 5]])
    check(lambda x: x.amin(1), lambda x: x.amin(1), low)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x = (torch.randn(8, 300) * 2).to(dtype)
    for f in (
        lambda x: x.sum(1),
        lambda x: x.mean(1),
        lambda x: x.softmax(1),
        lambda x: x.var(1),
        lambda x: x.amax(0),
    ):
        check(f, f, x)
    check(lambda x: x @ x.mT, lambda x: x @ x.mT, x)
    ones = torch.full((4096,), 1.0).to(dtype)
    assert evaluate(lambda x: x.sum(), ones).item() == 4096.0


def test_zero_size():
    x = torch.ones(0, 3)
    for f in (
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x.prod(0),
        lambda x: x.any(0),
        lambda x: x.all(0),
        lambda x: x.mean(0),
        lambda x: x.amax(1),
        lambda x: x.cumsum(0),
        lambda x: x.softmax(1),
        lambda x: x.T @ x,
    ):
        check(f, f, x)
    with pytest.raises(ShapeError, match=r"\[amax\]"):
        evaluate(lambda x: x.amax(0), x)
    s = torch.tensor(2.0)
    for f in (
        lambda x: x.sum(0),
        lambda x: x.cumsum(0),
        lambda x: x.argmax(0),
        lambda x: x.softmax(0),
        lambda x: x.amax(),
    ):
        check(f, f, s)


def test_norms():
    x, w, b = torch.randn(2, 6, 5), torch.randn(5), torch.randn(5)
    check(
        lambda x, w, b: F.layer_norm(x, (5,), w, b),
        lambda x, w, b: TF.layer_norm(x, (5,), w, b),
        x,
        w,
        b,
    )
    check(lambda x: F.layer_norm(x, (6, 5)), lambda x: TF.layer_norm(x, (6, 5)), x)
    check(lambda x, w: F.rms_norm(x, (5,), w), lambda x, w: TF.rms_norm(x, (5,), w), x, w)
    check(
        lambda x, w: F.rms_norm(x, (5,), w, 1e-6),
        lambda x, w: TF.rms_norm(x, (5,), w, 1e-6),
        x.bfloat16(),
        w.bfloat16(),
    )
    c, d = torch.randn(6), torch.randn(6)
    check(
        lambda x, w, b: F.group_norm(x, 3, w, b), lambda x, w, b: TF.group_norm(x, 3, w, b), x, c, d
    )
    check(
        lambda x, w, b: F.instance_norm(x, w, b),
        lambda x, w, b: TF.instance_norm(x, weight=w, bias=b),
        x,
        c,
        d,
    )
    m, v = torch.randn(6), torch.rand(6)
    check(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        lambda x, m, v, w, b: TF.batch_norm(x, m, v, w, b),
        x,
        m,
        v,
        c,
        d,
        symbolic=True,
    )
    check(
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: TF.batch_norm(x, None, None, training=True),
        x,
    )
    check(lambda x: F.normalize(x), lambda x: TF.normalize(x), x)


MATMULS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((2, 0), (0, 4)),
]


@pytest.mark.parametrize("a,b", MATMULS)
def test_matmul(a, b):
    check(F.matmul, torch.matmul, torch.randn(a), torch.randn(b), symbolic=0 not in a)
    check(F.matmul, torch.matmul, torch.randint(-9, 9, a), torch.randint(-9, 9, b))


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("ij->ji", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("ij->", (2, 3)),
    ("i,j->ij", (2,), (3,)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("...ij,...jk", (2, 2, 3), (2, 3, 4)),
    ("bn,anm,bm->ba", (2, 3), (5, 3, 4), (2, 4)),
    ("i...->...i", (2, 3, 4)),
    ("ij,j", (2, 3), (3,)),
]


@pytest.mark.parametrize("case", EINSUMS)
def test_einsum(case):
    equation, *shapes = case
    check(
        lambda *t: F.einsum(equation, *t),
        lambda *t: torch.einsum(equation, *t),
        *(torch.randn(s) for s in shapes),
        symbolic=True,
    )


def test_products():
    a, b, m = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4)
    check(F.addmm, torch.addmm, m, a, b)
    check(
        lambda m, a, b: F.addmm(m, a, b, beta=0.5, alpha=2),
        lambda m, a, b: torch.addmm(m, a, b, beta=0.5, alpha=2),
        m,
        a,
        b,
    )
    check(
        F.baddbmm, torch.baddbmm, torch.randn(5, 2, 4), torch.randn(5, 2, 3), torch.randn(5, 3, 4)
    )
    check(F.outer, torch.outer, torch.randn(3), torch.randn(4))
    check(F.linear, TF.linear, torch.randn(5, 2, 3), torch.randn(4, 3), m, symbolic=True)
    check(F.linear, TF.linear, torch.randn(3), torch.randn(4, 3))
    check(
        F.bilinear,
        TF.bilinear,
        torch.randn(2, 3),
        torch.randn(2, 4),
        torch.randn(5, 3, 4),
        torch.randn(5),
    )
    check(F.kron, torch.kron, a, b)
    check(lambda a, b: F.tensordot(a, b, 1), lambda a, b: torch.tensordot(a, b, 1), a, b)
    check(F.trace, torch.trace, torch.randn(3, 4))
    check(F.inner, torch.inner, a, torch.randn(5, 3))
    with pytest.raises(ShapeError, match=r"\[matmul\].*\[2, 3\] and \[2, 3\]"):
        evaluate(F.matmul, a, a)
    with pytest.raises(DTypeError, match=r"\[matmul\] Got f32 and f64"):
        evaluate(F.matmul, a, b.double())


def test_attention():
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 6)
    sdpa, ref = F.scaled_dot_product_attention, TF.scaled_dot_product_attention
    check(sdpa, ref, q, k, v, symbolic=False)
    check(
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda q, k, v: ref(q, k, v, is_causal=True),
        q,
        k,
        v,
    )
    mask = torch.rand(3, 5) > 0.4
    mask[:, 0] = True
    mask[1] = False
    check(sdpa, ref, q, k, v, mask)
    check(sdpa, ref, q, k, v, torch.randn(2, 1, 3, 5))
    check(
        lambda q, k, v: sdpa(q, k, v, scale=0.2, enable_gqa=True),
        lambda q, k, v: ref(q, k, v, scale=0.2, enable_gqa=True),
        q,
        k[:, :2],
        v[:, :2],
    )
    check(
        lambda q, k, v: sdpa(q, k, v, scale=0.3),
        lambda q, k, v: ref(q, k, v, scale=0.3),
        q,
        k,
        v,
        symbolic=True,
    )


def test_losses():
    x, y, t = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([1, 0, 4, -100])
    for name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"):
        for how in ("mean", "sum", "none"):
            check(
                lambda x, y: getattr(F, name)(x, y, reduction=how),
                lambda x, y: getattr(TF, name)(x, y, reduction=how),
                x,
                y,
            )
    w = torch.rand(5)
    for how in ("mean", "sum", "none"):
        for smooth in (0.0, 0.1):
            options = {"reduction": how, "label_smoothing": smooth}
            check(
                lambda x, t: F.cross_entropy(x, t, **options),
                lambda x, t: TF.cross_entropy(x, t, **options),
                x,
                t,
            )
            check(
                lambda x, t, w: F.cross_entropy(x, t, w, **options),
                lambda x, t, w: TF.cross_entropy(x, t, w, **options),
                x,
                t,
                w,
            )
            check(
                lambda x, t: F.cross_entropy(x, t, **options),
                lambda x, t: TF.cross_entropy(x, t, **options),
                x,
                y.softmax(1),
            )
    check(F.cross_entropy, TF.cross_entropy, torch.randn(2, 5, 3), torch.randint(0, 5, (2, 3)))
    check(F.cross_entropy, TF.cross_entropy, torch.randn(5), torch.tensor(3))
    p, q = torch.rand(4, 5), torch.rand(4, 5)
    check(F.binary_cross_entropy, TF.binary_cross_entropy, p, q)
    check(F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, x, q)
    check(
        lambda x, q, w: F.binary_cross_entropy_with_logits(x, q, pos_weight=w),
        lambda x, q, w: TF.binary_cross_entropy_with_logits(x, q, pos_weight=w),
        x,
        q,
        w,
    )
    check(
        lambda x, q: F.kl_div(x, q, "batchmean"),
        lambda x, q: TF.kl_div(x, q, reduction="batchmean"),
        x,
        q,
    )
    check(F.cosine_similarity, TF.cosine_similarity, x, y)
    check(F.pairwise_distance, TF.pairwise_distance, x, y)
    check(F.poisson_nll_loss, TF.poisson_nll_loss, x, q)
    check(F.soft_margin_loss, TF.soft_margin_loss, x, y.sign())
    check(F.nll_loss, TF.nll_loss, x.log_softmax(1), t)
