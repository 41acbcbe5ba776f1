"""Pictures as SVG text: where time goes, the roofline, the plan as a graph.

In: `KernelFacts`. Out: SVG elements without scripts or links, readable in light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

from luminal.explanation.facts import KernelFacts, Limits

__all__ = ["plan_picture", "roofline", "time_bars"]

_WIDTH = 860


def _svg(height: float, *parts: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def time_bars(kernels: Sequence[KernelFacts], most: int = 24) -> str:
    """The slowest codes, all launches of each together."""
    total = sum(k.time_us for k in kernels) or 1.0
    groups: dict[str, list[KernelFacts]] = {}
    for k in kernels:
        groups.setdefault(k.code, []).append(k)
    ranked = sorted(groups.values(), key=lambda g: -sum(k.time_us for k in g))[:most]
    longest = sum(k.time_us for k in ranked[0]) if ranked else 1.0
    parts = []
    for row, group in enumerate(ranked):
        time_us, y = sum(k.time_us for k in group), 6 + row * 24
        width = max(1.0, time_us / longest * 470)
        name = group[0].name + (f" ×{len(group)}" if len(group) > 1 else "")
        parts += [
            f'<a href="#{escape(group[0].name)}">', _text(172, y + 14, name, "end"),
            f'<rect x="180" y="{y}" width="{width:.1f}" height="18" rx="3" class="bar"/></a>',
            _text(188 + width, y + 14, f"{time_us:,.1f} µs · {time_us / total:.1%}", "soft"),
        ]  # fmt: skip
    return _svg(12 + 24 * len(ranked), *parts, label="time of each kernel")


def roofline(kernels: Sequence[KernelFacts], limits: Limits) -> str:
    """Arithmetic intensity against speed, both logarithmic, under the measured limits."""
    shown = [k for k in kernels if k.flops and k.size_bytes]
    low = min((k.flops / k.size_bytes for k in shown), default=0.1)
    high = max((k.flops / k.size_bytes for k in shown), default=100.0)
    ridge = limits.gflops / limits.bandwidth_gbs
    x0, x1 = log10(min(low, ridge) / 2), log10(max(high, ridge * 2) * 2)
    bottom = min((k.gflops for k in shown), default=1.0)
    y0, y1 = log10(max(min(bottom, limits.gflops / 100) / 2, 1e-3)), log10(limits.gflops * 2)

    def at(intensity: float, speed: float) -> tuple[float, float]:
        return (60 + (log10(intensity) - x0) / (x1 - x0) * (_WIDTH - 80),
                320 - (log10(max(speed, 1e-3)) - y0) / (y1 - y0) * 290)  # fmt: skip

    parts = ['<line x1="60" y1="320" x2="840" y2="320" class="axis"/>'
             '<line x1="60" y1="20" x2="60" y2="320" class="axis"/>']  # fmt: skip
    for power in range(int(x0) - 1, int(x1) + 1):
        if x0 <= power <= x1:
            parts.append(_text(at(10.0**power, 1)[0], 338, f"{10.0**power:g}", "mid soft"))
    for power in range(int(y0) - 1, int(y1) + 1):
        if y0 <= power <= y1:
            parts.append(_text(54, at(1, 10.0**power)[1] + 4, f"{10.0**power:g}", "end soft"))
    corner = at(ridge, limits.gflops)
    first = max(10**x0, 10**y0 / limits.bandwidth_gbs)
    start, end = at(first, first * limits.bandwidth_gbs), at(10**x1, limits.gflops)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (start, corner, end))
    parts += [
        f'<polyline points="{path}" class="roof"/>',
        _text(66, 34, f"GFLOP/s · roof {limits.gflops:.0f}, slope {limits.bandwidth_gbs:.0f} GB/s",
              "soft"),
        _text(840, 355, "operations per byte", "end soft"),
    ]  # fmt: skip
    longest = max((k.time_us for k in shown), default=1.0)
    for k in sorted(shown, key=lambda k: -k.time_us):
        x, y = at(k.flops / k.size_bytes, k.gflops)
        radius = 3 + 12 * (k.time_us / longest) ** 0.5
        tip = f"{k.name}: {k.time_us:,.1f} µs, {k.gflops:.1f} GFLOP/s, {k.bandwidth_gbs:.1f} GB/s"
        parts.append(
            f'<a href="#{escape(k.name)}"><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
            f'class="dot"><title>{escape(tip)}</title></circle></a>'
        )
    return _svg(364, *parts, label="roofline")


def plan_picture(kernels: Sequence[KernelFacts], most: int = 120) -> str:
    """The kernels from top to bottom, with an arc from the writer of a buffer to each reader."""
    shown, writer = list(kernels[:most]), dict[str, int]()
    longest = max((k.time_us for k in shown), default=1.0)
    parts: list[str] = []
    for row, k in enumerate(shown):
        y = 16 + row * 22
        for buffer in k.reads:
            if buffer in writer and writer[buffer] < row:
                parts.append(_arc(writer[buffer], row, buffer))
        writer.update(dict.fromkeys(k.writes, row))
        heat = 0.15 + 0.85 * (k.time_us / longest) ** 0.5
        note = f"{k.time_us:,.1f} µs  →  {', '.join(k.writes)}"
        parts += [
            f'<a href="#{escape(k.name)}"><circle cx="300" cy="{y}" r="7" class="dot" '
            f'style="fill-opacity:{heat:.2f}"/>', _text(318, y + 4, k.name), "</a>",
            _text(470, y + 4, note if len(note) < 60 else note[:58] + "…", "soft"),
        ]  # fmt: skip
    if len(kernels) > most:
        parts.append(_text(318, 20 + most * 22, f"… and {len(kernels) - most} more", "soft"))
    return _svg(40 + 22 * min(len(kernels), most + 1), *parts, label="the plan")


def _arc(source: int, target: int, buffer: str) -> str:
    y0, y1 = 16 + source * 22, 16 + target * 22
    bend = 292 - min(280.0, 14 + 5.0 * (target - source))
    return (
        f'<path d="M292,{y0} C{bend:.0f},{y0} {bend:.0f},{y1} 292,{y1}" class="edge">'
        f"<title>{escape(buffer)}</title></path>"
    )
