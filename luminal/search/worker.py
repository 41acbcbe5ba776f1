"""The worker: a process that compiles and measures candidates, and may crash or hang doing so.

In: the name of a function ('package.module:function') and pickled requests. Out: its results, or
`WorkerFailed`. Run as a module this file is the child: it reads requests and writes responses.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["Worker", "WorkerFailed"]

START_TIMEOUT_S = 60.0


class WorkerFailed(Exception):
    """The worker died or did not answer in time; it is started again for the next request."""


class Worker:
    """A child process that calls one function. Use as a context manager, or `close` it."""

    def __init__(self, entry: str, timeout_s: float = 20.0) -> None:
        self.entry, self.timeout_s = entry, timeout_s
        self.restarts = 0
        self._started = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, request: object, timeout_s: float | None = None) -> Any:
        """The function's result for a request; WorkerFailed on a crash, a hang or an exception."""
        fresh = self._process is None or self._process.poll() is not None
        if fresh:
            self._start()
        process = self._process
        assert process is not None and process.stdin and process.stdout
        limit = (timeout_s or self.timeout_s) + (START_TIMEOUT_S if fresh else 0)
        try:
            _send(process.stdin, (True, request))
            ok, value = _receive(process.stdout, time.monotonic() + limit)
        except (OSError, EOFError, TimeoutError, pickle.UnpicklingError) as error:
            self.close()
            raise WorkerFailed(f"{type(error).__name__}: {error}") from None
        except BaseException:
            self.close()
            raise
        if not ok:
            raise WorkerFailed(value)
        return value

    def _start(self) -> None:
        self.restarts += self._started
        self._started = True
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "luminal.search.worker", self.entry],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        """Stop the child."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _send(pipe: BinaryIO | Any, value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: Any, deadline: float | None) -> Any:
    (size,) = struct.unpack("<Q", _read(pipe, 8, deadline))
    return pickle.loads(_read(pipe, size, deadline))


def _read(pipe: Any, size: int, deadline: float | None) -> bytes:
    """Exactly `size` bytes; EOFError if the other side is gone, TimeoutError past the deadline."""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while size:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not selector.select(left):
                raise TimeoutError("the worker did not answer in time")
            data = os.read(pipe.fileno(), min(size, 1 << 20))
            if not data:
                raise EOFError("the worker died")
            parts.append(data)
            size -= len(data)
    return b"".join(parts)


def _resolve(entry: str) -> Callable[[Any], Any]:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def serve(entry: str) -> None:
    """Answer requests from standard input until it ends. What the function prints is dropped."""
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    function = _resolve(entry)
    while True:
        try:
            _, request = _receive(source, None)
        except EOFError:
            return
        try:
            answer = (True, function(request))
        except Exception as error:  # a bad candidate must not end the worker
            answer = (False, f"{type(error).__name__}: {error}")
        _send(sink, answer)


if __name__ == "__main__":
    serve(sys.argv[1])
