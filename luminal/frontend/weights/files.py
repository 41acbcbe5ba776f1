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
        kind = "a folder" if path.is_dir() else "not a regular file" if not path.is_file() else ""
        if path.stat().st_size == 0 or kind:
            problem = f"{path} is {kind or 'empty'}. Expected a model file"
            raise WeightsError(f"[{caller}] {problem}. Try the path of one.")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except WeightsError:
        raise
    except FileNotFoundError as error:
        raise WeightsError(f"[{caller}] no such file: {path}. Try its whole path.") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"[{caller}] cannot read {path}: {error}") from error
