"""Pictures as SVG text: the roofline; a graph drawn in layers.

In: `KernelFacts`; nodes and what each reads. Out: SVG elements without scripts or links elsewhere,
readable in light and dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from luminal.explanation.facts import KernelFacts, Limits, duration

__all__ = ["Box", "layered", "plan_picture", "roofline"]

_WIDTH, _TOP, _FLOOR, _LEFT, _RIGHT = 860, 32, 330, 64, 840


def _svg(width: float, height: float, *parts: str, label: str, style: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'style="{style}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, style: str) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" class="{style}"/>'


class _Axes:
    """Two logarithmic axes that hold all points and the ridge of the roof."""

    def __init__(self, shown: Sequence[KernelFacts], limits: Limits) -> None:
        intensities = [k.flops / k.size_bytes for k in shown]
        ridge = limits.gflops / limits.bandwidth_gbs
        self.x0 = log10(min([*intensities, ridge]) / 2)
        self.x1 = log10(max([*intensities, ridge * 2]) * 2)
        slowest = min((k.gflops for k in shown), default=1.0)
        self.y0 = log10(max(min(slowest, limits.gflops / 100) / 2, 1e-3))
        self.y1 = log10(max([limits.gflops, *(k.gflops for k in shown)]) * 2)

    def at(self, intensity: float, speed: float) -> tuple[float, float]:
        """Where a point lies in the picture."""
        across = (log10(intensity) - self.x0) / (self.x1 - self.x0)
        up = (log10(max(speed, 1e-3)) - self.y0) / (self.y1 - self.y0)
        return _LEFT + across * (_RIGHT - _LEFT), _FLOOR - up * (_FLOOR - _TOP)

    def grid(self) -> Iterator[str]:
        """Lines and labels at powers of ten."""
        for power in range(int(self.x0) - 1, int(self.x1) + 1):
            if self.x0 <= power <= self.x1:
                x = self.at(10.0**power, 1)[0]
                yield _line(x, _TOP, x, _FLOOR, "grid") + _text(x, 352, f"{10.0**power:g}", "mid")
        for power in range(int(self.y0) - 1, int(self.y1) + 1):
            if self.y0 <= power <= self.y1:
                y = self.at(1, 10.0**power)[1]
                yield _line(_LEFT, y, _RIGHT, y, "grid")
                yield _text(_LEFT - 8, y + 4, f"{10.0**power:g}", "end")


def roofline(kernels: Sequence[KernelFacts], limits: Limits) -> str:
    """Arithmetic intensity against speed, both logarithmic, under the measured limits."""
    shown = [k for k in kernels if k.flops and k.size_bytes]
    axes = _Axes(shown, limits)
    ridge = limits.gflops / limits.bandwidth_gbs
    first = max(10**axes.x0, 10**axes.y0 / limits.bandwidth_gbs)
    roof = (axes.at(first, first * limits.bandwidth_gbs), axes.at(ridge, limits.gflops),
            axes.at(10**axes.x1, limits.gflops))  # fmt: skip
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in roof)
    middle = [(a + b) / 2 for a, b in zip(*roof[:2], strict=True)]
    parts = [
        *axes.grid(), f'<polyline points="{path}" class="roof"/>',
        _text(_RIGHT, roof[2][1] - 8, f"{limits.gflops:.0f} GFLOP/s", "end roofed"),
        _text(middle[0] - 8, middle[1] - 8, f"{limits.bandwidth_gbs:.0f} GB/s", "end roofed"),
        _text(_LEFT, 20, "GFLOP/s"), _text(_RIGHT, 380, "operations per byte", "end"),
    ]  # fmt: skip
    longest = max((k.time_us for k in shown), default=1.0)
    for k in sorted(shown, key=lambda k: -k.time_us):
        x, y = axes.at(k.flops / k.size_bytes, k.gflops)
        radius = 3 + 12 * (k.time_us / longest) ** 0.5
        tip = (f"{k.name}: {duration(k.time_us)}, {k.gflops:.1f} GFLOP/s, "
               f"{k.bandwidth_gbs:.1f} GB/s, {k.share(limits):.0%} of the roof")  # fmt: skip
        parts.append(
            f'<a href="#{escape(k.name)}"><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
            f'class="dot {k.bound(limits)}"><title>{escape(tip)}</title></circle></a>'
        )
    return _svg(_WIDTH, 388, *parts, label="roofline")


@dataclass(frozen=True, slots=True)
class Box:
    """A node of a picture: its label (empty: a dot), a class for its colour, what is said when the
    pointer rests on it, where it leads to, and how strong its colour is."""

    label: str = ""
    kind: str = ""
    tip: str = ""
    link: str = ""
    heat: float = 1.0


def layered(
    boxes: Sequence[Box], reads: Mapping[int, Sequence[int]], label: str, most: int = 1500
) -> str:
    """A graph from top to bottom: each node below all that it reads; `reads` by position."""
    shown = boxes[:most]
    columns = _rows(len(shown), reads, len(shown) == len(boxes))
    wide, high = (104, 34) if any(b.label for b in shown) else (18, 16)
    across = max([len(row) for row in columns], default=1)
    width, place = max(across * wide, 200.0), dict[int, tuple[float, float]]()
    for down, row in enumerate(columns):
        near = {n: _mean([place[m][0] for m in reads.get(n, ())], width / 2) for n in row}
        xs = _apart([near[n] for n in sorted(row, key=near.__getitem__)], wide, width)
        for n, x in zip(sorted(row, key=near.__getitem__), xs, strict=True):
            place[n] = x, 16.0 + down * high
    edges = [_edge(place[m], place[n]) for n in range(len(shown)) for m in reads.get(n, ())]
    nodes = [_node(shown[n], *place[n]) for n in sorted(place)]
    height = 32 + len(columns) * high
    if len(boxes) > most:
        nodes.append(_text(8, height, f"… and {len(boxes) - most} more"))
        height += 12
    return _svg(width, height, *edges, *nodes, label=label, style=f"width:{width:.0f}px")


def _rows(count: int, reads: Mapping[int, Sequence[int]], whole: bool) -> list[list[int]]:
    """The nodes of each row, each right above its first reader; if the graph is not whole, what
    reads nothing and is not read is left out."""
    depth, below = [0] * count, dict[int, int]()
    for n in range(count):
        depth[n] = 1 + max((depth[m] for m in reads.get(n, ())), default=-1)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for n in reversed(range(count)):
        row = below.get(n, depth[n] + 1) - 1
        if reads.get(n) or n in below or whole:
            rows[row].insert(0, n)
        for m in reads.get(n, ()):
            below[m] = min(below.get(m, row), row)
    return rows


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _apart(wanted: Sequence[float], gap: float, width: float) -> list[float]:
    """Places near the wanted ones (in order), a gap apart and inside the width."""
    xs: list[float] = []
    for x in wanted:
        xs.append(max(x, xs[-1] + gap if xs else gap / 2))
    limit = width - gap / 2
    for n in reversed(range(len(xs))):
        xs[n] = min(xs[n], limit)
        limit = xs[n] - gap
    return xs


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = start, end
    bend = (y1 - y0) / 2
    side = 26 if x0 == x1 and y1 - y0 > 40 else 0  # past the nodes in between
    return (
        f'<path d="M{x0:.0f},{y0:.0f} C{x0 + side:.0f},{y0 + bend:.0f} {x1 + side:.0f},'
        f'{y1 - bend:.0f} {x1:.0f},{y1:.0f}" class="edge"/>'
    )


def _node(box: Box, x: float, y: float) -> str:
    tip = f"<title>{escape(box.tip)}</title>"
    if not box.label:
        return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="5" class="node {box.kind}">{tip}</circle>'
    half = 46
    shape = (
        f'<rect x="{x - half:.0f}" y="{y - 11:.0f}" width="{2 * half}" height="22" rx="6" '
        f'class="box"/><rect x="{x - half:.0f}" y="{y - 11:.0f}" width="{2 * half}" height="22" '
        f'rx="6" class="node {box.kind}" style="fill-opacity:{box.heat:.2f}">{tip}</rect>'
        + _text(x, y + 4, box.label, "mid label")
    )
    return f'<a href="#{escape(box.link)}">{shape}</a>' if box.link else shape


def plan_picture(kernels: Sequence[KernelFacts], limits: Limits, most: int = 200) -> str:
    """The kernels of a plan, from each an edge to those that read what it wrote."""
    writer: dict[str, int] = {}
    reads: dict[int, list[int]] = {}
    longest = max((k.time_us for k in kernels), default=1.0)
    boxes = []
    for n, k in enumerate(kernels):
        reads[n] = sorted({writer[b] for b in k.reads if b in writer})
        writer.update(dict.fromkeys(k.writes, n))
        tip = f"{k.name}: {k.gist}; {duration(k.time_us)}; writes {', '.join(k.writes)}"
        heat = 0.08 + 0.72 * (k.time_us / longest) ** 0.5
        label = f"{k.name} {duration(k.time_us)}"
        boxes.append(Box(label if len(label) < 15 else k.name, k.bound(limits), tip, k.name, heat))
    return layered(boxes, reads, "the kernels", most)
