"""`explain`: the text tree, and the page.

In: anything compiled, optionally the path of a page. Out: text; the file. Errors of writing are
reported in plain words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from luminal.compiler import Compiled
from luminal.errors import ArgumentError
from luminal.explanation.facts import KernelFacts, Limits, kernel_facts, machine_limits, rules_fired
from luminal.explanation.page import page

__all__ = ["explain"]

_LINES, _RUNNERS_UP = 40, 4


def explain(
    thing: Any, html: str | Path | None = None, *, sizes: Mapping[str, int] | None = None,
    title: str = "",
) -> str:  # fmt: skip
    """Say what was found for `thing` (of `luminal.compile`), and write a page to `html`.

    Every kernel is timed on zeros; `sizes` gives the dynamic dimensions for that (typical ones
    otherwise). ArgumentError if `thing` is not compiled or the file cannot be written.

    >>> import numpy as np
    >>> import luminal
    >>> double = luminal.compile(lambda x: x * 2, [np.ones(3, np.float32)], search="off")
    >>> print(luminal.explain(double).splitlines()[0])
    1 kernel in all
    """
    compiled = getattr(thing, "compiled", thing)
    if not isinstance(compiled, Compiled):
        raise ArgumentError(
            f"[explain] this is not compiled by luminal. Got {type(thing).__name__}; expected the "
            "result of luminal.compile. Try luminal.compile(fn, example_inputs)."
        )
    kernels, limits = kernel_facts(compiled, sizes), machine_limits()
    if html is not None:
        text = page(compiled, kernels, limits, title or "luminal")
        try:
            Path(html).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(
                f"[explain] cannot write {html}. Got {error.strerror}; expected a writeable path."
            ) from None
    return "\n".join(_tree(compiled, kernels, limits))


def _tree(compiled: Compiled, kernels: list[KernelFacts], limits: Limits) -> list[str]:
    total = sum(k.time_us for k in kernels)
    codes = len({k.code for k in kernels})
    plural = "" if len(kernels) == 1 else "s"
    same = "" if codes == len(kernels) else f", {codes} different"
    lines = [
        f"{len(kernels)} kernel{plural} in all{same}",
        f"{total:,.1f} µs one after the other; the machine: {limits.bandwidth_gbs:.1f} GB/s, "
        f"{limits.gflops:.0f} GFLOP/s f32",
        *(f"found by {name} ×{count}" for name, count in rules_fired(compiled).items()),
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
