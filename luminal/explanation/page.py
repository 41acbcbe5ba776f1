"""The page: one HTML file that needs nothing else, neither scripts nor network.

In: a compiled graph with the facts of its kernels. Out: HTML text.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from luminal.compiler import Compiled
from luminal.explanation.facts import KernelFacts, Limits, rules_fired
from luminal.explanation.figures import plan_picture, roofline, time_bars
from luminal.ir.text import graph_text

__all__ = ["page"]

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--soft:#667085;--line:#d9dee6;--back:#fbfcfd;
--card:#fff;--accent:#2f6fde;--roof:#d9822b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--line:#323a46;--back:#12161c;
--card:#1a2028;--accent:#6ea0ff;--roof:#f0a35e}}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:980px;margin:0 auto;padding:28px 20px 80px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:34px 0 8px}
.lead,.soft{color:var(--soft)}section,details{background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:14px 16px;margin:10px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile b{display:block;font-size:21px}
pre{overflow:auto;max-height:420px;font:12.5px/1.45 ui-monospace,monospace;margin:8px 0}
summary{cursor:pointer}summary b{font-size:15px}details details{padding:8px 12px}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:3px 8px;
border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.tall{max-height:560px;overflow:auto}svg{width:100%;height:auto;display:block}
svg text{font-size:12px;fill:var(--ink)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .soft{fill:var(--soft)}
.bar{fill:var(--accent)}.dot{fill:var(--accent);fill-opacity:.55;stroke:var(--accent)}
.roof{fill:none;stroke:var(--roof);stroke-width:2}.axis{stroke:var(--soft)}
.edge{fill:none;stroke:var(--soft);stroke-opacity:.45}a{color:inherit;text-decoration:none}
"""


def page(compiled: Compiled, kernels: Sequence[KernelFacts], limits: Limits, title: str) -> str:
    """The whole page as text."""
    parts = [
        f"<h1>{escape(title)}</h1><p class=lead>What luminal found, and where the time goes. "
        "Kernels are timed one at a time on this machine, on zeros; above 100 % of the "
        "memory roof the data were in a cache.</p>",
        _tiles(compiled, kernels, limits),
        "<h2>Time by kernel</h2><section>", time_bars(kernels), "</section>",
        "<h2>Against the measured limits of this machine</h2><section>",
        roofline(kernels, limits), "</section>",
        "<h2>The plan</h2><section class=tall>", plan_picture(kernels), "</section>",
        _before_and_after(compiled, kernels),
        "<h2>Kernels, slowest first</h2>", *_kernels(kernels, limits),
    ]  # fmt: skip
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    return (
        f"<!doctype html><html lang=en><head>{head}</head><body><main>"
        + "".join(parts)
        + ("</main></body></html>\n")
    )


def _tiles(compiled: Compiled, kernels: Sequence[KernelFacts], limits: Limits) -> str:
    stats, total = compiled.stats, sum(k.time_us for k in kernels)
    reached = sum(k.share(limits) * k.time_us for k in kernels) / max(total, 1e-9)
    found = {
        "kernels": f"{len(kernels)}",
        "different": f"{len({k.code for k in kernels})}",
        "time of all": f"{total / 1e3:,.2f} ms",
        "of the roofline": f"{reached:.0%}",
        "work": f"{sum(k.flops for k in kernels) / 1e9:,.2f} GFLOP",
        "arena": f"{stats.arena_bytes / 1e6:,.1f} MB",
        "search": f"{stats.search_s:.1f} s",
        "machine code": f"{stats.compile_s:.1f} s",
        "cache": stats.cache,
        "read bandwidth": f"{limits.bandwidth_gbs:.1f} GB/s",
        "arithmetic": f"{limits.gflops:.0f} GFLOP/s",
    }
    cells = "".join(f'<div class=tile><span class=soft>{k}</span><b>{escape(v)}</b></div>'
                    for k, v in found.items())  # fmt: skip
    return f"<div class=tiles>{cells}</div>"


def _before_and_after(compiled: Compiled, kernels: Sequence[KernelFacts]) -> str:
    graph = compiled.graph
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    before = "".join(f"<tr><td>{escape(op)}<td class=n>{n}" for op, n in sorted(counts.items()))
    fired = rules_fired(compiled).items()
    notes = "".join(f"<tr><td>{escape(name)}<td class=n>{count}" for name, count in fired)
    rules = notes or "<tr><td class=soft>no rule fired"
    return (
        "<h2>Before and after</h2><section><p>The graph of primitives had "
        f"<b>{len(graph.nodes)}</b> nodes; it became <b>{len(kernels)}</b> kernels.</p>"
        f"<details><summary>Primitives</summary><table>{before}</table></details>"
        f"<details><summary>Rules that fired</summary><table>{rules}</table></details>"
        f"<details><summary>The graph as text</summary><pre>{escape(graph_text(graph))}</pre>"
        "</details></section>"
    )


def _kernels(kernels: Sequence[KernelFacts], limits: Limits) -> list[str]:
    """One entry a code: its slowest launch in full, the others by their time."""
    groups: dict[str, list[KernelFacts]] = {}
    for k in sorted(kernels, key=lambda k: -k.time_us):
        groups.setdefault(k.code, []).append(k)
    ranked = sorted(groups.values(), key=lambda g: -sum(k.time_us for k in g))
    return [_kernel(first, others, limits) for first, *others in ranked]


def _kernel(k: KernelFacts, others: Sequence[KernelFacts], limits: Limits) -> str:
    by_arithmetic = k.flops / limits.gflops > k.size_bytes / limits.bandwidth_gbs
    bound = "arithmetic" if by_arithmetic else "memory"
    numbers = (
        f"{k.time_us:,.1f} µs · {k.gflops:,.1f} GFLOP/s · {k.bandwidth_gbs:,.1f} GB/s · "
        f"{k.share(limits):.0%} of the {bound} roof"
    )
    body = [
        _block("What it computes", "\n".join(k.formula), True),
        _block("Schedule", "\n".join(k.schedule), True),
        _runners_up(k), _block("Loop IR", k.loops), _block("Source", k.source),
    ]  # fmt: skip
    again = ", ".join(
        f'<span id="{escape(o.name)}">{escape(o.name)} {o.time_us:,.1f} µs</span>' for o in others
    )
    shared = f"<p class=soft>the same code again: {again}</p>" if others else ""
    count = f" ×{len(others) + 1}" if others else ""
    return (
        f'<details id="{escape(k.name)}"><summary><b>{escape(k.name)}{count}</b> '
        f"<span class=soft>{numbers}</span></summary><p class=soft>reads "
        f"{escape(', '.join(k.reads) or 'nothing')} · writes {escape(', '.join(k.writes))}</p>"
        f"{shared}{''.join(body)}</details>"
    )


def _runners_up(k: KernelFacts) -> str:
    if not k.tried:
        return ""
    entries = "".join(_block(t.why, "\n".join(t.schedule)) for t in k.tried)
    return (
        f"<details><summary>Runners-up ({len(k.tried)}), as the search timed them</summary>"
        f"{entries}</details>"
    )


def _block(title: str, text: str, is_open: bool = False) -> str:
    state = " open" if is_open else ""
    return f"<details{state}><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
