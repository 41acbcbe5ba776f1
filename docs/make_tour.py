"""Writes docs/tour.md and docs/settings.md: every listing in them is what the code prints.

In: docs/tour.in.md, in which {{name}} stands for a listing, and luminal/config.py. Out: the two
pages. Texts of the tour are made for one fixed target, so that they are equal on every machine.
Run it from anywhere: `python docs/make_tour.py`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np

import luminal
from luminal.codegen.generate import generate, lower_canonical
from luminal.codegen.loopir_text import function_text
from luminal.config import SETTINGS, Config
from luminal.frontend.functional import Tensor
from luminal.frontend.tensor import to_graph
from luminal.ir.dtype import f32
from luminal.ir.graph import Graph
from luminal.ir.interp import run_graph
from luminal.ir.plan import Item, Loop, Plan, Reg, Stage
from luminal.ir.space import Region
from luminal.ir.target import Target
from luminal.ir.text import graph_text, plan_text
from luminal.rewrite import rewrite
from luminal.rewrite.rules import RULES
from luminal.search.extract import extract
from luminal.search.strategy import choose

DOCS = Path(__file__).parent
TARGET = Target(
    cpu="x86-64-v3", features="+avx,+avx2,+fma", vector_bits=256, vector_registers=16,
    fma=True, int8_dot="maddubs", cores=2,
)  # fmt: skip


def norm_linear(x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
    """The model of the tour."""
    scale = ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (x * scale * gain) @ weight.transpose(0, 1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The model of the last section."""
    scores = q @ k.transpose(-1, -2) / 8
    rows, keys = luminal.arange(q.shape[-2]), luminal.arange(k.shape[-2])
    hidden = keys.reshape(1, -1) > rows.reshape(-1, 1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def graph_of(fn: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Graph:
    """The graph of a function of f32 tensors."""
    inputs = [Tensor.from_input(f"x{n}", shape, f32) for n, shape in enumerate(shapes)]
    return to_graph([fn(*inputs)], inputs, ["y0"])


def plan_of(graph: Graph) -> Plan:
    """The plan that the model chooses, without measuring."""
    plans = extract(rewrite(graph, numerics="exact"), TARGET, hints={}, k=1)
    return choose(plans, TARGET, Config(search="off"))


def fired(graph: Graph) -> str:
    """Which rules found something new, and how often."""
    meaning = {r.__name__: (r.__doc__ or "").splitlines()[0] for rs in RULES.values() for r in rs}
    counts: Counter[str] = Counter()
    for region in rewrite(graph, numerics="exact").regions:
        for note in region.notes:
            name, _, count = note.removeprefix("rule ").partition(": ")
            counts[name] += int(count)
    return "\n".join(f"{name} x{n}: {meaning[name]}" for name, n in counts.most_common())


def region_text(region: Region) -> str:
    """Values of a region and the ways to compute them, one a line."""
    lines = []
    for number, value in enumerate(region.values):
        ways = []
        for c in value.choices:
            args = ", ".join(f"v{a}" for a in c.args)
            extra = "" if c.payload is None else f" {c.payload}"
            ways.append(f"{c.op}({args}){extra}" if args else f"{c.op}{extra}")
        axes = ", ".join(sorted(a.name for a in value.free))
        lines.append(f"v{number}[{axes}] = {'   OR   '.join(ways)}")
    return "\n".join(lines)


def schedule_text(items: tuple[Item, ...], regs: tuple[Reg, ...], depth: int = 0) -> Iterator[str]:
    """A schedule, indented as its loops nest."""
    pad = "    " * depth
    for item in items:
        match item:
            case Loop():
                marks = "".join(f", {m}" for m in ("grid", "split") if getattr(item, m))
                yield f"{pad}for {item.axis} in steps of {item.tile}{marks}"
            case Stage():
                yield f"{pad}stage t{item.term}, layout {item.layout or 'as it is'}:"
                yield from schedule_text(item.items, item.regs, depth + 1)
            case _:
                yield f"{pad}online over {item.axis} in tiles of {item.tile}:"
                for name in ("logits", "weights", "values"):
                    nest = getattr(item, name)
                    yield f"{pad}  {name}:"
                    yield from schedule_text(nest.items, nest.regs, depth + 2)
    for reg in regs:
        yield f"{pad}  {reg.role}: {reg.axis} in steps of {reg.tile}"


def between(text: str, first: str, count: int) -> str:
    """`count` lines from the first that matches `first`."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if re.search(first, line))
    return "\n".join(lines[start : start + count])


def listings() -> dict[str, str]:
    """Every listing of the tour."""
    shapes = (8, 32), (32,), (24, 32)
    graph = graph_of(norm_linear, *shapes)
    plan = plan_of(graph)
    (kernel,) = plan.kernels
    assert kernel.schedule is not None
    loops = function_text(lower_canonical(kernel, TARGET, {b.name: b for b in plan.buffers}))
    program = generate(plan, TARGET)
    wide = plan_of(graph_of(attention, *[(8, 512, 64)] * 3))
    assert wide.kernels[0].schedule is not None
    arrays = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in shapes]

    fast = luminal.compile(norm_linear, arrays, search="off")
    wanted = run_graph(graph, {f"x{n}": a for n, a in enumerate(arrays)}, {})[0]
    error = float(np.abs(fast(*arrays) - wanted).max())
    return {
        "graph": graph_text(graph),
        "fired": fired(graph),
        "space": region_text(rewrite(graph, numerics="exact").regions[0]),
        "plan": plan_text(plan).split("schedule(")[0],
        "schedule": "\n".join(schedule_text(kernel.schedule.items, kernel.schedule.regs)),
        "loops_rows": between(loops, r"for a\d+ in span\(i64\(0\), i64\(2\)", 25),
        "loops_inner": between(loops, r"for a\d+, c\d+, ", 18),
        "llvm": between(program.codes[0].source, r"call <8 x float> @llvm\.fma", 14),
        "program": f"{len(program.codes)} code, {len(program.codes[0].source.splitlines())} lines "
        f"of LLVM, {program.codes[0].scratch_bytes} bytes of scratch, calls {program.calls}",
        "run": f"{fast(*arrays).shape}, largest difference from the oracle below 1e-4: "
        f"{error < 1e-4}",
        "attention_fired": fired(graph_of(attention, *[(8, 512, 64)] * 3)),
        "attention_plan": plan_text(wide).split("schedule(")[0].split("\n\n", 1)[1],
        "attention_schedule": "\n".join(
            schedule_text(wide.kernels[0].schedule.items, wide.kernels[0].schedule.regs)
        ),
    }


def tour() -> str:
    """The page docs/tour.md."""
    found = listings()
    template = (DOCS / "tour.in.md").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda m: found[m[1]].strip("\n"), template)


def settings() -> str:
    """The page docs/settings.md."""
    defaults = {f.name: f.default for f in fields(Config)}
    rows = [
        f"| `{name}` | `{variable}` | `{defaults[name]!r}` | {text} |"
        for name, (variable, text) in SETTINGS.items()
    ]
    return "\n".join([
        "# Settings", "",
        "Every setting has an environment variable and a field of `luminal.Config`. Keyword "
        "arguments of `luminal.compile` and options of `torch.compile` go before the environment. "
        "A bad value is an `ArgumentError` that names the variable.", "",
        "| name | variable | default | meaning |", "|---|---|---|---|", *rows, "",
        "This page is written by `docs/make_tour.py` from "
        "[luminal/config.py](../luminal/config.py).", "",
    ])  # fmt: skip


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings())
    (DOCS / "tour.md").write_text(tour())
