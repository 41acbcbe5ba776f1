"""Weights: parameters that a compiled part may have repacked, and the check that they are current.

In: the parameters by name. Out: arrays over their memory for the compiler, and `changed`, asked at
each call: identity and address of all; version and sampled words of those that were repacked. The
samples find writes that no version counter sees (`.data.add_`, fused optimisers, NumPy); a write
to few elements through `.data` or NumPy may be missed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch

from luminal.frontend.torch.watch import Watch, sampled

__all__ = ["Weights"]

State = tuple[int, int, bytes]


class Weights:
    """The weights of one part; `names` in the order in which tensors are given. `changed(*tensors)`
    is -1 as long as they are the same tensors with the same data."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], freeze: bool) -> None:
        self.names = list(tensors)
        self._tensors: tuple[torch.Tensor, ...] = tuple(tensors.values())
        self._packed: frozenset[int] = frozenset()
        self._watch: Watch | None = None
        self._states: list[State] = []
        self.changed: Callable[..., int] = _never if freeze else self._compared

    def arrays(self) -> dict[str, np.ndarray]:
        """The memory of each, in the order of its strides, not copied."""
        return {n: memory_view(t) for n, t in zip(self.names, self._tensors, strict=True)}

    def watch(self, packed: Collection[str]) -> None:
        """Remembers the state of now; `packed` are the names of those that were copied."""
        self._packed = frozenset(i for i, name in enumerate(self.names) if name in packed)
        self._states = self._look(self._tensors)
        if self.names and self.changed is not _never:
            self._watch = Watch.create(self._tensors, self._packed)
            self.changed = self._watch.changed if self._watch is not None else self._compared

    def refresh(
        self, rebind: Callable[[dict[str, np.ndarray]], None], *tensors: torch.Tensor
    ) -> None:
        """Binds those weights that are other tensors or hold other data than before."""
        found = self._look(tensors)
        rebind({
            name: memory_view(tensor)
            for n, (name, tensor) in enumerate(zip(self.names, tensors, strict=True))
            if tensor is not self._tensors[n] or found[n] != self._states[n]
        })  # fmt: skip
        self._tensors, self._states = tensors, found
        if self._watch is not None:
            self._watch.remember(tensors, self._packed)

    def _look(self, tensors: tuple[torch.Tensor, ...]) -> list[State]:
        return [_state(t, i in self._packed) for i, t in enumerate(tensors)]

    def _compared(self, *tensors: torch.Tensor) -> int:
        same = all(map(operator.is_, tensors, self._tensors))
        return -1 if same and self._look(tensors) == self._states else 0


def _never(*_: torch.Tensor) -> int:
    return -1


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
