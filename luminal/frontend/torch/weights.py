"""Weights: parameters that a compiled part may have repacked, and the check that they are current.

In: the parameters by name. Out: arrays over their memory for the compiler, and `stale`, asked at
each call: identity and address of all; version and sampled words of those that were repacked. The
samples find writes that no version counter sees (`.data.add_`, fused optimisers, NumPy); a write
to few elements through `.data` or NumPy may be missed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping

import numpy as np
import torch

__all__ = ["Weights"]

_SAMPLES = 16
_WORDS = np.frombuffer((ctypes.c_uint64 * (1 << 44)).from_address(8), np.uint64)
"""All memory as words, the first of them at address 8: one call reads samples of all weights."""


class Weights:
    """The weights of one part; `names` in the order in which `stale` takes tensors."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], freeze: bool):
        self.names = list(tensors)
        self._freeze = freeze
        self._tensors: tuple[torch.Tensor, ...] = tuple(tensors.values())
        self._packed: list[int] = []
        self._places: list[int] = []
        self._versions: list[int] = []
        self._words = self._seen = np.empty(0, np.uint64)

    def arrays(self) -> dict[str, np.ndarray]:
        """The memory of each, in the order of its strides, not copied."""
        return {n: memory_view(t) for n, t in zip(self.names, self._tensors, strict=True)}

    def watch(self, packed: Collection[str]) -> None:
        """Remembers the state of now; `packed` are the names of those that were copied."""
        self._packed = [i for i, name in enumerate(self.names) if name in packed]
        self._remember()

    def _remember(self) -> None:
        self._places = [t.data_ptr() for t in self._tensors]
        copied = [self._tensors[i] for i in self._packed]
        self._versions = [_version(t) for t in copied]
        samples = [_samples(t) for t in copied]
        self._words = np.concatenate(samples) if samples else np.empty(0, np.intp)
        self._seen = _WORDS.take(self._words)

    def stale(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray] | None:
        """New arrays for the weights that are other tensors or hold other data than before."""
        if self._freeze or self._same(tensors):
            return None
        old = list(zip(self._tensors, self._places, strict=True))
        changed = self._changed_data()
        for number, (tensor, (known, place)) in enumerate(zip(tensors, old, strict=True)):
            if tensor is not known or tensor.data_ptr() != place:
                changed.add(number)
        self._tensors = tensors
        self._remember()
        return {self.names[n]: memory_view(tensors[n]) for n in sorted(changed)}

    def _same(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        try:
            if tensors != self._tensors:  # compares identities first; unequal tensors raise
                return False
        except (RuntimeError, ValueError):
            return False
        if self._places != [t.data_ptr() for t in tensors]:
            return False
        if self._versions != [_version(tensors[i]) for i in self._packed]:
            return False
        return bool((_WORDS.take(self._words) == self._seen).all())

    def _changed_data(self) -> set[int]:
        """The repacked weights whose version or samples differ, as far as they are where they were."""
        changed, start = set(), 0
        for position, number in enumerate(self._packed):
            tensor = self._tensors[number]
            words = _samples(tensor)
            seen = self._seen[start : start + words.size]
            start += words.size
            moved = tensor.data_ptr() != self._places[number]
            if moved or _version(tensor) != self._versions[position]:
                changed.add(number)
            elif not np.array_equal(_WORDS.take(words), seen):
                changed.add(number)
        return changed


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _samples(tensor: torch.Tensor) -> np.ndarray:
    """Numbers of at most 16 words of memory, evenly spread over a dense tensor."""
    first = -(-tensor.data_ptr() // 8) - 1
    count = (tensor.data_ptr() + tensor.nbytes) // 8 - 1 - first
    return first + np.arange(0, max(count, 0), max(1, count // _SAMPLES), np.intp)[:_SAMPLES]


def memory_view(tensor: torch.Tensor) -> np.ndarray:
    """A dense tensor's memory as an array whose dimensions are in the order of its strides."""
    sizes, strides = tensor.shape, tensor.stride()
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] == 1))
    if tensor.is_contiguous():
        order = list(range(len(sizes)))
    plain = tensor.detach().permute(order)
    return plain.view(torch.uint16).numpy() if plain.dtype == torch.bfloat16 else plain.numpy()

