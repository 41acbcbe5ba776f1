"""Quantised language models: SmolLM2, a 1B-class and an 8B-class llama with random weights, against
llama.cpp in a process of its own and against what this machine reads from memory in the same run.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from assets import fetch
from llama_file import SHAPES, LlamaCpp, read_per_token, write
from machine import Read
from timing import rest, turn

import luminal.llm

PROMPT = "The history of the compiler is a history of abstraction. " * 24


def peak_bytes() -> int:
    """The most memory that this process ever held; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(s.split()[1]) << 10 for s in lines if s.startswith("VmHWM")), 0)


def smollm2_lines(threads: int, rounds: int) -> Iterator[str]:
    """SmolLM2-135M Q4_1: tokens a second beside llama.cpp."""
    path = str(fetch("smollm2-135m") / "SmolLM2-135M-Instruct.Q4_1.gguf")
    yield from _table(path, threads, rounds, PROMPT, 64)


def random_lines(size: str, kind: str, threads: int, rounds: int, peer: bool) -> Iterator[str]:
    """A llama with random weights: written to a temporary folder and removed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{size}-{kind}.gguf"
        write(path, SHAPES[size], kind)
        needed = read_per_token(SHAPES[size], kind)
        ids, count = list(range(300, 364)), 8 if size == "8B" else 32
        yield from _table(str(path), threads, rounds, ids, count, needed, peer)


def _table(
    path: str, threads: int, rounds: int, prompt: str | list[int], count: int, needed: int = 0,
    peer: bool = True,
) -> Iterator[str]:  # fmt: skip
    figures: dict[str, list[float]] = {}
    theirs = LlamaCpp(path, threads, 1024) if peer else None
    held, read, rates = 0.0, None, list[float]()
    for numerics in ("exact", "fast") if peer else ("fast",):
        model = luminal.llm.load(path, n_ctx=1024, threads=threads, numerics=numerics)
        model.compile()
        ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        for number in range(rounds + 1):
            if theirs is not None:
                timings = theirs.run(prompt, count)
                _note(figures, "llama.cpp", number, timings["prompt_per_second"],
                      timings["predicted_per_second"])  # fmt: skip
            rest()
            ours = luminal.llm.measure(model, ids, count)
            _note(figures, numerics, number, ours["prompt_tokens_per_s"],
                  ours["decode_tokens_per_s"])  # fmt: skip
            if read is None:  # its buffer does not count as ours
                held, read = peak_bytes() / Path(path).stat().st_size, Read(threads)
            rates.append(read.rate(turn(read)))
        del model
    if theirs is not None:
        theirs.close()
    m = {key: median(values) for key, values in figures.items()}
    limit = median(rates)
    yield "| | prefill tokens/s | decode tokens/s | x llama.cpp | GB/s of the file | of reads |"
    yield "|" + " --- |" * 6
    for who in [key[:-3] for key in m if key.endswith(" tg")]:
        prefill, decode = m[f"{who} pp"], m[f"{who} tg"]
        ratios = [f"{m[f'{who} {k}'] / m[f'llama.cpp {k}']:.2f}" for k in ("pp", "tg") if peer]
        rate = f"{decode * needed / 1e9:.1f} | {decode * needed / 1e9 / limit:.2f}"
        yield (
            f"| {who} | {prefill:.1f} | {decode:.2f} | {' / '.join(ratios) or '–'} | "
            f"{rate if needed else '– | –'} |"
        )

    yield f"\nReads in turn with them: {limit:.1f} GB/s."
    if not peer:
        yield f"\nPeak memory of the process: {held:.2f} x the file."


def _note(figures: dict[str, list[float]], who: str, number: int, pp: float, tg: float) -> None:
    if number:  # the first round warms up
        figures.setdefault(f"{who} pp", []).append(pp)
        figures.setdefault(f"{who} tg", []).append(tg)
