"""Losses that PyTorch's decompositions compute wrongly, from elementary operators.

In: scores and labels. Out: the value that ATen's kernel gives, differentiable.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn._reduction import legacy_get_string

__all__ = ["multilabel_margin_loss"]


def multilabel_margin_loss(
    x: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The margins of all labels before the first -1 against all classes that are no label."""
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce)
    if x.shape != target.shape or not 0 < x.dim() <= 2 or not x.numel():
        return torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)
    classes = torch.arange(x.shape[-1], device=x.device)
    end = torch.where(target == -1, classes, x.shape[-1]).amin(-1, keepdim=True)
    counted = classes < end
    label = torch.where(counted, target, 0)
    is_label = (counted.unsqueeze(-1) & (label.unsqueeze(-1) == classes)).any(-2)
    margins = (1 - x.gather(-1, label).unsqueeze(-1) + x.unsqueeze(-2)).clamp_min(0)
    paired = counted.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    loss = torch.where(paired, margins, 0).sum((-2, -1)) / x.shape[-1]
    return {"none": torch.clone, "mean": torch.mean, "sum": torch.sum}[reduction](loss)
