"""Weights: parameters that a compiled part may have repacked, and the check that they are current.

In: the parameters by name. Out: arrays over their memory for the compiler, and `stale`, asked at
each call: identity and address of all; version and sampled words of those that were repacked. The
samples find writes that no version counter sees (`.data.add_`, fused optimisers, NumPy); a write
to few elements through `.data` or NumPy may be missed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch

from luminal.frontend.torch.watch import Watch, sampled

__all__ = ["Weights"]

State = tuple[int, int, bytes]


class Weights:
    """The weights of one part; `names` in the order in which `stale` takes tensors."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], freeze: bool) -> None:
        self.names = list(tensors)
        self._freeze = freeze
        self._tensors: tuple[torch.Tensor, ...] = tuple(tensors.values())
        self._packed: frozenset[int] = frozenset()
        self._watch: Watch | None = None
        self._states: list[State] = []

    def arrays(self) -> dict[str, np.ndarray]:
        """The memory of each, in the order of its strides, not copied."""
        return {n: memory_view(t) for n, t in zip(self.names, self._tensors, strict=True)}

    def watch(self, packed: Collection[str]) -> None:
        """Remembers the state of now; `packed` are the names of those that were copied."""
        self._packed = frozenset(i for i, name in enumerate(self.names) if name in packed)
        self._remember()

    def _remember(self) -> None:
        self._watch = Watch.create(self._tensors, self._packed)
        self._states = self._look(self._tensors)

    def _look(self, tensors: tuple[torch.Tensor, ...]) -> list[State]:
        return [_state(t, i in self._packed) for i, t in enumerate(tensors)]

    def stale(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray] | None:
        """New arrays for the weights that are other tensors or hold other data than before."""
        if self._freeze or self._same(tensors):
            return None
        found = self._look(tensors)
        changed = [
            n
            for n, tensor in enumerate(tensors)
            if tensor is not self._tensors[n] or found[n] != self._states[n]
        ]
        self._tensors = tensors
        self._remember()
        return {self.names[n]: memory_view(tensors[n]) for n in changed}

    def _same(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        try:
            if tensors != self._tensors:  # compares identities first; unequal tensors raise
                return False
        except (RuntimeError, ValueError):
            return False
        if self._watch is not None:
            return self._watch.changed() < 0
        return self._look(tensors) == self._states


def _state(tensor: torch.Tensor, packed: bool) -> State:
    """(address, version, sampled words) of a tensor; the latter two only if it was copied."""
    if not packed:
        return tensor.data_ptr(), 0, b""
    first, step, number = sampled(tensor)
    flat = memory_view(tensor).reshape(-1).view(np.uint8)[: tensor.nbytes // 8 * 8]
    words = flat.view(np.uint64)[first // 8 :: max(1, step // 8)][:number]
    return tensor.data_ptr(), _version(tensor), words.tobytes()


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def memory_view(tensor: torch.Tensor) -> np.ndarray:
    """A dense tensor's memory as an array whose dimensions are in the order of its strides."""
    sizes, strides = tensor.shape, tensor.stride()
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] == 1))
    if tensor.is_contiguous():
        order = list(range(len(sizes)))
    plain = tensor.detach().permute(order)
    return plain.view(torch.uint16).numpy() if plain.dtype == torch.bfloat16 else plain.numpy()
