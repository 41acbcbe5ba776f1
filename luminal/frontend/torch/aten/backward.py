"""Backward operators of ATen: convolutions and pooling.

In: luminal tensors. Out: gradients in the traced shape. Each gathers, for one place of the input,
what the windows that cover it contribute: there is nothing to scatter.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.functional_conv import _windows
from luminal.frontend.functional_linear import contract
from luminal.frontend.tensor import Scalar, Tensor, broadcast, cast, iota
from luminal.frontend.torch.aten.elementwise import wide
from luminal.frontend.torch.aten.linear import spread
from luminal.frontend.torch.aten.table import Call, op
from luminal.frontend.views import pad as pad_view
from luminal.ir.dtype import i64
from luminal.ir.expr import Expr, const

__all__: list[str] = []


@op("convolution_backward")
def _convolution_backward(
    call: Call, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: object,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    n = weight.ndim - 2
    if x.ndim != weight.ndim:
        raise UnsupportedError("[torch] the gradient of a convolution without batches.")
    step, pads, holes = (spread(v, n) for v in (stride, padding, dilation))
    gx = gw = gb = None
    if mask[0] and transposed:
        gx = F.convolution(grad, weight, None, step, pads, holes, groups)
    elif mask[0]:
        sizes = zip(x.dims[2:], grad.dims[2:], weight.shape[2:], strict=True)
        more = [
            (a - ((b - 1) * step[p] + holes[p] * (k - 1) + 1 - 2 * pads[p])).value
            for p, (a, b, k) in enumerate(sizes)
        ]
        if None in more:
            raise UnsupportedError("[torch] the gradient of a convolution over symbolic sizes.")
        gx = F.conv_transpose(grad, weight, None, step, pads, more, groups, holes)
    if mask[1]:
        small, large = (x, grad) if transposed else (grad, x)
        gw = _weight_gradient(small, large, weight, step, pads, holes, groups)
    if mask[2]:
        gb = F.sum(wide(grad), [0, *range(2, grad.ndim)], False)
    return gx, gw, gb


def _weight_gradient(
    small: Tensor, large: Tensor, weight: Tensor, step: Sequence[int], pads: Sequence[int],
    holes: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Sum over batch and places of small[n, o, p..] * windows of large [n, c, p.., k..]."""
    n = weight.ndim - 2
    padded = F.pad(wide(large), [v for p in reversed(pads) for v in (p, p)])
    parts = _windows(padded, 2, weight.shape[2:], step, holes)
    for p in range(n):
        parts = F.narrow(parts, 2 + p, 0, small.dims[2 + p])
    outs, per = weight.dims[0] // groups, weight.dims[1]
    parts = F.reshape(parts, parts.dims[0], groups, 1, per, *parts.dims[2:])
    ones = [1] * n
    narrow = F.reshape(wide(small), small.dims[0], groups, outs, 1, *small.dims[2:], *ones)
    out = contract(parts, narrow, (0, *range(4, 4 + n)))
    return F.reshape(out, *weight.dims)


def _covering(
    x: Tensor, sizes: Sequence[Expr], kernel: Sequence[int], step: Sequence[int],
    pads: Sequence[int], holes: Sequence[int], fill: Scalar,
) -> Tensor:  # fmt: skip
    """[.., place.., k..]: what x holds for the k-th window over each place, `fill` for none."""
    n = len(kernel)
    first = x.ndim - n
    for p in range(n):
        reach = holes[p] * (kernel[p] - 1)
        before = reach - pads[p]
        length = (x.dims[first + p] - 1) * step[p] + 1
        after = (sizes[p] + reach - before - length).value
        if after is None:  # at most so many, for the last window fits
            after = reach + step[p] - pads[p] - 1
        if before < 0:
            raise UnsupportedError("[torch] the gradient of pooling padded by more than a window.")
        view = pad_view(x.dims, first + p, before, max(after, 0), fill, step[p] - 1)
        x = x.through(view)
        x = F.narrow(x, first + p, 0, sizes[p] + reach)
    return _windows(x, first, kernel, (1,) * n, holes)


@op("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(
    call: Call, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    n = 2 if "2d" in str(call.node.target) else 3
    size = spread(kernel, n)
    step = spread(stride, n) if stride else size
    pads, holes = spread(padding, n), spread(dilation, n)
    planes = x.dims[-n:]
    places = F.reshape(iota(_product(planes)), *planes, *([1] * n))
    chosen = _covering(cast(indices, i64), planes, size, step, pads, holes, -1)
    values = _covering(wide(grad), planes, size, step, pads, holes, 0.0)
    hits = F.eq(chosen, places)
    return F.sum(F.where(hits, values, 0.0), list(range(x.ndim, x.ndim + n)), False)


def _product(dims: Sequence[Expr]) -> Expr:
    out = dims[0]
    for d in dims[1:]:
        out = out * d
    return out


@op("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(
    call: Call, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    n = 2 if "2d" in str(call.node.target) else 3
    size, pads = spread(kernel, n), spread(padding, n)
    step = spread(stride, n) if stride else size
    if ceil_mode or (any(pads) and not include_pad and not divisor):
        raise UnsupportedError("[torch] the gradient of average pooling with uneven windows.")
    count = divisor or 1
    for k in size:
        count *= 1 if divisor else k
    values = _covering(wide(grad), x.dims[-n:], size, step, pads, (1,) * n, 0.0)
    return F.mul(F.sum(values, list(range(x.ndim, x.ndim + n)), False), 1.0 / count)


@op("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_backward(call: Call, grad: Tensor, x: Tensor) -> Tensor:
    n = 2 if "2d" in str(call.node.target) else 3
    out = wide(grad)
    for d in range(x.ndim - n, x.ndim):
        length, bins = x.dims[d].value, grad.dims[d].value
        if length is None or not bins or length % bins:
            raise UnsupportedError("[torch] the gradient of adaptive pooling over uneven bins.")
        size = length // bins
        out = broadcast(
            F.unsqueeze(out, d + 1), (*out.dims[: d + 1], const(size), *out.dims[d + 1 :])
        )
        out = F.mul(F.reshape(out, *out.dims[:d], length, *out.dims[d + 2 :]), 1.0 / size)
    return out
