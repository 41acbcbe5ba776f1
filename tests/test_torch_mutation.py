"""In-place updates of inputs through compiled code: what is read must be what was there before."""

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402


def read_then_scale(x):
    y = x + 1
    x.mul_(2)
    return y, x.sum(0)


def transpose(x):
    x.copy_(x.t().clone())
    return x * 1


def reverse(x):
    x.copy_(x.flip(0))
    return x.sum()


def shift(x):
    x[1:].copy_(x[:-1].clone())
    return x * 2


def square(x):
    x.copy_(x @ x)
    return x.sum(1)


def centre(x):
    x.add_(x.mean(0))
    return x[0] * 1


def rows(x):
    x[torch.tensor([0, 2])] += 1
    return x.exp()


def swap_out(x):
    y = x.clone()
    x.zero_()
    return y


@pytest.mark.parametrize(
    "f", [read_then_scale, transpose, reverse, shift, square, centre, rows, swap_out]
)
def test_update_in_place(f):
    torch._dynamo.reset()
    luminal.torch.clear()
    options = {"search": "off", "cache": "off", "fallback": "error"}
    run = torch.compile(f, backend=luminal.torch.backend, options=options)
    with torch.no_grad():
        a = torch.randn(20, 20)
        b = a.clone()
        torch.testing.assert_close(run(a), f(b), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert luminal.torch.reports()[0].kernels > 0


def test_set_to_an_input_that_is_then_written():
    def take(x):
        y = torch.empty(0)
        y.set_(x)
        y.add_(1)
        return y

    torch._dynamo.reset()
    run = torch.compile(take, backend=luminal.torch.backend, options={"fallback": "silent"})
    x = torch.zeros(3)
    y = run(x)
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(x, torch.ones(3))
