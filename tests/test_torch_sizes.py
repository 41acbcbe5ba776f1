"""One compilation for all sizes, 1 among them, in any order; eager's results where 1 is special."""

import itertools
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import torch.nn.functional as F  # noqa: E402

import luminal.torch  # noqa: E402
from tests.test_torch_models import SMALL, models  # noqa: E402


def run_sizes(function, make, sizes, dynamic=True):
    """Compares with eager at all sizes; returns how many compilations it took."""
    torch._dynamo.reset()
    luminal.torch.clear()
    options = {"search": "off", "cache": "off", "fallback": "silent"}
    run = torch.compile(function, backend=luminal.torch.backend, dynamic=dynamic, options=options)
    with torch.no_grad():
        for size in sizes:
            given = make(*size)
            want, got = function(*given), run(*given)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            assert got.stride() == want.stride(), size
    assert all(r.reasons == {} for r in luminal.torch.reports())
    return len(luminal.torch.reports())


def pair(b, s):
    return torch.randn(b, s, 6), torch.randn(b, s)


GENERAL = {
    "attention": lambda x, w: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None]
    )[:, 0] * w[..., None],
    "masked": lambda x, w: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=(w > 0)[:, None, None, :] | (w < 9).all()
    ).squeeze(1),
    "heads": lambda x, w: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2).reshape(
        x.shape[0], 2, -1
    ) + 1,
    "places": lambda x, w: F.softmax(x + torch.arange(x.shape[1])[:, None], 1).sum(1),
}  # fmt: skip
SPECIAL = {
    "squeeze": lambda x, w: x.squeeze(0).softmax(0) + 1,
    "branch": lambda x, w: x * 2 if x.shape[0] == 1 else x * 3,
    "rank": lambda x, w: x.sum(-1) if x.squeeze(1).dim() == 2 else x.amax(-1),
    "flat": lambda x, w: x.squeeze().softmax(0).reshape(-1) + 1,
}


@pytest.mark.parametrize("first", [(1, 1), (1, 4), (2, 2), (4, 1), (3, 6)])
@pytest.mark.parametrize("name", ["attention", "heads"])
def test_one_compilation_whatever_comes_first(name, first):
    others = [(1, 1), (1, 3), (3, 1), (2, 2), (6, 3)]
    assert run_sizes(GENERAL[name], pair, [first, *others]) == 1


@pytest.mark.parametrize("name", ["masked", "places"])
def test_one_compilation_for_all_sizes(name):
    assert run_sizes(GENERAL[name], pair, itertools.product((1, 2, 9), (9, 1, 3))) == 1


@pytest.mark.parametrize("first", [(1, 1), (3, 4)])
@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_special_at_size_1_is_compiled_for_it(name, first):
    run_sizes(SPECIAL[name], pair, [first, (1, 4), (3, 1), (1, 1), (2, 2)])


def test_sizes_that_broadcast_are_compiled_for_it():
    def make(b, s):
        return torch.randn(b, s), torch.randn(1, s)

    run_sizes(lambda x, y: x * y + y, make, [(1, 1), (3, 4), (1, 4), (5, 1)])
    run_sizes(lambda x, y: x * y + y, make, [(3, 4), (1, 4), (1, 1)])


def test_results_that_are_inputs_at_size_1_stay_so():
    def function(x):
        return x.transpose(0, 1).contiguous()

    torch._dynamo.reset()
    run = torch.compile(function, backend=luminal.torch.backend, dynamic=True)
    with torch.no_grad():
        for b in (3, 1, 2):
            x = torch.randn(b, 4)
            got = run(x)
            assert (got.data_ptr() == x.data_ptr()) == (b == 1)
            assert torch.equal(got, function(x))


def test_writes_through_what_is_a_view_at_size_1_only():
    def function(x):
        y = x + 1
        F.hardtanh(y.transpose(0, 1).contiguous(), -0.5, 0.5, True)
        return y * 2

    for order in ((3, 1, 2), (1, 3)):
        run_sizes(function, lambda b: (torch.randn(b, 4),), [(b,) for b in order])


def test_empty_sizes():
    run_sizes(lambda x: x.sum(1) + 1, lambda b: (torch.randn(b, 4),), [(3,), (1,), (0,), (2,)])


def test_other_backends_are_left_alone():
    compiled = []

    def other(gm, inputs):
        compiled.append(torch.fx.experimental._config.backed_size_oblivious)
        return gm.forward

    torch._dynamo.reset()
    run = torch.compile(lambda x: x + 1, backend=other, dynamic=True)
    for b in (3, 1):
        run(torch.randn(b, 4))
    assert compiled == [False, False]
    assert not torch.fx.experimental._config.backed_size_oblivious


def heads(x, y):
    """Attention over another input whose batch is the same by the program alone."""
    b = x.shape[0]
    q, k = (t.view(b, -1, 2, 3).transpose(1, 2) for t in (x, y))
    return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).reshape(b, -1, 6)


def grouped(q, k):
    """Attention whose key heads are repeated by expand and reshape."""
    b, heads, n, d = k.shape
    more = k[:, :, None].expand(b, heads, q.shape[1] // heads, n, d).reshape(b, -1, n, d)
    wide = k[:, :, None].expand(b, heads, q.shape[1] // heads, n, d).flatten(1, 2)
    return (q @ more.mT * d**-0.5).softmax(-1) @ wide


RELATED = {
    "grouped heads": (grouped, lambda b, s: (torch.randn(2, b * s, 5, 6), torch.randn(2, s, 5, 6))),
    "heads": (heads, lambda b, s: (torch.randn(b, s, 6), torch.randn(b, 4, 6))),
    "quotient": (
        lambda x, y: x.view(y.shape[0], x.shape[0] // y.shape[0], -1).sum(1) + y,
        lambda b, s: (torch.randn(b * s, 6), torch.randn(b, 6)),
    ),
    "product": (
        lambda x, y: x.reshape(-1, x.shape[-1]) @ y.reshape(x.shape[-1], -1),
        lambda b, s: (torch.randn(b, s, 6), torch.randn(b, 4, 6)),
    ),
    "halves": (
        lambda x, y: x[: x.shape[0] // 2 * 2].view(x.shape[0] // 2, 2, -1).sum(1) + y.mean(),
        lambda b, s: (torch.randn(b + 1, s), torch.randn(b)),
    ),
    "floats": (
        lambda x, y: x * x.shape[1] ** -0.5 + y.sum() / float(x.shape[0] + 1)
        + torch.full((x.shape[1], 1), math.sqrt(x.shape[0] * x.shape[1]) / x.shape[0]),
        lambda b, s: (torch.randn(b, s, 6), torch.randn(b)),
    ),
    "joined": (
        lambda x, y: torch.cat([x, y]).split([x.shape[0], y.shape[0]])[1] * x.shape[0],
        lambda b, s: (torch.randn(b, 6), torch.randn(s, 6)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", RELATED)
def test_sizes_that_depend_on_each_other(name, dynamic):
    sizes = [(2, 4), (3, 5), (2, 6), (1, 4), (3, 1)]
    assert run_sizes(*RELATED[name], sizes, dynamic) <= 5


def test_what_is_compiled_for_size_0():
    """It has a graph of its own: others take their sizes for positive."""
    sizes = [(3,), (1,), (0,), (2,)]
    assert run_sizes(lambda x: x.exp() + 1, lambda b: (torch.randn(b, 4),), sizes) == 2


def test_sizes_that_an_operator_refuses_are_no_error(capfd):
    run_sizes(lambda x: x.unfold(0, 2, 2).sum(-1), lambda b: (torch.randn(b, 3),), [(4,), (7,)])
    assert "unfold" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_models_compile_once(name):
    torch.manual_seed(0)
    build, inputs = SMALL[name]
    sizes = [(1, 1), (2, 9), (9, 1), (1, 5), (3, 3), (8, 2), (4, 4), (7, 7), (5, 6), (6, 8)]
    assert run_sizes(models.settle(build()), inputs, sizes) == 1


def test_places_that_depend_on_numbers_alone():
    """Symbols that occur in no shape, only in where views look."""

    def write(cache, x, p):
        cache[:, p : p + x.shape[1]] = x
        return cache[:, : p + x.shape[1]].sum(1), cache[:, p] * 2

    options = {"search": "off", "cache": "off", "fallback": "error"}
    run = torch.compile(write, backend=luminal.torch.backend, options=options)
    mine, theirs = torch.zeros(2, 8, 3), torch.zeros(2, 8, 3)
    for p in range(5):
        x = torch.randn(2, 1, 3)
        torch.testing.assert_close(run(mine, x, p), write(theirs, x, p))
        torch.testing.assert_close(mine, theirs)
