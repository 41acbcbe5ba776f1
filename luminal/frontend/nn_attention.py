"""Attention and transformer encoder layers, with PyTorch's arguments and parameter names.

In: sizes. Out: `Module`s. Batches come first or second, as `batch_first` says.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import inf, sqrt

from luminal.errors import ArgumentError
from luminal.frontend import functional as F
from luminal.frontend.nn import Module, ModuleList, Parameter, uniform
from luminal.frontend.nn_layers import Dropout, LayerNorm, Linear
from luminal.frontend.tensor import Tensor, fail
from luminal.ir.dtype import boolean

__all__ = ["MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"]

Activation = str | Callable[[Tensor], Tensor]


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask to add to scores; True in a bool mask hides a key."""
    if mask is None or mask.dtype != boolean:
        return mask
    return F.where(mask, -inf, F.zeros(dtype=like.dtype))


class MultiheadAttention(Module):
    """Attention with several heads; query, key and value are projected first."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim % num_heads:
            text = f"Got embed_dim={embed_dim}, num_heads={num_heads}; expected a multiple."
            raise fail(ArgumentError, "MultiheadAttention", text)
        self.num_heads, self.batch_first = num_heads, batch_first
        bound, kdim, vdim = sqrt(3 / embed_dim), kdim or embed_dim, vdim or embed_dim
        self.joint = kdim == vdim == embed_dim
        self.in_proj_weight: Parameter | None = None
        if self.joint:
            self.in_proj_weight = uniform(bound, 3 * embed_dim, embed_dim)
        else:
            self.q_proj_weight = uniform(bound, embed_dim, embed_dim)
            self.k_proj_weight = uniform(bound, embed_dim, kdim)
            self.v_proj_weight = uniform(bound, embed_dim, vdim)
        self.in_proj_bias = uniform(0.0, 3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)

    def _projected(self, inputs: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        """Query, key and value as [n, heads, length, width]."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        out = []
        for x, w, b in zip(inputs, weights, biases, strict=True):
            y = F.linear(x, w, b)
            out.append(F.transpose(F.unflatten(y, -1, (self.num_heads, -1)), 1, 2))
        return out

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The attended values and, if wanted, the weights. True in a bool mask hides a key."""
        batched = query.ndim == 3
        inputs = [query, key, value]
        if not batched:
            inputs = [F.unsqueeze(x, 0) for x in inputs]
        elif not self.batch_first:
            inputs = [F.transpose(x, 0, 1) for x in inputs]
        q, k, v = self._projected((inputs[0], inputs[1], inputs[2]))
        scores = F.matmul(q * (1.0 / sqrt(q.shape[-1])), k.mT)
        mask = _additive(attn_mask, scores)
        if mask is not None:
            mask = mask if mask.ndim < 3 else mask.reshape(-1, self.num_heads, *mask.shape[1:])
            scores = scores + mask
        hidden = _additive(key_padding_mask, scores)
        if hidden is not None:
            scores = scores + hidden.reshape(-1, 1, 1, hidden.shape[-1])
        weights = F.softmax(scores, -1)
        mixed = F.flatten(F.transpose(F.matmul(weights, v), 1, 2), 2)
        out = self.out_proj(mixed)
        shown = (F.mean(weights, 1) if average_attn_weights else weights) if need_weights else None
        if not batched:
            return F.squeeze(out, 0), None if shown is None else F.squeeze(shown, 0)
        return (out if self.batch_first else F.transpose(out, 0, 1)), shown


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if callable(activation):
        return activation
    if activation not in ("relu", "gelu"):
        raise fail(ArgumentError, "transformer", f"Got activation={activation!r}; try 'gelu'.")
    return getattr(F, activation)


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward block, each with a residual and a layer norm."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead, bias=bias, batch_first=batch_first)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm_first, self.activation = norm_first, _activation(activation)

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """src after one layer."""

        def attend(x: Tensor) -> Tensor:
            options = {"attn_mask": src_mask, "need_weights": False}
            return self.self_attn(x, x, x, key_padding_mask=src_key_padding_mask, **options)[0]

        def feed(x: Tensor) -> Tensor:
            return self.linear2(self.activation(self.linear1(x)))

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + feed(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + feed(x))


class TransformerEncoder(Module):
    """Several encoder layers, each with its own parameters."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([_copied(encoder_layer) for _ in range(num_layers)])
        self.norm = norm

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """src after all layers."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


def _copied(module: Module) -> Module:
    """A module with the same parameters whose parameters can be replaced on their own."""
    twin = copy(module)
    twin._buffers = dict(module._buffers)
    for name, child in module.children():
        object.__setattr__(twin, name, _copied(child))
    return twin
