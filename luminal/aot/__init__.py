"""Ahead of time: models exported to one file, loaded without a compiler, or built as a C library.

`export` writes a file, `load` opens it, `build` makes an object and a shared library of it. What
each needs is loaded on first use: opening a file needs NumPy alone.
"""

from importlib import import_module
from typing import Any

_PLACES = {"export": "exporting", "load": "loading", "Loaded": "loading", "build": "building"}
__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'luminal.aot' has no attribute {name!r}")
    value = getattr(import_module(f"luminal.aot.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
