"""Complex tensors as pairs of reals, and Fourier transforms, against eager; nothing falls back."""

import pytest

torch = pytest.importorskip("torch")

from torch._prims_common import check_significant_strides  # noqa: E402

import luminal.torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def check(function, *inputs, fallback="error", executor="oracle", **close):
    options = {"executor": executor, "fallback": fallback, "search": "off"}
    with torch.no_grad():
        want = function(*inputs)
        got = torch.compile(function, backend=luminal.torch.backend, options=options)(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True, **close)
    for x, y in zip(*(torch.utils._pytree.tree_leaves(v) for v in (got, want)), strict=True):
        assert check_significant_strides(x, y, only_cuda=False)[0], (x.stride(), y.stride())
        assert x.is_conj() == y.is_conj()


def numbers(*shape, dtype=torch.complex64):
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_arithmetic(dtype):
    def f(a, b):
        return (a + b) * b / (a - 1j), a / 3, 2 * a, -a, (a * 0.5).exp(), a == b, a - b

    check(f, numbers(3, 4, dtype=dtype), numbers(3, 4, dtype=dtype))


def test_division_neither_overflows_nor_underflows():
    a = torch.tensor([1e30 + 1e30j, 1e-30 + 2e-30j, 1 + 1j], dtype=torch.complex64)
    check(lambda x: (x / x, x / 1e30j), a)


def test_parts_and_back():
    def f(z, x):
        return (
            z.real + z.imag, z.abs(), z.angle(), torch.view_as_real(z * 2),
            torch.complex(x, x + 1), torch.polar(x, x), torch.view_as_complex(x.view(3, 2, 2)),
        )  # fmt: skip

    check(f, numbers(3, 4), torch.randn(3, 4))


def test_movement():
    def f(z, i):
        return (
            z[1:].reshape(-1), torch.cat([z, z], 1), z.mT.contiguous(), z.sum(1), z.flip(0),
            z[:, None].expand(3, 2, 4) + 1, z.index_select(0, i), z.split(2, 1)[1] * 1,
            torch.nn.functional.pad(z, (1, 0), value=2.0), z @ z.mT, z.clone().mul_(1j),
        )  # fmt: skip

    check(f, numbers(3, 4), torch.tensor([2, 0]))


def test_rotary_positions():
    def f(q, turns):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(q)

    turns = torch.polar(torch.ones(5, 4), torch.randn(5, 4))
    for executor in ("oracle", "native"):
        check(f, torch.randn(2, 3, 5, 8), turns, executor=executor)


def test_conjugates():
    check(lambda z: (z.conj() * z, z.conj().clone(), z.conj().abs()), numbers(5))
    check(lambda z: z.conj(), numbers(5), fallback="silent")
    check(lambda z: z + 1, numbers(5).conj(), fallback="silent")


def test_strided_inputs():
    check(lambda z: (z + 1, z.T * 2), numbers(4, 6)[:, ::2].T)


def test_writes_into_complex_inputs():
    mine, theirs = (numbers(4).fill_(1 + 2j) for _ in range(2))

    def f(z):
        z.mul_(2)
        return z + 1

    options = {"executor": "oracle", "fallback": "silent"}
    got = torch.compile(f, backend=luminal.torch.backend, options=options)(mine)
    torch.testing.assert_close((got, mine), (f(theirs), theirs))


@pytest.mark.parametrize(
    "name", ["fft", "ifft", "fft2", "ifft2", "fftn", "irfft", "hfft", "irfftn"]
)
def test_transforms_of_complex_numbers(name):
    check(lambda z: getattr(torch.fft, name)(z), numbers(3, 4, 6))


@pytest.mark.parametrize("name", ["fft", "rfft", "rfft2", "rfftn", "ihfft", "fftn"])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_of_real_numbers(name, norm):
    check(lambda x: getattr(torch.fft, name)(x, norm=norm), torch.randn(3, 4, 5))


@pytest.mark.parametrize("n", [1, 2, 7, 64, 120, 97, 360])
def test_lengths(n):
    check(lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]), torch.randn(2, n))
    check(torch.fft.fft, torch.randn(2, n), rtol=1e-5, atol=1e-4)


def test_a_length_with_a_large_factor_falls_back():
    check(torch.fft.fft, torch.randn(1009), fallback="silent")


def test_short_time_transform():
    check(lambda x, w: torch.stft(x, 8, window=w, return_complex=True).abs(), torch.randn(64),
          torch.hann_window(8))  # fmt: skip


def test_other_operators_run_in_eager():
    check(lambda z: (z.tan() + 1, z.prod()), numbers(4), fallback="silent")


def test_gradients():
    x = torch.randn(6, requires_grad=True)

    def f(v):
        return torch.fft.rfft(v).abs().sum()

    want = torch.autograd.grad(f(x), x)
    options = {"executor": "oracle", "fallback": "silent"}
    got = torch.autograd.grad(
        torch.compile(f, backend=luminal.torch.backend, options=options)(x), x
    )
    torch.testing.assert_close(got, want)
