"""`explain`: the text tree, and the page.

In: what was compiled, optionally the path of a page. Out: text; the file. Errors of writing are
reported in plain words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from luminal.compiler import Compiled, Stats
from luminal.errors import ArgumentError
from luminal.explanation.facts import KernelFacts, Limits, kernel_facts, machine_limits, rules_fired
from luminal.explanation.page import page
from luminal.ir import Graph

__all__ = ["explain"]

_LINES, _RUNNERS_UP = 40, 4


def explain(
    thing: Any, html: str | Path | None = None, *, sizes: Mapping[str, int] | None = None,
    title: str = "",
) -> str:  # fmt: skip
    """Say what was found for `thing`, and write a page to `html`.

    `thing` is what luminal.compile made, a report of luminal.torch.reports(), or a list of these.
    Every kernel is timed on zeros; `sizes` gives the dynamic dimensions for that (typical ones
    otherwise). ArgumentError if `thing` is not compiled or the file cannot be written.

    >>> import numpy as np
    >>> import luminal
    >>> double = luminal.compile(lambda x: x * 2, [np.ones(3, np.float32)], search="off")
    >>> print(luminal.explain(double).splitlines()[0])
    1 kernel in all
    """
    programs, limits = list(_programs(thing)), machine_limits()
    parts = [(compiled, kernel_facts(compiled, sizes)) for compiled in programs]
    fastest = max((k.gflops for _, kernels in parts for k in kernels), default=0.0)
    limits = replace(limits, gflops=max(limits.gflops, fastest))  # measured as well
    if len(parts) > 1:  # their kernels have the same names
        parts = [(compiled, [replace(k, name=f"p{n}.{k.name}", code=f"p{n}.{k.code}")
                             for k in kernels])
                 for n, (compiled, kernels) in enumerate(parts)]  # fmt: skip
    if html is not None:
        text = page(parts, limits, title or "luminal")
        try:
            Path(html).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(
                f"[explain] cannot write {html}. Got {error.strerror}; expected a writeable path."
            ) from None
    return "\n".join(_tree(parts, limits))


def _programs(thing: Any) -> Iterator[Compiled]:
    """All that was compiled for a thing."""
    if isinstance(thing, list | tuple):
        for part in thing:
            yield from _programs(part)
        return
    if hasattr(thing, "programs"):  # a report of the backend of torch.compile
        found = thing.programs()
        if not found:
            raise ArgumentError(
                f"[explain] nothing compiled is left of this report. Got {thing}; expected a graph "
                "with compiled parts that is still in use. Try keeping what torch.compile returned."
            )
        for executor, graph, stats in found:
            stats = stats or Stats(len(executor.program.plan.kernels), 0, 0.0, 0.0, 0.0, "hit")
            yield Compiled(graph or Graph((), ()), executor.program, executor, stats, "")
        return
    compiled = getattr(thing, "compiled", thing)
    if not isinstance(compiled, Compiled):
        raise ArgumentError(
            f"[explain] this is not compiled by luminal. Got {type(thing).__name__}; expected the "
            "result of luminal.compile, or a report of luminal.torch.reports(). "
            "Try luminal.compile(fn, example_inputs)."
        )
    yield compiled


def _tree(parts: Sequence[tuple[Compiled, list[KernelFacts]]], limits: Limits) -> list[str]:
    kernels = [k for _, own in parts for k in own]
    total = sum(k.time_us for k in kernels)
    codes = len({k.code for k in kernels})
    plural = "" if len(kernels) == 1 else "s"
    same = "" if codes == len(kernels) else f", {codes} different"
    fired = sum((Counter(rules_fired(compiled)) for compiled, _ in parts), Counter[str]())
    lines = [
        f"{len(kernels)} kernel{plural} in all{same}",
        f"{total:,.1f} µs one after the other; the machine: {limits.bandwidth_gbs:.1f} GB/s, "
        f"{limits.gflops:.0f} GFLOP/s f32",
        *(f"found by {name} ×{count}" for name, count in fired.most_common()),
    ]
    slowest = sorted(kernels, key=lambda k: -k.time_us)[:_LINES]
    for k in slowest:
        lines.append(
            f"├─ {k.name}: {k.time_us:,.1f} µs ({k.time_us / max(total, 1e-9):.1%}), "
            f"{k.gflops:.1f} GFLOP/s, {k.bandwidth_gbs:.1f} GB/s, "
            f"{k.share(limits):.0%} of the roofline"
        )
        lost = [f"beat a schedule of {t.why}" for t in k.tried[:_RUNNERS_UP]]
        lines += [f"│    {line}" for line in (*k.formula, *k.schedule, *lost)]
    if len(slowest) < len(kernels):
        lines.append(f"└─ {len(kernels) - len(slowest)} faster kernels are not listed")
    return lines
