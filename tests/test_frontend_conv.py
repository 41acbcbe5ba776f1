"""Convolution, pooling and interpolation against PyTorch."""

import pytest
import torch

import luminal.frontend.functional as F
from luminal.errors import ShapeError
from tests.frontend_harness import check, evaluate

TF = torch.nn.functional
torch.manual_seed(3)
CONVS = [
    dict(),
    dict(stride=2),
    dict(padding=1),
    dict(padding=(2, 1), stride=(1, 2)),
    dict(dilation=2, padding=2),
    dict(groups=2, padding=1),
    dict(groups=4),
    dict(padding="same"),
    dict(padding="same", dilation=2),
    dict(padding="valid"),
    dict(stride=3, padding=1, groups=2),
]


@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize("options", CONVS, ids=str)
def test_conv2d(options):
    x = torch.randn(2, 4, 7, 6)
    w, b = torch.randn(8, 4 // options.get("groups", 1), 3, 2), torch.randn(8)
    check(
        lambda x, w, b: F.conv2d(x, w, b, **options),
        lambda x, w, b: TF.conv2d(x, w, b, **options),
        x,
        w,
        b,
    )


def test_conv_ranks():
    check(F.conv1d, TF.conv1d, torch.randn(2, 3, 8), torch.randn(4, 3, 3))
    check(
        F.conv3d, TF.conv3d, torch.randn(1, 2, 4, 4, 4), torch.randn(3, 2, 2, 2, 2), torch.randn(3)
    )
    check(F.conv2d, TF.conv2d, torch.randn(3, 5, 5), torch.randn(2, 3, 3, 3), torch.randn(2))
    check(
        lambda x, w: F.conv2d(x, w, None, 2, 1),
        lambda x, w: TF.conv2d(x, w, None, 2, 1),
        torch.randn(2, 4, 8, 6).bfloat16(),
        torch.randn(5, 4, 3, 3).bfloat16(),
    )
    with pytest.raises(ShapeError, match=r"\[conv2d\].*\[1, 3, 5, 5\]"):
        evaluate(F.conv2d, torch.ones(1, 3, 5, 5), torch.ones(2, 4, 3, 3))


@pytest.mark.parametrize("options", CONVS[:6], ids=str)
def test_symbolic_conv(options):
    x, w = torch.randn(2, 4, 9, 8), torch.randn(8, 4 // options.get("groups", 1), 3, 3)
    check(
        lambda x, w: F.conv2d(x, w, **options),
        lambda x, w: TF.conv2d(x, w, **options),
        x,
        w,
        symbolic=(0, 2, 3),
    )
    check(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        lambda x, w: TF.conv_transpose2d(x, w, stride=2, padding=1),
        x,
        torch.randn(4, 2, 3, 3),
        symbolic=(0, 2, 3),
    )


TRANSPOSED = [
    dict(),
    dict(stride=2),
    dict(stride=2, padding=1, output_padding=1),
    dict(groups=2, stride=2),
    dict(dilation=2, padding=1),
    dict(stride=(3, 2), padding=(0, 2)),
]


@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_conv_transpose(options):
    x, w, b = (
        torch.randn(2, 4, 5, 4),
        torch.randn(4, 6 // options.get("groups", 1), 3, 3),
        torch.randn(6),
    )
    check(
        lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, **options),
        x,
        w,
        b,
    )


POOLS = [
    dict(kernel_size=2),
    dict(kernel_size=3, stride=2),
    dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=(2, 3), stride=(2, 1)),
    dict(kernel_size=2, ceil_mode=True),
    dict(kernel_size=3, stride=2, padding=1, ceil_mode=True),
]


@pytest.mark.parametrize("options", POOLS, ids=str)
def test_pools(options):
    x = torch.randn(2, 3, 7, 8)
    check(lambda x: F.max_pool2d(x, **options), lambda x: TF.max_pool2d(x, **options), x)
    check(
        lambda x: F.max_pool2d(x, **options, return_indices=True),
        lambda x: TF.max_pool2d(x, **options, return_indices=True),
        x,
    )
    for pads in (True, False):
        check(
            lambda x: F.avg_pool2d(x, **options, count_include_pad=pads),
            lambda x: TF.avg_pool2d(x, **options, count_include_pad=pads),
            x,
        )


def test_more_pools():
    x = torch.randn(2, 3, 7, 8)
    check(lambda x: F.max_pool2d(x, 3, 1, 1, 2), lambda x: TF.max_pool2d(x, 3, 1, 1, 2), x)
    check(lambda x: F.max_pool1d(x, 2), lambda x: TF.max_pool1d(x, 2), x[0])
    check(lambda x: F.avg_pool1d(x, 3, 2), lambda x: TF.avg_pool1d(x, 3, 2), x[0])
    check(
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        lambda x: TF.avg_pool2d(x, 2, divisor_override=3),
        x,
    )
    check(lambda x: F.max_pool3d(x, 2), lambda x: TF.max_pool3d(x, 2), torch.randn(1, 2, 4, 4, 4))
    check(lambda x: F.lp_pool2d(x, 2, 2), lambda x: TF.lp_pool2d(x, 2.0, 2), x)
    check(lambda x: F.im2col(x, 3, 1, 1, 2), lambda x: TF.unfold(x, 3, 1, 1, 2), x)


@pytest.mark.parametrize("size", [1, 2, 3, 5, (3, 4), (None, 2), 7])
def test_adaptive_pools(size):
    x = torch.randn(2, 3, 7, 8)
    check(lambda x: F.adaptive_avg_pool2d(x, size), lambda x: TF.adaptive_avg_pool2d(x, size), x)
    check(lambda x: F.adaptive_max_pool2d(x, size), lambda x: TF.adaptive_max_pool2d(x, size), x)


def test_symbolic_pools():
    x = torch.randn(2, 3, 7, 8)
    for f, g in (
        (lambda x: F.adaptive_avg_pool2d(x, 3), lambda x: TF.adaptive_avg_pool2d(x, 3)),
        (lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: TF.adaptive_avg_pool2d(x, 1)),
        (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: TF.max_pool2d(x, 3, 2, 1)),
        (
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda x: TF.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        ),
        (
            lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
            lambda x: TF.max_pool2d(x, 2, 2, ceil_mode=True),
        ),
    ):
        check(f, g, x, symbolic=True)


RESIZE = [
    dict(size=(5, 9), mode="nearest"),
    dict(scale_factor=2, mode="nearest"),
    dict(scale_factor=0.6, mode="nearest"),
    dict(size=(5, 9), mode="nearest-exact"),
    dict(size=(5, 9), mode="bilinear"),
    dict(size=(5, 9), mode="bilinear", align_corners=True),
    dict(scale_factor=2, mode="bilinear"),
    dict(scale_factor=1.5, mode="bilinear"),
    dict(size=(5, 9), mode="bicubic"),
    dict(size=(9, 3), mode="bicubic", align_corners=True),
    dict(scale_factor=2.0, mode="bicubic"),
    dict(size=(1, 1), mode="bilinear", align_corners=True),
]


@pytest.mark.parametrize("options", RESIZE, ids=str)
def test_interpolate(options):
    x = torch.randn(2, 3, 4, 7)
    check(
        lambda x: F.interpolate(x, **options),
        lambda x: TF.interpolate(x, **options),
        x,
        symbolic="scale_factor" in options,
        atol=3e-5,
        rtol=1e-5,
    )


def test_interpolate_other_ranks():
    check(
        lambda x: F.interpolate(x, size=5, mode="linear"),
        lambda x: TF.interpolate(x, size=5, mode="linear"),
        torch.randn(2, 3, 4),
    )
    check(
        lambda x: F.interpolate(x, size=5, mode="trilinear"),
        lambda x: TF.interpolate(x, size=5, mode="trilinear"),
        torch.randn(1, 2, 3, 4, 4),
    )
