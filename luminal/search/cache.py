"""The cache on disk: winners of the search, and machine code.

In: keys made by `digest`, bytes. Out: the same bytes, or None. Writes are atomic, so processes may
share a directory; damaged entries are removed and ignored; the oldest go when it grows too large.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cache", "CacheInfo", "digest"]

MAGIC = b"LUM1"
LIMIT_BYTES = 1 << 30
KEPT_SHARE = 0.8
CHECK_EVERY = 64


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Where the cache is, how many entries it has, and their size; `hits` of this process."""

    directory: str
    entries: int
    size_bytes: int
    hits: int
    misses: int


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


class Cache:
    """Entries by kind ('winner', 'object', ...) and key. Without a directory it stores nothing."""

    def __init__(self, directory: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes
        self.hits = self.misses = 0
        self._writes = 0

    def _path(self, kind: str, key: str) -> Path:
        assert self.directory is not None
        return self.directory / kind / key[:2] / key[2:]

    def get(self, kind: str, key: str) -> bytes | None:
        """The bytes stored under a key; None if there are none, or they are damaged."""
        found = self._read(kind, key)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def _read(self, kind: str, key: str) -> bytes | None:
        if self.directory is None:
            return None
        path = self._path(kind, key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        body = raw[len(MAGIC) + 32 :]
        head = MAGIC + hashlib.sha256(body).digest()
        if raw[: len(head)] != head:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return body

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Store bytes under a key; a directory that cannot be written is no error."""
        if self.directory is None:
            return
        path = self._path(kind, key)
        name = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + hashlib.sha256(data).digest() + data)
            os.replace(name, path)
        except OSError:
            if name:
                with suppress(OSError):
                    os.unlink(name)
            return
        self._writes += 1
        if self._writes % CHECK_EVERY == 1:
            self._shrink()

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        if self.directory is None or not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob("*/??/*")):
            with suppress(OSError):
                yield path, path.stat()

    def _shrink(self) -> None:
        """Remove the entries not used for longest until the size is well below the limit."""
        files = list(self._files())
        total = sum(s.st_size for _, s in files)
        if total <= self.limit_bytes:
            return
        for path, stat in sorted(files, key=lambda f: (f[1].st_mtime, str(f[0]))):
            if total <= self.limit_bytes * KEPT_SHARE:
                break
            with suppress(OSError):
                path.unlink()
                total -= stat.st_size

    def info(self) -> CacheInfo:
        """What the cache holds."""
        sizes = [s.st_size for _, s in self._files()]
        return CacheInfo(str(self.directory or ""), len(sizes), sum(sizes), self.hits, self.misses)

    def clear(self) -> int:
        """Remove every entry; their number."""
        count = 0
        for path, _ in list(self._files()):
            with suppress(OSError):
                path.unlink()
                count += 1
        return count
