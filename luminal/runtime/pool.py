"""The ticket pool, and the cheapest way into it: threads parked in native code that help with
large phases, and calls prepared as one block of words.

In: a number of threads; kernels' addresses and where each argument comes from. Out: `Pool`,
`Call`. Memory of a pool is never freed; after a fork it is reset and its workers start anew."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from luminal.runtime.cpu import keep_forever
from luminal.runtime.native import CALL, POOL, Block, Runtime, runtime

SPIN_US = 100.0  # how long a thread looks for work before it parks: the gap between two calls
BATCH_NS = 3_000  # the least work worth a claim
WAKE_NS = 25_000  # the least phase worth waking a parked thread
SERIAL_NS = 60_000  # a plan below this total stays on the calling thread
UNFIT = -2
GIL_NS = 5_000  # a shorter run keeps the GIL: giving it up may cost more than the run

_LOCK = threading.Lock()
_POOLS: dict[int, Pool] = {}


class Pool(Block):
    """`threads` - 1 parked workers and the words they share with a caller.

    One caller at a time has the workers; a second one runs its plan alone on its own thread.
    Call `ensure` before a run if not `started`."""

    __slots__ = ("_native", "started", "threads")

    def __init__(self, threads: int, native: Runtime) -> None:
        super().__init__(POOL)
        keep_forever(self)
        self.threads, self._native = threads, native
        self.reset()

    def reset(self) -> None:
        """Back to the state without workers. Only where no thread can be inside: a new process."""
        self.clear()
        spins = max(1, int(SPIN_US * self._native.spins_per_us))
        self.set(threads=self.threads, spins=spins, batch_ns=BATCH_NS, wake_ns=WAKE_NS,
                 serial_ns=SERIAL_NS)  # fmt: skip
        if sys.platform != "linux":
            process = ctypes.CDLL(None)
            process.pthread_mutex_init(ctypes.c_void_p(self.address + POOL["mutex"]), None)
            process.pthread_cond_init(ctypes.c_void_p(self.address + POOL["condition"]), None)
        self.started = False

    def ensure(self) -> None:
        """Start the workers if this process has none yet."""
        with _LOCK:
            for number in range(1, 1 if self.started else self.threads):
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


os.register_at_fork(after_in_child=_after_fork)


def launches(
    functions: Sequence[Sequence[int]], arguments: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """The launches of a plan: a table with a row (kernel, grid, cost, byte offset of its arguments)
    each, and where in the `values` of a call every argument word comes from."""
    ends = accumulate((8 * len(words) for words in arguments), initial=0)
    rows = [(*addresses, end) for addresses, end in zip(functions, ends, strict=False)]
    index = [word for words in arguments for word in words]
    return np.array(rows, np.int64).reshape(-1, 4), np.array(index, np.int64)


class Call(Block):
    """What one call in flight owns: its block of words and its arena, and for which dims and
    constants its owner prepared it. Not for two threads at a time.

    `values` holds first the `pointers` words that each call sets, then whatever the owner puts
    there, and last the address of the error word. `run(*pointers)` takes addresses (int) or arrays
    and returns the error word: 0 is success, -1 a wrong count, `UNFIT` an argument that is neither
    an int nor a C-contiguous array."""

    __slots__ = (
        "_args", "_index", "_native", "_table", "arena", "constants", "dims", "run", "values",
    )  # fmt: skip

    def __init__(
        self, native: Runtime, pool: Pool | None, table: np.ndarray, index: np.ndarray, count: int,
        pointers: int,
    ) -> None:  # fmt: skip
        super().__init__(CALL)
        self._native, self._table, self._index = native, table, index
        self._args = np.zeros(max(1, index.size), np.int64)
        self.arena = np.empty(0, np.uint8)
        self.dims: tuple[int, ...] | None = None
        self.constants: object = None
        self.values = np.zeros(count + 1, np.int64)
        self.values[-1] = self.address + CALL["error"]
        self.set(
            pool=pool.address if pool else 0, args=self._args.ctypes.data,
            values=self.values.ctypes.data, index=index.ctypes.data,
            index_count=index.size, pointers=pointers, int_type=id(int),
            array_type=id(np.ndarray), gil_ns=GIL_NS,
        )  # fmt: skip
        self.select(0, len(table))
        self.run: Callable[..., int] = self._run_by_ctypes
        if native.method:
            create = ctypes.pythonapi.PyCFunction_NewEx
            create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
            create.restype = ctypes.py_object
            self.run = create(native.method, self.address, None)

    def select(self, first: int, count: int) -> None:
        """Run only launches first .. first+count-1 from now on (profiling)."""
        self.set(table=self._table.ctypes.data + 32 * first, phases=count)

    def _run_by_ctypes(self, *pointers: object) -> int:
        """The same through ctypes, where the native entry point cannot be used."""
        if len(pointers) != self._words[CALL["pointers"] // 8]:
            return -1
        for position, item in enumerate(pointers):
            if type(item) is np.ndarray and item.flags.c_contiguous:
                item = item.ctypes.data
            if type(item) is not int:
                return UNFIT
            self.values[position] = item
        return self._native.call(self.address)
