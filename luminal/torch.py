"""`luminal.torch`: the backend of torch.compile, what became of each graph, and `verify`. Needs
PyTorch.

>>> import torch, luminal.torch
>>> double = torch.compile(lambda x: x * 2, backend="luminal")
>>> double(torch.ones(3)).tolist(), luminal.torch.reports()[-1].parts
([2.0, 2.0, 2.0], 1)
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from luminal.frontend.torch.backend import backend
from luminal.frontend.torch.reports import Report, clear, reports

__all__ = ["Report", "backend", "clear", "overloads", "reports", "verify"]


def overloads() -> list[str]:
    """The names of all operators that can be compiled."""
    return import_module("luminal.frontend.torch.aten").overloads()


def verify(
    model: Callable[..., object], inputs: Sequence[object], *, tolerance: float | None = None,
    folder: str | None = None, options: Mapping[str, object] | None = None,
) -> Any:  # fmt: skip
    """Finds the first kernel, in plan order, whose result differs from eager, or from the NumPy
    oracle where eager has no such value; None if there is none.

    Compiles `model` (which may already be the result of torch.compile), calls it once on `inputs`,
    and runs every kernel alone. A fault is printed and returned as a `luminal.checking.Fault`; its
    kernel or graph, as text, and its inputs are written to `folder` (a new temporary one by
    default). `tolerance` is relative to the largest value of a result; the usual one depends on
    the dtype.

    >>> import torch, luminal.torch
    >>> luminal.torch.verify(torch.nn.Linear(4, 3), [torch.ones(2, 4)]) is None
    True
    """
    found = import_module("luminal.frontend.torch.verify")
    return found.verify(model, inputs, tolerance, folder, options or {})
