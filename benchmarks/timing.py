"""Interleaved timing: every contender runs once a round, so that drift hits all of them alike."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of a table: what, and the median milliseconds of each contender."""

    name: str
    ms: dict[str, float]

    def ratio(self, peer: str) -> float:
        """How many times faster luminal is than `peer`."""
        return self.ms[peer] / self.ms["luminal"]

    def best(self, peers: tuple[str, ...]) -> str:
        """The fastest peer that ran."""
        return min((p for p in peers if p in self.ms), key=self.ms.__getitem__)


def interleave(name: str, contenders: dict[str, Callable[[], object]], seconds: float = 6.0) -> Row:
    """Median time of each contender over interleaved rounds that fill about `seconds`.

    Each turn has one run that is not timed: threads of the one before may still spin then.
    """
    for run in contenders.values():
        run()
        run()
    start = time.perf_counter()
    for run in contenders.values():
        run()
    rounds = max(5, min(400, int(seconds / 2 / max(1e-6, time.perf_counter() - start))))
    times: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, run in contenders.items():
            run()
            start = time.perf_counter()
            run()
            times[label].append((time.perf_counter() - start) * 1e3)
    return Row(name, {label: median(t) for label, t in times.items()})


def table(rows: list[Row], peers: tuple[str, ...]) -> str:
    """A Markdown table: milliseconds, and luminal's speed relative to each peer."""
    heads = ["", "luminal ms", *(f"{p} ms" for p in peers), *(f"x {p}" for p in peers)]
    heads += ["x best"] * (len(peers) > 1)
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        cells = [row.name, f"{row.ms['luminal']:.3f}"]
        cells += [f"{row.ms[p]:.3f}" if p in row.ms else "–" for p in peers]
        cells += [f"{row.ratio(p):.2f}" if p in row.ms else "–" for p in peers]
        cells += [f"{row.ratio(row.best(peers)):.2f}"] * (len(peers) > 1)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: list[Row], peers: tuple[str, ...], path: Path) -> None:
    """A bar chart of each peer's speed, luminal = 1."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.55 * len(rows) + 1.2), layout="constrained")
    height = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        at = [
            i + (number - (len(peers) - 1) / 2) * height for i, r in enumerate(rows) if peer in r.ms
        ]
        axes.barh(at, [1 / r.ratio(peer) for r in rows if peer in r.ms], height, label=peer)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [r.name for r in rows])
    axes.invert_yaxis()
    axes.set_xlabel("speed of each peer, luminal = 1 (left of the line: luminal is faster)")
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
