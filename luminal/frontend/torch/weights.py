"""Weights: parameters that a compiled part may have repacked, and the check that they are current.

In: the parameters by name. Out: arrays over their memory for the compiler, and `changed`, asked at
each call: identity, address, version, and sampled words of the data (which find most writes that
no version counter sees; a write to few elements through `.data` or NumPy may be missed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from luminal.frontend.torch.options import Options

__all__ = ["Weights"]

_SAMPLES = 16


class Weights:
    """The weights of one part; `names` in the order in which `changed` takes tensors."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], options: Options):
        self.names = list(tensors)
        self._tensors = tuple(tensors.values())
        self._freeze = options.freeze
        self._arrays: dict[str, np.ndarray] = {}
        self._samples: list[np.ndarray] = []
        self._state: list[tuple[int, int]] = []
        self._sums: list[bytes] = []
        self._read()

    def arrays(self) -> dict[str, np.ndarray]:
        """The memory of each, in the order of its strides, not copied."""
        return self._arrays

    def _read(self) -> None:
        self._arrays = {
            n: memory_view(t) for n, t in zip(self.names, self._tensors, strict=True)
        }
        self._samples = [_sample(a) for a in self._arrays.values()]
        self._state = [_state(t) for t in self._tensors]
        self._sums = [s.tobytes() for s in self._samples]

    def changed(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True if some weight is another tensor, or holds other data, than at the last call."""
        if self._freeze:
            return False
        same = all(map(_is, tensors, self._tensors))
        if same and self._state == [_state(t) for t in tensors]:
            if self._sums == [s.tobytes() for s in self._samples]:
                return False
        self._tensors = tuple(tensors)
        self._read()
        return True


def _is(a: object, b: object) -> bool:
    return a is b


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def memory_view(tensor: torch.Tensor) -> np.ndarray:
    """A dense tensor's memory as an array whose dimensions are in the order of its strides."""
    sizes, strides = tensor.shape, tensor.stride()
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] == 1))
    if tensor.is_contiguous():
        order = list(range(len(sizes)))
    plain = tensor.detach().permute(order)
    return plain.view(torch.uint16).numpy() if plain.dtype == torch.bfloat16 else plain.numpy()


def _sample(array: np.ndarray) -> np.ndarray:
    """A view of at most 16 elements, evenly spread."""
    flat = array.reshape(-1)
    step = max(1, flat.size // _SAMPLES)
    return flat[:: step][:_SAMPLES]
