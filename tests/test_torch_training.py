"""Training under torch.compile: optimisers, autocast, dropout, gradcheck, hooks."""

import copy

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402

F = torch.nn.functional
OPTIONS = {"search": "off", "fallback": "silent"}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    luminal.torch.clear()
    torch.manual_seed(0)


def compiled(f, **more):
    return torch.compile(f, backend=luminal.torch.backend, options=OPTIONS, dynamic=False, **more)


def network(dropout=0.0):
    nn = torch.nn
    first = nn.Linear(8, 12, bias=False)  # the gradient of a bias would be 0 but for rounding
    layers = (first, nn.BatchNorm1d(12), nn.GELU(), nn.Dropout(dropout), nn.Linear(12, 3))
    return nn.Sequential(*layers)


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "foreach": lambda p: torch.optim.SGD(p, 0.1, foreach=True),
}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_steps_equal_those_of_eager(kind, dropout):
    model, x = network(dropout), torch.randn(16, 8)
    y = torch.randint(0, 3, (16,))
    runs = []
    for wrap in (lambda f: f, compiled):
        made = copy.deepcopy(model)
        optimiser = OPTIMISERS[kind](made.parameters())
        run = wrap(made.forward)
        torch.manual_seed(5)
        losses = []
        for _ in range(4):
            optimiser.zero_grad()
            loss = F.cross_entropy(run(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        runs.append((torch.stack(losses), {k: v.clone() for k, v in made.state_dict().items()}))
    (want, state), (got, ours) = runs
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for key, value in state.items():
        torch.testing.assert_close(ours[key], value, rtol=2e-3, atol=2e-3)
    assert {r.kind for r in luminal.torch.reports()} == {"forward", "backward"}


CHECKED = {
    "matmul": (lambda a, b: a @ b, (3, 4), (4, 2)),
    "softmax": (lambda a: a.softmax(-1), (3, 4)),
    "layer_norm": (lambda a: F.layer_norm(a, (4,)), (3, 4)),
    "gelu": (lambda a: F.gelu(a), (5,)),
    "conv": (lambda a, w: F.conv2d(a, w, padding=1), (1, 2, 4, 4), (3, 2, 3, 3)),
    "attention": (F.scaled_dot_product_attention, (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
    "cumsum": (lambda a: (a.cumsum(0) * a).sum(1), (3, 4)),
    "index": (lambda a: a[torch.tensor([0, 2, 2])] * 2, (3, 4)),
    "logsumexp": (lambda a, b: torch.logsumexp(a * b, 0), (3, 4), (4,)),
    "pooling": (lambda a: F.avg_pool2d(a, 2), (1, 1, 4, 4)),
}


@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck(name):
    f, *shapes = CHECKED[name]
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(compiled(f), inputs, atol=1e-5, rtol=1e-4)
    assert not any(r.fallback for r in luminal.torch.reports())


def test_autocast():
    model, x = network().eval(), torch.randn(16, 8)

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()

    run = compiled(loss)
    results = []
    for f in (loss, run):
        model.zero_grad()
        value = f()
        value.backward()
        results.append((value.detach(), [p.grad.clone() for p in model.parameters()]))
    (want, gradients), (got, ours) = results
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    for a, b in zip(ours, gradients, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm() <= 3e-2 * b.norm() + 1e-3


def test_double_backward_says_what_it_cannot_do():
    x = torch.randn(4, requires_grad=True)
    y = compiled(lambda a: (a**3).sum())(x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    torch.testing.assert_close(g, 3 * x**2)
    with pytest.raises(RuntimeError, match="double backward|does not require grad"):
        g.sum().backward()


class Scaled(torch.autograd.Function):
    """x * 3 whose gradient is 7."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7


def test_custom_functions_and_hooks():
    x = torch.randn(4, requires_grad=True)
    seen = []
    x.register_hook(lambda g: seen.append(g) or g * 2)
    compiled(lambda a: Scaled.apply(a).sin().sum())(x).backward()
    torch.testing.assert_close(x.grad, 2 * 7 * (3 * x).cos())
    assert len(seen) == 1


def test_gradients_accumulate_and_stop_where_they_should():
    model = torch.nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    run, x = compiled(model.forward), torch.randn(3, 4)
    for _ in range(2):
        run(x).sum().backward()
    assert model.bias.grad is None
    torch.testing.assert_close(model.weight.grad, 2 * x.sum(0).expand(4, 4))
    with torch.no_grad():
        assert not run(x).requires_grad
    with torch.inference_mode():
        assert run(x).is_inference()
