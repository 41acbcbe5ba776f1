"""The page: one HTML file that needs nothing else, neither scripts nor network.

In: compiled graphs with the facts of their kernels. Out: HTML text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from luminal.compiler import Compiled
from luminal.explanation.facts import KernelFacts, Limits, Tried, duration, rules_fired
from luminal.explanation.figures import Box, layered, plan_picture, roofline
from luminal.explanation.style import STYLE
from luminal.ir.graph import Graph
from luminal.ir.ops import PRIMITIVES
from luminal.ir.text import graph_text

__all__ = ["page", "time_bars"]

Part = tuple[Compiled, Sequence[KernelFacts]]
_MOST_BARS = 24


def page(parts: Sequence[Part], limits: Limits, title: str) -> str:
    """The whole page as text."""
    kernels = [k for _, own in parts for k in own]
    body = [
        f"<h1>{escape(title)}</h1><p class=lead>What luminal found, and where the time goes.</p>",
        _tiles(parts, kernels, limits),
        "<h2>Time by kernel</h2><p>Each kernel alone, the best of five runs on zeros. The strong "
        "part of a bar is what the roofline asks for.</p><section>",
        _keys(("memory", "memory bound"), ("arithmetic", "arithmetic bound")),
        time_bars(kernels, limits), "</section>",
        "<h2>Against the limits of this machine</h2><p>Speed against operations per byte. The roof "
        "was measured; what lies above its slope found its data in a cache.</p>",
        "<section class=wide>", roofline(kernels, limits), "</section>",
        "<h2>Before and after</h2>", *(_before_and_after(*part, limits) for part in parts),
        "<h2>Kernels, slowest first</h2><p>What each computes, how, what else was tried.</p>",
        *_kernels(kernels, limits),
    ]  # fmt: skip
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    content = "".join(body)
    return (f"<!doctype html><html lang=en><head>{head}</head><body><main>{content}</main></body>"
            "</html>\n")  # fmt: skip


def _tiles(parts: Sequence[Part], kernels: Sequence[KernelFacts], limits: Limits) -> str:
    total = sum(k.time_us for k in kernels)
    reached = sum(k.share(limits) * k.time_us for k in kernels) / max(total, 1e-9)
    stats = [compiled.stats for compiled, _ in parts]
    found = {
        "time of all": f"{total / 1e3:,.2f} ms",
        "of the roofline": f"{reached:.0%}",
        "kernels": f"{len(kernels)}",
        "different ones": f"{len({k.code for k in kernels})}",
        "work": f"{sum(k.flops for k in kernels) / 1e9:,.2f} GFLOP",
        "temporaries": f"{sum(s.arena_bytes for s in stats) / 1e6:,.3g} MB",
        "search": f"{sum(s.search_s for s in stats):.1f} s",
        "machine code": f"{sum(s.compile_s for s in stats):.1f} s",
        "cache": "hit" if all(s.cache == "hit" for s in stats) else "miss",
        "read bandwidth": f"{limits.bandwidth_gbs:.1f} GB/s",
        "arithmetic": f"{limits.gflops:.0f} GFLOP/s",
    }
    cells = "".join(f"<div class=tile><b>{escape(v)}</b>{k}</div>" for k, v in found.items())
    return f"<div class=tiles>{cells}</div>"


def _groups(kernels: Sequence[KernelFacts]) -> list[list[KernelFacts]]:
    """The launches of each code, the slowest first; codes by the time of all their launches."""
    groups: dict[str, list[KernelFacts]] = {}
    for k in sorted(kernels, key=lambda k: -k.time_us):
        groups.setdefault(k.code, []).append(k)
    return sorted(groups.values(), key=lambda g: -sum(k.time_us for k in g))


def _name(group: Sequence[KernelFacts]) -> str:
    return escape(group[0].name) + (f" ×{len(group)}" if len(group) > 1 else "")


def time_bars(kernels: Sequence[KernelFacts], limits: Limits) -> str:
    """The slowest codes, all launches of each together; the strong part is what the roofline asks
    for."""
    total = sum(k.time_us for k in kernels) or 1.0
    groups = _groups(kernels)
    longest = sum(k.time_us for k in groups[0]) if groups else 1.0
    rows = []
    for group in groups[:_MOST_BARS]:
        time_us, first = sum(k.time_us for k in group), group[0]
        share = min(1.0, sum(k.share(limits) * k.time_us for k in group) / max(time_us, 1e-9))
        rows.append(
            f'<a href="#{escape(first.name)}"><span class="name">{_name(group)}</span>'
            f'<span class="cell {first.bound(limits)}"><span class=track '
            f'style="--w:{time_us / longest:.2%};--s:{share:.0%}"><i></i></span>'
            f"<span class=gist>{escape(first.gist)}</span></span>"
            f"<span class=time>{duration(time_us)} <small>{time_us / total:.1%}</small></span></a>"
        )
    rest = sum(k.time_us for group in groups[_MOST_BARS:] for k in group)
    more = (f"<p class=soft>and {len(groups) - _MOST_BARS} more, {duration(rest)} together</p>"
            if rest else "")  # fmt: skip
    return f"<div class=bars>{''.join(rows)}</div>{more}"


def _before_and_after(compiled: Compiled, kernels: Sequence[KernelFacts], limits: Limits) -> str:
    graph = compiled.graph
    fired = "".join(f"<tr><td>{escape(name)}<td class=n>{count}"
                    for name, count in rules_fired(compiled).items())  # fmt: skip
    counts = sorted(Counter(n.op for n in graph.nodes).items(), key=lambda item: -item[1])
    ops = "".join(f"<tr><td>{escape(op)}<td class=n>{n}" for op, n in counts)
    many = "kernel" if len(kernels) == 1 else "kernels"
    before = (
        f"<h3>{len(graph.nodes)} primitives</h3>{_graph_picture(graph)}"
        f"<details class=fold><summary>Counts</summary><table>{ops}</table></details>"
        f"{_block('The graph as text', graph_text(graph))}"
        if graph.nodes
        else "<h3>Before</h3><p class=soft>This came from the cache, which does not keep graphs. "
        "Compile with the cache off to see it.</p>"
    )
    rules = fired or "<tr><td class=soft>no rule fired"
    return (
        f"<div class=two><section>{before}</section>"
        f"<section><h3>{len(kernels)} {many}</h3>"
        f"{_keys(('memory', 'memory bound'), ('arithmetic', 'arithmetic bound'))}"
        f"<div class=scroll>{plan_picture(kernels, limits)}</div>"
        f"<details class=fold><summary>Rules that fired</summary><table>{rules}</table></details>"
        "</section></div>"
    )


def _graph_picture(graph: Graph) -> str:
    """The primitives, each below what it reads; scalar constants are left out."""
    lines = graph_text(graph).splitlines()
    lines = lines[len(lines) - len(graph.nodes) - len(graph.outputs) :]
    place: dict[int, int] = {}
    boxes, reads = [], dict[int, list[int]]()
    for number, node in enumerate(graph.nodes):
        if node.op == "Constant" and not node.shape:
            continue
        place[number] = len(boxes)
        reads[len(boxes)] = sorted({place[e.node] for e in node.inputs if e.node in place})
        kind = PRIMITIVES[node.op].kind if node.op in PRIMITIVES else "leaf"
        boxes.append(Box("", kind, lines[number]))
    key = _keys(("leaf", "input"), ("unary", "unary"), ("binary", "binary"),
                ("reduce", "reduction"), ("index", "index"))  # fmt: skip
    return key + f"<div class=scroll>{layered(boxes, reads, 'the graph of primitives')}</div>"


def _keys(*kinds: tuple[str, str]) -> str:
    entries = "".join(f"<span class={k}><i class=key></i>{text}</span>" for k, text in kinds)
    return f"<p class='keys soft'>{entries}</p>"


def _kernels(kernels: Sequence[KernelFacts], limits: Limits) -> Iterator[str]:
    """One entry a code: its slowest launch in full, the others by their time."""
    total = sum(k.time_us for k in kernels) or 1.0
    for number, group in enumerate(_groups(kernels)):
        yield _kernel(group, limits, total, " open" if number == 0 else "")


def _kernel(group: Sequence[KernelFacts], limits: Limits, total: float, state: str) -> str:
    k, *others = group
    time_us, bound = sum(k.time_us for k in group), k.bound(limits)
    again = ", ".join(
        f'<span id="{escape(o.name)}">{escape(o.name)} {duration(o.time_us)}</span>' for o in others
    )
    each = " each" if others else ""
    body = (
        f'<div class=body id="{escape(k.name)}"><div class=rate>'
        f"<span><b>{duration(k.time_us)}</b>{each}</span>"
        f"<span><b>{k.gflops:,.1f}</b> GFLOP/s</span>"
        f"<span><b>{k.bandwidth_gbs:,.1f}</b> GB/s</span>"
        f"<span><b>{k.share(limits):.0%}</b> of the {bound} roof</span></div>"
        f"<p class=soft>reads {escape(', '.join(k.reads) or 'nothing')} · writes "
        f"{escape(', '.join(k.writes))}</p>"
        + (f"<p class=soft>the same code again: {again}</p>" if others else "")
        + _plain("What it computes", k.formula)
        + _plain("Schedule", k.schedule)
        + _runners_up(k)
        + _block("Loop IR", k.loops)
        + _block("Source", k.source)
        + "</div>"
    )
    return (
        f'<details class="kernel {bound}"{state}><summary><b>{_name(group)}</b>'
        f"<span class=gist>{escape(k.gist)} <span class=pill>{k.share(limits):.0%} of {bound}"
        f"</span></span><span class=num>{duration(time_us)} <small>{time_us / total:.1%}</small>"
        f"</span></summary>{body}</details>"
    )


def _runners_up(k: KernelFacts) -> str:
    if not k.tried:
        return ""
    entries = "".join(map(_lost, k.tried))
    heading = f"Runners-up ({len(k.tried)}), as the search timed them"
    return f"<details class=fold open><summary>{heading}</summary>{entries}</details>"


def _lost(t: Tried) -> str:
    width, asked = min(1.0, t.times / 3), min(1.0, 1 / t.times) if t.times else 0.0
    return (
        f'<details class=lost><summary><span class=track style="--w:{width:.0%};--s:{asked:.0%}">'
        f"<i></i></span><span>{escape(t.why)}</span></summary>"
        f"<pre>{escape(chr(10).join(t.schedule))}</pre></details>"
    )


def _plain(title: str, lines: Sequence[str]) -> str:
    return f"<h3>{escape(title)}</h3><pre>{escape(chr(10).join(lines))}</pre>"


def _block(title: str, text: str) -> str:
    return (f"<details class=fold><summary>{escape(title)}</summary><pre>{escape(text)}</pre>"
            "</details>")  # fmt: skip
