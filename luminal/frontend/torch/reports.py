"""Reports: what became of each graph that PyTorch handed over.

In: facts recorded while a graph is compiled. Out: `reports()`, one `Report` a graph, newest last.
Keeps the last 1,000; holds no tensors, and programs only as long as PyTorch does.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

__all__ = ["Report", "clear", "count", "forget", "record", "reports", "warn_once"]


@dataclass(slots=True)
class Report:
    """What became of one graph.

    `kind` is 'inference', 'forward', 'backward' or 'whole' (the graph that Dynamo gave runs in
    eager, `reasons` says why). `fallback` counts operators that run in eager, `reasons` says why
    for each; `parts` is the number of compiled parts and `kernels` that of all their kernels.
    `cache_hit`: no search and no LLVM work; `recalled`: not traced and not translated either.
    `max_error` is the largest difference from the oracle, relative to the largest value, if asked.
    """

    kind: str
    nodes: int = 0
    parts: int = 0
    kernels: int = 0
    compiled: Counter[str] = field(default_factory=Counter)
    fallback: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    arena_bytes: int = 0
    search_s: float = 0.0
    compile_s: float = 0.0
    cache_hit: bool = False
    recalled: bool = False
    max_error: float | None = None
    _executors: list[ReferenceType[Any]] = field(default_factory=list, repr=False)

    def keep(self, executor: Any, graph: Any = None, stats: Any = None) -> None:
        """Remembers the executor of a part, with its graph and its statistics (None: it came from
        the cache), for as long as it is in use."""
        self._executors.append(ref(executor))
        _KEPT[executor] = graph, stats

    def programs(self) -> list[tuple[Any, Any, Any]]:
        """What was kept of the parts that are still in use."""
        alive = [executor for held in self._executors if (executor := held()) is not None]
        return [(executor, *_KEPT[executor]) for executor in alive]

    def facts(self) -> Report:
        """The same without the parts: what can be stored."""
        return replace(self, _executors=[])

    def __str__(self) -> str:
        eager = ", ".join(f"{name} x{n}" for name, n in self.fallback.most_common()) or "none"
        error = "" if self.max_error is None else f", max error {self.max_error:.1e}"
        cache = "recalled" if self.recalled else "hit" if self.cache_hit else "miss"
        return (
            f"{self.kind}: {self.kernels} kernels in {self.parts} parts, fallback {eager}, "
            f"arena {self.arena_bytes} B, search {self.search_s:.2f} s, "
            f"compile {self.compile_s:.2f} s, cache {cache}{error}"
        )


_REPORTS: deque[Report] = deque(maxlen=1000)
_WARNED: set[str] = set()
_KEPT: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def record(report: Report) -> Report:
    """Keeps a report; returns it."""
    _REPORTS.append(report)
    return report


def reports() -> list[Report]:
    """All reports, newest last."""
    return list(_REPORTS)


def count() -> int:
    """The number of reports."""
    return len(_REPORTS)


def forget(kept: int) -> None:
    """Forgets all but the oldest: those of an attempt that is made again."""
    while len(_REPORTS) > kept:
        _REPORTS.pop()


def clear() -> None:
    """Forgets all reports."""
    _REPORTS.clear()


def warn_once(report: Report) -> None:
    """Warns of operators that run in eager, each name once in a process."""
    new = [n for n in report.fallback if n not in _WARNED]
    if new:
        _WARNED.update(new)
        listed = ", ".join(new)
        warnings.warn(f"luminal: these operators run in eager PyTorch: {listed}", stacklevel=2)
