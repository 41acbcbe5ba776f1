"""The ticket pool: threads that are parked in native code and help with large phases.

In: a number of threads. Out: the address of a pool structure that `lm_run` accepts. Memory of a
pool is never freed; after a fork the same memory is reset and its workers start anew. Knows
nothing of plans.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from luminal.ir.target import Target
from luminal.runtime.cpu import compile_object, keep_forever, link
from luminal.runtime.device import host_target
from luminal.runtime.native import POOL, POOL_BYTES, runtime_text

__all__ = ["Pool", "Runtime", "runtime", "shared_pool"]

SPIN_US = 10.0  # how long a thread looks for work before it parks
BATCH_NS = 3_000  # the least work worth a claim
WAKE_NS = 25_000  # the least phase worth waking a parked thread
SERIAL_NS = 60_000  # a plan below this total stays on the calling thread

_EXPORTS = ("lm_help", "lm_spin", "lm_cost", "lm_call")
_PYTHON_API = ("PyLong_AsVoidPtr", "PyLong_FromLong", "PyObject_GetBuffer", "PyBuffer_Release",
               "PyEval_SaveThread", "PyEval_RestoreThread")  # fmt: skip
_LOCK = threading.Lock()
_STATE: dict[str, Any] = {}
_POOLS: dict[int, Pool] = {}


class Runtime:
    """The linked native runtime of this process.

    `call(block)` runs a prepared call, `cost(block)` estimates it in ns, `spin(n)` executes n
    pauses, `entry` is the address of the METH_FASTCALL function or 0 outside CPython.
    """

    __slots__ = ("call", "cost", "entry", "help", "spin", "spins_per_us")

    def __init__(self, object_code: bytes, python: bool) -> None:
        imports = {}
        for name in _PYTHON_API if python else ():
            function = getattr(ctypes.pythonapi, name)
            imports[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
        library = link([object_code], _EXPORTS + (("lm_entry",) if python else ()), imports)
        keep_forever(library)
        keep_forever(library._tracker)
        self.entry = library.address("lm_entry") if python else 0
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self.help: Callable[[int, int], None] = signature(library.address("lm_help"))
        self.spin = ctypes.CFUNCTYPE(None, ctypes.c_int64)(library.address("lm_spin"))
        self.cost = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library.address("lm_cost"))
        self.call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(library.address("lm_call"))
        self.spins_per_us = self._measure_spin()

    def _measure_spin(self) -> float:
        """Pauses per microsecond: 7 to 100, depending on the processor."""
        best_ns = 1 << 62
        for _ in range(5):
            start = time.perf_counter_ns()
            self.spin(200)
            best_ns = min(best_ns, time.perf_counter_ns() - start)
        return 200e3 / max(best_ns, 1)


def has_fastcall() -> bool:
    """True where the native entry point may read CPython's objects (a build with the GIL)."""
    free_threaded = hasattr(sys, "_is_gil_enabled")
    plain = not hasattr(sys, "gettotalrefcount") and ctypes.sizeof(ctypes.c_void_p) == 8
    return (
        sys.implementation.name == "cpython"
        and plain
        and not (
            free_threaded and not sys._is_gil_enabled()  # type: ignore[attr-defined]
        )
    )


def runtime(compiler: Callable[[str, Target], bytes] = compile_object) -> Runtime:
    """The native runtime, compiled (by `compiler`, which may cache) and linked once."""
    with _LOCK:
        if "runtime" not in _STATE:
            target = host_target()
            python = has_fastcall()
            _STATE["runtime"] = Runtime(
                compiler(runtime_text(target.triple, python), target), python
            )
        return _STATE["runtime"]


class Pool:
    """`threads` - 1 parked workers and the structure they share with a caller.

    `address` is what a call block holds. One caller at a time has the workers; a second one runs
    its plan alone on its own thread. Call `ensure` before a run if not `started`.
    """

    __slots__ = ("_memory", "_native", "address", "started", "threads")

    def __init__(self, threads: int, native: Runtime) -> None:
        self.threads = threads
        self._native = native
        self._memory = ctypes.create_string_buffer(POOL_BYTES + 64)
        keep_forever(self._memory)
        start = ctypes.addressof(self._memory)
        self.address = start + -start % 64
        self.reset()

    def reset(self) -> None:
        """Back to the state without workers. Only where no thread can be inside: a new process."""
        ctypes.memset(self.address, 0, POOL_BYTES)
        self.set("threads", self.threads)
        self.set("batch_ns", BATCH_NS)
        self.set("wake_ns", WAKE_NS)
        self.set("serial_ns", SERIAL_NS)
        self.set("spins", max(1, int(SPIN_US * self._native.spins_per_us)))
        if sys.platform != "linux":
            process = ctypes.CDLL(None)
            process.pthread_mutex_init(ctypes.c_void_p(self.address + POOL["mutex"]), None)
            process.pthread_cond_init(ctypes.c_void_p(self.address + POOL["condition"]), None)
        self.started = False

    def set(self, name: str, value: int) -> None:
        """Set one 64-bit field, for tests and experiments."""
        ctypes.c_int64.from_address(self.address + POOL[name]).value = value

    def ensure(self) -> None:
        """Start the workers if this process has none yet."""
        with _LOCK:
            if self.started:
                return
            for number in range(1, self.threads):
                threading.Thread(
                    target=self._native.help, args=(self.address, number),
                    name=f"luminal-{number}", daemon=True,
                ).start()  # fmt: skip
            self.started = True


def shared_pool(threads: int) -> Pool | None:
    """The pool of this process for that many threads, not yet started; None for one thread."""
    if threads <= 1:
        return None
    native = runtime()
    with _LOCK:
        if threads not in _POOLS:
            _POOLS[threads] = Pool(threads, native)
        return _POOLS[threads]


def _after_fork() -> None:
    """In the child: no worker has survived, and another thread may have held the lock."""
    global _LOCK
    _LOCK = threading.Lock()
    for pool in _POOLS.values():
        pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
