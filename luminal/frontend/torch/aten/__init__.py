"""The ATen table: one small function an operator, in luminal tensors. Importing it fills it."""

from luminal.frontend.torch.aten import (
    backward,
    bits,
    elementwise,
    index,
    linear,
    reduce,
    scatter,
    views,
)
from luminal.frontend.torch.aten.table import Call, lookup, overloads

__all__ = [
    "Call", "backward", "bits", "elementwise", "index", "linear", "lookup", "overloads", "reduce",
    "scatter", "views",
]  # fmt: skip
