"""Public readers of model files: `load_gguf`, `open_gguf` and `load_safetensors`.

In: paths. Out: metadata and arrays. Must hold no code of its own.
"""

from luminal.frontend.weights import (
    GGUFFile,
    Plane,
    Planes,
    QuantTensor,
    RawArray,
    load_gguf,
    load_safetensors,
    open_gguf,
)

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
