"""Integer operators of the torch backend: division with eager's errors, bits, shifts."""

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402
from tests.torch_strict import compiled, fresh  # noqa: E402, F401

DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def numbers(dtype, count=64):
    info = torch.iinfo(dtype)
    drawn = torch.randint(max(info.min, -(2**62)), min(info.max, 2**62), (count,), dtype=dtype)
    drawn[:4] = torch.tensor([info.min, info.max, 0, 1], dtype=dtype)
    return drawn


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_equal_eager(dtype):
    def f(a, b):
        return a & b, a | b, a ^ b, ~a, a & 7, a | 3, a ^ 5

    a, b = numbers(dtype), numbers(dtype).flip(0)
    torch.testing.assert_close(compiled(f)(a, b), f(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shifts_equal_eager_even_beyond_the_dtype(dtype):
    def f(a, n):
        return a << n, a >> n, a << 2, a >> 3

    a, n = numbers(dtype), torch.arange(64, dtype=dtype)
    torch.testing.assert_close(compiled(f)(a, n), f(a, n))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_division_equals_eager_and_raises_on_zero(dtype):
    def f(a, b):
        divided = [torch.div(a, b, rounding_mode=m) for m in ("floor", "trunc")]
        return *divided, a % b, torch.fmod(a, b), a // b

    a, b = numbers(dtype), numbers(dtype).flip(0)
    whole = torch.where(b == 0, 3, b).to(dtype)
    whole[whole == -1] = 5
    g = compiled(f)
    torch.testing.assert_close(g(a, whole), f(a, whole))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        g(a, b)
    torch.testing.assert_close(g(a, whole), f(a, whole))


def test_views_at_places_that_depend_on_data_are_no_views():
    def f(x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 2)
        return torch.narrow(x, 1, k, 2) + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        g = torch.compile(f, backend=luminal.torch.backend, options={"fallback": "silent"})
        x = torch.arange(12.0).reshape(3, 4)
        for k in (0, 2):
            torch.testing.assert_close(g(x, torch.tensor(k)), f(x, torch.tensor(k)))


@pytest.mark.parametrize("ends", [(0, 3, 4, 10), (-3, 6, 50, 2.0), (3.5, -12, 4, 7), (4, 2, 4, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64])
def test_whole_steps_of_a_logarithmic_range(ends, dtype):
    def f(x):
        start, end, steps, base = ends
        return x + torch.logspace(start, end, steps, base=base, dtype=dtype), (10.0**x).long()

    x = torch.arange(ends[2] % 20).double()[:1]
    torch.testing.assert_close(compiled(f)(x), f(x), rtol=1e-14, atol=0.0)
