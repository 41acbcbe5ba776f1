"""Scatters of the torch backend: any mix of indices, accumulation, eager's errors."""

import pytest

torch = pytest.importorskip("torch")

from tests.torch_strict import compiled, fresh  # noqa: E402, F401

INDEX_PUT = torch.ops.aten.index_put


@pytest.mark.parametrize("accumulate", (False, True))
def test_index_put_with_indices_anywhere(accumulate):
    def f(x, i, j):
        return (
            INDEX_PUT(x, [i, j], x[:3, 0], accumulate),
            INDEX_PUT(x, [i, None, j], x[:3, :, 0], accumulate),
            INDEX_PUT(x, [None, i, j], x[:, :3, 0], accumulate),
            INDEX_PUT(x, [i[:, None], j], x[0, 0], accumulate),
            INDEX_PUT(x, [None, j], x[0, :3], accumulate),
        )

    x = torch.randn(4, 5, 6)
    repeated = torch.tensor([1, 1, 4]) if accumulate else torch.tensor([1, 3, 4])
    i = torch.tensor([0, -1, 2])
    torch.testing.assert_close(compiled(f)(x, i, repeated), f(x, i, repeated))


def test_indices_out_of_range_raise():
    def f(x, i):
        return x.index_put((i, i), torch.tensor(1.0))

    x, g = torch.randn(3, 4), compiled(f)
    torch.testing.assert_close(g(x, torch.tensor([2, -3])), f(x, torch.tensor([2, -3])))
    for wrong in ([0, 3], [-4, 0]):
        with pytest.raises(IndexError):
            g(x, torch.tensor(wrong))


@pytest.mark.parametrize("reduce", ("sum", "prod", "mean", "amax", "amin"))
@pytest.mark.parametrize("include_self", (False, True))
def test_scatter_reduce(reduce, include_self):
    def f(x, i, src):
        return x.scatter_reduce(1, i, src, reduce, include_self=include_self)

    x, src = torch.randn(3, 5), torch.randn(3, 7)
    i = torch.randint(0, 5, (3, 7))
    torch.testing.assert_close(compiled(f)(x, i, src), f(x, i, src))


def test_index_add_takes_no_negative_index():
    def f(x, i):
        return x.index_add(0, i, x[:2])

    x, g = torch.randn(3, 4), compiled(f)
    torch.testing.assert_close(g(x, torch.tensor([1, 1])), f(x, torch.tensor([1, 1])))
    with pytest.raises(IndexError, match="out of range"):
        g(x, torch.tensor([-1, 0]))


def test_masked_scatter_and_put():
    def f(x, mask, i):
        return x.masked_scatter(mask, x.flip(0)), x.put(i, x.flatten()[:3], accumulate=True)

    x = torch.randn(4, 5)
    args = (x, x > 0, torch.tensor([3, 3, -1]))
    torch.testing.assert_close(compiled(f)(*args), f(*args))
