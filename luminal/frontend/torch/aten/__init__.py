"""The ATen table: one small function an operator, in luminal tensors. Importing it fills it."""

from luminal.frontend.torch.aten import (
    backward,
    bags,
    bits,
    elementwise,
    fourier,
    index,
    linear,
    numbers,
    order,
    pairs,
    reduce,
    scatter,
    views,
)
from luminal.frontend.torch.aten.table import Call, Pair, lookup, overloads, relabelled

__all__ = [
    "Call", "Pair", "backward", "bags", "bits", "elementwise", "fourier", "index", "linear",
    "lookup", "numbers", "order", "overloads", "pairs", "reduce", "relabelled", "scatter", "views",
]  # fmt: skip
