"""What each row should take at best: bytes and operations of a plan against a chip's ceilings.

`python benchmarks/device/timing_model.py [--chip H200]` needs no GPU: it prints bytes, launches and
predicted times of Llama-3-8B in Q8_0. The device script calls `predict_ms` for its rows.

A kernel takes the longer of its bytes (each buffer once) and its operations; kernels run one by
one, and each launch inside a graph costs `LAUNCH_US`. Products of 16-bit operands count against the
matrix units, all else against the plain ones.

For decode, the emulator also counts what the text of each distinct kernel asks for: in a few blocks
of its grid, at full size otherwise, scaled to all of them, which differ only in where they read. A
kernel then takes the longest of its bytes, its operations, the sectors that its warps
ask the nearest cache for, and its instructions of memory."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from llama_file import SHAPES, write  # noqa: E402

import luminal.llm  # noqa: E402
from luminal import emulator  # noqa: E402
from luminal.codegen.generate import generate  # noqa: E402
from luminal.compiler import bind_weights, search_plan  # noqa: E402
from luminal.config import Config  # noqa: E402
from luminal.emulator import emulated  # noqa: E402
from luminal.explanation.facts import kernel_flops  # noqa: E402
from luminal.ir.expr import Expr, Var  # noqa: E402
from luminal.ir.plan import Kernel, Plan  # noqa: E402
from luminal.ir.term import postorder  # noqa: E402
from luminal.programs import ProgramCache  # noqa: E402
from luminal.runtime.gpu import H100  # noqa: E402

LAUNCH_US = 1.0
CONTEXTS = (128, 2048, 8192)


@dataclass(frozen=True)
class Ceilings:
    """GB/s of memory, GFLOP/s of bf16 in the matrix units and of f32 outside of them; the number of
    multiprocessors and GHz: a cycle serves an instruction of memory of a warp, or four sectors."""

    bandwidth_gbs: float
    matrix_gflops: float
    plain_gflops: float
    cores: int = 132
    ghz: float = 1.755


CHIPS = {"H100": Ceilings(3350, 989e3, 67e3), "H200": Ceilings(4800, 989e3, 67e3)}


def kernel_us(
    kernel: Kernel, plan: Plan, sizes: Mapping[str, int], c: Ceilings,
    counts: emulator.Counts | None = None,
) -> float:  # fmt: skip
    """The time of one launch at best, by its bytes and operations; by what it was seen to ask of
    memory too, if that was counted."""
    terms = postorder(*(s.value for s in kernel.stores))
    products = [t for t in terms if t.op == "sum"]
    bits = {t.dtype.bits for p in products for t in postorder(p) if t.op == "load"}
    rate = c.matrix_gflops if bits and bits <= {16} else c.plain_gflops
    moved_us = moved_bytes(kernel, plan, sizes) / c.bandwidth_gbs / 1e3
    cycles = 0.0
    if counts is not None:
        sectors = counts.sectors_read + counts.sectors_written
        cycles = max(sectors / 4 + counts.shared_cycles,
                     counts.reads + counts.writes + counts.shared_accesses)  # fmt: skip
    busy_us = cycles / (c.cores * c.ghz * 1e3)
    return LAUNCH_US + max(moved_us, kernel_flops(kernel, sizes) / rate / 1e3, busy_us)


def counted(plan: Plan, sizes: Mapping[str, int]) -> list[emulator.Counts]:
    """What each kernel asks of memory: each distinct text runs once, in the emulator."""
    program = generate(plan, H100)
    first: dict[int, int] = {}
    for n, call in enumerate(program.calls):
        first.setdefault(call, n)
    few = replace(plan, kernels=tuple(plan.kernels[n] for n in first.values()))
    found = emulator.counts(replace(program, plan=few, calls=tuple(first)), sizes)
    known = dict(zip(first, found, strict=True))
    return [known[call] for call in program.calls]


def moved_bytes(kernel: Kernel, plan: Plan, sizes: Mapping[str, int]) -> float:
    """Bytes that a launch must move: of each buffer what is touched, and that once."""
    points: dict[str, int] = {}

    def touch(name: str, axes: Iterable[Var]) -> None:
        count = prod(max(0, a.extent.evaluate(known(a.extent, sizes)))
                     for a in set(axes) - set(kernel.dims()))  # fmt: skip
        points[name] = max(points.get(name, 0), count)

    for t in kernel.subterms():
        if t.op == "load":
            touch(t.buffer, t.free)
    for store in kernel.stores:
        touch(store.buffer, kernel.axes)
    total = 0.0
    for name, count in points.items():
        b = plan.buffer(name)
        whole = prod(max(0, e.evaluate(known(e, sizes))) for e in b.shape)
        total += min(count, whole) * b.dtype.bits / 8
    return total


def known(e: Expr, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that occur in an expression."""
    return {v.name: sizes[v.name] for v in e.variables()}


def predict_ms(plan: Plan, sizes: Mapping[str, int], ceilings: Ceilings) -> float:
    """The time of a call at best."""
    return sum(kernel_us(k, plan, sizes, ceilings) for k in plan.kernels) / 1e3


def llama_plan(single: bool, shape: str = "8B") -> Plan:
    """The plan of one step of a llama in Q8_0, made without a GPU and without its weights."""
    config = Config(device="cuda-emulated", search="off", cache="off")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.gguf"
        write(path, SHAPES[shape], "Q8_0", empty=True)
        model = luminal.llm.load(path, n_ctx=8192 + 512, search="off")
        graph, hints, weights = model._runner.graph(single)
        graph, _ = bind_weights(graph, weights)
        cache = ProgramCache(config, H100)
        return search_plan(graph, config, H100, cache, hints, lambda text, share: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chip", choices=CHIPS, default="H200")
    parser.add_argument("--shape", choices=SHAPES, default="8B")
    args = parser.parse_args()
    c = CHIPS[args.chip]
    head = ("launches", "GB", "ms by bytes", "of the bound", "GB of sectors",
            "memory instructions, millions", "ms by counts", "of the bound")  # fmt: skip
    print(f"| Llama {args.shape} Q8_0 on {args.chip} | {' | '.join(head)} |")
    print("|" + " --- |" * 9)
    for single, contexts in ((True, CONTEXTS), (False, (0,))):
        plan = llama_plan(single, args.shape)
        for context in contexts:
            sizes = {"n_past": context, "n_q": 1 if single else 512, "n_rows": 1}
            row(plan, sizes, c, f"decode at {context}" if single else "prefill 512", single)


def row(plan: Plan, sizes: Mapping[str, int], c: Ceilings, name: str, count: bool) -> None:
    """Prints one row; what is counted takes seconds for one token, and far longer for many."""
    moved = sum(moved_bytes(k, plan, sizes) for k in plan.kernels)
    bound_ms, ms = moved / c.bandwidth_gbs / 1e6, predict_ms(plan, sizes, c)
    cells = [
        name,
        f"{len(plan.kernels)}",
        f"{moved / 1e9:.2f}",
        f"{ms:.2f}",
        f"{bound_ms / ms:.0%}",
    ]
    if count and emulated.compiler():
        found = counted(plan, sizes)
        pairs = list(zip(plan.kernels, found, strict=True))
        seen_ms = sum(kernel_us(k, plan, sizes, c, n) for k, n in pairs) / 1e3
        sectors = sum(n.sectors_read + n.sectors_written for n in found) * 32
        asked = sum(n.reads + n.writes for n in found)
        cells += [f"{sectors / 1e9:.1f}", f"{asked / 1e6:.1f}", f"{seen_ms:.2f}",
                  f"{bound_ms / seen_ms:.0%}"]  # fmt: skip
    print("| " + " | ".join(cells + ["", "", "", ""][len(cells) - 5 :]) + " |", flush=True)


if __name__ == "__main__":
    main()
