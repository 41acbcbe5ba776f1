"""A U-Net and a recurrent network under torch.compile: eager's results and gradients."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import luminal.torch  # noqa: E402

OPTIONS = {"search": "off", "fallback": "silent"}


class Residual(nn.Module):
    """Convolutions with group norms and a shift for each time, as in diffusion models."""

    def __init__(self, cin, cout):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(2, cin), nn.GroupNorm(2, cout)])
        self.convs = nn.ModuleList([nn.Conv2d(c, cout, 3, padding=1) for c in (cin, cout)])
        self.time, self.skip = nn.Linear(8, cout), nn.Conv2d(cin, cout, 1)

    def forward(self, x, t):
        h = self.convs[0](F.silu(self.norms[0](x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.convs[1](F.silu(self.norms[1](h)))


class UNet(nn.Module):
    """One level down and up, attention in the middle, a skip connection."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down, self.up = Residual(8, 8), Residual(16, 8)
        self.shrink, self.widen = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, t):
        places = torch.arange(4) * 0.5
        t = torch.cat([torch.sin(t[:, None] * places), torch.cos(t[:, None] * places)], 1)
        kept = self.down(self.first(x), t)
        x = self.shrink(kept)
        rows = x.flatten(2).transpose(1, 2)
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        x = rows.transpose(1, 2).reshape(x.shape)
        x = self.widen(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(self.up(torch.cat([x, kept], 1), t))


class Recurrent(nn.Module):
    """Two layers in both directions."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 12), nn.Linear(20, 5)
        self.lstm = nn.LSTM(12, 10, 2, batch_first=True, bidirectional=True)

    def forward(self, ids):
        rows, (last, _) = self.lstm(self.words(ids))
        return F.log_softmax(self.head(rows), -1) * last.mean()


NETWORKS = {
    "unet": (UNet, lambda b, n: (torch.randn(b, 3, 4 * n, 8), torch.rand(b))),
    "lstm": (Recurrent, lambda b, n: (torch.randint(0, 50, (b, 2 * n)),)),
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    torch._dynamo.reset()
    luminal.torch.clear()
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    model = build().eval()
    run = torch.compile(model, backend=luminal.torch.backend, options=OPTIONS)
    for size in [(2, 3), (3, 4)]:
        given = inputs(*size)
        with torch.no_grad():
            torch.testing.assert_close(run(*given), model(*given), rtol=1e-4, atol=1e-4)

    def gradients(function):
        model.zero_grad()
        function(*given).square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    for got, want in zip(gradients(run), gradients(model), strict=True):
        assert (got - want).norm() <= 1e-3 * want.norm() + 1e-6
    assert not any(r.fallback for r in luminal.torch.reports())
