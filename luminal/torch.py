"""`luminal.torch`: the backend of torch.compile, and what became of each graph. Needs PyTorch.

>>> import luminal.torch
>>> luminal.torch.reports()
[]
"""

from luminal.frontend.torch.aten import overloads
from luminal.frontend.torch.backend import backend
from luminal.frontend.torch.reports import Report, clear, reports

__all__ = ["Report", "backend", "clear", "overloads", "reports"]
