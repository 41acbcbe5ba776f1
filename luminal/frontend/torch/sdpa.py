"""Scaled-dot-product attention as a pair of decompositions: forward with log-sum-exp, backward.

In: the arguments of ATen's CPU flash operators. Out: the same results from elementary operators.
PyTorch's own decomposition returns the wrong second result and so gives wrong gradients.
Grouped heads, masks (bool or additive), causal masks, rows that are masked altogether; the output
has the query's order of strides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["backward", "forward"]

_NO_KEY = float("-inf")


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _groups(q: Tensor, k: Tensor) -> int:
    return q.shape[-3] // k.shape[-3]


def _repeat(x: Tensor, groups: int) -> Tensor:
    if groups == 1:
        return x
    b, h, s, d = x.shape
    spread = x.unsqueeze(2).expand(b, h, groups, s, d)
    return spread.clone(memory_format=torch.contiguous_format).view(b, h * groups, s, d)


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    s = torch.matmul(q, k.transpose(-1, -2)) * scale
    if causal:
        row = torch.arange(q.shape[-2], device=q.device).unsqueeze(-1)
        column = torch.arange(k.shape[-2], device=q.device)
        s = torch.where(column <= row, s, _NO_KEY)
    if mask is not None:
        s = torch.where(mask, s, _NO_KEY) if mask.dtype == torch.bool else s + mask
    return s


def _scale(q: Tensor, scale: float | None) -> float:
    return scale if scale is not None else 1 / math.sqrt(q.shape[-1])


def _like_query(out: Tensor, q: Tensor) -> Tensor:
    """`out` with dense strides in the order of the query's: ATen's kernels preserve it."""
    if q.stride(-3) < q.stride(-2):
        plain = torch.contiguous_format  # not `contiguous`, which leaves the strides of size 1
        return out.transpose(1, 2).clone(memory_format=plain).transpose(1, 2)
    return out


def forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, log-sum-exp of the scores), as `_scaled_dot_product_flash_attention_for_cpu`."""
    if dropout_p:
        return NotImplemented
    groups = _groups(q, k)
    keys, values = _repeat(_wide(k), groups), _repeat(_wide(v), groups)
    s = _scores(_wide(q), keys, is_causal, attn_mask, _scale(q, scale))
    top = s.amax(-1, keepdim=True)
    top = torch.where(top == _NO_KEY, 0.0, top)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    out = torch.matmul(e, values) / torch.where(total == 0, 1.0, total)
    return _like_query(out.to(q.dtype), q), (torch.log(total) + top).squeeze(-1)


def backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor,
    dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value from the saved log-sum-exp."""
    groups, factor = _groups(q, k), _scale(q, scale)
    query, g = _wide(q), _wide(grad_out)
    keys, values = _repeat(_wide(k), groups), _repeat(_wide(v), groups)
    lse = logsumexp.unsqueeze(-1)
    lse = torch.where(lse == _NO_KEY, 0.0, lse)
    p = torch.exp(_scores(query, keys, is_causal, attn_mask, factor) - lse)
    dv = torch.matmul(p.transpose(-1, -2), g)
    dp = torch.matmul(g, values.transpose(-1, -2))
    ds = p * (dp - (g * _wide(out)).sum(-1, keepdim=True)) * factor
    dq, dk = torch.matmul(ds, keys), torch.matmul(ds.transpose(-1, -2), query)
    return (
        _like_query(dq.to(q.dtype), q),
        _like_query(_fold(dk, groups).to(k.dtype), k),
        _like_query(_fold(dv, groups).to(v.dtype), v),
    )


def _fold(x: Tensor, groups: int) -> Tensor:
    if groups == 1:
        return x
    b, h, s, d = x.shape
    return x.reshape(b, h // groups, groups, s, d).sum(2)
