"""The engine: logits and greedy tokens against a plain NumPy decoder, cache use and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.errors import ArgumentError, LuminalError, WeightsError
from luminal.llm import LLM, load
from luminal.weights import load_gguf
from tests import gguf_writer as gw
from tests.reference_decoder import reference_logits
from tests.tiny_models import VOCAB, decoder_bytes

PROMPT = [3, 9, 27, 17, 51]


def put(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(decoder_bytes(**changes))
    return path


def greedy(path: Path, ids: list[int], n: int) -> list[int]:
    metadata, tensors = load_gguf(path)
    out: list[int] = []
    for _ in range(n):
        out.append(int(reference_logits(metadata, tensors, ids + out)[-1].argmax()))
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LLM]:
    path = put(tmp_path_factory.mktemp("plain"))
    return path, load(path, search="off")


GEMMA = {"attention.sliding_window": (gw.U32, 3)}


@pytest.mark.parametrize(
    ("architecture", "keys"), [("llama", {}), ("qwen2", {}), ("qwen3", {}), ("gemma3", GEMMA)]
)
def test_logits_and_tokens(tmp_path: Path, architecture: str, keys: dict) -> None:
    path = put(tmp_path, architecture=architecture, keys=keys)
    model = load(path, search="off")
    metadata, tensors = load_gguf(path)
    for ids in (PROMPT, [5], list(range(3, 20))):
        np.testing.assert_allclose(
            model.logits(ids), reference_logits(metadata, tensors, ids), rtol=1e-4, atol=1e-4
        )
    assert list(model.generate(PROMPT, 6, stop_at_eos=False)) == greedy(path, PROMPT, 6)


def test_tied_output(tmp_path: Path) -> None:
    path = put(tmp_path, without=("output.weight",))
    metadata, tensors = load_gguf(path)
    want = reference_logits(metadata, tensors, PROMPT)
    np.testing.assert_allclose(load(path, search="off").logits(PROMPT), want, rtol=1e-4, atol=1e-4)


def test_interleaved_generators_do_not_disturb_each_other(plain: tuple[Path, LLM]) -> None:
    path, model = plain
    first, second = PROMPT, [7, 8]
    pairs = zip(
        model.generate(first, 5, stop_at_eos=False),
        model.generate(second, 5, stop_at_eos=False),
        strict=True,
    )
    assert [list(column) for column in zip(*pairs, strict=True)] == [
        greedy(path, first, 5),
        greedy(path, second, 5),
    ]


def test_long_prompt_runs_in_chunks(plain: tuple[Path, LLM], monkeypatch: Any) -> None:
    _, model = plain
    ids = [3 + i % 60 for i in range(40)]
    whole = model.logits(ids)
    monkeypatch.setattr("luminal.llm.engine._CHUNK", 16)
    np.testing.assert_allclose(model.logits(ids), whole, rtol=1e-4, atol=1e-4)


def test_stops_at_the_end_token(tmp_path: Path, plain: tuple[Path, LLM]) -> None:
    tokens = greedy(plain[0], PROMPT, 6)
    path = put(tmp_path, tokenizer_changes={"eos_token_id": (gw.U32, tokens[2])})
    want = tokens[: tokens.index(tokens[2]) + 1]
    assert list(load(path, search="off").generate(PROMPT, 6)) == want


def test_sampling_repeats_with_a_seed(plain: tuple[Path, LLM]) -> None:
    _, model = plain
    runs = [
        list(model.generate(PROMPT, 8, temperature=1.5, seed=seed, stop_at_eos=False))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_context_limits(tmp_path: Path) -> None:
    model = load(put(tmp_path), n_ctx=16, search="off")
    with pytest.raises(ArgumentError, match=r"17.*16"):
        model.logits(list(range(3, 20)))
    with pytest.raises(ArgumentError, match=r"17.*16"):
        model.generate([3] * 10, 7)
    assert len(list(model.generate([3] * 10, 6, stop_at_eos=False))) == 6
    for bad in (0, -1, 2.5):
        with pytest.raises(ArgumentError, match="n_ctx"):
            load(put(tmp_path), n_ctx=bad)


@pytest.mark.parametrize("ids", [[], [VOCAB], [-1], [3, 1 << 40], ["x"], 7])
def test_bad_ids(plain: tuple[Path, LLM], ids: Any) -> None:
    with pytest.raises(LuminalError):
        plain[1].logits(ids)


@pytest.mark.parametrize(
    ("n", "options"), [(-1, {}), (2.5, {}), (1, {"warmth": 3}), (1, {"top_p": 7})]
)
def test_bad_generation_arguments(plain: tuple[Path, LLM], n: Any, options: dict) -> None:
    with pytest.raises(ArgumentError):
        plain[1].generate(PROMPT, n, **options)


def test_no_tokens_wanted(plain: tuple[Path, LLM]) -> None:
    assert list(plain[1].generate(PROMPT, 0)) == []


def test_a_file_without_tokenizer_still_runs_on_ids(tmp_path: Path) -> None:
    model = load(put(tmp_path, tokenizer=False), search="off")
    assert model.logits([3]).shape == (1, VOCAB)
    with pytest.raises(WeightsError, match="no usable tokenizer"):
        _ = model.tokenizer


def test_damaged_tokenizer_is_found_at_load(tmp_path: Path) -> None:
    scores = {"scores": (gw.ARRAY, (gw.U8, [0] * VOCAB))}
    with pytest.raises(WeightsError, match="scores"):
        load(put(tmp_path, tokenizer_changes=scores))
