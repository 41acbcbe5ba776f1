"""The worker: a process that compiles and measures candidates, and may crash or hang doing so.

In: the name of a function ('package.module:function') and requests that can be pickled. Out: its
results, or `WorkerFailed`. Run as a module this file is the child."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0


class WorkerFailed(Exception):
    """The worker died or did not answer in time; it is started again for the next request."""


class Worker:
    """A child process that calls one function. Use as a context manager, or `close` it."""

    def __init__(self, entry: str, timeout_s: float = 20.0) -> None:
        self.entry, self.timeout_s = entry, timeout_s
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, request: object, timeout_s: float | None = None) -> Any:
        """The function's result for a request; WorkerFailed on a crash, a hang or an exception."""
        limit = timeout_s or self.timeout_s
        if self._child is None or self._child[0].poll() is not None:
            self._start()
            limit += START_TIMEOUT_S
        assert self._child is not None
        pipe = self._child[1]
        try:
            pipe.send(request)
            if not pipe.poll(limit):
                raise TimeoutError("the worker did not answer in time")
            ok, value = pipe.recv()
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, EOFError, pickle.UnpicklingError)):
                raise WorkerFailed(str(error) or "the worker died") from None
            raise
        if not ok:
            raise WorkerFailed(value)
        return value

    def _start(self) -> None:
        self.close()
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        pipe, other = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "luminal.search.worker", self.entry, str(other.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment, start_new_session=True, pass_fds=[other.fileno()],
        )  # fmt: skip
        other.close()
        self._child = process, pipe

    def close(self) -> None:
        """Stop the child."""
        if self._child is not None:
            process, pipe = self._child
            self._child = None
            process.kill()
            process.wait()
            pipe.close()


def serve(entry: str, handle: int) -> None:
    """Answer requests until the other side is gone."""
    pipe = Connection(handle)
    module, _, name = entry.partition(":")
    function = getattr(importlib.import_module(module), name)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, function(request))
        except Exception as error:  # a bad candidate must not end the worker
            answer = (False, f"{type(error).__name__}: {error}")
        pipe.send(answer)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
