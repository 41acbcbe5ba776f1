"""Model files: GGUF and safetensors readers, and weights taken apart into planes.

In: paths. Out: metadata and tensors, still in their stored form. Must not know any model.
"""

from luminal.frontend.weights.gguf import GGUFFile, load_gguf, open_gguf
from luminal.frontend.weights.quant import Plane, Planes, QuantTensor
from luminal.frontend.weights.raw_array import RawArray
from luminal.frontend.weights.safetensors import load_safetensors

__all__ = [
    "GGUFFile",
    "Plane",
    "Planes",
    "QuantTensor",
    "RawArray",
    "load_gguf",
    "load_safetensors",
    "open_gguf",
]
