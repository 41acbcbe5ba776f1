"""Interleaved timing: every contender has a turn a round, so that drift hits all of them alike."""

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


def rest(limit_s: float = 0.3) -> None:
    """Wait until no thread of this process runs: after a call ONNX Runtime's threads spin for 50 ms
    and those of PyTorch for 7 ms, on the cores that the next contender needs."""
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.004)
        if time.process_time() - before < 0.0004:
            return


def turn(run: Callable[[], object], least_s: float = 0.03) -> float:
    """Milliseconds of one call at rest: the median of at least one timed call and `least_s` of
    them, after two that warm the caches and wake the threads (one, if a call is long)."""
    rest()
    start = time.perf_counter()
    run()
    if time.perf_counter() - start < least_s:
        run()
    times, start = list[float](), time.perf_counter()
    while not times or time.perf_counter() - start < least_s:
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return median(times)


def interleave(name: str, contenders: dict[str, Callable[[], object]], seconds: float = 6.0) -> Row:
    """Median time of each contender over interleaved turns that fill about `seconds`."""
    for run in contenders.values():
        run()
        run()
    times: dict[str, list[float]] = {label: [] for label in contenders}
    start, rounds = time.perf_counter(), 0
    while rounds < 5 or time.perf_counter() - start < seconds:
        for label, run in contenders.items():
            times[label].append(turn(run))
        rounds += 1
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
