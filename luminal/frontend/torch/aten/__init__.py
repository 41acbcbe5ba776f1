"""The ATen table: one small function an operator, in luminal tensors. Importing it fills it."""

from luminal.frontend.torch.aten import (
    backward,
    bags,
    bits,
    elementwise,
    index,
    linear,
    numbers,
    order,
    reduce,
    scatter,
    views,
)
from luminal.frontend.torch.aten.table import Call, lookup, overloads

__all__ = [
    "Call", "backward", "bags", "bits", "elementwise", "index", "linear", "lookup", "numbers",
    "order", "overloads", "reduce", "scatter", "views",
]  # fmt: skip
