"""Tensors as indices: x[key], index_put and assignments to slices.

In and out: tensors, with PyTorch's rules for keys. Negative indices count from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, ShapeError
from luminal.frontend.functional_core import add, lt, mul, where
from luminal.frontend.functional_index import _index, index_add, index_copy, take_blocks
from luminal.frontend.functional_shape import flip, movedim, reshape, select, slice_axis, unsqueeze
from luminal.frontend.tensor import (
    Tensor,
    TensorLike,
    broadcast,
    broadcast_dims,
    cast,
    common,
    fail,
    iota,
    scalar,
    tensor,
)
from luminal.ir.dtype import boolean, i64
from luminal.ir.expr import Expr, prod
from luminal.ir.view import View

__all__ = ["getitem", "index_put"]


def _split_key(x: Tensor, key: object) -> list[Any]:
    """The key as one entry per axis (and per new axis), without '...'."""
    parts = list(key) if isinstance(key, tuple) else [key]
    parts = [tensor(np.asarray(p)) if isinstance(p, list | np.ndarray) else p for p in parts]
    used = sum(
        p.ndim if isinstance(p, Tensor) and p.dtype == boolean else 1
        for p in parts
        if p is not None and p is not Ellipsis
    )
    if used > x.ndim or sum(isinstance(p, EllipsisType) for p in parts) > 1:
        text = f"too many indices. Got {used} for shape {list(x.shape)}."
        raise fail(ShapeError, "index", text)
    spot = next((n for n, p in enumerate(parts) if p is Ellipsis), len(parts))
    return [*parts[:spot], *[slice(None)] * (x.ndim - used), *parts[spot + 1 :]]


def _basic(x: Tensor, parts: list[Any]) -> tuple[Tensor, dict[int, Tensor]]:
    """x after ints, slices and None; and the tensors left, by axis of the result."""
    axis, left = 0, {}
    for part in parts:
        if part is None:
            x, axis = unsqueeze(x, axis), axis + 1
        elif isinstance(part, slice):
            x, axis = _sliced(x, axis, part), axis + 1
        elif isinstance(part, Tensor):
            if part.dtype == boolean:
                text = "a bool mask gives a size that depends on data. Try where or masked_fill."
                raise fail(ArgumentError, "index", text)
            left[axis], axis = part, axis + 1
        elif isinstance(part, int | np.integer | Expr) and not isinstance(part, bool):
            x = select(x, axis, part if isinstance(part, Expr) else int(part))
        else:
            raise fail(ArgumentError, "index", f"cannot index with {part!r}. Try ints or slices.")
    return x, left


def _sliced(x: Tensor, axis: int, part: slice) -> Tensor:
    step = 1 if part.step is None else part.step
    if step > 0:
        return slice_axis(x, axis, part.start, part.stop, step)
    size = x.dims[axis].value
    if size is None or step == 0:
        raise fail(ArgumentError, "index", f"Got step {step}; expected a positive one. Try flip.")
    found = range(*part.indices(size))
    back = flip(x, axis)
    return slice_axis(
        back, axis, size - 1 - found.start, size - found.stop - 1 if found else 0, -step
    )


def _wrapped(index: Tensor, size: Expr) -> Tensor:
    """Indices that may be negative, counted from 0."""
    if isinstance(index.source.value, int) and index.source.value >= 0:
        return index
    end = iota(size + 1, index.dtype).through(View((), (size + 1,), (size,)))
    end = scalar(size.value, index.dtype) if size.value is not None else end
    return where(lt(index, 0), add(index, end), index)


def _joined(x: Tensor, left: dict[int, Tensor]) -> tuple[Tensor, Tensor, int]:
    """x with the indexed axes merged into one, the flat index, and that axis's position."""
    axes = sorted(left)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    spot = axes[0] if together else 0
    dims = broadcast_dims("index", *(left[a].dims for a in axes))
    flat = scalar(0, i64)
    for a in axes:
        index = broadcast(_wrapped(_index("index", left[a]), x.dims[a]), dims)
        flat = index if len(axes) == 1 else add(mul(flat, _size(x.dims[a])), cast(index, i64))
    x = x if together else movedim(x, axes, list(range(len(axes))))
    merged = (*x.dims[:spot], prod(x.dims[spot : spot + len(axes)]), *x.dims[spot + len(axes) :])
    return reshape(x, *merged), flat, spot


def _size(size: Expr) -> Tensor:
    if size.value is not None:
        return scalar(size.value, i64)
    return iota(size + 1).through(View((), (size + 1,), (size,)))


def getitem(x: Tensor, key: object) -> Tensor:
    """x[key]: ints, slices, None, '...', lists and integer tensors, as in PyTorch."""
    x, left = _basic(x, _split_key(x, key))
    if not left:
        return x
    if len(left) == 1:
        ((axis, index),) = left.items()
        return take_blocks(x, axis, _wrapped(_index("index", index), x.dims[axis]))
    merged, flat, spot = _joined(x, left)
    return take_blocks(merged, spot, flat)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: TensorLike, accumulate: bool = False
) -> Tensor:
    """x with x[indices] = values (or += with `accumulate`); None keeps a whole axis."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == boolean:
        mask = indices[0]
        mask = reshape(mask, *mask.dims, *([1] * (x.ndim - mask.ndim)))
        (value,) = common("index_put", values, dtype=x.dtype)
        return where(mask, add(x, value) if accumulate else value, x)
    left = {a: t for a, t in enumerate(indices) if t is not None}
    axes = sorted(left)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    merged, flat, spot = _joined(x, left)
    dims = (*merged.dims[:spot], *flat.dims, *merged.dims[spot + 1 :])
    (value,) = common("index_put", values, dtype=x.dtype)
    value = broadcast(value, dims)
    count = prod(flat.dims)
    value = reshape(value, *merged.dims[:spot], count, *merged.dims[spot + 1 :])
    put = index_add if accumulate else index_copy
    done = put(merged, spot, reshape(flat, count), value)
    if together:
        return reshape(done, *x.dims)
    moved = [x.dims[a] for a in axes] + [d for a, d in enumerate(x.dims) if a not in left]
    return movedim(reshape(done, *moved), list(range(len(axes))), axes)
