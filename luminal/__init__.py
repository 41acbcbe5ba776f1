"""luminal: a search-based inference compiler.

`luminal.compile(fn, example_inputs)` compiles a function of lazy tensors; `torch.compile(model,
backend="luminal")` a PyTorch model; `luminal.llm.load(path)` opens a GGUF language model. Names are
loaded on first use, so that importing the package costs next to nothing."""

from importlib import import_module
from typing import Any

from luminal.errors import LuminalError

__version__ = "0.1.0"
_PLACES = {
    "compile": ("luminal.function", "compile_function"),
    **{name: ("luminal.aot", name) for name in ("build", "export", "load")},
    "explain": ("luminal.explanation", "explain"),
    "Dim": ("luminal.frontend.traced", "Dim"),
    "Function": ("luminal.function", "Function"),
    "InputSpec": ("luminal.frontend.traced", "InputSpec"),
    "Config": ("luminal.config", "Config"),
    "Tensor": ("luminal.frontend.functional", "Tensor"),
    "tensor": ("luminal.frontend.functional", "tensor"),
    "update": ("luminal.frontend.functional", "update"),
    **{name: ("luminal.ir.dtype", name) for name in
       ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8")},
    "bool_": ("luminal.ir.dtype", "boolean"),
}  # fmt: skip
_MODULES = ("aot", "compiler", "config", "errors", "llm", "nn", "torch", "weights")
__all__ = ["LuminalError", "__version__", *_PLACES, *_MODULES]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use; functions of the tensor API are found here too."""
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _MODULES:
        return import_module(f"luminal.{name}")
    module, attribute = _PLACES.get(name, ("luminal.frontend.functional", name))
    try:
        value = getattr(import_module(module), attribute)
    except AttributeError:
        raise AttributeError(f"module 'luminal' has no attribute {name!r}") from None
    if not module.startswith(("luminal.ir.dtype", "luminal.aot")):
        import_module("luminal.frontend.evaluate").set_realizer(_realize)
    globals()[name] = value
    return value


def _realize(graph: Any) -> Any:
    return import_module("luminal.function").realize_graph(graph)
