"""The cache on disk: winners of the search, programs, and machine code.

In: keys made by `digest`, bytes. Out: the same bytes, or None. Writes are atomic, so processes may
share a directory; damaged entries are removed and ignored; the oldest go when it grows too large.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path

from luminal.errors import warn_unwritable

MAGIC = b"LUM1"
LIMIT_BYTES = 1 << 30
KEPT_SHARE = 0.8
CHECKED = "00"  # the size is looked at when a key with this end is stored: one of 256


def digest(*parts: object) -> str:
    """A key from the text of its parts, equal in every process.

    >>> digest("a", 1) == digest("a", 1) != digest("a1")
    True
    """
    h = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:40]


def _sealed(data: bytes) -> bytes:
    return MAGIC + hashlib.sha256(data).digest() + data


class Cache:
    """Entries by kind ('winner', 'object', ...) and key. Without a directory it stores nothing."""

    def __init__(self, directory: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes

    def get(self, kind: str, key: str) -> bytes | None:
        """The bytes stored under a key; None if there are none, or they are damaged."""
        if self.directory is None:
            return None
        path = self.directory / kind / key[:2] / key[2:]
        with suppress(OSError):
            raw = path.read_bytes()
            data = raw[len(_sealed(b"")) :]
            if raw == _sealed(data):
                with suppress(OSError):
                    os.utime(path)
                return data
            path.unlink()
        return None

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Store bytes under a key; a directory that cannot be written is worth a warning."""
        if self.directory is None:
            return
        folder = self.directory / kind / key[:2]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".new-", delete=False) as file:
                file.write(_sealed(data))
            os.replace(file.name, folder / key[2:])
            if key.endswith(CHECKED):
                total = sum(size for _, size, _ in self.entries())
                if total > self.limit_bytes:  # to well below it
                    self.clear(total - int(self.limit_bytes * KEPT_SHARE))
        except OSError as error:
            loss = "every process searches and compiles again"
            warn_unwritable(str(self.directory), "LUMINAL_CACHE", loss, error.strerror)

    def load(self, kind: str, key: str) -> object | None:
        """The object stored under a key; None as well for one of another version of Python."""
        with suppress(Exception):
            return pickle.loads(self.get(kind, key) or b"")
        return None

    def save(self, kind: str, key: str, value: object) -> None:
        """Store an object under a key."""
        self.put(kind, key, pickle.dumps(value))

    def entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, file) of every entry, the oldest first."""
        found = []
        for path in self.directory.glob("*/??/*") if self.directory else ():
            with suppress(OSError):
                found.append((path.stat().st_mtime, path.stat().st_size, path))
        return sorted(found)

    def clear(self, least_bytes: float = float("inf")) -> int:
        """Remove the oldest entries, `least_bytes` or all of them; how many went."""
        count = 0
        for _, size, path in self.entries():
            if least_bytes <= 0:
                break
            with suppress(OSError):
                path.unlink()
                count, least_bytes = count + 1, least_bytes - size
        return count
