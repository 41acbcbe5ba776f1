"""Grouped matrix products, as mixtures of experts in transformers use them, as decompositions.

In: rows sorted by expert, a matrix for each expert, where each expert's rows end. Out: products in
which a row's matrix is an index into all of them. Many rows for each expert stay with eager, where
one product for each expert reads its matrix once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["product", "table"]

_ROWS_PER_EXPERT = 16


def _traced(size: int | torch.SymInt) -> int:
    """The size that was traced, without a guard on it."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """(row, k) and (expert, k, n) to (row, n); 0 for the rows after the last expert's end.

    NotImplemented where there are many rows for each expert.
    """
    experts = matrices.shape[0]
    if _traced(rows.shape[0]) > _ROWS_PER_EXPERT * _traced(experts):
        return NotImplemented
    places = torch.arange(rows.shape[0], device=rows.device)
    expert = (places[:, None] >= ends[None]).sum(1)
    picked = matrices.index_select(0, expert.clamp(max=experts - 1))
    products = torch.bmm(rows[:, None], picked)[:, 0]
    return products.masked_fill((expert >= experts)[:, None], 0)


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload: of operators that are registered by now."""
    packet = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return {} if packet is None else {packet.default: product}
