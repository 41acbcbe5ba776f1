"""Pooling, sampling and resizing as decompositions, where indices or weights are known beforehand.

In: tensors of static sizes. Out: ATen's results, from gathers at constant places and products with
constant matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["table"]


def _static(x: Tensor) -> bool:
    return all(isinstance(n, int) for n in x.shape) and x.numel() > 0


def _bins(extent: int, count: int) -> tuple[Tensor, Tensor]:
    """For every bin its places, padded to equal numbers, and which of those count."""
    edges = [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
    number, k = torch.arange(count).unsqueeze(1), torch.arange(max(b - a for a, b in edges))
    places = number * extent // count + k
    ends = ((number + 1) * extent + count - 1) // count
    return places.clamp(max=extent - 1), places < ends


def _adaptive_max_pool(x: Tensor, size: Sequence[int]) -> object:
    """With indices, over bins of unequal widths."""
    rank = len(size)
    extents = x.shape[-rank:]
    if not _static(x) or 0 in size or all(e % n == 0 for e, n in zip(extents, size, strict=True)):
        return NotImplemented
    lead = x.ndim - rank
    valid, place = torch.ones((), dtype=torch.bool), torch.zeros((), dtype=torch.int64)
    for d, (extent, count) in enumerate(zip(extents, size, strict=True)):
        places, counted = _bins(extent, count)
        x = x.index_select(lead + 2 * d, places.flatten())
        x = x.unflatten(lead + 2 * d, places.shape)
        axes = [1] * (2 * d) + list(places.shape) + [1] * (2 * (rank - d - 1))
        valid = valid & counted.reshape(axes)
        place = place + places.reshape(axes) * math.prod(extents[d + 1 :])
    order = [2 * d for d in range(rank)] + [2 * d + 1 for d in range(rank)]
    least = torch.where(valid, x, float("-inf")).permute(
        *range(lead), *(lead + o for o in order)
    ).flatten(lead + rank)  # fmt: skip
    values, best = least.max(-1)
    places = place.expand(valid.shape).permute(order).flatten(rank).expand(least.shape)
    return values, places.gather(-1, best.unsqueeze(-1)).squeeze(-1)


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """x mirrored at the edges until it lies between them."""
    if low == high:
        return torch.zeros_like(x)
    span = high - low
    off = (x - low).abs()
    extra, flips = torch.fmod(off, span), torch.floor(off / span)
    return torch.where(flips % 2 == 0, extra + low, span - extra + low)


def _sampled_places(place: Tensor, extent: int, padding: int, align: bool) -> Tensor:
    """Places -1 .. 1 as places among the elements of an axis."""
    x = (place + 1) / 2 * (extent - 1) if align else ((place + 1) * extent - 1) / 2
    if padding == 2:
        edges = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
        x = _reflected(x, *edges)
    return x.clamp(0, extent - 1) if padding else x


def _grid_sampler_3d(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> object:
    if not _static(x) or not _static(grid) or mode > 1:
        return NotImplemented
    extents, batch = x.shape[2:], x.shape[0]
    spots = [_sampled_places(grid[..., 2 - d], extents[d], padding, align) for d in range(3)]
    starts = [s.floor() if mode == 0 else s.round() for s in spots]
    rows = torch.arange(batch).reshape(-1, 1, 1, 1, 1)
    channels = torch.arange(x.shape[1]).reshape(1, -1, 1, 1, 1)
    out = torch.zeros((), dtype=x.dtype)
    for corner in itertools.product((0, 1) if mode == 0 else (0,), repeat=3):
        at = [s + c for s, c in zip(starts, corner, strict=True)]
        inside, weight = at[0] == at[0], torch.ones_like(at[0])
        for place, spot, extent in zip(at, spots, extents, strict=True):
            inside = inside & (place >= 0) & (place <= extent - 1)
            if mode == 0:
                weight = weight * (1 - (spot - place).abs())
        safe = [torch.where(inside, p, 0).to(torch.int64).unsqueeze(1) for p in at]
        picked = x[rows, channels, safe[0], safe[1], safe[2]]
        out = out + torch.where(inside.unsqueeze(1), picked * weight.unsqueeze(1), 0.0)
    return out


def _linear_filter(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0.0)


def _cubic_filter(x: Tensor) -> Tensor:
    a, x = -0.5, x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return torch.where(x < 1, near, torch.where(x < 2, (((x - 5) * x + 8) * x - 4) * a, 0.0))


def _smoothing(
    source: int, target: int, align: bool, given: float | None, reach: int,
    weigh: Callable[[Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """The matrix of an antialiased resize along one axis, in double precision."""
    if align:
        scale = (source - 1) / (target - 1) if target > 1 else 0.0
    else:
        scale = 1 / given if given else source / target
    wide = max(scale, 1.0)
    center = scale * (torch.arange(target, dtype=torch.float64).unsqueeze(1) + 0.5)
    first = (center - reach * wide / 2 + 0.5).trunc().clamp(min=0)
    last = (center + reach * wide / 2 + 0.5).trunc().clamp(max=source)
    place = torch.arange(source, dtype=torch.float64)
    weights = weigh((place - center + 0.5) / wide)
    weights = torch.where((place >= first) & (place < last), weights, 0.0)
    return weights / weights.sum(1, keepdim=True)


def _resized(reach: int, weigh: Callable[[Tensor], Tensor]) -> Callable[..., object]:
    def decomposition(
        x: Tensor, size: Sequence[int], align: bool, high: float | None = None,
        wide: float | None = None,
    ) -> object:  # fmt: skip
        if not _static(x) or not x.is_floating_point() or 0 in size:
            return NotImplemented
        work = x if x.dtype in (torch.float32, torch.float64) else x.float()
        rows, columns = (
            _smoothing(s, t, align, g, reach, weigh).to(work.dtype)
            for s, t, g in zip(x.shape[-2:], size, (high, wide), strict=True)
        )
        out = (rows @ (work @ columns.mT)).to(x.dtype)
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return out.contiguous(memory_format=torch.channels_last) if last else out

    return decomposition


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, over_a: Sequence[int], over_b: Sequence[int],
    over_c: Sequence[int], dims: Sequence[int], unroll: int = 1,
) -> Tensor:  # fmt: skip
    work = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    factors = []
    for x, over in ((a, over_a), (b, over_b), (c, over_c)):
        for d in sorted(over):
            x = x.unsqueeze(d)
        factors.append(x.to(work))
    return (factors[0] * factors[1] * factors[2]).sum(list(dims)).to(a.dtype)


def _pdist(x: Tensor, p: float = 2.0) -> object:
    n = x.shape[0]
    if not _static(x) or not 1 < n <= 256:
        return NotImplemented
    i, j = torch.triu_indices(n, n, 1).unbind(0)
    return torch.linalg.vector_norm(x[i] - x[j], p, dim=1)


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload."""
    aten = torch.ops.aten
    return {
        aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        aten.grid_sampler_3d.default: _grid_sampler_3d,
        aten._upsample_bilinear2d_aa.default: _resized(2, _linear_filter),
        aten._upsample_bicubic2d_aa.default: _resized(4, _cubic_filter),
        aten._trilinear.default: _trilinear,
        aten._pdist_forward.default: _pdist,
    }
