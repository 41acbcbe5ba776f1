"""A progress bar on standard error for compilations that take longer than a second.

In: a Config. Out: a context manager that yields the callback `progress(text, share)`. Without rich,
or where standard error is no terminal (unless LUMINAL_PROGRESS=on), nothing is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from luminal.config import Config

__all__ = ["Progress", "progress_bar"]

Progress = Callable[[str, float], None]
DELAY_S = 1.0


class _Bar:
    """Started by the first report that comes later than `DELAY_S`."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.bar: Any = None
        self.task: Any = None
        self.broken = False

    def __call__(self, text: str, share: float) -> None:
        if self.broken or (self.bar is None and time.monotonic() - self.start < DELAY_S):
            return
        try:
            if self.bar is None:
                self._open()
            self.bar.update(self.task, description=f"luminal {text}", completed=100 * share)
        except Exception:  # no rich, or another live display: compile on without a bar
            self.broken = True

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.bar = RichProgress(*columns, console=console, transient=True)
        self.bar.start()
        self.task = self.bar.add_task("luminal", total=100)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None and not self.broken:
            self.bar.stop()


@contextmanager
def progress_bar(config: Config) -> Iterator[Progress | None]:
    """The callback for one compilation, or None where nothing should be shown."""
    shown = config.progress == "on" or (config.progress == "auto" and sys.stderr.isatty())
    if not shown:
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()
