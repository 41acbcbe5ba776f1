"""Rows whose every score is masked, by the lowest finite number or by -inf, in users' spellings."""

import pytest
import torch
import torch.nn.functional as F

import luminal.torch

LOWEST = torch.finfo(torch.float32).min


def scores(q, k, v, m):
    return (q @ k.transpose(-1, -2)) / 8


def shifted(s):
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


SPELLINGS = {
    "added": lambda q, k, v, m: (scores(q, k, v, m) + m).softmax(-1) @ v,
    "unscaled": lambda q, k, v, m: (q @ k.transpose(-1, -2) + m).softmax(-1) @ v,
    "sdpa": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
    "filled": lambda q, k, v, m: (
        scores(q, k, v, m).masked_fill(m < 0, m.min().item()).softmax(-1) @ v
    ),
    "kept_int": lambda q, k, v, m: (
        (scores(q, k, v, m) + (1 - (m == 0).long()) * LOWEST).softmax(-1) @ v
    ),
    "kept_float": lambda q, k, v, m: (
        (scores(q, k, v, m) + (1.0 - (m == 0).float()) * LOWEST).softmax(-1) @ v
    ),
    "whole_rows": lambda q, k, v, m: (scores(q, k, v, m) + m[:, :1]).softmax(-1) @ v,
    "by_hand": lambda q, k, v, m: shifted(scores(q, k, v, m) + m) @ v,
    "softmax": lambda q, k, v, m: (m + q[..., :1]).softmax(-1),
    "log_softmax": lambda q, k, v, m: (m + q[..., :1]).log_softmax(-1),
    "logsumexp": lambda q, k, v, m: (m + q[..., :1]).logsumexp(-1),
    "from_logsumexp": lambda q, k, v, m: (
        m + q[..., :1] - (m + q[..., :1]).logsumexp(-1, keepdim=True)
    ).exp(),
    "cross_entropy": lambda q, k, v, m: F.cross_entropy(
        m + q[0, 0, :, :1], torch.zeros(m.shape[0], dtype=torch.long), reduction="none"
    ),
    "powers_of_two": lambda q, k, v, m: torch.exp2(2 * (m + q[..., :1]).softmax(-1)),
}


@pytest.mark.parametrize("fill", [LOWEST, LOWEST / 2, float("-inf")], ids=["lowest", "half", "inf"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_wholly_masked_rows(name: str, fill: float) -> None:
    """Values and gradients are eager's: uniform for a finite number, NaN for -inf."""
    if name.startswith("kept") and fill == float("-inf"):
        pytest.skip("spelled with the lowest number")
    torch.manual_seed(0)
    run = torch.compile(SPELLINGS[name], backend=luminal.torch.backend, options={"search": "off"})
    for n in (5, 70):
        mask = torch.zeros(n, n)
        mask[:, n // 2 :] = fill
        mask[0] = fill
        qkv = [torch.randn(2, 3, n, 16) for _ in range(3)]
        found = []
        for f in (run, SPELLINGS[name]):
            inputs = [t.clone().requires_grad_() for t in qkv]
            out = f(*inputs, mask)
            out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape))
            found.append([out.detach(), *(t.grad for t in inputs)])
        for got, want in zip(*found, strict=True):
            if want is not None:
                torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5, equal_nan=True)


def online(x, chunks=2):
    """Softmax attention of x with itself, by hand, a block of keys at a time."""
    top = torch.full(x.shape[:1], float("-inf"), dtype=x.dtype)
    total, out = torch.zeros_like(top), torch.zeros_like(x)
    for s, v in zip((x @ x.T / 4).chunk(chunks, 1), x.chunk(chunks, 0), strict=True):
        raised = torch.maximum(top, s.amax(1))
        fall, e = (top - raised).exp(), (s - raised[:, None]).exp()
        total, out, top = total * fall + e.sum(1), out * fall[:, None] + e @ v, raised
    return out / total[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["online", "amax", "argmax"])
def test_what_is_compared_is_rounded(name: str, dtype: torch.dtype) -> None:
    """Where the largest score is looked for among scores, halves are rounded as where it is
    stored: none was found, and gradients of `amax` were NaN."""

    def amax(x):
        return (x @ x.T / 3).amax(1)

    def argmax(x):
        s = x @ x.T / 3
        return (s == s.amax(1, keepdim=True)).sum(1) + x[:, 0]

    f = {"online": online, "amax": amax, "argmax": argmax}[name]
    run = torch.compile(f, backend=luminal.torch.backend, options={"search": "off"})
    torch.manual_seed(0)
    data = torch.randn(33, 7, dtype=torch.float64).to(dtype)
    found = []
    for g in (run, f):
        x = data.clone().requires_grad_()
        out = g(x)
        out.float().sum().backward()
        found.append((out.detach().float(), x.grad.float()))
    near = 1e-5 if dtype == torch.float32 else 0.06
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=near, atol=near)
