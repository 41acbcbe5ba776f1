"""What the model commands of the command line do: complete, converse, measure.

In: an open model and options. Out: streamed text and result tables. Progress and notes go to
standard error. Must not parse arguments.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from luminal.errors import ArgumentError
from luminal.llm.engine import LLM, load
from luminal.llm.sampling import Sampling

__all__ = ["bench", "complete", "converse", "measure", "note", "open_model", "write_text"]

Write = Callable[[str], None]
_BANDWIDTH_BYTES = 1 << 28


def note(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


def write_text(text: str) -> None:
    """Text on standard output, at once; characters that it cannot show are replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """A spinner on standard error while something takes long, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    try:
        from rich.console import Console
    except ImportError:
        note(text)
        yield
        return
    with Console(stderr=True).status(text):
        yield


def open_model(
    path: str, n_ctx: int | None, numerics: str, threads: int | None, search: str | None
) -> LLM:
    """Opens a model file for a command."""
    with _progress(f"opening {path}"):
        return load(path, n_ctx, numerics, threads, search)


def complete(
    model: LLM,
    prompt: str,
    n: int,
    sampling: Sampling,
    stop_at_eos: bool = True,
    write: Write | None = None,
) -> dict[str, Any]:
    """Continues a prompt by up to `n` tokens, passing text to `write` as it comes.

    Returns prompt_tokens, tokens (ids), text, speeds in tokens per second, compile_s and
    plan_cached. Generation ends with a note when the context is full.
    """
    ids = model.tokenizer.encode(prompt)
    room = model.n_ctx - len(ids)
    if ids and room < 1:
        raise ArgumentError(
            f"[run] the prompt has {len(ids)} tokens and leaves no room in the context of "
            f"{model.n_ctx}. Try a shorter prompt or a larger --n-ctx"
        )
    steps = model.generate(ids, min(n, max(room, 0)), stop_at_eos, sampling)
    model.compile()
    tokens, prompt_s, decode_s = _stream(model, steps, write)
    if room < n and len(tokens) == room:
        note(f"luminal: the context of {model.n_ctx} tokens is full after {len(tokens)} new ones")
    shown = tokens[:-1] if stop_at_eos and tokens and tokens[-1] in model.stop_ids else tokens
    return {
        "prompt_tokens": len(ids),
        "tokens": tokens,
        "text": model.tokenizer.decode(shown),
        "prompt_tokens_per_s": len(ids) / prompt_s,
        "decode_tokens_per_s": max(len(tokens) - 1, 0) / decode_s if decode_s else 0.0,
        "compile_s": model.stats["compile_s"],
        "plan_cached": model.stats["plan_cached"],
    }


def _stream(
    model: LLM, steps: Iterator[int], write: Write | None, ends: frozenset[int] = frozenset()
) -> tuple[list[int], float, float]:
    """All ids, the seconds to the first one and the seconds for the others."""
    stream, tokens = model.tokenizer.stream(), []
    start = first = time.perf_counter()
    for token in steps:
        if not tokens:
            first = time.perf_counter()
        tokens.append(token)
        if write is not None and token < len(model.tokenizer):
            write(stream.push(token))
        if token in ends:
            break
    end = time.perf_counter()
    if write is not None:
        write(stream.close() + "\n")
    return tokens, max(first - start, 1e-9), end - first


def converse(model: LLM, n: int, sampling: Sampling, system: str | None) -> None:
    """Answers messages from standard input until it ends or a line is empty."""
    messages = [{"role": "system", "content": system}] if system else []
    model.tokenizer.chat([*messages, {"role": "user", "content": ""}])
    model.compile()
    while line := _ask():
        messages.append({"role": "user", "content": line})
        ids = model.tokenizer.encode(model.tokenizer.chat(messages))
        if model.tokenizer.bos is not None and ids[:2] == [model.tokenizer.bos] * 2:
            del ids[0]
        room = model.n_ctx - len(ids)
        if room < 1:
            raise ArgumentError(
                f"[chat] the conversation has {len(ids)} tokens and fills the context of "
                f"{model.n_ctx}. Try a new chat or a larger --n-ctx"
            )
        steps = model.generate(ids, min(n, room), True, sampling)
        tokens, _, _ = _stream(model, steps, write_text, model.tokenizer.turn_ids)
        if len(tokens) == room:
            note(f"luminal: the context of {model.n_ctx} tokens is full")
        answer = model.tokenizer.decode(tokens, skip_control=True)
        messages.append({"role": "assistant", "content": answer})


def _ask() -> str:
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        return input(prompt).strip()
    except EOFError:
        return ""
    except UnicodeDecodeError as error:
        raise ArgumentError(f"[chat] the input is not {error.encoding} text") from error


def bench(model: LLM, n_prompt: int, n_decode: int, repeat: int) -> dict[str, Any]:
    """Median speeds for a random prompt and greedy decoding after it."""
    ids = np.random.default_rng(0).integers(0, model.config.vocab, n_prompt).tolist()
    if n_prompt + n_decode > model.n_ctx:
        raise ArgumentError(
            f"[bench] {n_prompt} + {n_decode} tokens do not fit in the context of {model.n_ctx}. "
            "Try smaller --pp or --tg, or a larger --n-ctx"
        )
    model.compile()
    measure(model, ids, min(n_decode, 2))
    with _progress("measuring"):
        runs = [measure(model, ids, n_decode) for _ in range(repeat)]
    prompt_rate, decode_rate = (
        statistics.median(run[key] for run in runs)
        for key in ("prompt_tokens_per_s", "decode_tokens_per_s")
    )
    weights_bytes = model.stats["weights_bytes"]
    return {
        "pp": n_prompt,
        "tg": n_decode,
        "pp_tps": prompt_rate,
        "tg_tps": decode_rate,
        "weights_bytes": weights_bytes,
        "read_bandwidth_fraction": decode_rate * weights_bytes / _read_bandwidth(model.threads),
        "compile_s": model.stats["compile_s"],
        "plan_cached": model.stats["plan_cached"],
    }


def measure(model: LLM, ids: list[int], n: int) -> dict[str, float]:
    """Speeds of one run over a prompt, from scratch, and `n` greedy tokens after it.

    prompt_tokens_per_s covers the prompt and the first token, decode_tokens_per_s the others.
    """
    model.forget()
    steps = model.generate(ids, n, stop_at_eos=False)
    start = time.perf_counter()
    next(steps)
    first = time.perf_counter()
    for _ in steps:
        pass
    decode_s = max(time.perf_counter() - first, 1e-9)
    return {
        "prompt_tokens_per_s": len(ids) / (first - start),
        "decode_tokens_per_s": (n - 1) / decode_s,
    }


def _read_bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read from memory, the best of three passes."""
    parts = np.ones((threads, _BANDWIDTH_BYTES // 8 // threads))
    with ThreadPoolExecutor(threads) as pool:
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - start)
    return parts.nbytes / best
