"""Opens model files as private memory maps.

In: a path and the name of the caller. Out: a map whose pages are read when touched and whose
writes never reach the file. Must not look at the contents.
"""

import mmap
from pathlib import Path

from luminal.errors import WeightsError

__all__ = ["map_file"]


def map_file(path: Path, caller: str) -> mmap.mmap:
    """Maps a whole file copy-on-write; raises WeightsError when it is missing or empty."""
    try:
        if path.is_dir():
            raise WeightsError(f"[{caller}] {path} is a folder. Expected a model file")
        status = path.stat()
        if not path.is_file() or status.st_size == 0:
            kind = "empty" if path.is_file() else "not a regular file"
            raise WeightsError(f"[{caller}] {path} is {kind}. Expected a model file")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError as error:
        raise WeightsError(f"[{caller}] no such file: {path}") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"[{caller}] cannot read {path}: {error}") from error
