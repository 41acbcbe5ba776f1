"""The parts of the device script: what they measure, item by item, in a process of their own.

`parts.py FILE [--dry] PART ITEM...` writes two lines of JSON an item: that it starts, and its row.
With --dry everything has toy size and runs on the CPU, luminal's GPU kernels in the emulator."""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"


# ---- time


def time_ms(runs: dict[str, Callable[[], object]], seconds: float = 1.0) -> dict[str, float]:
    """Median milliseconds of each, in turns: by events of the device, over several calls a turn."""
    counts, times = dict[str, int](), {name: list[float]() for name in runs}
    for name, call in runs.items():
        call()
        once = _turn(call, 3)
        counts[name] = max(1, min(50, int(5.0 / max(once, 1e-3))))
    end = time.monotonic() + (0.1 if DRY else seconds)
    while not all(times.values()) or time.monotonic() < end:
        for name, call in runs.items():
            times[name].append(_turn(call, counts[name]))
    return {name: median(t) for name, t in times.items()}


def _turn(call: Callable[[], object], count: int) -> float:
    if DRY:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(count):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / count


def difference(got: object, want: object) -> float:
    """The largest difference relative to the largest value; NaN where they disagree on that."""
    worst = 0.0
    for g, w in zip(_tensors(got), _tensors(want), strict=True):
        g, w = g.double(), w.double()
        assert g.shape == w.shape and bool((g.isnan() == w.isnan()).all()), "NaN differ"
        off = (g - w).abs().nan_to_num(0.0).max() if g.numel() else torch.zeros(())
        worst = max(worst, float(off / w.abs().nan_to_num(0.0).max().clamp(min=1e-30)))
    return worst


def _tensors(value: object) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in _tensors(v)]


# ---- ceilings


def ceiling_names(dry: bool) -> list[str]:
    return ["copy", "read", "matrix bf16", "matrix tf32", "matrix f32", "launch"]


@cache
def ceiling(name: str) -> dict:
    """What the device reaches, by PyTorch's own kernels."""
    n = 1 << (16 if DRY else 30)
    side = 64 if DRY else 8192
    if name in ("copy", "read"):
        x = torch.ones(n, device=DEVICE)
        y = torch.empty_like(x) if name == "copy" else None
        run = (lambda: y.copy_(x)) if name == "copy" else (lambda: x.sum())
        ms = time_ms({"torch": run})["torch"]
        return {
            "note": f"{4 * n * (1 + (name == 'copy')) / ms / 1e6:.0f} GB/s",
            "ms": {"torch": ms},
        }
    if name == "launch":
        x = torch.zeros(1, device=DEVICE)
        return {"ms": (found := time_ms({"torch": lambda: x.add_(1)})),
                "note": f"{found['torch'] * 1e3:.1f} µs a launch of PyTorch's"}  # fmt: skip
    torch.backends.cuda.matmul.allow_tf32 = name == "matrix tf32"
    dtype = torch.bfloat16 if name == "matrix bf16" else torch.float32
    a, b = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
    ms = time_ms({"torch": lambda: a @ b})["torch"]
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"note": f"{2 * side**3 / ms / 1e9:.0f} TFLOP/s", "ms": {"torch": ms}}


def ceilings():
    """The ceilings of this chip, for predictions."""
    from timing_model import CHIPS

    return CHIPS["H100" if "H100" in device_name() else "H200"]


def device_name() -> str:
    return "CPU" if DRY else torch.cuda.get_device_name()


# ---- small programs


def _norm(x):
    c = x - x.mean(-1, keepdim=True)
    return c * ((c * c).mean(-1, keepdim=True) + 1e-5).rsqrt()


def _causal(q, k, v):
    s = q @ k.transpose(-1, -2) * 0.125
    keep = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
    return torch.softmax(s.masked_fill(~keep, float("-inf")), -1) @ v


SMALL = {
    "product": (lambda a, b: a @ b, [(1024, 1024), (1024, 1024)]),
    "odd product": (lambda a, b: a @ b, [(37, 50), (50, 29)]),
    "vector": (lambda w, x: w @ x, [(4096, 4096), (4096,)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(512, 4096)]),
    "softmax of columns": (lambda x: torch.softmax(x, 0), [(333, 217)]),
    "norm": (_norm, [(2048, 1024)]),
    "causal attention": (_causal, [(8, 512, 64)] * 3),
    "running sum": (lambda x: torch.cumsum(x, -1), [(64, 1000)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [(8, 32, 28, 28), (64, 32, 3, 3)]),
    "sum of all": (lambda x: x.sum(), [(1000, 1000)]),
    "gather": (lambda x: x[torch.arange(0, 100, 3, device=x.device)], [(100, 70)]),
    "bf16 product": (lambda a, b: a.bfloat16() @ b.bfloat16(), [(256, 512), (512, 128)]),
}
TOLERANCE = {"bf16 product": 2e-2}


def small_names(dry: bool) -> list[str]:
    return ["odd product", "sum of all"] if dry else list(SMALL)


def small(name: str) -> dict:
    """One small program: right? and how fast."""
    function, shapes = SMALL[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s, device=DEVICE) for s in shapes]
    return against(function, inputs, ("eager",), TOLERANCE.get(name, 1e-3), 0.3)


def against(
    function: Callable, inputs: list, peers: tuple[str, ...], tolerance: float, seconds: float
) -> dict:  # fmt: skip
    """Times of luminal and its peers, the difference from eager, the predicted time."""
    from timing_model import predict_ms

    import luminal.torch

    torch._dynamo.reset()
    luminal.torch.clear()
    ours = torch.compile(function, backend="luminal", dynamic=False)
    want, got = function(*inputs), ours(*inputs)
    row = {"error": difference(got, want)}
    if not row["error"] <= tolerance:
        row["problem"] = f"differs by {row['error']:.2g}"
    plans = [e.program.plan for r in luminal.torch.reports() for e, _, _ in r.programs()]
    fallback = [name for r in luminal.torch.reports() for name in r.fallback]
    row["note"] = f"eager: {', '.join(fallback)}" if fallback else ""
    if not any(p.dims for p in plans):
        row["predicted_ms"] = sum(predict_ms(p, {}, ceilings()) for p in plans)
    runs = {"luminal": lambda: ours(*inputs), "eager": lambda: function(*inputs)}
    if "inductor" in peers and not DRY:
        theirs = torch.compile(function, backend="inductor", dynamic=False)
        runs["inductor"] = lambda: theirs(*inputs)
    return row | {"ms": time_ms(runs, seconds)}


# ---- the suite


def suite_names(dry: bool) -> list[str]:
    from blocks import BLOCKS
    from models import SUITE

    return ["MLP batch 1"] if dry else [*BLOCKS, *SUITE, "Llama-3-8B bf16 x4 prefill 512"]


class _Layers(nn.Module):
    """Four layers of Llama-3-8B."""

    def __init__(self) -> None:
        from models import LlamaBlock

        super().__init__()
        self.layers = nn.ModuleList(LlamaBlock(4096, 32, 8, 14336) for _ in range(4))
        angles = torch.arange(512)[:, None] * 10000.0 ** -(torch.arange(64) / 64)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x


def suite(name: str) -> dict:
    """A model in f32 (unless it says otherwise) with TF32 off."""
    from blocks import BLOCKS
    from models import SUITE

    if name in BLOCKS or name in SUITE:
        model, inputs = (BLOCKS | SUITE)[name]()
        model, inputs = model.to(DEVICE), [x.to(DEVICE) for x in inputs]
        return against(model.forward, inputs, ("eager", "inductor"), 1e-3, 1.0)
    with torch.device(DEVICE):
        model = _Layers().bfloat16().eval()
        inputs = [torch.randn(1, 512, 4096, dtype=torch.bfloat16)]
    return against(model.forward, inputs, ("eager", "inductor"), 5e-2, 1.0)


# ---- a language model


def llama_names(dry: bool) -> list[str]:
    return ["decode at 128", "decode at 2048", "decode at 8192", "prefill 512"]


@cache
def _llama():
    """The runner of a llama of random Q8_0, and what its steps take, on the device."""
    from llama_file import SHAPES, Shape, write

    import luminal.llm

    os.environ["LUMINAL_DEVICE"] = "cuda-emulated" if DRY else "cuda"
    shape = Shape(128, 1, 96, 4, 2, 320) if DRY else SHAPES["8B"]
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 12 << 30
    folder = tempfile.mkdtemp(dir=memory if roomy else None)
    path = Path(folder, "random.gguf")
    write(path, shape, "Q8_0")
    torch.zeros(1, device=DEVICE)  # PyTorch's context and allocator are there first
    runner = luminal.llm.load(path, n_ctx=40 if DRY else 8192 + 512, search="off")._runner
    shutil.rmtree(folder)
    return runner


def llama(name: str) -> dict:
    """A step of Llama-3-8B: by CUDA graph, on memory of PyTorch."""
    from timing_model import moved_bytes, predict_ms

    runner = _llama()
    config, single = runner.config, name.startswith("decode")
    context = int(name.split()[-1]) if single else 0
    count = 1 if single else 512
    if DRY:
        context, count = min(context, 8), min(count, 8)
    program = runner.program(single)
    capacity = context + count
    ids = torch.randint(0, config.vocab, (count,), device=DEVICE)
    tables = [t for table in (runner._table, runner._local_table)
              for t in table.tables(0, capacity)]  # fmt: skip
    tables = [torch.from_numpy(t[context:].copy()).to(DEVICE) for t in tables]
    shape = (capacity, config.n_kv_heads, config.head_dim)
    caches = [torch.randn(shape, device=DEVICE) for _ in range(2 * config.n_layers)]
    logits = torch.empty(1, config.vocab, device=DEVICE)
    rows = torch.full((1,), count - 1, dtype=torch.int64, device=DEVICE)
    sizes = {"n_past": context, "n_q": count, "n_rows": 1}
    given = [t.data_ptr() for t in (ids, rows, ids, *tables, *caches)]
    dims = tuple(sizes[d.name] for d in program.plan.dims)

    def step() -> None:
        program.run_pointers(given, [logits.data_ptr()], dims)

    ms = time_ms({"luminal": step}, 1.0)
    assert bool(logits.isfinite().all()), "logits are not finite"
    moved = sum(moved_bytes(k, program.plan, sizes) for k in program.plan.kernels)
    note = (f"{count / ms['luminal'] * 1e3:.1f} tokens/s, {moved / ms['luminal'] / 1e6:.0f} GB/s, "
            f"{len(program.plan.kernels)} launches")  # fmt: skip
    if single and not DRY:
        times = program.executor.time_us(given, [logits.data_ptr()], dims, repeats=3)
        slow = sorted(zip(times, program.plan.kernels), key=lambda x: -x[0])[:8]
        print(name, [(f"{us:.1f} µs", k.name) for us, k in slow], f"{sum(times):.0f} µs in all")
    predicted = predict_ms(program.plan, sizes, ceilings())
    return {"ms": ms, "note": note, "predicted_ms": predicted}


PARTS = {
    "ceilings": (40, 30, ceiling_names), "small": (80, 30, small_names),
    "llama": (190, 150, llama_names), "suite": (170, 45, suite_names),
}  # fmt: skip
"""Of each part: its seconds, the seconds of an item, the names of its items."""
RUN = {"ceilings": ceiling, "small": small, "suite": suite, "llama": llama}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("items", nargs="+")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    with args.file.open("a", buffering=1) as file:
        for name in args.items:
            file.write(json.dumps({"start": name}) + "\n")
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    found = RUN[args.part](name)
            except Exception as error:
                traceback.print_exc()
                found = {"problem": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
                file.write(json.dumps({"part": args.part, "name": name, **found}) + "\n")
                if DEVICE == "cuda" and "CUDA" in found["problem"].upper():
                    sys.exit(3)  # the context may be broken: the next item gets a new process
                continue
            file.write(json.dumps({"part": args.part, "name": name, **found}) + "\n")


if __name__ == "__main__":
    main()
