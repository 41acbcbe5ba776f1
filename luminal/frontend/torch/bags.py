"""Segments, bags and masks as decompositions: sums over parts of an axis, places of true elements.

In: tensors of static sizes. Out: ATen's results; each part is compared with each place, hence a
limit on the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["table"]

MOST_PAIRS = 1 << 22
LONGEST_SCAN = 4096
_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}


def _static(*tensors: Tensor | None) -> bool:
    return all(isinstance(n, int) for t in tensors if t is not None for n in t.shape)


def _segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False,
    initial: float | None = None,
) -> object:  # fmt: skip
    given = lengths if lengths is not None else offsets
    if given is None or indices is not None or not _static(data, given) or not data.numel():
        return NotImplemented
    if not data.is_floating_point() or given.numel() * data.numel() > MOST_PAIRS:
        return NotImplemented
    if lengths is not None:
        ends = lengths.cumsum(-1)
        starts = ends - lengths
        if not unsafe:
            whole = (lengths >= 0).all() & (ends[..., -1] == data.shape[axis]).all()
            text = "segment_reduce(): Expected all rows of lengths along axis to sum to data.size"
            torch.ops.aten._assert_async.msg(whole, text)
    else:
        starts, ends = given[..., :-1], given[..., 1:]
    place = torch.arange(data.shape[axis])
    hits = (place >= starts.unsqueeze(-1)) & (place < ends.unsqueeze(-1))
    rest = [1] * (data.ndim - axis - 1)
    hits = hits.reshape(*hits.shape, *rest)
    out = _combined(data.unsqueeze(axis), hits, reduce, axis + 1, initial)
    if reduce == "mean":
        count = hits.sum(axis + 1)
        out = torch.where(count > 0, out / count, out if initial is not None else torch.nan)
    return out.to(data.dtype)


def _combined(x: Tensor, hits: Tensor, reduce: str, dim: int, initial: float | None) -> Tensor:
    start = _START[reduce] if initial is None else initial
    parts = torch.where(hits, x, _START[reduce])
    match reduce:
        case "max":
            out = parts.amax(dim)
            return out if initial is None else out.clamp(min=start)
        case "min":
            out = parts.amin(dim)
            return out if initial is None else out.clamp(max=start)
        case "prod":
            return parts.prod(dim) * start
        case _:
            return parts.sum(dim) + start


def _embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    touched = torch.zeros(weight.shape[0], dtype=torch.bool)
    touched = touched.index_put([indices.flatten()], torch.ones((), dtype=torch.bool))
    size = torch.linalg.vector_norm(weight, norm_type, dim=1)
    smaller = weight * (max_norm / (size + 1e-7)).unsqueeze(1).to(weight.dtype)
    return torch.where((touched & (size > max_norm)).unsqueeze(1), smaller, weight)


def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> object:
    count = x.numel()
    if not _static(x) or not x.ndim or not isinstance(size, int) or not size:
        return NotImplemented
    if not count:
        return torch.full((size, x.ndim), fill_value)
    if count > LONGEST_SCAN or count * size > MOST_PAIRS:
        return NotImplemented
    seen = (x != 0).flatten().cumsum(0)
    rank = torch.arange(size)
    flat = (seen.unsqueeze(0) <= rank.unsqueeze(1)).sum(1)
    columns = []
    for d in reversed(range(x.ndim)):
        columns.append(flat % x.shape[d])
        flat = flat // x.shape[d]
    places = torch.stack(columns[::-1], 1)
    return torch.where((rank < seen[-1]).unsqueeze(1), places, fill_value)


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload."""
    aten = torch.ops.aten
    return {
        aten.segment_reduce.default: _segment_reduce,
        aten.embedding_renorm.default: _embedding_renorm,
        aten.nonzero_static.default: _nonzero_static,
    }
