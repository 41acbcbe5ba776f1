"""The models of the benchmarks, in plain PyTorch with random weights: `SUITE[name]() -> (model,
inputs)`. The architectures follow their papers; ResNet-50 is the v1.5 variant (stride in the 3x3).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]


def convolution(cin: int, cout: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut."""

    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        cout = width * 4
        self.conv1, self.bn1 = convolution(cin, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, cout, 1), nn.BatchNorm2d(cout)
        self.shortcut = None
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(convolution(cin, cout, 1, stride), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + kept)


class ResNet(nn.Module):
    """A residual network of bottlenecks."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, cin = [], 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for i in range(depth):
                blocks.append(Bottleneck(cin, width, 2 if i == 0 and stage else 1))
                cin = width * 4
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(cin, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Inverted(nn.Module):
    """Expand, depthwise, project, with a shortcut where shapes allow."""

    def __init__(self, cin: int, cout: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = cin * factor
        layers: list[nn.Module] = []
        if factor != 1:
            layers += [convolution(cin, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6()]
        layers += [convolution(wide, wide, 3, stride, wide), nn.BatchNorm2d(wide), nn.ReLU6()]
        layers += [convolution(wide, cout, 1), nn.BatchNorm2d(cout)]
        self.layers, self.short = nn.Sequential(*layers), stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.short else self.layers(x)


class MobileNetV2(nn.Module):
    """Inverted residuals with linear bottlenecks, width 1.0."""

    TABLE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
             (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU6()]
        cin = 32
        for factor, cout, count, stride in self.TABLE:
            for i in range(count):
                layers.append(Inverted(cin, cout, stride if i == 0 else 1, factor))
                cin = cout
        layers += [convolution(cin, 1280, 1), nn.BatchNorm2d(1280), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class Attention(nn.Module):
    """Multi-head self-attention with one projection for query, key and value."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        parts = self.qkv(x).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, s, w))


class Block(nn.Module):
    """A pre-norm transformer block with a GELU feed-forward."""

    def __init__(self, width: int, heads: int, causal: bool = False, tanh: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = "tanh" if tanh else "none"

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class VisionTransformer(nn.Module):
    """ViT-B/16."""

    def __init__(
        self, image: int = 224, patch: int = 16, width: int = 768, depth: int = 12,
        heads: int = 12, classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class GPT2(nn.Module):
    """GPT-2's layout: learned positions, causal pre-norm blocks, tied head."""

    def __init__(
        self, width: int = 768, depth: int = 2, heads: int = 12, vocab: int = 8192,
        context: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, True, True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.norm(self.blocks(x)) @ self.tokens.weight.T


class RMSNorm(nn.Module):
    """Root-mean-square norm, written out as Llama does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, and a gated feed-forward."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, heads * self.size, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o = nn.Linear(heads * self.size, width, bias=False)
        self.gate, self.up = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
        )
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, s, _ = x.shape
        y = self.norm1(x)
        q = rotate(self.q(y).view(b, s, self.heads, self.size).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(b, s, self.kv, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, s, self.kv, self.size).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the half-split layout."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Llama(nn.Module):
    """A small Llama: embedding, blocks, norm, head."""

    def __init__(
        self, width: int = 768, depth: int = 2, heads: int = 12, kv_heads: int = 4,
        hidden: int = 2048, vocab: int = 8192,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, hidden) for _ in range(depth)
        )
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        step = torch.arange(half, dtype=torch.float32) / half
        self.register_buffer("frequencies", torch.exp(-math.log(10000.0) * step))

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * self.frequencies
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class Bert(nn.Module):
    """MiniLM-L6's layout: six post-norm layers of width 384, mean-pooled."""

    def __init__(
        self, width: int = 384, depth: int = 6, heads: int = 12, hidden: int = 1536,
        vocab: int = 30522,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, hidden) for _ in range(depth))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(x)
        keep = mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, keep)
        weights = mask[:, :, None].to(x.dtype)
        return F.normalize((x * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=-1)


class BertLayer(nn.Module):
    """One post-norm encoder layer."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (
            p(x).view(b, s, self.heads, w // self.heads).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = self.norm1(x + self.o(y.transpose(1, 2).reshape(b, s, w)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def _image(model: nn.Module, batch: int = 1) -> Built:
    return settle(model), (torch.randn(batch, 3, 224, 224),)


def settle(model: nn.Module) -> nn.Module:
    """Evaluation mode, with statistics of batch norm that are not trivial."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def _ids(model: nn.Module, vocab: int, length: int = 128) -> Built:
    return settle(model), (torch.randint(0, vocab, (1, length)),)


def minilm(batch: int = 1, length: int = 128) -> Built:
    """The encoder with a full mask."""
    ids = torch.randint(0, 30522, (batch, length))
    return settle(Bert()), (ids, torch.ones(batch, length, dtype=torch.int64))


SUITE: dict[str, Callable[[], Built]] = {
    "MiniLM-L6": minilm,
    "ResNet-50": lambda: _image(ResNet()),
    "MobileNetV2": lambda: _image(MobileNetV2()),
    "ViT-B/16": lambda: _image(VisionTransformer()),
    "GPT-2 x2": lambda: _ids(GPT2(), 8192),
    "Llama x2": lambda: _ids(Llama(), 8192),
}
