"""Transformers models from configs under torch.compile: eager's results, tokens and gradients.

The default run takes one decoder and one encoder; `make nightly` all of them."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import luminal.torch  # noqa: E402
from tests import tiny_transformers as tiny  # noqa: E402

DAILY = ("llama", "bert")
MIXTURES = ("mixtral", "qwen_moe")
"""Their experts stay in eager where each sees many tokens."""
OPTIONS = {"search": "off", "fallback": "silent"}
LENGTH = 64


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    luminal.torch.clear()
    torch.manual_seed(3)


def compiled(model):
    return torch.compile(model.forward, backend=luminal.torch.backend, options=OPTIONS)


def tensors(output):
    return [t for t in torch.utils._pytree.tree_leaves(dict(output)) if torch.is_tensor(t)]


def chosen(names):
    """All models, those that are not looked at every day marked."""
    return [pytest.param(n, marks=() if n in DAILY else pytest.mark.nightly) for n in names]


def assert_equal(got, want):
    """Equal up to the rounding of values as large as the largest."""
    assert got.stride() == want.stride()
    size = max(1.0, float(want.abs().max())) if want.is_floating_point() else 1.0
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * size)


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(tiny.MODELS))
def test_forward(name):
    model = tiny.model(name)
    run = compiled(model)
    with torch.no_grad():
        for batch, length in [(2, 9), (3, 13)]:
            given = tiny.inputs(name, batch, length)
            for got, want in zip(tensors(run(**given)), tensors(model(**given)), strict=True):
                assert_equal(got, want)
    if name not in MIXTURES:
        assert not any(r.fallback for r in luminal.torch.reports())


def assert_same_tokens(name, given, cache):
    """Compares greedy decoding with eager's; returns the reports after the prompt's graph."""
    model = tiny.model(name)
    options = {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH, "do_sample": False,
              "cache_implementation": cache, "disable_compile": True}  # fmt: skip
    want = model.generate(**given, **options)
    model.forward = compiled(model)
    assert torch.equal(model.generate(**given, **options), want)
    decode = luminal.torch.reports()[1:]
    assert not any(r.fallback for r in decode)
    return decode


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["dynamic", pytest.param("static", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", chosen([*tiny.DECODERS, *tiny.ENCODER_DECODERS]))
def test_generate(name, cache):
    """Greedy decoding of padded texts."""
    decode = assert_same_tokens(name, tiny.prompt(name), cache)
    if name not in tiny.WINDOWED:  # those branch on whether their window is full
        assert len(decode) <= 2


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "cache"), [("gemma3", "dynamic"), ("mistral", "dynamic"), ("mistral", "static")]
)
def test_prompt_is_longer_than_the_window(name, cache):
    assert len(assert_same_tokens(name, tiny.padded(3, tiny.WINDOW + 8), cache)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(["llama", "gemma3", "mistral", "bert", "t5", "vit"]))
def test_gradients(name):
    model = tiny.model(name)
    given = tiny.inputs(name, 2, 9)

    def gradients(run):
        model.zero_grad()
        sum(t.square().mean() for t in tensors(run(**given))[:1]).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    want, got = gradients(model), gradients(compiled(model))
    assert not any(g.any() for key, g in got.items() if key not in want)  # zeros for unused results
    for key, gradient in want.items():
        assert (got[key] - gradient).norm() <= 1e-3 * gradient.norm() + 1e-6, key
    assert not any(r.fallback for r in luminal.torch.reports())
