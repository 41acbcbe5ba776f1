"""`luminal.torch`: the backend of torch.compile, and what became of each graph. Needs PyTorch.

>>> import luminal.torch
>>> luminal.torch.reports()
[]
"""

from importlib import import_module

from luminal.frontend.torch.backend import backend
from luminal.frontend.torch.reports import Report, clear, reports

__all__ = ["Report", "backend", "clear", "overloads", "reports"]


def overloads() -> list[str]:
    """The names of all operators that can be compiled."""
    return import_module("luminal.frontend.torch.aten").overloads()
