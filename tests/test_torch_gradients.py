"""Gradients through the torch backend equal eager's, and the backward graph is compiled."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import luminal.torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    luminal.torch.clear()


def gradients(function, tensors):
    given = [t.clone().requires_grad_() for t in tensors]
    result = function(*given)
    weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    (result * weights).sum().backward()
    return result.detach(), *(t.grad for t in given)


def drawn(*shapes):
    torch.manual_seed(0)
    return [torch.randn(s) for s in shapes]


IMAGE = (2, 4, 9, 8)
BAGS = torch.tensor([[0, 2, 2], [1, 0, 5]])
CASES = {
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1, groups=2), IMAGE, (6, 2, 3, 3), (6,)),
    "conv_dilated": (
        lambda x, w: F.conv2d(x, w, None, (1, 3), (2, 0), (2, 1)), IMAGE, (6, 4, 3, 3),
    ),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), (4, 9, 8), (6, 9, 3), (6,)),
    "conv_transpose": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), IMAGE, (4, 6, 3, 3), (6,),
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool_dilated": (lambda x: F.max_pool2d(x, 2, dilation=2), IMAGE),
    "max_pool_ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), IMAGE),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), IMAGE),
    "embedding": (lambda w: F.embedding(BAGS, w, padding_idx=2), (6, 4)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 3])), (2, 5)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), IMAGE, (8,), (8,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), IMAGE, (4,), (4,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, (4,), (4,)),
    "index": (lambda x: x[:, [0, 0, 2]].sort(-1)[0], IMAGE),
    "extremes": (lambda x: x.max(-1)[0].prod(1) + x.amax((1, 3)), IMAGE),
    "scan": (lambda x: x.cumsum(2), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_eager(name):
    function, *shapes = CASES[name]
    options = {"executor": "oracle", "fallback": "error"}
    g = torch.compile(function, backend=luminal.torch.backend, options=options)
    tensors = drawn(*shapes)
    got, want = gradients(g, tensors), gradients(function, tensors)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert luminal.torch.reports()[-1].kind == "backward"


def attention_inputs(heads, groups, order):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 7, 8) for n in (heads, heads // groups, heads // groups))
    if order == "projected":  # as a view of [batch, length, heads, width]
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    return [q, k, v]


@pytest.mark.parametrize("groups", (1, 2))
@pytest.mark.parametrize("mask", (None, "causal", "bool", "float"))
@pytest.mark.parametrize("order", ("plain", "projected"))
def test_attention_gradients(groups, mask, order):
    hidden = torch.ones(7, 7, dtype=torch.bool).tril(2)
    hidden[3] = mask != "bool"
    added = torch.linspace(-2, 2, 49).reshape(7, 7)
    given = {None: {}, "causal": {"is_causal": True}, "bool": {"attn_mask": hidden},
             "float": {"attn_mask": added, "scale": 0.3}}[mask]  # fmt: skip

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=groups > 1, **given)

    tensors = attention_inputs(4, groups, order)
    options = {"executor": "oracle", "fallback": "error"}
    got = gradients(torch.compile(f, backend=luminal.torch.backend, options=options), tensors)
    want = gradients(f, tensors)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got[0].stride() == want[0].stride()


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (2, 3, 1)])
def test_gradients_of_pooling_over_symbolic_sizes(pool, kernel, stride, padding):
    def f(x):
        return pool(x, kernel, stride, padding)

    run = torch.compile(f, backend=luminal.torch.backend, dynamic=True,
                        options={"search": "off", "fallback": "error"})  # fmt: skip
    for size in (8, 9, 13):
        x = torch.randn(1, 2, size, size + 3)
        grads = []
        for g in (f, run):
            leaf = x.clone().requires_grad_()
            g(leaf).pow(2).sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(grads[1], grads[0])
