"""What luminal says while it works: log lines by level, and text dumps of every stage.

In: a Config and text. Out: lines on standard error, files in `Config.dump`. Never raises.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from luminal.config import Config

__all__ = ["dump", "log"]


def log(config: Config, level: int, text: str) -> None:
    """Print `text` on standard error if LUMINAL_DEBUG is at least `level`."""
    if config.debug >= level:
        print(f"luminal: {text}", file=sys.stderr, flush=True)


def dump(config: Config, name: str, text: str) -> None:
    """Write `text` to the file `name` of the dump directory, if there is one."""
    if config.dump:
        with suppress(OSError):
            folder = Path(config.dump)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
