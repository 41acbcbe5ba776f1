"""What the search is worth: each model compiled with search "off", "fast" and "full", the seconds
that took, and how the best time fell while it went on.

Each level starts with an empty cache of its own. A curve is the sum over the kernels of the plan
that won: the best time so far of each, at first that of the schedule that "off" would take.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import torch
from peers import Run
from timing import Row, interleave
from torch import Tensor, nn

from luminal import compiler
from luminal.ir import Kernel, Plan
from luminal.ir.canonical import canonical
from luminal.search import strategy
from luminal.search.worker import Worker
from luminal.torch import reports

__all__ = ["LEVELS", "Curve", "Level", "compare", "curve_plot", "level_lines"]

LEVELS = ("off", "fast", "full")
Curve = list[tuple[float, float]]
Key = tuple[Kernel, object]


@dataclass
class Level:
    """One model at one level: seconds to the first result, cold and from the cache, seconds of the
    search alone, the curve of (seconds, milliseconds), and why it failed if it did."""

    cold_s: float = 0.0
    warm_s: float = 0.0
    search_s: float = 0.0
    curve: Curve = field(default_factory=list)
    problem: str = ""


@dataclass
class _Trace:
    """What the search measured (seconds, kernel, µs, whether it is right), and what it chose."""

    start: float
    tried: list[tuple[float, Kernel, Any, float, str]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def curve(self) -> Curve:
        """The time of all kernels of the plans by the best so far of each, ms."""
        uses: dict[Key, int] = {}
        best: dict[Key, float] = {}
        for plan in self.plans:
            named = {b.name: b for b in plan.buffers}
            for kernel, cost_us in zip(plan.kernels, plan.costs_us, strict=True):
                form = canonical(replace(kernel, schedule=None))
                key = (form.kernel, tuple(form.own(named).values()))
                uses[key], best[key] = uses.get(key, 0) + 1, cost_us
        wrong = {(k, b) for _, k, b, _, error in self.tried if error}
        runs = [(at, (replace(k, schedule=None), b), k.schedule, us)
                for at, k, b, us, _ in self.tried
                if (k, b) not in wrong and us < float("inf")]  # fmt: skip
        first: dict[Key, Any] = {}
        starts: dict[Key, float] = {}
        for _, key, schedule, us in runs:  # each starts at the best run of the first schedule
            if key in best and first.setdefault(key, schedule) == schedule:
                starts[key] = min(us, starts.get(key, us))
        best |= starts
        points = [(0.0, sum(n * best[k] for k, n in uses.items()) / 1e3)]
        for at, key, _, us in runs:
            if us < best.get(key, 0.0):
                best[key] = us
                points.append((at, sum(n * best[k] for k, n in uses.items()) / 1e3))
        return points


@contextmanager
def _traced(full_s: float) -> Iterator[_Trace]:
    """Records every candidate that is measured inside; "full" may take so many seconds."""
    trace = _Trace(time.perf_counter())

    class Recorder(Worker):
        def call(self, request: Any, timeout_s: float | None = None) -> Any:
            asked, outcome = request[0], super().call(request, timeout_s)
            if isinstance(asked, strategy.Trial):
                made = asked.kernel, asked.buffers, outcome.time_us, outcome.error
                trace.tried.append((time.perf_counter() - trace.start, *made))
            return outcome

    plain = compiler.search_plan

    def search_plan(*args: Any) -> Plan:
        trace.plans.append(plain(*args))
        return trace.plans[-1]

    with ExitStack() as stack:
        stack.enter_context(patch.object(compiler, "Worker", Recorder))
        stack.enter_context(patch.object(compiler, "search_plan", search_plan))
        if full_s:
            stack.enter_context(patch.dict(strategy.BUDGETS_S, full=full_s))
        yield trace


def _compiled(model: nn.Module, inputs: tuple[Tensor, ...], search: str, cache: str) -> Run:
    options = {"search": search, "cache": cache, "progress": "off", "fallback": "error"}
    run = torch.compile(model.forward, backend="luminal", dynamic=False, options=options)
    return lambda: run(*inputs)


def _agrees(run: Callable[[], Any], expected: Tensor) -> str:
    error = float((run() - expected).abs().max() / expected.abs().max())
    return "" if error < 2e-3 else f"relative error {error:.1e}"


def compare(
    name: str, build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], seconds: float,
    full_s: float, levels: tuple[str, ...] = LEVELS,
) -> tuple[Row, dict[str, Level]]:  # fmt: skip
    """One model at each level: median milliseconds of interleaved turns, and what it took."""
    model, inputs = build()
    expected, runs, found = model(*inputs), dict[str, Run](), dict[str, Level]()
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory(prefix="luminal-levels-") as folder:
        for level in levels:
            made = found[level] = Level()
            run = _compiled(model, inputs, level, str(Path(folder, level)))
            try:
                with _traced(full_s) as trace:
                    run()
                    made.cold_s = time.perf_counter() - trace.start
                made.search_s, made.curve = reports()[-1].search_s, trace.curve()
                made.problem = _agrees(run, expected)
            except Exception as error:  # a row says why it is missing; the others go on
                made.problem = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            if not made.problem:
                runs[level] = run
            print(f"{name} {level}: cold {made.cold_s:.1f} s {made.problem}", flush=True)
        row = interleave(name, runs, seconds) if runs else Row(name, {})
        for level in runs:
            torch._dynamo.reset()
            start = time.perf_counter()
            _compiled(model, inputs, level, str(Path(folder, level)))()
            found[level].warm_s = time.perf_counter() - start
    return row, found


def level_lines(results: list[tuple[Row, dict[str, Level]]]) -> Iterator[str]:
    """A Markdown table of the levels, and the geometric means."""
    heads = ["", *(f"{n} ms" for n in LEVELS), "fast x off", "full x off", "fast cold s",
             "fast warm s", "search of full s"]  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for row, levels in results:
        cells = [f"{row.ms[n]:.3f}" if n in row.ms else "–" for n in LEVELS]
        cells += [f"{row.ms['off'] / row.ms[n]:.2f}" if {"off", n} <= set(row.ms) else "–"
                  for n in LEVELS[1:]]  # fmt: skip
        fast, full = levels.get("fast", Level()), levels.get("full", Level())
        cells += [f"{fast.cold_s:.1f}", f"{fast.warm_s:.1f}", f"{full.search_s:.0f}"]
        yield f"| {row.name} | {' | '.join(cells)} |"
    yield ""
    for level in LEVELS[1:]:
        ratios = [r.ms["off"] / r.ms[level] for r, _ in results if {"off", level} <= set(r.ms)]
        if ratios:
            yield (f"- {level}: {geometric_mean(ratios):.2f} x off (geometric mean of "
                   f"{len(ratios)})")  # fmt: skip
    for row, levels in results:
        yield from (f"- {row.name}, {n}: {v.problem}" for n, v in levels.items() if v.problem)


def curve_plot(results: list[tuple[Row, dict[str, Level]]], path: Path) -> None:
    """A small chart a model: best time against search seconds, one line a level."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "luminal"
    shown = [(r, v) for r, v in results if any(level.curve for level in v.values())]
    across = min(3, len(shown))
    down = -(-len(shown) // max(1, across))
    if not shown:
        return
    figure, grid = plt.subplots(down, across, figsize=(3.6 * across, 2.5 * down + 0.3),
                                layout="constrained", squeeze=False)  # fmt: skip
    colours = {"fast": "#2f6fde", "full": "#d9822b"}
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, (row, levels) in zip(grid.flat, shown, strict=False):
        for level, colour in colours.items():
            found = levels.get(level, Level())
            if found.curve:
                last = found.curve[-1][1]
                scale = row.ms.get(level, last) / last  # the end is what the table says
                points = [(at, y * scale) for at, y in (*found.curve, (found.cold_s, last))]
                axes.step(*zip(*points, strict=True), where="post", color=colour, label=level)
        if "off" in row.ms:
            axes.axhline(row.ms["off"], color="#8a94a6", linestyle="--", label="off")
        axes.set_title(row.name, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    grid[0, 0].legend(fontsize=8)
    figure.supxlabel("seconds since the start of the compilation", fontsize=9)
    figure.supylabel("best time so far, ms (sum over kernels)", fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
