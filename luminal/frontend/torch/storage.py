"""Storage of large results: the first touch of fresh memory costs more than most kernels.

In: sizes and strides of a result. Out: a tensor over fresh storage, or over that of an earlier
result which nobody holds any more. Never shares storage that somebody can still see.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["CPU", "LARGE_BYTES", "Recycler", "allocator"]

CPU = torch.device("cpu")
LARGE_BYTES = 8 << 20
Allocator = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def allocator(device: torch.device = CPU) -> Allocator:
    """The fastest way to a fresh tensor that this version of PyTorch has."""
    found = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
    if found is not None and device == CPU:
        return found
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


class Recycler:
    """Allocates one result of a graph again and again."""

    def __init__(self) -> None:
        self._storage: torch.UntypedStorage | None = None
        self._fresh = allocator()
        self._count = getattr(torch._C, "_storage_Use_Count", None)

    def __call__(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor whose storage is its own."""
        storage, self._storage = self._storage, None  # taken out: safe with several threads
        needed = dtype.itemsize
        for extent in size:
            needed *= extent
        free = storage is not None and self._count is not None
        if free and storage.nbytes() == needed and self._count(storage._cdata) == 1:
            out = torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)
        else:
            out = self._fresh(size, stride, dtype)
        self._storage = out.untyped_storage()
        return out
