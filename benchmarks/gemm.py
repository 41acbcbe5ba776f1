"""Matrix products x[M, K] @ w[N, K].T with a constant w against torch.mm, beside what the machine
can do at most in the same minute.
"""

from collections.abc import Iterator

import numpy as np
import torch
from machine import Peak, Read
from timing import interleave

import luminal

ROWS = (1, 4, 16, 64, 256, 1024)
SIZES = (1024, 4096)


def gemm_lines(seconds: float, threads: int) -> Iterator[str]:
    """A Markdown table, line by line."""
    peak, read = Peak(threads), Read(threads)
    yield "| M | N=K | luminal ms | torch.mm ms | x torch.mm | GFLOP/s | of FMA | GB/s | of reads |"
    yield "|" + " --- |" * 9
    for size in SIZES:
        w = torch.randn(size, size)
        packed = luminal.tensor(w.numpy())
        for rows in ROWS:
            x, out = torch.randn(rows, size), torch.empty(rows, size)
            run = luminal.compile(lambda x, w=packed: x @ w.transpose(0, 1), [x.numpy()])
            runs = {"luminal": lambda x=x.numpy(), run=run: run(x),
                    "torch": lambda x=x, o=out: torch.mm(x, w.T, out=o),
                    "peak": peak, "read": read}  # fmt: skip
            error = np.abs(run(x.numpy()) - torch.mm(x, w.T).numpy()).max() / size**0.5
            assert error < 1e-4, f"[gemm] {rows}x{size}: the results differ by {error:.1e}"
            ms = interleave(f"{rows}x{size}", runs, seconds).ms
            gflops, gbs = (
                2 * rows * size**2 / ms["luminal"] / 1e6,
                size**2 * 4 / ms["luminal"] / 1e6,
            )
            yield (
                f"| {rows} | {size} | {ms['luminal']:.3f} | {ms['torch']:.3f} | "
                f"{ms['torch'] / ms['luminal']:.2f} | {gflops:.0f} | "
                f"{gflops / peak.rate(ms['peak']):.2f} | {gbs:.1f} | "
                f"{gbs / read.rate(ms['read']):.2f} |"
            )
