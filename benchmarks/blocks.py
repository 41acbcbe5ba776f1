"""The smaller workloads of the suite, in plain PyTorch with random weights: chains, an MLP,
attention, Llama layers in prefill and decode, a U-Net. `BLOCKS[name]() -> (model, inputs)`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import Built, LlamaBlock, rotate, settle
from torch import Tensor, nn


class Chain(nn.Module):
    """Elementwise work, a layer norm, elementwise work, a softmax."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.rand(width)), nn.LayerNorm(width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.silu(x * self.scale) + y.tanh() * 0.5
        return torch.softmax(F.gelu(self.norm(x)) + y, -1)


class Mlp(nn.Module):
    """Three linear layers with GELU between them."""

    def __init__(self, width: int = 1024, hidden: int = 4096) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class CausalAttention(nn.Module):
    """PyTorch's own operator on given heads."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _angles(first: int, count: int, half: int) -> tuple[Tensor, Tensor]:
    step = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(first, first + count)[:, None] * step
    both = torch.cat([angles, angles], -1)
    return both.cos(), both.sin()


class LlamaLayers(nn.Module):
    """Layers of a 1B-class Llama on hidden states: the prompt at once."""

    WIDTH, HEADS, KV_HEADS, HIDDEN = 2048, 32, 8, 5632

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        sizes = (self.WIDTH, self.HEADS, self.KV_HEADS, self.HIDDEN)
        self.blocks = nn.ModuleList(LlamaBlock(*sizes) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = _angles(0, x.shape[1], self.WIDTH // self.HEADS // 2)
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


class LlamaDecode(LlamaLayers):
    """The same layers on one token that attends to a cache of earlier keys and values."""

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        cos, sin = _angles(cache.shape[-2], 1, self.WIDTH // self.HEADS // 2)
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            x = _decode(block, x, keys, values, cos, sin)
        return x


def _decode(
    b: nn.Module, x: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    y = b.norm1(x)
    shape = (x.shape[0], x.shape[1], -1, b.size)
    q = rotate(b.q(y).view(shape).transpose(1, 2), cos, sin)
    k = torch.cat([keys, rotate(b.k(y).view(shape).transpose(1, 2), cos, sin)], -2)
    v = torch.cat([values, b.v(y).view(shape).transpose(1, 2)], -2)
    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    x = x + b.o(y.transpose(1, 2).reshape(x.shape))
    y = b.norm2(x)
    return x + b.down(F.silu(b.gate(y)) * b.up(y))


class Residual(nn.Module):
    """Two group-normed 3x3 convolutions around a shortcut."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.short = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return y + self.short(x)


class UNet(nn.Module):
    """A U-Net of three scales with skip connections, as image diffusion uses."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down, self.shrink, cin = nn.ModuleList(), nn.ModuleList(), widths[0]
        for width in widths:
            self.down.append(Residual(cin, width))
            self.shrink.append(nn.Conv2d(width, width, 3, 2, 1))
            cin = width
        self.middle, self.up = Residual(cin, cin), nn.ModuleList()
        for width in reversed(widths):
            self.up.append(Residual(cin + width, width))
            cin = width
        self.last = nn.Conv2d(cin, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.last(x)


def _heads(length: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, 8, length, 64) for _ in range(3))


def _llama_decode() -> Built:
    cache = torch.randn(4, 2, 1, LlamaLayers.KV_HEADS, 1023, 64)
    return settle(LlamaDecode()), (torch.randn(1, 1, LlamaLayers.WIDTH), cache)


BLOCKS: dict[str, Callable[[], Built]] = {
    "chain 1024x1024": lambda: (
        settle(Chain()), (torch.randn(1024, 1024), torch.randn(1024, 1024))
    ),
    "MLP batch 1": lambda: (settle(Mlp()), (torch.randn(1, 1024),)),
    "MLP batch 64": lambda: (settle(Mlp()), (torch.randn(64, 1024),)),
    "causal attention 2048": lambda: (settle(CausalAttention()), _heads(2048)),
    "Llama d=2048 x4 prefill 256": lambda: (settle(LlamaLayers()), (torch.randn(1, 256, 2048),)),
    "Llama d=2048 x4 decode 1024": _llama_decode,
    "U-Net 128": lambda: (settle(UNet()), (torch.randn(1, 3, 128, 128),)),
}  # fmt: skip
