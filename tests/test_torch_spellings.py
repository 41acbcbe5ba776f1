"""Structure is found in the spellings that users of PyTorch write: one kernel each, and eager's
numbers. Norms fused with the product that follows, gated products, log-sum-exp and cross entropy,
weights that are decoded inside a product, running sums. (Attention: test_extract_attention.py.)
"""

import math

import pytest
import torch
import torch.nn.functional as F

import luminal.torch

torch.manual_seed(0)
X = torch.randn(2, 16, 64)
W = torch.randn(128, 64)
B = torch.randn(128)
G = torch.randn(64)
GB = torch.randn(64)
W2 = torch.randn(128, 64)
NORM = {
    "layer_norm linear": lambda: F.linear(F.layer_norm(X, (64,), G, GB), W, B),
    "written mean var": lambda: (
        (
            (
                (X - X.mean(-1, keepdim=True))
                / torch.sqrt(X.var(-1, keepdim=True, unbiased=False) + 1e-5)
            )
            * G
            + GB
        )
        @ W.T
    ),
    "var_mean": lambda: (lambda v, m: ((X - m) * torch.rsqrt(v + 1e-5) * G) @ W.T)(
        *torch.var_mean(X, -1, unbiased=False, keepdim=True)
    ),
    "rms pow mean": lambda: (G * (X * torch.rsqrt(X.pow(2).mean(-1, keepdim=True) + 1e-6))) @ W.T,
    "rms x*x": lambda: F.linear(X / torch.sqrt((X * X).mean(-1, keepdim=True) + 1e-6) * G, W),
    "rms norm": lambda: F.linear(
        X * math.sqrt(64) / torch.linalg.vector_norm(X, dim=-1, keepdim=True), W
    ),
    "F.rms_norm": lambda: F.rms_norm(X, (64,), G) @ W.T,
    "F.normalize": lambda: F.linear(F.normalize(X, dim=-1), W),
    "einsum rms": lambda: torch.einsum(
        "bsd,nd->bsn", X * torch.rsqrt(torch.einsum("bsd,bsd->bs", X, X) / 64 + 1e-6)[..., None], W
    ),
    "sq diff": lambda: (
        lambda m: ((X - m) / ((X - m).square().mean(-1, keepdim=True) + 1e-5).sqrt()) @ W.T
    )(X.mean(-1, keepdim=True)),
    "rms float": lambda: (
        ((X.float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * X.float()).type_as(X)
        @ (W * G).T
    ),
    "sum/64": lambda: (
        lambda m: ((X - m) * (((X - m) ** 2).sum(-1, keepdim=True) / 64 + 1e-5) ** -0.5) @ W.T
    )(X.sum(-1, keepdim=True) / 64),
}
GATE = {
    "swiglu": lambda: F.silu(X @ W.T) * (X @ W2.T),
    "swiglu sigm": lambda: (lambda a: a * torch.sigmoid(a))(X @ W.T) * (X @ W2.T),
    "swiglu exp": lambda: (X @ W.T) / (1 + torch.exp(-(X @ W.T))) * (X @ W2.T),
    "geglu": lambda: F.gelu(X @ W.T) * (X @ W2.T),
    "geglu tanh": lambda: F.gelu(X @ W.T, approximate="tanh") * (X @ W2.T),
    "glu": lambda: F.glu(torch.cat([X @ W.T, X @ W2.T], -1), -1),
    "reglu": lambda: F.relu(X @ W.T) * (X @ W2.T),
    "chunk": lambda: (lambda a, c: F.silu(a) * c)(*F.linear(X, torch.cat([W, W2])).chunk(2, -1)),
    "einsum": lambda: (
        F.silu(torch.einsum("bsd,nd->bsn", X, W)) * torch.einsum("bsd,nd->bsn", X, W2)
    ),
    "linear bias": lambda: F.silu(F.linear(X, W, B)) * F.linear(X, W2, B),
    "stacked": lambda: (lambda y: F.silu(y[0]) * y[1])(torch.stack([X @ W.T, X @ W2.T])),
    "split": lambda: (lambda a, c: a.sigmoid() * c)(
        *torch.split(F.linear(X, torch.cat([W, W2])), 128, -1)
    ),
    "hardswish": lambda: F.hardswish(X @ W.T) * (X @ W2.T),
}
L = torch.randn(32, 100)
T = torch.randint(0, 100, (32,))
LSE = {
    "logsumexp": lambda: torch.logsumexp(L, -1),
    "log sum exp": lambda: L.exp().sum(-1).log(),
    "max shifted": lambda: (
        (L - L.max(-1, keepdim=True).values).exp().sum(-1).log() + L.max(-1).values
    ),
    "amax shifted": lambda: (L - L.amax(-1, keepdim=True)).exp().sum(-1).log() + L.amax(-1),
    "log_softmax gather": lambda: -F.log_softmax(L, -1).gather(-1, T[:, None])[:, 0],
    "cross_entropy none": lambda: F.cross_entropy(L, T, reduction="none"),
    "nll": lambda: F.nll_loss(F.log_softmax(L, -1), T, reduction="none"),
    "softmax log": lambda: -torch.log(F.softmax(L, -1).gather(-1, T[:, None]))[:, 0],
    "lse - pick": lambda: torch.logsumexp(L, -1) - L.gather(1, T[:, None])[:, 0],
    "lse arange": lambda: torch.logsumexp(L, -1) - L[torch.arange(32), T],
    "entropy": lambda: -(F.softmax(L, -1) * F.log_softmax(L, -1)).sum(-1),
    "exp2": lambda: torch.log2(torch.exp2(L).sum(-1)),
}
Q = torch.randint(-128, 128, (128, 64), dtype=torch.int8)
Q4 = torch.randint(0, 16, (128, 64), dtype=torch.uint8)
S = torch.rand(128, 1)
SB = torch.rand(128, 2, 1)
PK = torch.randint(0, 256, (128, 32), dtype=torch.uint8)
Z = torch.rand(128, 1)
DEQ = {
    "int8 per row": lambda: X @ (Q.float() * S).T,
    "linear": lambda: F.linear(X, Q.to(torch.float32) * S),
    "scale after": lambda: (X @ Q.float().T) * S.T,
    "block": lambda: X @ (Q.float().view(128, 2, 32) * SB).view(128, 64).T,
    "zero point": lambda: X @ ((Q.float() - Z) * S).T,
    "u8 - 8": lambda: X @ ((Q4.float() - 8) * S).T,
    "int sub": lambda: X @ ((Q4.to(torch.int8) - 8).float() * S).T,
    "nibbles": lambda: X @ (torch.stack([PK & 15, PK >> 4], -1).view(128, 64).float() * S).T,
    "nibbles cat": lambda: X @ (torch.cat([PK & 15, PK >> 4], -1).float() * S).T,
    "bf16 w": lambda: X @ W.bfloat16().float().T,
    "einsum": lambda: torch.einsum("bsd,nd->bsn", X, Q.float() * S),
    "where": lambda: X @ (torch.where(Q4 > 7, Q4.float() - 16, Q4.float()) * S).T,
    "sym min": lambda: X @ (Q4.float() * S + Z).T,
}
SCAN = {
    "cumsum": lambda: torch.cumsum(L, -1),
    "tril@": lambda: L @ torch.ones(100, 100).triu(),
    "cumsum0": lambda: L.cumsum(0),
    "mask sum": lambda: (L[:, None, :] * torch.ones(100, 100).tril()).sum(-1),
    "logcumsumexp": lambda: torch.logcumsumexp(L, -1),
}

TWO = {"glu", "chunk", "stacked", "split"}
"""Halves of one product: the concatenated weights, or the product, are stored first."""
CASES = {
    f"{kind}: {name}": fn
    for kind, table in (
        ("norm", NORM),
        ("gate", GATE),
        ("lse", LSE),
        ("decode", DEQ),
        ("scan", SCAN),
    )
    for name, fn in table.items()
}


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setenv("LUMINAL_SEARCH", "off")
    torch._dynamo.reset()
    luminal.torch.clear()


@pytest.mark.parametrize("name", CASES)
def test_spelling(name: str):
    fn = CASES[name]
    with torch.no_grad():
        found = torch.compile(fn, backend="luminal", options={"fallback": "error"})()
        assert error(found, fn()) < 2e-6
    (report,) = luminal.torch.reports()
    assert report.kernels == (2 if name.split(": ")[1] in TWO else 1)


HALF = {
    "rms norm": lambda x, w: F.linear(F.rms_norm(x, (64,)), w),
    "layer norm": lambda x, w: F.linear(F.layer_norm(x, (64,)), w),
    "gate": lambda x, w: F.silu(x @ w.T) * (x @ w.T),
    "log-softmax": lambda x, w: F.log_softmax(x, -1),
    "softmax": lambda x, w: F.softmax(x, -1),
}


@pytest.mark.parametrize("name", HALF)
def test_half_precision_spelling(name: str):
    x, w = X.bfloat16(), W.bfloat16()
    with torch.no_grad():
        run = torch.compile(HALF[name], backend="luminal", options={"fallback": "error"})
        found = run(x, w)
        assert found.dtype == torch.bfloat16
        assert error(found.float(), HALF[name](x.float(), w.float())) < 1e-2


LONG = torch.randn(8, 1000)
RUNNING = {
    "cumsum": lambda: LONG.cumsum(-1),
    "other dim": lambda: LONG.T.cumsum(0),
    "triu": lambda: LONG @ torch.ones(1000, 1000).triu(),
    "tril from the left": lambda: torch.ones(1000, 1000).tril() @ LONG.T,
    "linear": lambda: F.linear(LONG, torch.ones(1000, 1000).tril()),
    "einsum": lambda: torch.einsum("bk,ik->bi", LONG, torch.ones(1000, 1000).tril()),
    "masked product": lambda: (LONG[:, None] * torch.ones(1000, 1000).tril()).sum(-1),
    "where": lambda: torch.where(
        torch.arange(1000)[:, None] >= torch.arange(1000), LONG[:, None], 0.0
    ).sum(-1),
    "masked_fill": lambda: (
        LONG[:, None]
        .expand(-1, 1000, -1)
        .masked_fill(torch.arange(1000)[:, None] < torch.arange(1000), 0.0)
        .sum(-1)
    ),
    "comparison": lambda: LONG @ (torch.arange(1000)[:, None] <= torch.arange(1000)).float(),
    "before only": lambda: LONG @ torch.ones(1000, 1000).triu(1),
    "shifted": lambda: F.pad(LONG, (1, 0))[:, :-1].cumsum(-1),
    "from the end": lambda: LONG.flip(-1).cumsum(-1).flip(-1),
    "remaining": lambda: torch.einsum("bk,ik->bi", LONG, torch.ones(1000, 1000).triu()),
    "running mean": lambda: LONG.cumsum(-1) / torch.arange(1, 1001),
    "counts": lambda: (LONG > 0).cumsum(-1),
    "running maximum": lambda: LONG.cummax(-1).values,
    "bfloat16": lambda: LONG.bfloat16().cumsum(-1),
}


@pytest.mark.parametrize("name", RUNNING)
def test_running_sums_of_long_rows_are_scans(name: str, monkeypatch):
    """No reduction takes more than a block, or one value for every block."""
    from luminal.frontend.torch import runner

    plans, real = [], runner.compile_graph

    def spy(*args, **options):
        plans.append(real(*args, **options))
        return plans[-1]

    monkeypatch.setattr(runner, "compile_graph", spy)
    monkeypatch.setenv("LUMINAL_CACHE", "")
    fn = RUNNING[name]
    with torch.no_grad():
        found = torch.compile(fn, backend="luminal", options={"fallback": "error"})()
        limit = 1e-2 if found.dtype == torch.bfloat16 else 3e-6
        assert error(found.float(), fn().float()) < limit
    (compiled,) = plans
    axes = [a for k in compiled.plan.kernels for t in k.subterms() for a in t.axes]
    assert axes and max(a.hi + 1 for a in axes) == 32


def test_attention_over_a_joined_cache_is_one_online_loop(monkeypatch):
    """The new key and value are appended in the kernel; its guard against empty rows, which reads
    the sum again, must not make the sum another one."""
    from luminal.frontend.torch import runner
    from luminal.ir.plan import Online

    plans, real = [], runner.compile_graph

    def spy(*args, **options):
        plans.append(real(*args, **options))
        return plans[-1]

    def decode(q, keys, values, k, v):
        joined = torch.cat([keys, k], -2), torch.cat([values, v], -2)
        return F.scaled_dot_product_attention(q, *joined, enable_gqa=True)

    monkeypatch.setattr(runner, "compile_graph", spy)
    monkeypatch.setenv("LUMINAL_CACHE", "")
    inputs = [torch.randn(1, 8, 1, 32), *(torch.randn(1, 2, n, 32) for n in (99, 99, 1, 1))]
    with torch.no_grad():
        found = torch.compile(decode, backend="luminal", options={"fallback": "error"})(*inputs)
        assert error(found, decode(*inputs)) < 2e-6
    (compiled,) = plans
    loops = [i for k in compiled.plan.kernels for i in k.schedule.items if isinstance(i, Online)]
    assert len(loops) == 1
