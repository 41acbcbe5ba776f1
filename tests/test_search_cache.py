"""The cache: atomic, bounded, and deaf to damage."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import luminal
from luminal.search.cache import CHECKED, Cache, digest


def test_stores_and_finds(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "dir")
    assert cache.get("object", digest("a")) is None
    cache.put("object", digest("a"), b"code")
    assert Cache(tmp_path / "deep" / "dir").get("object", digest("a")) == b"code"
    assert cache.get("winner", digest("a")) is None
    ((_, size, _),) = cache.entries()
    assert size > 4
    assert cache.clear() == 1 and not cache.entries()


def test_damage_is_a_miss_and_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number, spoil in enumerate((b"", b"LUM1", None)):
        key = digest(number)
        cache.put("object", key, b"payload" * 100)
        path = next(p for p in tmp_path.glob("object/*/*") if p.parent.name + p.name == key)
        raw = path.read_bytes()
        path.write_bytes(raw[:-1] + b"x" if spoil is None else spoil)
        assert cache.get("object", key) is None
        assert not path.exists()
        cache.put("object", key, b"again")
        assert cache.get("object", key) == b"again"


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=10_000)
    keys = [f"{n:038x}ff" for n in range(20)]
    for n, key in enumerate(keys):
        cache.put("object", key, bytes(1000))
        path = tmp_path / "object" / key[:2] / key[2:]
        os.utime(path, (1000 + n, 1000 + n))
    cache.get("object", keys[0])
    assert len(cache.entries()) == 20  # the size is looked at now and then only
    cache.put("object", "a" * 38 + CHECKED, b"")
    left = [cache.get("object", k) is not None for k in keys]
    assert left[0] and left[-1] and not any(left[1:12])
    assert sum(size for _, size, _ in cache.entries()) <= 10_000


def test_without_a_directory_nothing_happens(tmp_path: Path) -> None:
    cache = Cache(None)
    cache.put("object", "0" * 40, b"x")
    assert cache.get("object", "0" * 40) is None and not cache.entries()
    file = tmp_path / "file"
    file.write_text("not a directory")
    blocked = Cache(file / "cache")
    with pytest.warns(UserWarning, match="LUMINAL_CACHE"):
        blocked.put("object", "0" * 40, b"x")
    assert blocked.get("object", "0" * 40) is None


def test_objects_come_back_or_are_missing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.save("winner", digest(1), (1, "a"))
    cache.put("winner", digest(2), b"no pickle")
    assert cache.load("winner", digest(1)) == (1, "a")
    assert cache.load("winner", digest(2)) is None and cache.load("winner", digest(3)) is None


def test_no_temporary_files_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    start = time.monotonic()
    for n in range(50):
        cache.put("object", digest(n), b"x")
    assert time.monotonic() - start < 5
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".new-")]


def test_a_folder_that_cannot_be_written_is_worth_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    with pytest.warns(
        UserWarning, match=r"cannot write to .*file/cache \(.+\), so .*LUMINAL_CACHE"
    ):
        cache.put("object", digest("a"), b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("object", digest("b"), b"code")
    assert cache.get("object", digest("a")) is None


def test_dumps_that_cannot_be_written_are_worth_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LUMINAL_DUMP", str(tmp_path / "file" / "dumps"))
    x = np.ones(4, np.float32)
    with pytest.warns(UserWarning, match=r"file/dumps \(.+\), so .*LUMINAL_DUMP") as found:
        doubled = luminal.compile(lambda t: t + t, [x], search="off")
    assert len(found) == 1 and np.all(doubled(x) == 2)
