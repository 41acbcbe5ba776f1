"""Strides and aliasing of results for operands in every memory order, against eager."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._prims_common import check_significant_strides  # noqa: E402

from tests.torch_strict import compiled, fresh  # noqa: E402, F401

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
ORDERS = {
    "plain": lambda x: x,
    "last": lambda x: x.contiguous(memory_format=LAST[x.dim()]),
    "turned": lambda x: x.mT.contiguous().mT,
    "gapped": lambda x: torch.stack([x, x], -1)[..., 0],
}
CASES = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest of the same size": lambda x: F.interpolate(x, scale_factor=1.0),
    "nearest of one dimension": lambda x: (
        F.interpolate(x[0], size=16),
        F.interpolate(x[0], scale_factor=2.0),
        F.interpolate(x[0], size=5, mode="nearest-exact"),
        F.interpolate(x[0], size=5, mode="linear"),
    ),
    "nearest-exact": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest-exact"),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "channel_shuffle of one group": lambda x: F.channel_shuffle(x, 1),
    "roll": lambda x: x.roll(1, 2),
    "roll along two": lambda x: x.roll((1, -2), (2, 1)),
    "roll of all": lambda x: x.roll(3),
    "baddbmm": lambda x: torch.baddbmm(x[0], x[0], x[1]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm of three": lambda x: F.batch_norm(x[0], None, None, training=True),
    "batch_norm with buffers": lambda x: F.batch_norm(x, x[0, :, 0, 0] + 0, x[1, :, 0, 0] ** 2),
    "grid_sample": lambda x: F.grid_sample(x, x[..., :2].sin()),
    "grid_sample of three": lambda x: F.grid_sample(x[None], x[None, ..., :3].sin()),
    "lerp": lambda x: torch.lerp(x, x + 1, 0.25),
    "operands of two orders": lambda x: (
        torch.addcmul(x[0, 0], x[0, 0], x),
        torch.addcdiv(x[:, :1], x[0, 0] + 9, x * 0 + 2),
        torch.lerp(x.contiguous(), x, x[:1]),
        torch.clip(x[0, 0], x, x.contiguous() + 1),
        torch.logaddexp(x[0], x),
        torch.xlogy(x[:, :1].mT, x.abs() + 1),
        torch.heaviside(x[0].mT, x.contiguous()),
        torch.clamp(x[0], x.mT, x.contiguous() + 1),
        x[0].masked_fill(x > 0, 1.0),
    ),
    "index_fill of a part": lambda x: (
        x[1:].index_fill(1, torch.tensor([0]), 2.0),
        x[:, :, 1:].index_fill(1, torch.tensor([0]), 2.0),
        x[..., 1:].mT.index_fill(1, torch.tensor([0]), torch.tensor(2.0)),
    ),
    "one_hot": lambda x: F.one_hot(x[:, 0].long().abs() % 3, 5),
    "where": lambda x: torch.where(x > 0, x, x.contiguous()),
    "sum": lambda x: x + x.contiguous(),
    "pixel_shuffle": lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_results_lie_in_memory_as_eager_s(case, order):
    x = ORDERS[order](torch.randn(2, 4, 8, 8))
    with torch.no_grad():
        got, want = compiled(CASES[case])(x), CASES[case](x)
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.utils._pytree.tree_leaves(v) for v in (got, want)), strict=True):
        assert check_significant_strides(a, b, only_cuda=False)[0], (a.stride(), b.stride())
        assert (a.data_ptr() == x.data_ptr()) == (b.data_ptr() == x.data_ptr())


@pytest.mark.parametrize("order", ["plain", "last"])
def test_resizing_by_a_whole_factor_compiles_once_for_all_sizes(order):
    torch._dynamo.utils.counters.clear()
    resize = lambda x: F.interpolate(x, scale_factor=2.0)  # noqa: E731
    options = {"executor": "oracle", "fallback": "error"}
    fast = torch.compile(resize, backend="luminal", dynamic=True, options=options)
    for n in (4, 6, 7):
        x = ORDERS[order](torch.randn(2, 3, n, n))
        with torch.no_grad():
            got, want = fast(x), resize(x)
        assert torch.equal(got, want) and got.stride() == want.stride()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
