"""Python's garbage collector rests while Dynamo converts a frame for our backend.

Conversion makes many objects that live on, and every full collection walks all of PyTorch's: a
sixth of the time of a start from the cache. It runs again while a graph is compiled.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["resting", "running"]


class _State(threading.local):
    """Whether this thread has stopped a collector that was on."""

    stopped = False


_STATE = _State()


@contextmanager
def resting() -> Iterator[None]:
    """No collections inside; on again afterwards if the collector was on before."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _STATE.stopped = True
    try:
        yield
    finally:
        _STATE.stopped = False
        gc.enable()


@contextmanager
def running() -> Iterator[None]:
    """Collections inside `resting`, for work that takes long; of what is made meanwhile, unless
    the program itself has set objects apart."""
    if not _STATE.stopped:
        yield
        return
    apart = gc.get_freeze_count() == 0
    if apart:
        gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        if apart:
            gc.unfreeze()
