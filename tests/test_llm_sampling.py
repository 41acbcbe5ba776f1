"""Sampling: every filter against its definition, and repeatable draws."""

from collections import Counter

import numpy as np
import pytest

from luminal.errors import ArgumentError
from luminal.llm import Sampler, Sampling

LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))


def draws(count: int = 400, **options) -> Counter:
    sampler = Sampler(Sampling(seed=7, **options))
    return Counter(sampler.pick(LOGITS, []) for _ in range(count))


def test_greedy_takes_the_first_maximum() -> None:
    assert Sampler(Sampling()).pick(np.array([0.0, 2.0, 2.0], np.float32), []) == 1


def test_temperature_one_follows_the_probabilities() -> None:
    counts = draws(4000, temperature=1.0)
    np.testing.assert_allclose([counts[i] / 4000 for i in range(5)], np.exp(LOGITS), atol=0.03)


def test_filters_keep_the_right_tokens() -> None:
    assert set(draws(temperature=1.0, top_k=2)) == {0, 1}
    assert set(draws(temperature=1.0, top_p=0.69)) == {0, 1}
    assert set(draws(temperature=1.0, top_p=0.71)) == {0, 1, 2}
    assert set(draws(temperature=1.0, top_p=0.0)) == {0}
    assert set(draws(temperature=1.0, min_p=0.4)) == {0, 1, 2}
    assert set(draws(temperature=5.0, top_k=100)) == {0, 1, 2, 3, 4}


def test_repetition_penalty_both_signs_and_window() -> None:
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    assert Sampler(Sampling(repetition_penalty=2.0)).pick(logits, [0]) == 1
    assert Sampler(Sampling(repetition_penalty=2.0, penalty_window=1)).pick(logits, [0, 1]) == 0
    assert logits.tolist() == [2.0, 1.5, -1.0]


def test_same_seed_same_tokens() -> None:
    assert draws(temperature=0.8) == draws(temperature=0.8)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"seed": -1},
    ],
)
def test_bad_options_are_refused(options: dict) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options))):
        Sampling(**options)
