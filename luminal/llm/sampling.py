"""Picks the next token from logits, greedily or by chance.

In: f32 logits [vocab] and the ids so far. Out: one id. Filters apply in the order repetition
penalty, temperature, top-k, top-p, min-p. Same seed, same tokens. Must not know the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from luminal.errors import ArgumentError

__all__ = ["Sampler", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick tokens. The default is greedy.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 switch a filter
    off; penalty_window counts the last ids that are penalised, 0 for all of them.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0.0, math.inf),
            "top_k": (0, math.inf),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "penalty_window": (0, math.inf),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not low <= value <= high or value == math.inf:
                raise ArgumentError(
                    f"[generate] {name} is {value!r}. Expected a number from {low} to {high}"
                )
        if not 0 < self.repetition_penalty < math.inf:
            raise ArgumentError(
                f"[generate] repetition_penalty is {self.repetition_penalty!r}. Expected above 0"
            )
        if self.seed is not None and (not isinstance(self.seed, int) or self.seed < 0):
            raise ArgumentError(f"[generate] seed is {self.seed!r}. Expected a whole number from 0")


class Sampler:
    """Draws tokens with one stream of random numbers."""

    __slots__ = ("_random", "_sampling")

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def pick(self, logits: np.ndarray, history: Sequence[int]) -> int:
        """The next id for logits [vocab], given all ids so far; the logits are left alone."""
        options = self._sampling
        if options.repetition_penalty != 1.0:
            logits = self._penalised(logits, history)
        if options.temperature == 0.0:
            return int(np.argmax(logits))
        kept, probabilities = self._filtered(logits.astype(np.float64) / options.temperature)
        return int(self._random.choice(kept, p=probabilities))

    def _penalised(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        recent = history[-self._sampling.penalty_window :]
        seen = np.unique(np.asarray(recent, np.int64))
        penalty = self._sampling.repetition_penalty
        logits = logits.copy()
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        return logits

    def _filtered(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids that survive the filters, most likely first, and their probabilities."""
        options = self._sampling
        ids = np.arange(len(logits))
        if 0 < options.top_k < len(logits):
            ids = np.argpartition(-logits, options.top_k - 1)[: options.top_k]
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        weights = np.exp(logits[ids] - logits[ids[0]])
        if options.top_p < 1.0:
            before = np.cumsum(weights) - weights
            keep = before < options.top_p * weights.sum()
            keep[0] = True
            ids, weights = ids[keep], weights[keep]
        if options.min_p > 0.0:
            keep = weights >= options.min_p * weights[0]
            ids, weights = ids[keep], weights[keep]
        return ids, weights / weights.sum()
