"""Derivatives of compiled functions from outside: tangents, batches of gradients, kept graphs."""

import pytest

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402

import luminal.torch  # noqa: E402

OPTIONS = {"search": "off", "fallback": "silent"}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    luminal.torch.clear()
    torch.manual_seed(0)


def network():
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))


def tangent(run, x, direction):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(run(forward_ad.make_dual(x, direction))).tangent


def tangent_without_gradients(run, x, direction):
    with torch.no_grad():
        return tangent(run, x, direction)


def batch_of_gradients(run, x, _):
    x = x.clone().requires_grad_()
    rows = torch.eye(6).reshape(6, 2, 3)
    return torch.autograd.grad(run(x), x, rows, is_grads_batched=True)[0]


def vectorised_jacobian(run, x, _):
    return torch.autograd.functional.jacobian(run, x, vectorize=True)


def forward_jacobian(run, x, _):
    return torch.autograd.functional.jacobian(
        run, x, vectorize=True, strategy="forward-mode"
    )  # fmt: skip


def retained_graph(run, x, _):
    x = x.clone().requires_grad_()
    out = run(x)
    out.sum().backward(retain_graph=True)
    out.square().sum().backward(retain_graph=True)
    out.sin().sum().backward()
    return x.grad


def gradient_of_two_losses(run, x, _):
    x = x.clone().requires_grad_()
    out = run(x)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    return first + torch.autograd.grad(out.exp().sum(), x)[0]


def vector_jacobian_product(run, x, _):
    return torch.func.vjp(run, x)[1](torch.ones(2, 3))[0]


def gradients_of_samples(run, x, _):
    return torch.func.vmap(torch.func.grad(lambda row: run(row).square().sum()))(x)


def hessian(run, x, _):
    return torch.func.hessian(lambda x: run(x).square().sum())(x)


WAYS = (
    tangent, tangent_without_gradients, batch_of_gradients, vectorised_jacobian, forward_jacobian,
    retained_graph, gradient_of_two_losses, vector_jacobian_product, gradients_of_samples, hessian,
)  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_derivatives_from_outside_equal_those_of_eager(way, warm, dynamic):
    model, x, direction = network(), torch.randn(2, 4), torch.randn(2, 4)
    run = torch.compile(model, backend="luminal", options=OPTIONS, dynamic=dynamic)
    if warm:  # compiled before anybody asks for a derivative
        run(x), run(x.clone().requires_grad_()).sum().backward()
        with torch.no_grad():
            run(x)
    torch.testing.assert_close(way(run, x, direction), way(model, x, direction))


def test_a_tangent_of_a_function_without_parameters(tmp_path, monkeypatch):
    """It is found in the cache at the second time, and a call without tangents is compiled."""
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))

    def spelled(x):
        return (x.softmax(-1) * x).cumsum(0)

    x, direction = torch.randn(3, 4), torch.randn(3, 4)
    for turn in range(2):
        torch._dynamo.reset()
        run = torch.compile(spelled, backend="luminal", options=OPTIONS)
        torch.testing.assert_close(run(x), spelled(x))
        assert luminal.torch.reports()[-1].recalled == bool(turn)
        torch.testing.assert_close(tangent(run, x, direction), tangent(spelled, x, direction))
        assert forward_ad.unpack_dual(run(x)).tangent is None
