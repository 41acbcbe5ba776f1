"""The ATen table: one small function an operator, in luminal tensors. Importing it fills it."""

from luminal.frontend.torch.aten import elementwise, index, linear, reduce, views
from luminal.frontend.torch.aten.table import Call, lookup, overloads

__all__ = ["Call", "elementwise", "index", "linear", "lookup", "overloads", "reduce", "views"]
