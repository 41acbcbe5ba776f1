"""Values of lazy tensors: the hook through which a compiler computes them.

In: a realizer, installed once by the package (frontends do not import the compiler). Out:
`numpy`, `realize` and `item`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from luminal.errors import ArgumentError, InternalError
from luminal.frontend.tensor import Tensor, fail, tensor_from_bits, to_graph
from luminal.ir.dtype import bf16
from luminal.ir.graph import ConstantData, Graph

__all__ = ["item", "numpy", "realize", "set_realizer", "tolist"]

Realizer = Callable[[Graph], list[np.ndarray]]
_installed: list[Realizer] = []


def set_realizer(realizer: Realizer) -> None:
    """Installs the function that computes the outputs (bits of their dtypes) of a Graph."""
    _installed[:] = [realizer]


def _bits(x: Tensor) -> np.ndarray:
    data = x.source.value
    if isinstance(data, ConstantData) and x.index_map.is_identity:
        return data.array
    if not _installed:
        raise InternalError("[realize] no compiler is installed. Try `import luminal` first.")
    graph = to_graph([x])
    names = [n.name for n in graph.nodes if n.op == "Input"]
    if names or graph.dims:
        text = f"the value depends on inputs that are not known while tracing. Got inputs {names}."
        raise fail(ArgumentError, "numpy", text)
    return _installed[0](graph)[0]


def realize(x: Tensor) -> Tensor:
    """A constant tensor with the computed values."""
    return tensor_from_bits(_bits(x), x.dtype)


def numpy(x: Tensor) -> np.ndarray:
    """The computed values as an array; bf16 comes as float32."""
    bits = _bits(x)
    if x.dtype == bf16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits


def item(x: Tensor) -> float | int | bool:
    """The value of a one-element tensor."""
    if any(d.value != 1 for d in x.dims):
        raise fail(ArgumentError, "item", f"needs one element. Got shape {list(x.shape)}.")
    return numpy(x).reshape(()).item()


def tolist(x: Tensor) -> object:
    """The values as nested lists."""
    return numpy(x).tolist()
