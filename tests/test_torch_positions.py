"""Positions that are numbers of the program: two compilations for all of them, eager's results."""

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402
from luminal.frontend.torch.positions import at, put  # noqa: E402

ROWS = torch.tensor([2, 0])
EVEN = torch.tensor([True, False, True])
INDICES = {
    "one": lambda p: p,
    "second": lambda p: (slice(None), p),
    "both": lambda p: (p - 1, p),
    "ellipsis": lambda p: (..., p, slice(None)),
    "last": lambda p: (..., p),
    "before_ellipsis": lambda p: (p, ..., 0),
    "negative": lambda p: (slice(None), -p),
    "none": lambda p: (None, p, None, slice(1, None)),
    "rows": lambda p: (ROWS, p),
    "apart": lambda p: (ROWS, slice(None), p),
    "mask": lambda p: (EVEN, p),
    "mask_ellipsis": lambda p: (EVEN, ..., p),
    "bool": lambda p: (True, p),
    "slice": lambda p: (0, slice(p, p + 1)),
    "steps": lambda p: (p, slice(None, None, 2), p),
}


def compiled(function):
    torch._dynamo.reset()
    luminal.torch.clear()
    options = {"search": "off", "cache": "off", "fallback": "silent"}
    return torch.compile(function, backend=luminal.torch.backend, options=options)


@pytest.mark.parametrize("name", INDICES)
def test_symbols_select_as_numbers_do(name):
    """The functions alone, on numbers: views stay views, writes land where PyTorch's do."""
    x = torch.arange(60.0).reshape(3, 4, 5)
    for p in (1, 2):
        index = INDICES[name](p)
        want, got = x[index], at(x, index)
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
        assert got._is_view() == want._is_view()
        for value in (7.0, torch.randn(want.shape), torch.randn(1, *want.shape)):
            mine, theirs = x.clone(), x.clone()
            put(mine, index, value)
            theirs[index] = value
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["one", "second", "ellipsis", "last", "negative", "none", "rows"])
@pytest.mark.parametrize("write", [False, True])
def test_two_compilations_for_all_positions(name, write):
    index = INDICES[name]

    def step(cache, p):
        if write:
            cache[index(p)] = cache[index(p)] * 2 + 1
        return cache[index(p)].sin() + 1

    run = compiled(step)
    mine, theirs = torch.randn(9, 9, 9), None
    theirs = mine.clone()
    for p in range(2, 8):
        got, want = run(mine, p), step(theirs, p)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)
        assert got.stride() == want.stride()
    assert len(luminal.torch.reports()) <= 2


CACHES = {
    "slice": lambda k, x, p: k[:, p : p + 1].copy_(x[:, None]),
    "set_slice": lambda k, x, p: k.__setitem__((slice(None), slice(p, p + 1)), x[:, None]),
    "position": lambda k, x, p: k.__setitem__((slice(None), p), x),
    "narrow": lambda k, x, p: k.narrow(1, p, 1).copy_(x[:, None]),
    "select": lambda k, x, p: k.select(1, p).add_(x),
    "index_copy": lambda k, x, p: k.index_copy_(1, torch.tensor([p]), x[:, None]),
    "of_one_row": lambda k, x, p: k[1, p : p + 1].copy_(x[:1]),
}


@pytest.mark.parametrize("name", CACHES)
def test_decode_loops_compile_twice(name):
    """Caches written at a position that grows from 0, as a decoder's."""

    def step(k, x, p):
        CACHES[name](k, x, p)
        return k.sum((0, 1))

    run = compiled(step)
    mine = torch.randn(2, 16, 4)
    theirs = mine.clone()
    for p in range(7):
        x = torch.randn(2, 4)
        torch.testing.assert_close(run(mine, x, p), step(theirs, x, p))
        torch.testing.assert_close(mine, theirs)
    assert len(luminal.torch.reports()) <= 2


def test_gradients_at_positions():
    def step(x, p):
        y = x * 2
        y[:, p] = y[:, p].clone().sin()
        return y[p].cos()

    run = compiled(step)
    for p in range(2, 6):
        mine = torch.randn(7, 7, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        run(mine, p).sum().backward()
        step(theirs, p).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_positions_out_of_bounds_are_pytorchs_error():
    run = compiled(lambda x, p: x[:, p] * 2)
    x = torch.randn(2, 6)
    for p in (2, 3, 4, -2):
        torch.testing.assert_close(run(x, p), x[:, p] * 2)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        run(x, 6)
    torch.testing.assert_close(run(x, 5), x[:, 5] * 2)


SIGNED = {
    "select": lambda k, p: k.select(1, p) + 1,
    "index": lambda k, p: k[:, p] + 1,
    "scatter": lambda k, p: torch.select_scatter(k, k[:, 0], 1, p),
    "write": lambda k, p: k.select(1, p).mul_(2) + 1,
    "divided": lambda k, p: k.select(1, p // 2).mul_(2) + 1,
    "from_end": lambda k, p: torch.select_scatter(k, k[:, 0], 1, -p),
    "slices": lambda k, p: k[:, p:].sum(1),
}


@pytest.mark.parametrize("name", SIGNED)
def test_numbers_of_either_sign(name):
    """A number is no size: it may be negative later, or from the start, and nothing outside of the
    tensor is read or written."""
    run = compiled(SIGNED[name])
    for p in (-2, -3, -4, 3, 0, 1, 5, -6, 4):
        memory = torch.randn(29, 9, 9)
        mine, theirs = memory.clone(), memory.clone()
        got, want = run(mine[10:19], p), SIGNED[name](theirs[10:19], p)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)
