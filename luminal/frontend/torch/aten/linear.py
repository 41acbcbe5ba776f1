"""Matrix products, convolutions and pooling of ATen.

In: luminal tensors. Out: tensors in the traced dtype and shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast
from luminal.frontend.torch.aten.elementwise import wide
from luminal.frontend.torch.aten.table import Call, op
from luminal.ir.expr import Expr

__all__: list[str] = []


@op("mm", "bmm", "mv", "dot")
def _mm(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return F.matmul(a, b)


def _blend(call: Call, x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * x + alpha * product, rounded once."""
    if call.dtype.is_int:  # eager converts the factors first
        beta, alpha = int(beta), int(alpha)
    out = product if alpha == 1 else F.mul(product, alpha)
    if beta == 0:
        return out
    return F.add(out, wide(x) if beta == 1 else F.mul(wide(x), beta))


@op("addmm", "baddbmm", "addmv")
def _addmm(
    call: Call, x: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return _blend(call, x, F.matmul(wide(a), wide(b)), beta, alpha)


@op("addbmm")
def _addbmm(
    call: Call, x: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return _blend(call, x, F.sum(F.matmul(wide(a), wide(b)), [0], False), beta, alpha)


def spread(values: Sequence[int], rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


@op("convolution")
def _convolution(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    rank = weight.ndim - 2
    batched = x.ndim == weight.ndim
    x = x if batched else F.unsqueeze(x, 0)
    step, pads, holes = (spread(v, rank) for v in (stride, padding, dilation))
    if transposed:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        extra = spread(output_padding, rank)
        out = function(x, weight, bias, step, pads, extra, groups, holes)
    else:
        function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        out = function(x, weight, bias, step, pads, holes, groups)
    return out if batched else F.squeeze(out, 0)


@op("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    call: Call, x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    rank = 2 if "2d" in str(call.node.target) else 3
    batched, indices = x.ndim == rank + 2, call.wanted(1)
    x = x if batched else F.unsqueeze(x, 0)
    sizes = spread(kernel, rank)
    found = (F.max_pool2d if rank == 2 else F.max_pool3d)(
        x, sizes, spread(stride, rank) if stride else sizes, spread(padding, rank),
        spread(dilation, rank), ceil_mode, indices,
    )  # fmt: skip
    parts = found if indices else (found, None)
    return tuple(p if batched or p is None else F.squeeze(p, 0) for p in parts)


@op("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    call: Call, x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    rank = int(str(call.node.target).split("avg_pool")[1][0])
    batched = x.ndim == rank + 2
    x = x if batched else F.unsqueeze(x, 0)
    sizes = spread(kernel, rank)
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    out = function(
        x, sizes, spread(stride, rank) if stride else sizes, spread(padding, rank),
        ceil_mode, count_include_pad, divisor_override,
    )  # fmt: skip
    return out if batched else F.squeeze(out, 0)


@op("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def _adaptive_avg_pool(call: Call, x: Tensor, size: Sequence[int]) -> Tensor:
    rank = len(size)
    batched = x.ndim == rank + 2
    x = x if batched else F.unsqueeze(x, 0)
    function = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
    out = function(x, list(size))
    return out if batched else F.squeeze(out, 0)


@op("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(call: Call, x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    rank = len(size)
    batched = x.ndim == rank + 2
    x = x if batched else F.unsqueeze(x, 0)
    steps = [_even(call, x.dims[2 + k], n) for k, n in enumerate(size)]
    if call.wanted(1) and None not in steps:
        function = F.max_pool2d if rank == 2 else F.max_pool3d
        parts = function(x, steps, steps, 0, 1, False, True)
    elif call.wanted(1):
        raise UnsupportedError("[torch] the indices of max pooling over uneven bins.")
    else:
        function = F.adaptive_max_pool2d if rank == 2 else F.adaptive_max_pool3d
        parts = (function(x, list(size)), None)
    return tuple(p if batched or p is None else F.squeeze(p, 0) for p in parts)


def _even(call: Call, extent: Expr, bins: int) -> int | None:
    """The size of equal bins, or None."""
    size = extent.value
    return size // bins if size is not None and bins and size % bins == 0 else None


@op("upsample_bilinear2d", "upsample_bilinear2d.vec")
def _bilinear(
    call: Call, x: Tensor, size: Sequence[int] | None, align_corners: bool, *scales: object
) -> Tensor:
    if any(s is not None for s in scales):
        raise UnsupportedError("[torch] interpolation by given scales.")
    return F.interpolate(
        x, [d.value for d in call.dims[2:]], mode="bilinear", align_corners=align_corners
    )


@op("glu")
def _glu(call: Call, x: Tensor, dim: int = -1) -> Tensor:
    a, b = F.chunk(x, 2, dim)
    return F.mul(a, F.sigmoid(b))


@op("_cdist_forward")
def _cdist(call: Call, a: Tensor, b: Tensor, p: float, mode: object = None) -> Tensor:
    off = F.sub(F.unsqueeze(a, -2), F.unsqueeze(b, -3))
    if a.dims[-1].lo < 1:
        raise UnsupportedError("[torch] distances of points without coordinates.")
    return F.norm(cast(off, call.dtype), p, [-1], False)
