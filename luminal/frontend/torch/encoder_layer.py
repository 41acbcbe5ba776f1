"""PyTorch's fused encoder layer, called by `nn.TransformerEncoderLayer.eval()`, in plain operators.

In: the arguments of `aten._transformer_encoder_layer_fwd` (dense tensors). Out: its result, traced
by AOTAutograd. Without this the whole layer would run in eager.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["encoder_layer"]


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Self-attention and a feed-forward block on src [batch, length, embed_dim]."""

    def attend(x: Tensor) -> Tensor:
        batch, length, width = x.shape
        rows = F.linear(x, qkv_weight, qkv_bias)
        heads = rows.reshape(batch, length, 3, num_heads, width // num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (width // num_heads) ** -0.5) @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(_hidden(mask, mask_type), float("-inf"))
        mixed = torch.softmax(scores, -1) @ v
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, width), proj_weight, proj_bias)

    def feed(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed(x))


def _hidden(mask: Tensor, mask_type: int | None) -> Tensor:
    """True where a score is masked: type 0 is [length, length], 1 [batch, length], 2 complete."""
    hidden = mask.to(torch.bool)
    return hidden[:, None, None, :] if mask_type == 1 else hidden
