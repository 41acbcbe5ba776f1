"""In-place updates of inputs through compiled code: what is read must be what was there before."""

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

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


def zero_then_read(a, b):
    a[None].zero_()
    return a + 1, b + 3


def fill_part(a, b):
    a[0].fill_(2)
    return a + 1, b + 3


def add_to_part(a, b):
    a[0].add_(1)
    return a + 1, b * 2


def fill_both(a, b):
    a.fill_(2)
    b.zero_()
    return a + 1, b + 1


INPUTS_IN_ONE_PLACE = {
    "expanded and part": lambda x: (x[:1].expand(6), x[:1].expand(6)[1:3]),
    "expanded and base": lambda x: (x[:1].expand(6), x[:1]),
    "base and expanded": lambda x: (x[:1], x[:1].expand(6)),
    "rows and part": lambda x: (x.expand(4, 6), x.expand(4, 6)[:, 1:3]),
    "windows and base": lambda x: (x.unfold(0, 2, 1), x),
    "expanded alone": lambda x: (x[:1].expand(6), x.clone()),
    "rows alone": lambda x: (x.expand(4, 6), x.clone()),
    "windows alone": lambda x: (x.unfold(0, 2, 1), x.clone()),
}


@pytest.mark.parametrize("inputs", INPUTS_IN_ONE_PLACE.values(), ids=INPUTS_IN_ONE_PLACE)
@pytest.mark.parametrize("function", [zero_then_read, fill_part, add_to_part, fill_both])
def test_writes_reach_all_inputs_in_one_place(function, inputs):
    torch._dynamo.reset()
    options = {"search": "off", "fallback": "silent"}
    compiled = torch.compile(function, backend=luminal.torch.backend, options=options)
    for value in (-2.0, 3.0):
        mine, theirs = torch.full((6,), value), torch.full((6,), value)
        with torch.no_grad():
            want, got = function(*inputs(theirs)), compiled(*inputs(mine))
        for x, y in zip((mine, *got), (theirs, *want), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_writes_into_neighbours_of_symbolic_sizes_compile_twice():
    """Inputs in one storage are compared without making the graph one of their sizes."""

    def step(a, b):
        b.add_(a[:, : b.shape[1]])
        return a.mul_(2).sum(1) + b.sum(1)

    torch._dynamo.reset()
    luminal.torch.clear()
    counter = CompileCounterWithBackend(luminal.torch.backend)
    run = torch.compile(step, backend=counter)
    for size in (3, 5, 7, 9):
        mine = torch.randn(2, 2 * size, 4)
        theirs = mine.clone()
        got = run(mine[:, :size], mine[:, size:])
        torch.testing.assert_close(got, step(theirs[:, :size], theirs[:, size:]))
        assert torch.equal(mine, theirs)
    assert counter.frame_count <= 2
