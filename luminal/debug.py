"""What luminal says while it works: log lines by level, and text dumps of every stage.

In: a Config and text. Out: lines on standard error, files in `Config.dump`, or a
warning if it cannot be written. Never raises."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from luminal.config import Config
from luminal.errors import warn_unwritable


def log(config: Config, level: int, text: str) -> None:
    """Print `text` on standard error if LUMINAL_DEBUG is at least `level`."""
    if config.debug >= level:
        print(f"luminal: {text}", file=sys.stderr, flush=True)


def dump(config: Config, name: str, text: str) -> None:
    """Write `text` to the file `name` of the dump directory, if there is one."""
    if config.dump:
        folder = Path(config.dump)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError as error:
            loss = "the stages are not dumped"
            warn_unwritable(str(folder.parent), "LUMINAL_DUMP", loss, error.strerror)


def with_own_folder(config: Config, text: str) -> Config:
    """The settings whose dumps go to a folder of this graph's, named by its text."""
    if not config.dump:
        return config
    name = hashlib.sha256(text.encode()).hexdigest()[:8]
    return replace(config, dump=str(Path(config.dump) / name))
