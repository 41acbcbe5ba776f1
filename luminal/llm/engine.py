"""An open language model: logits and generation over a key/value cache.

In: a GGUF path. Out: an `LLM`. Checks every argument, keeps track of which tokens the cache holds
and feeds only what is new. Must not know how the model computes.
"""

import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from luminal.compiler import Compiled
from luminal.errors import ArgumentError, OutOfRangeError
from luminal.frontend.weights import GGUFFile, open_gguf
from luminal.llm.runner import Runner
from luminal.llm.sampling import Sampler, Sampling
from luminal.llm.tokenizer import Tokenizer, load_tokenizer
from luminal.llm.vocabulary import check_types
from luminal.models.decoder_weights import read_weights
from luminal.models.hyperparameters import read_config

__all__ = ["LLM", "load"]

_CHUNK = 512


class LLM:
    """A language model that is ready to run; made by `load`.

    `config` holds its hyperparameters, `n_ctx` how many tokens fit, `stats` the seconds spent
    compiling and whether the plans came from the cache.
    """

    def __init__(self, file: GGUFFile, runner: Runner, n_ctx: int) -> None:
        self._file, self._runner = file, runner
        self.config, self.n_ctx = runner.config, n_ctx
        self._held: list[int] = []
        self._lock = threading.Lock()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file; WeightsError when it has none."""
        return load_tokenizer(self._file)

    @property
    def stats(self) -> dict[str, Any]:
        """compile_s, plan_cached and weights_bytes, of what has been compiled so far."""
        return self._runner.stats()

    @property
    def threads(self) -> int:
        """How many threads a call uses."""
        return self._runner.threads

    def compile(self) -> None:
        """Compiles now what the first call would compile: the prompt and the decode program."""
        self._runner.compile()

    def program(self, prompt: bool = False) -> Compiled:
        """The compiled step of one token, or of many (`prompt`): for `luminal.explain`."""
        return self._runner.program(single=not prompt)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """f32 [len(ids), vocab]: what follows each prefix of `ids`."""
        ids = self._checked(ids, 0)
        with self._lock:
            self._held = []
            parts = [
                self._runner.forward(ids[at : at + _CHUNK], at, all_rows=True)
                for at in range(0, len(ids), _CHUNK)
            ]
            self._held = ids
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def generate(
        self,
        ids: Sequence[int],
        n: int,
        stop_at_eos: bool = True,
        sampling: Sampling | None = None,
        **options: Any,
    ) -> Iterator[int]:
        """Yields up to `n` new ids, greedily unless sampling options say otherwise.

        `options` are the fields of `Sampling`. The id that ends the text is the last one yielded.
        Raises ArgumentError at once when the prompt and `n` tokens do not fit in the context.

        >>> list(model.generate([1, 2], 8, temperature=0.7, seed=1))  # doctest: +SKIP
        """
        if type(n) is not int or n < 0:
            raise ArgumentError(f"[generate] cannot generate {n!r} tokens. Expected 0 or more")
        if sampling is not None and options:
            raise ArgumentError(
                f"[generate] got both sampling and {', '.join(options)}. Expected one of them"
            )
        sampler = Sampler(sampling or _sampling(options))
        return self._generate(self._checked(ids, n), n, stop_at_eos, sampler)

    def _generate(self, ids: list[int], n: int, stop: bool, sampler: Sampler) -> Iterator[int]:
        ends = self.stop_ids if stop else frozenset()
        for _ in range(n):
            token = sampler.pick(self.next_logits(ids), ids)
            ids.append(token)
            yield token
            if token in ends:
                return

    def next_logits(self, ids: list[int]) -> np.ndarray:
        """f32 [vocab]: what follows `ids`; tokens that the cache already holds are not redone."""
        with self._lock:
            start = _common_prefix(self._held, ids[:-1])
            self._held = self._held[:start]
            for at in range(start, len(ids), _CHUNK):
                chunk = ids[at : min(at + _CHUNK, len(ids))]
                rows = self._runner.forward(chunk, at, all_rows=False)
            self._held = list(ids)
        return rows[0]

    def forget(self) -> None:
        """Drops what the cache holds: the next call computes its prompt anew."""
        with self._lock:
            self._held = []

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end a text, as the file says."""
        keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
        found = (self._file.metadata.get(key) for key in keys)
        return frozenset(token for token in found if token is not None)

    def _checked(self, ids: Sequence[int], extra: int) -> list[int]:
        try:
            tokens = [int(token) for token in ids]
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"[llm] ids must be whole numbers. Got {ids!r:.60}") from error
        if not tokens:
            raise ArgumentError("[llm] the prompt is empty. Expected at least one token id")
        vocab = self.config.vocab
        bad = next((token for token in tokens if not 0 <= token < vocab), None)
        if bad is not None:
            raise OutOfRangeError(
                f"[llm] token id {bad} is outside the vocabulary. Expected 0 to {vocab - 1}"
            )
        if len(tokens) + extra > self.n_ctx:
            more = f" and {extra} new ones" if extra else ""
            raise ArgumentError(
                f"[llm] {len(tokens)} tokens{more} make {len(tokens) + extra}, which do not fit in "
                f"the context of {self.n_ctx}. Try a larger n_ctx or a shorter prompt"
            )
        return tokens


def load(
    path: str | Path,
    n_ctx: int | None = None,
    numerics: str = "exact",
    threads: int | None = None,
    search: str | None = None,
) -> LLM:
    """Opens a GGUF file as a language model; programs are compiled on first use.

    n_ctx: tokens that must fit (default: what the model was trained for). Raises WeightsError for
    a damaged file, UnsupportedError for an unknown architecture.
    """
    if n_ctx is not None and (type(n_ctx) is not int or n_ctx <= 0):
        raise ArgumentError(f"[load] n_ctx is {n_ctx!r}. Expected a whole number from 1 up")
    file = open_gguf(path)
    config = read_config(file)
    check_types(file)
    weights = read_weights(file, config)
    limit = n_ctx or config.context_length
    runner = Runner(config, weights, limit, numerics=numerics, threads=threads, search=search)
    return LLM(file, runner, limit)


def _sampling(options: dict[str, Any]) -> Sampling:
    try:
        return Sampling(**options)
    except TypeError as error:
        known = ", ".join(Sampling.__dataclass_fields__)
        raise ArgumentError(f"[generate] unknown option in {options}. Expected {known}") from error


def _common_prefix(held: list[int], ids: list[int]) -> int:
    if len(held) <= len(ids) and held == ids[: len(held)]:
        return len(held)
    pairs = zip(held, ids, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(held), len(ids)))
