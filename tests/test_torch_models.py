"""Small versions of the benchmark models under torch.compile: no fallback, eager's results."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import models  # noqa: E402

import luminal.torch  # noqa: E402


def ids(b, s):
    return (torch.randint(0, 50, (b, s)),)


def images(b, s):
    return (torch.randn(b, 3, 32, 32),)


SMALL = {
    "bert": (
        lambda: models.Bert(24, 1, 2, 48, 50),
        lambda b, s: (*ids(b, s), torch.ones(b, s).long()),
    ),
    "gpt2": (lambda: models.GPT2(24, 1, 2, 50, 64), ids),
    "llama": (lambda: models.Llama(24, 1, 4, 2, 32, 50), ids),
    "resnet": (lambda: models.ResNet((1, 1), 10), images),
    "mobilenet": (lambda: models.Inverted(3, 3, 1, 6), images),
    "vit": (lambda: models.VisionTransformer(32, 16, 24, 1, 2, 10), images),
}


def check(name, executor, sizes):
    torch._dynamo.reset()
    luminal.torch.clear()
    torch.manual_seed(0)
    build, inputs = SMALL[name]
    model = models.settle(build())
    options = {"executor": executor, "search": "off", "cache": "off", "fallback": "silent"}
    run = torch.compile(model, backend=luminal.torch.backend, options=options)
    with torch.no_grad():
        for b, s in sizes:
            given = inputs(b, s)
            for tensor in given:
                torch._dynamo.mark_dynamic(tensor, 0)
                if tensor.dim() == 2:
                    torch._dynamo.mark_dynamic(tensor, 1)
            want, got = model(*given), run(*given)
            assert got.stride() == want.stride()
            assert (got - want).abs().max() <= 1e-4 * want.abs().max()
    assert len(luminal.torch.reports()) == 1
    assert not luminal.torch.reports()[0].fallback, luminal.torch.reports()[0].reasons


@pytest.mark.parametrize("name", ["bert", "llama", "mobilenet", "vit"])
def test_graph(name):
    check(name, "oracle", [(2, 3), (3, 9)])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_compiled(name):
    check(name, "native", [(2, 3), (3, 9), (9, 2), (5, 5)])


def test_compiled_weights_follow_every_kind_of_update():
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    options = {"search": "off", "cache": "off"}
    run = torch.compile(model, backend=luminal.torch.backend, options=options)
    x = torch.randn(8, 32)

    def agree():
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)

    agree()
    with torch.no_grad():
        model[0].weight.add_(1)
    agree()
    model[2].weight = torch.nn.Parameter(torch.randn(32, 64))
    agree()
    model[0].weight.data = torch.randn(64, 32)
    agree()
    model[0].weight.data.add_(0.5)
    agree()
    model[0].weight.detach().numpy()[:] *= 1.5
    agree()
    state = {k: torch.randn_like(v) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    agree()
    model.load_state_dict({k: v + 1 for k, v in state.items()}, assign=True)
    agree()
    assert all(not r.fallback for r in luminal.torch.reports())
