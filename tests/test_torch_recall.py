"""Graphs recalled from the cache: same results, no tracing, and never for another graph."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import luminal.torch  # noqa: E402

HEAVY = ("luminal.compiler", "luminal.rewrite", "luminal.codegen", "luminal.search.strategy",
         "luminal.frontend.functional", "luminal.frontend.torch.translate")  # fmt: skip
PROCESS = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 5)).eval()
run = torch.compile(model, backend="luminal", dynamic=True, options={"search": "off"})
with torch.no_grad():
    x = torch.randn(3, 12)
    torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
import luminal.torch
(report,) = luminal.torch.reports()
print(report.recalled, report.cache_hit, *sys.modules)
"""


def test_a_second_process_loads_neither_the_translation_nor_the_stages(tmp_path, monkeypatch):
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    first, second = (
        subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True)
        .stdout.split() for _ in range(2)
    )  # fmt: skip
    assert first[:2] == ["False", "False"] and set(HEAVY) <= set(first)
    assert second[:2] == ["True", "True"] and set(HEAVY).isdisjoint(second)


@pytest.fixture
def compiled(tmp_path):
    """compiled(function, *inputs, dynamic) -> (compiled function, its newest report)."""

    def make(function, *inputs, dynamic=None, **options):
        torch._dynamo.reset()
        luminal.torch.clear()
        options = {"search": "off", "cache": str(tmp_path), "fallback": "silent"} | options
        run = torch.compile(
            function, backend=luminal.torch.backend, dynamic=dynamic, options=options
        )
        with torch.no_grad():
            agree(run, function, *inputs)
        return run, luminal.torch.reports()[-1]

    return make


def agree(run, function, *inputs):
    want, got = function(*inputs), run(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.stride() == want.stride()


def test_weights_are_followed(compiled):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    x = torch.randn(4, 16)
    assert not compiled(model, x)[1].recalled
    other = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    run, report = compiled(other, x)
    assert report.recalled and report.kernels
    with torch.no_grad():
        other[0].weight.add_(1)
        agree(run, other, x)
        other[2].weight.data = torch.randn(16, 32)
        agree(run, other, x)
        other.load_state_dict(model.state_dict(), assign=True)
        agree(run, other, x)


def scaled(factor):
    return lambda x: (x * factor).sum(1)


@pytest.mark.parametrize(
    "second",
    [
        (scaled(3.0), lambda: torch.randn(4, 6)),
        (scaled(2), lambda: torch.randn(4, 6)),
        (scaled(2.0), lambda: torch.randn(4, 7)),
        (scaled(2.0), lambda: torch.randn(6, 4).t()),
        (scaled(2.0), lambda: torch.randn(4, 6, dtype=torch.float64)),
        (lambda x: (x + 2.0).sum(1), lambda: torch.randn(4, 6)),
        (lambda x: (x * 2.0).sum(0), lambda: torch.randn(4, 6)),
    ],
)
def test_another_graph_is_not_recalled(compiled, second):
    x = torch.randn(4, 6)
    compiled(scaled(2.0), x)
    assert compiled(scaled(2.0), x)[1].recalled
    function, make = second
    assert not compiled(function, make())[1].recalled


def test_global_state_is_part_of_the_key(compiled):
    def function(x):
        return torch.ones(3) @ x

    x = torch.randn(3, 5)
    compiled(function, x)
    assert compiled(function, x)[1].recalled
    with torch.autocast("cpu", torch.bfloat16):
        assert not compiled(function, x)[1].recalled
    torch.use_deterministic_algorithms(True)
    try:
        assert not compiled(function, x)[1].recalled
    finally:
        torch.use_deterministic_algorithms(False)
    assert not compiled(function, x, numerics="relaxed")[1].recalled
    assert compiled(function, x)[1].recalled


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.abs_() + 1,  # writes its input
        lambda x: x.view(-1)[1:],  # returns a view of it
        lambda x: torch.linalg.matrix_exp(x @ x.T),  # needs eager operators
    ],
)
def test_what_needs_more_than_kernels_is_traced_again(compiled, function):
    for _ in range(2):
        assert not compiled(function, torch.randn(4, 6))[1].recalled


def test_training_is_traced_again(compiled, tmp_path):
    model = nn.Linear(4, 4)
    compiled(model, torch.randn(2, 4))
    torch._dynamo.reset()
    luminal.torch.clear()
    options = {"search": "off", "cache": str(tmp_path)}
    run = torch.compile(model, backend=luminal.torch.backend, options=options)
    run(torch.randn(2, 4)).sum().backward()
    assert model.weight.grad is not None
    assert not any(r.recalled for r in luminal.torch.reports())


class Patches(nn.Module):
    """Patches of a picture with places added: right for four patches only."""

    def __init__(self):
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 5, 16, 16), nn.Parameter(torch.randn(1, 5, 4))

    def forward(self, x):
        return self.patches(x).flatten(2) + self.places


def test_guards_are_recalled(compiled):
    """Compiling fixes the size of the picture; a recalled graph must refuse another size too."""
    model = Patches()
    for recalled in (False, True):
        run, report = compiled(model, torch.randn(2, 3, 32, 32), dynamic=True)
        assert report.recalled is recalled
        with torch.no_grad():
            for sizes in ((3, 3, 32, 32), (2, 3, 37, 37)):
                agree(run, model, torch.randn(*sizes))


def test_damaged_entries_are_traced_again(compiled, tmp_path):
    x = torch.randn(4, 6)
    compiled(scaled(2.0), x)
    for entry in (tmp_path / "torch").glob("*/*"):
        entry.write_bytes(b"damaged")
    assert not compiled(scaled(2.0), x)[1].recalled
    for entry in (tmp_path / "program").glob("*/*"):
        entry.unlink()
    assert not compiled(scaled(2.0), x)[1].recalled
    assert compiled(scaled(2.0), x)[1].recalled
