"""The worker survives what its function does, and its caller survives the worker."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from luminal.search.worker import Worker, WorkerFailed


def act(request: tuple[str, int]) -> tuple[int, int]:
    """The function that the child runs."""
    what, value = request
    print("noise on standard output")
    if what == "crash":
        ctypes.string_at(0)
    if what == "hang":
        time.sleep(60)
    if what == "raise":
        raise ValueError("no such thing")
    return value + 1, os.getpid()


def test_it_survives_crash_hang_and_exception() -> None:
    with Worker("tests.test_search_worker:act", timeout_s=20) as worker:
        one, first = worker.call(("add", 1))
        assert (one, first) == (2, worker.call(("add", 2))[1])
        with pytest.raises(WorkerFailed, match="no such thing"):
            worker.call(("raise", 0))
        assert worker.call(("add", 3)) == (4, first)
        with pytest.raises(WorkerFailed):
            worker.call(("crash", 0))
        five, second = worker.call(("add", 4))
        assert five == 5 and second != first
        start = time.monotonic()
        with pytest.raises(WorkerFailed, match="in time"):
            worker.call(("hang", 0), timeout_s=0.5)
        assert time.monotonic() - start < 10
        six, third = worker.call(("add", 5))
        assert six == 6 and third not in (first, second)


def test_large_requests_pass() -> None:
    with Worker("builtins:len") as worker:
        assert worker.call(b"x" * (5 << 20)) == 5 << 20


def test_closing_ends_the_child() -> None:
    worker = Worker("builtins:len")
    worker.call(b"")
    assert worker._child is not None
    process = worker._child[0]
    worker.close()
    assert process.poll() is not None
    worker.close()
