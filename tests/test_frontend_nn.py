"""Modules against PyTorch's, through state dicts."""

import numpy as np
import pytest
import torch

import luminal
from luminal import nn
from luminal.errors import ArgumentError, ShapeError
from tests.frontend_harness import check

torch.manual_seed(4)
T = torch.nn
IMAGE, VECTOR, SEQUENCE = torch.randn(2, 4, 6, 5), torch.randn(3, 8), torch.randn(2, 5, 8)
CASES = {
    "Linear": ((8, 3), {}, VECTOR),
    "Linear no bias": ((8, 3), dict(bias=False), SEQUENCE),
    "Conv2d": ((4, 6, 3), dict(padding=1, stride=2), IMAGE),
    "Conv2d reflect": ((4, 6, 3), dict(padding=1, padding_mode="reflect"), IMAGE),
    "Conv2d groups": ((4, 8, (3, 1)), dict(groups=2, padding="same"), IMAGE),
    "Conv1d": ((5, 6, 3), dict(dilation=2), SEQUENCE),
    "Conv3d": ((1, 2, 2), {}, torch.randn(1, 1, 3, 4, 5)),
    "ConvTranspose2d": ((4, 6, 3), dict(stride=2, padding=1, output_padding=1), IMAGE),
    "ConvTranspose1d": ((5, 2, 2), {}, SEQUENCE),
    "BatchNorm2d": ((4,), {}, IMAGE),
    "BatchNorm1d": ((8,), {}, VECTOR),
    "LayerNorm": ((8,), {}, SEQUENCE),
    "LayerNorm 2": (((5, 8),), {}, SEQUENCE),
    "RMSNorm": ((8,), dict(eps=1e-6), SEQUENCE),
    "GroupNorm": ((2, 4), {}, IMAGE),
    "InstanceNorm2d": ((4,), dict(affine=True), IMAGE),
    "Embedding": ((9, 4), {}, torch.tensor([[1, 0], [8, 3]])),
    "PReLU": ((4,), {}, IMAGE),
    "Dropout": ((0.5,), {}, VECTOR),
    "Identity": ((), {}, VECTOR),
    "MaxPool2d": ((2,), dict(stride=1), IMAGE),
    "MaxPool2d pad": ((3, 2, 1), {}, IMAGE),
    "AvgPool2d": ((3, 2, 1), {}, IMAGE),
    "AdaptiveAvgPool2d": ((1,), {}, IMAGE),
    "ReLU": ((True,), {}, VECTOR),
    "GELU": ((), dict(approximate="tanh"), VECTOR),
    "Softmax": ((1,), {}, VECTOR),
    "LeakyReLU": ((0.2,), {}, VECTOR),
    "Flatten": ((), {}, IMAGE),
    "Unflatten": ((1, (2, 4)), {}, VECTOR),
    "Upsample": ((), dict(scale_factor=2), IMAGE),
    "ZeroPad2d": (((1, 0, 2, 1),), {}, IMAGE),
    "SiLU": ((), {}, VECTOR),
    "Hardswish": ((), {}, VECTOR),
    "LSTM": ((8, 3), {}, SEQUENCE),
    "LSTM big": ((8, 3, 2), dict(bidirectional=True, batch_first=True), SEQUENCE),
    "GRU": ((8, 3), dict(batch_first=True), SEQUENCE),
    "RNN": ((8, 3), dict(nonlinearity="relu"), SEQUENCE[:, 0]),
    "PixelShuffle": ((2,), {}, IMAGE),
    "TransformerEncoderLayer": ((8, 2, 16), dict(batch_first=True), SEQUENCE),
    "TransformerEncoderLayer pre": ((8, 2, 16), dict(norm_first=True, activation="gelu"), SEQUENCE),
}


def flat(out):
    if isinstance(out, tuple):
        return [t for part in out for t in (flat(part) if isinstance(part, tuple) else [part])]
    return out


@pytest.mark.parametrize("name", CASES)
def test_module(name):
    args, options, x = CASES[name]
    kind = name.split()[0]
    theirs, ours = getattr(T, kind)(*args, **options).eval(), getattr(nn, kind)(*args, **options)
    for p in [*theirs.parameters(), *theirs.buffers()]:
        if p.is_floating_point():
            p.data = torch.rand_like(p) + 0.1
    assert {k for k in theirs.state_dict() if "num_batches" not in k} == set(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    check(lambda x: flat(ours(x)), lambda x: flat(theirs(x)), x)


@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention(batch_first):
    theirs = T.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    ours = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    ours.load_state_dict(theirs.state_dict())
    x = SEQUENCE
    check(lambda x: ours(x, x, x), lambda x: theirs(x, x, x), x)
    check(
        lambda x: ours(x, x, x, average_attn_weights=False),
        lambda x: theirs(x, x, x, average_attn_weights=False),
        x,
    )
    n, length = (2, 5) if batch_first else (5, 2)
    hide = torch.zeros(n, length, dtype=torch.bool)
    hide[:, -1] = True
    causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    check(
        lambda x, h, c: ours(x, x, x, h, attn_mask=c)[0],
        lambda x, h, c: theirs(x, x, x, h, attn_mask=c)[0],
        x,
        hide,
        causal,
    )
    other = T.MultiheadAttention(8, 2, kdim=4, vdim=6, bias=False).eval()
    mine = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, bias=False)
    mine.load_state_dict(other.state_dict())
    check(mine, other, torch.randn(5, 8), torch.randn(3, 4), torch.randn(3, 6))


def test_encoder_and_containers():
    theirs = T.TransformerEncoder(
        T.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, T.LayerNorm(8)
    ).eval()
    ours = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, nn.LayerNorm(8)
    )
    for p in theirs.parameters():
        p.data = torch.randn_like(p)
    ours.load_state_dict(theirs.state_dict())
    check(ours, theirs, SEQUENCE, rtol=1e-4, atol=1e-4)
    a = T.Sequential(T.Linear(8, 4), T.ReLU(), T.Sequential(T.Linear(4, 2)))
    b = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2)))
    b.load_state_dict({k: v.numpy() for k, v in a.state_dict().items()})
    check(b, a, VECTOR)
    check(b[:1], a[:1], VECTOR)
    assert [k for k, _ in b.named_parameters()] == [k for k, _ in a.named_parameters()]
    assert len(b) == 3 and isinstance(b[0], nn.Linear) and "(0): Linear" in repr(b)


def test_own_module_and_errors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
            self.scale = nn.Parameter(np.ones(4, np.float32))
            self.register_buffer("offset", np.zeros(4, np.float32))
            self.heads = nn.ModuleDict({"a": nn.Identity()})

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return self.heads["a"](x * self.scale + self.offset)

    net = Net()
    names = {
        "blocks.0.weight",
        "blocks.0.bias",
        "blocks.1.weight",
        "blocks.1.bias",
        "scale",
        "offset",
    }
    assert set(net.state_dict()) == names and len(list(net.parameters())) == 5
    state = dict(net.state_dict())
    with pytest.raises(ArgumentError, match=r"Missing: \['scale'\]; unknown: \['extra'\]"):
        net.load_state_dict(
            {k: v for k, v in state.items() if k != "scale"} | {"extra": np.ones(1)}
        )
    with pytest.raises(ShapeError, match=r"scale does not fit. Got \[3\]; expected \[4\]"):
        net.load_state_dict(state | {"scale": np.ones(3)})
    net.load_state_dict({"scale": np.full(4, 2.0)}, strict=False)
    assert net.scale.dtype.name == "f32" and net.scale.numpy().tolist() == [2.0] * 4
    assert net.to("bf16").scale.dtype.name == "bf16"
    net.load_state_dict({"scale": torch.full((4,), 1.5, dtype=torch.bfloat16)}, strict=False)
    assert net.scale.numpy().tolist() == [1.5] * 4
    assert luminal.nn.Linear is nn.Linear
