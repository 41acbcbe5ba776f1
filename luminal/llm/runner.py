"""Runs a decoder step by step: compiled programs and the key/value cache they update.

In: a DecoderConfig and its weights. Out: logits of new tokens. One program takes any number of
new tokens, one exactly one; both take any number of cached ones, and get addresses, since the
sizes of every step are new and known to fit. Must not know about text.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from luminal.compiler import Compiled, compile_graph
from luminal.config import from_environment
from luminal.frontend.functional import arange
from luminal.frontend.tensor import Tensor, to_graph
from luminal.ir.dtype import f32, i64, u8
from luminal.ir.expr import Var, to_expr
from luminal.ir.graph import Graph
from luminal.models.decoder_weights import DecoderWeights
from luminal.models.hyperparameters import DecoderConfig
from luminal.models.llama import StepInputs, decoder_step
from luminal.models.quantised import WeightInputs
from luminal.models.rope import RopeTable
from luminal.runtime.device import thread_count

__all__ = ["Runner"]

_FIRST_CAPACITY = 256
_TYPICAL = 256  # tokens of a prompt, and tokens before it, to tune for


class Runner:
    """A decoder whose cache holds the tokens it has seen, in their order."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        n_ctx: int,
        numerics: str,
        threads: int | None,
        search: str | None,
    ) -> None:
        self.config, self._weights, self._n_ctx = config, weights, n_ctx
        self._settings = from_environment().override(
            numerics=numerics, threads=threads, search=search
        )
        self._table = self._local_table = RopeTable(config.rope)
        if config.local_rope != config.rope:
            self._local_table = RopeTable(config.local_rope)
        self._programs: dict[bool, Compiled] = {}
        self._compile_s, self._cached = 0.0, True
        self._capacity = 0
        self._caches: list[np.ndarray] = []
        self._rotations: list[np.ndarray] = []
        self._cache_pointers: list[int] = []
        self._table_pointers: list[int] = []
        self._table_row_bytes = 0
        self._lent: list[tuple[int, object]] = []

    @property
    def threads(self) -> int:
        """How many threads a call uses."""
        return thread_count(self._settings.threads)

    def stats(self) -> dict[str, Any]:
        """compile_s, plan_cached and weights_bytes so far."""
        return {
            "compile_s": self._compile_s,
            "plan_cached": bool(self._programs) and self._cached,
            "weights_bytes": self._weights.size_bytes,
        }

    def compile(self) -> None:
        """Makes both programs now."""
        self.program(single=False)
        self.program(single=True)

    def forward(self, ids: Sequence[int], start: int, all_rows: bool) -> np.ndarray:
        """Logits f32 [len(ids), vocab] (or [1, vocab], of the last) of tokens at `start` on.

        The cache must hold the `start` tokens before them; it holds these ones afterwards.
        """
        count = len(ids)
        program = self.program(single=count == 1)
        device = getattr(program.executor, "device", None)
        self._grow(start + count, device)
        tokens = np.asarray(ids, np.int64)
        rows = np.arange(0 if all_rows else count - 1, count, dtype=np.int64)
        logits = np.empty((len(rows), self.config.vocab), np.float32)
        sizes = {"n_past": start, "n_q": count, "n_rows": len(rows)}
        held = [_lend(device, a) for a in (tokens, rows, logits)]
        inputs = [held[0][0], held[1][0], held[0][0]]
        inputs += [table + start * self._table_row_bytes for table in self._table_pointers]
        program.run_pointers(
            [*inputs, *self._cache_pointers],
            [held[2][0]],
            tuple(sizes[dim.name] for dim in program.plan.dims),
        )
        if device is not None:
            _fetch(device, [logits], [held[2][0]])
            program.executor.synchronize()  # type: ignore[attr-defined]
        return logits

    def _grow(self, tokens: int, device: Any = None) -> None:
        """Makes room for so many tokens, at most those of the context."""
        if tokens <= self._capacity:
            return
        if device is not None:
            _fetch(device, self._caches, self._cache_pointers)
        wanted = max(_FIRST_CAPACITY, 2 * self._capacity, tokens)
        self._capacity = min(wanted, max(self._n_ctx, tokens))
        shape = (self._capacity, self.config.n_kv_heads, self.config.head_dim)
        old, self._caches = self._caches, []
        for index in range(2 * self.config.n_layers):
            self._caches.append(np.zeros(shape, np.float32))
            if old:
                self._caches[index][: len(old[index])] = old[index]
        lent = [_lend(device, cache) for cache in self._caches]
        self._cache_pointers = [address for address, _ in lent]
        tables = self._table.tables(0, self._capacity)
        local = (
            tables
            if self._local_table is self._table
            else self._local_table.tables(0, self._capacity)
        )
        self._rotations = [*tables, *local]
        lent += [_lend(device, table) for table in self._rotations]
        self._table_pointers = [address for address, _ in lent[len(self._caches) :]]
        self._lent = lent
        self._table_row_bytes = tables[0][0].nbytes

    def program(self, single: bool) -> Compiled:
        """The compiled step of one token, or of many."""
        if single not in self._programs:
            start = time.perf_counter()
            self._programs[single] = self._compiled(single)
            self._compile_s += time.perf_counter() - start
            self._cached &= self._programs[single].stats.cache == "hit"
        return self._programs[single]

    def _compiled(self, single: bool) -> Compiled:
        graph, hints, weights = self.graph(single)
        return compile_graph(graph, self._settings, hints=hints, weights=weights)

    def graph(self, single: bool) -> tuple[Graph, dict[str, int], dict[str, np.ndarray]]:
        """The step of one token, or of many: typical sizes, and the weights by name."""
        config = self.config
        limit = max(self._n_ctx, 2)
        typical = min(_TYPICAL, max(1, self._n_ctx // 2))
        hints = {"n_q": typical, "n_past": typical, "n_rows": 1}
        n_past = to_expr(Var("n_past", 0, limit))
        n_q = to_expr(1 if single else Var("n_q", 1, limit))
        n_rows = to_expr(1 if single else Var("n_rows", 1, limit))
        half = config.rope.dims // 2
        pairs = (half, 2) if config.rope.interleaved else (2, half)
        tables = [
            Tensor.from_input(name, (n_q, *pairs), f32)
            for name in ("cosines", "sines", "local_cosines", "local_sines")
        ]
        shape = (n_past + n_q, config.n_kv_heads, config.head_dim)
        caches = [
            (
                Tensor.from_input(f"keys{layer}", shape, f32),
                Tensor.from_input(f"values{layer}", shape, f32),
            )
            for layer in range(config.n_layers)
        ]
        inputs = StepInputs(
            ids=Tensor.from_input("ids", (n_q,), i64),
            positions=arange(n_past, n_past + n_q),
            rows=Tensor.from_input("rows", (n_rows,), i64),
            rotation=(tables[0], tables[1]),
            local_rotation=(tables[2], tables[3]),
            caches=caches,
        )
        declared = WeightInputs(integer_dots=self._settings.numerics == "fast")
        outputs = decoder_step(config, self._weights, declared, inputs)
        past = Tensor.from_input("past", (n_past,), u8)  # tells how many tokens the caches hold
        order = [inputs.ids, inputs.rows, past, *tables]
        order += [tensor for pair in caches for tensor in pair]
        return to_graph(outputs, order), hints, dict(declared.arrays)


def _lend(device: Any, array: np.ndarray) -> tuple[int, object]:
    """Where a program finds an array, and what keeps it there: itself, or a copy on a device."""
    if device is None:
        return array.ctypes.data, array
    with device:
        memory = device.upload(array)
    return memory.address, memory


def _fetch(device: Any, arrays: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
    """Fills arrays from a device."""
    with device:
        for array, address in zip(arrays, addresses, strict=True):
            device.download(array, address)
        device.synchronize()
