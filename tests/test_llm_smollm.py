"""SmolLM2-135M against transformers: logits, greedy tokens, and the bounds of fast numerics.

The reference (tests/data) was made with transformers in f32 on the dequantised weights.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from luminal.llm import LLM, load

REFERENCE = json.loads((Path(__file__).parent / "data/smollm2_reference.json").read_text())
PROMPTS = REFERENCE["prompts"]
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def path() -> Path:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from assets import fetch

    try:
        return fetch("smollm2-135m") / REFERENCE["model"]
    except SystemExit as error:
        pytest.skip(f"no model: {error}")


@pytest.fixture(scope="module")
def exact(path: Path) -> LLM:
    return load(path, n_ctx=1024, search="off")


@pytest.fixture(scope="module")
def fast(path: Path) -> LLM:
    return load(path, n_ctx=1024, search="off", numerics="fast")


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def teacher_forced(model: LLM, ids: list[int]) -> np.ndarray:
    rows = log_probabilities(model.logits(ids))
    return rows[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_exact_numerics(exact: LLM, prompt: dict) -> None:
    assert exact.tokenizer.encode(prompt["text"]) == prompt["ids"]
    logits = exact.logits(prompt["ids"])
    np.testing.assert_allclose(logits[-1][prompt["top_ids"]], prompt["top_logits"], atol=1e-3)
    got = teacher_forced(exact, prompt["ids"])
    np.testing.assert_allclose(got, prompt["prompt_logprobs"], atol=1e-3)
    assert list(exact.generate(prompt["ids"], 32, stop_at_eos=False)) == prompt["greedy_ids"]


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_fast_numerics_stay_close(fast: LLM, prompt: dict) -> None:
    error = np.abs(teacher_forced(fast, prompt["ids"]) - prompt["prompt_logprobs"])
    assert error.mean() < 0.25
    ids = prompt["ids"] + prompt["greedy_ids"]
    chosen = fast.logits(ids)[len(prompt["ids"]) - 1 : -1].argmax(-1)
    for step, margin in enumerate(prompt["greedy_margin"]):
        if margin > 0.5:
            assert chosen[step] == prompt["greedy_ids"][step], f"step {step}, margin {margin}"
