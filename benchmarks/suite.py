"""All CPU tables of docs/benchmarks.md: `python benchmarks/suite.py [--threads 2] [--only NAME]`.

Every row is interleaved with its peers in this process. The result replaces the generated part of
docs/benchmarks.md, with a plot beside it, unless --dry is given.
"""

import argparse
import datetime
import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from blocks import BLOCKS  # noqa: E402
from gemm import gemm_lines  # noqa: E402
from language import random_lines, smollm2_lines  # noqa: E402
from levels import Level, compare, curve_plot, level_lines  # noqa: E402
from models import SUITE, minilm  # noqa: E402
from peers import PEERS, contenders  # noqa: E402
from timing import Row, interleave, plot, table  # noqa: E402

import luminal  # noqa: E402

MARK = "<!-- generated -->"


WORK = {**BLOCKS, **SUITE, "MiniLM-L6 batch 8": lambda: minilm(8)}


def model_rows(seconds: float, threads: int, peers: tuple[str, ...], only: str) -> Iterator[Row]:
    """Whole models and blocks against the peers."""
    for name, build in WORK.items():
        if only not in name:
            continue
        model, inputs = build()
        runs, problems = contenders(model, inputs, threads, peers)
        for peer, problem in problems.items():
            print(f"{name}: no {peer}: {problem}", flush=True)
        yield interleave(name, runs, seconds)
        torch._dynamo.reset()


def attention_rows(seconds: float) -> Iterator[Row]:
    """Attention written with matmul, mask and softmax, against PyTorch's fused operator."""
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    for causal in (False, True):
        mask = torch.ones(2048, 2048, dtype=torch.bool).tril() if causal else None

        def spelled(q, k, v, mask=mask):
            score = q @ k.transpose(-1, -2) * 0.125
            if mask is not None:
                keep = torch.arange(q.shape[-2])[:, None] >= torch.arange(k.shape[-2])[None]
                score = score.masked_fill(~keep, float("-inf"))
            return torch.softmax(score, -1) @ v

        run = torch.compile(spelled, backend="luminal", dynamic=False)
        fused = torch.nn.functional.scaled_dot_product_attention
        yield interleave(
            f"attention 8x2048x64{' causal' * causal}",
            {"luminal": lambda: run(q, k, v),
             "eager": lambda c=causal: fused(q, k, v, is_causal=c)},
            seconds,
        )  # fmt: skip


def search_lines(seconds: float, model: str, full_s: float, dry: bool) -> Iterator[str]:
    """Search "off", "fast" and "full" for each model; a chart of how the best time fell. What an
    earlier run found for the other models is kept in build/levels, and shown too."""
    folder, results = ROOT / "build" / "levels", []
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in WORK.items():
        kept = folder / f"{name.replace('/', '-')}.pickle"
        if model in name:
            try:
                result = compare(name, build, seconds, full_s)
            except Exception as error:  # a model that cannot be built is a row with the reason
                result = Row(name, {}), {"off": Level(problem=f"{error}"[:120])}
            kept.write_bytes(pickle.dumps(result))
            print(*level_lines([result]), sep="\n", flush=True)
        if kept.exists():
            results.append(pickle.loads(kept.read_bytes()))
    if not dry:
        curve_plot(results, ROOT / "docs" / "search.svg")
    yield from level_lines(results)


def overhead_lines() -> Iterator[str]:
    """What a call of a one-kernel graph costs."""

    def constant_backend(gm, example_inputs):
        out = (torch.zeros(4),)
        return lambda *args: out

    def add(x):
        return x + 1

    def plus(x):  # its own code: Dynamo keeps what it compiles for both backends with the code
        return x + 1

    x, a = torch.zeros(4), np.zeros(4, np.float32)
    direct = luminal.compile(lambda t: t + 1, [a])
    ours = torch.compile(add, backend="luminal", dynamic=False)
    theirs = torch.compile(plus, backend=constant_backend, dynamic=False)
    for run, arg in ((direct, a), (ours, x), (theirs, x)):
        for _ in range(50):
            run(arg)
    row = interleave("call", {"luminal": lambda: ours(x), "constant backend": lambda: theirs(x),
                              "luminal.compile": lambda: direct(a)}, 2.0)  # fmt: skip
    for label, ms in row.ms.items():
        yield f"- {label}: {ms * 1e3:.1f} µs a call"


def means(rows: list[Row], peers: tuple[str, ...]) -> Iterator[str]:
    """Geometric means of the ratios, and the rows below their best peer."""
    for peer in peers:
        ratios = [r.ratio(peer) for r in rows if peer in r.ms]
        if ratios:
            yield f"- {geometric_mean(ratios):.2f} x {peer} (geometric mean of {len(ratios)})"
    best = {r.name: r.ratio(r.best(peers)) for r in rows}
    below = ", ".join(f"{name} {ratio:.2f}" for name, ratio in best.items() if ratio < 1)
    yield f"- {geometric_mean(best.values()):.2f} x the best peer of each row"
    yield f"- below their best peer: {below or 'none'}\n"


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), cpu)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip()  # fmt: skip
    found = [
        f"{name} {version(name)}" for name in ("torch", "onnxruntime", "openvino", "xllamacpp")
    ]
    return (f"{cpu}, {os.cpu_count()} cores; Python {platform.python_version()}, "
            f"{', '.join(found)}; luminal {commit}; {datetime.date.today()}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=6.0, help="per row")
    parser.add_argument(
        "--only",
        default="",
        help="models, attention, gemm, overhead, llm, or (only if asked for) search, llm1b, llm8b",
    )
    parser.add_argument("--peers", default=",".join(PEERS), help="what to compare, by comma")
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--search-seconds", type=float, default=120.0,
                        help="what search 'full' may take a model in --only search")  # fmt: skip
    parser.add_argument("--dry", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    peers = tuple(dict.fromkeys(("luminal", "eager", *args.peers.split(","))))
    parts = [f"{machine()}; {args.threads} threads. Medians of interleaved rounds.\n"]
    rows: list[Row] = []
    if args.only in ("", "models"):
        for row in model_rows(args.seconds, args.threads, peers, args.model):
            print(row.name, {k: round(v, 3) for k, v in row.ms.items()}, flush=True)
            rows.append(row)
        parts += ["## Models and blocks\n", table(rows, peers[1:]), "", *means(rows, peers[1:])]
    if args.only in ("", "attention"):
        spelled = list(attention_rows(args.seconds))
        parts += ["## Attention written out, against the fused operator\n",
                  table(spelled, ("eager",)), ""]  # fmt: skip
    if args.only in ("", "gemm"):
        parts += [
            "## Matrix products with a constant\n",
            *gemm_lines(args.seconds / 2, args.threads),
            "",
        ]
    if args.only in ("", "overhead"):
        parts += ["## Call overhead\n", *overhead_lines(), ""]
    if args.only in ("", "llm"):
        parts += ["## SmolLM2-135M-Instruct Q4_1\n", *smollm2_lines(args.threads, 5), ""]
    if args.only == "search":
        lines = search_lines(args.seconds, args.model, args.search_seconds, args.dry)
        parts += ["## What the search is worth\n", *lines, ""]
    for size, kinds in (("1B", ("Q4_K", "Q6_K", "Q8_0")), ("8B", ("Q8_0",))):
        for kind in kinds if args.only == f"llm{size.lower()}" else ():  # only where asked for
            lines = random_lines(size, kind, args.threads, 3, peer=size == "1B")
            parts += [f"## A {size} llama of random {kind}\n", *lines, ""]
    text = "\n".join(parts)
    print(text)
    if not args.dry and not args.only and not args.model:
        plot(rows, peers[1:], ROOT / "docs" / "benchmarks.svg")
        page = ROOT / "docs" / "benchmarks.md"
        head = page.read_text().split(MARK)[0] if page.exists() else "# Benchmarks\n\n"
        page.write_text(f"{head}{MARK}\n\n{text}")


if __name__ == "__main__":
    main()
