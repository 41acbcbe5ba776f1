"""The less common operations against PyTorch."""

import pytest
import torch

import luminal.frontend.functional as F
from tests.frontend_harness import check

torch.manual_seed(6)
X, Y = torch.randn(3, 5), torch.randn(3, 5)
CASES = {
    "addcmul": (lambda L, x, y: L.addcmul(x, x, y, value=2), 2),
    "addcdiv": (lambda L, x, y: L.addcdiv(x, x, y), 2),
    "float_power": (lambda L, x, y: L.float_power(x, 2), 2),
    "heaviside": (lambda L, x, y: L.heaviside(x, y), 2),
    "dist": (lambda L, x, y: L.dist(x, y), 2),
    "cdist": (lambda L, x, y: L.cdist(x, y), 2),
    "cdist 1": (lambda L, x, y: L.cdist(x, y, 1.0), 2),
    "cross": (lambda L, x, y: L.cross(x, y, dim=0), 2),
    "diff": (lambda L, x: L.diff(x, 2), 1),
    "cov": (lambda L, x: L.cov(x), 1),
    "diag_embed": (lambda L, x: L.diag_embed(x), 1),
    "diag_embed 1": (lambda L, x: L.diag_embed(x, 1, 0, 2), 1),
    "diag_embed -1": (lambda L, x: L.diag_embed(x, -1), 1),
    "block_diag": (lambda L, x, y: L.block_diag(x, y[0], y[:2]), 2),
    "quantile": (lambda L, x: L.quantile(x, 0.3, 1), 1),
    "quantile all": (lambda L, x: L.quantile(x, 0.5), 1),
    "clip": (lambda L, x: L.clip(x, -0.5, 0.5), 1),
    "clamp_min": (lambda L, x: x.clamp_min(0.1), 1),
    "rsub": (lambda L, x, y: L.rsub(x, y), 2),
    "lerp": (lambda L, x, y: L.lerp(x, y, 0.3), 2),
    "numel": (lambda L, x: x * x.numel(), 1),
    "addbmm": (lambda L, x, y: L.addbmm(x @ x.mT, x[None], y.mT[None], alpha=0.5), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name):
    function, count = CASES[name]
    args = (X, Y)[:count]
    check(lambda *a: function(F, *a), lambda *a: function(torch, *a), *args)


def test_searching():
    edges, values = torch.tensor([0.0, 1.0, 1.0, 2.5]), torch.tensor([[-1.0, 1.0], [0.5, 9.0]])
    for right in (True, False):
        check(
            lambda e, v, r=right: F.searchsorted(e, v, right=r),
            lambda e, v, r=right: torch.searchsorted(e, v, right=r),
            edges,
            values,
        )
        check(
            lambda v, e, r=right: F.bucketize(v, e, right=r),
            lambda v, e, r=right: torch.bucketize(v, e, right=r),
            values,
            edges,
        )
    check(F.searchsorted, torch.searchsorted, X.sort(1)[0], Y)


def test_quantile_nan_and_many():
    x = X.clone()
    x[1, 2] = float("nan")
    check(
        lambda x: F.quantile(x, (0.0, 0.25, 1.0), 1, keepdim=True),
        lambda x: torch.quantile(x, torch.tensor([0.0, 0.25, 1.0]), 1, keepdim=True),
        x,
    )


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}], ids=str)
def test_fold(options):
    image = torch.randn(2, 3, 6, 7)
    columns = torch.nn.functional.unfold(image, (2, 3), **options)
    check(
        lambda c: F.fold(c, (6, 7), (2, 3), **options),
        lambda c: torch.nn.functional.fold(c, (6, 7), (2, 3), **options),
        columns,
    )
