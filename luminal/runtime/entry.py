"""The cheapest way from Python into a plan: one prepared block of words, one native call.

In: the kernels' addresses, where each argument comes from, and the pool. Out: `CallBlock`, whose
`run` takes addresses or arrays and returns the error word. Knows nothing of shapes and dtypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from luminal.runtime.cpu import keep_forever
from luminal.runtime.native import CALL
from luminal.runtime.pool import Pool, Runtime

__all__ = ["CallBlock", "Launches", "launches"]

GIL_NS = 5_000  # a shorter run keeps the GIL: giving it up may cost more than the run
_METH_FASTCALL = 0x80


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METHODS: dict[int, _MethodDef] = {}


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of a plan: `table` has a row (kernel, grid, cost, byte offset of its
    arguments) each; word i of the arguments is `values[index[i]]` of the call."""

    table: np.ndarray
    index: np.ndarray


def launches(functions: list[tuple[int, int, int]], arguments: list[tuple[int, ...]]) -> Launches:
    """Launches of `functions` (addresses of kernel, grid and cost), each with the positions in
    `values` of its argument words."""
    table = np.zeros((len(functions), 4), np.int64)
    offset = 0
    for row, (addresses, words) in enumerate(zip(functions, arguments, strict=True)):
        table[row] = (*addresses, offset)
        offset += 8 * len(words)
    index = np.array([word for words in arguments for word in words], np.int64)
    return Launches(table, index)


class CallBlock:
    """The words of one call in flight; not to be shared by two threads at a time.

    `values` holds first the `pointers` words that each call sets, then whatever the owner puts
    there; `values[error_word]`, the last, is the address of the error word. `run(*pointers)`
    takes addresses (int) or objects with the buffer protocol (C-contiguous, else BufferError) and
    returns the error word: 0 is success.
    """

    __slots__ = ("_address", "_args", "_block", "_launches", "_native", "run", "values")

    def __init__(
        self, native: Runtime, pool: Pool | None, plan: Launches, value_count: int, pointers: int
    ) -> None:
        self._native = native
        self._launches = plan
        self._block = np.zeros(len(CALL), np.int64)
        self._address = self._block.ctypes.data
        self.values = np.zeros(value_count + 1, np.int64)
        self._args = np.zeros(max(1, plan.index.size), np.int64)
        self.values[-1] = self._address + 8 * CALL["error"]
        self._set("pool", pool.address if pool else 0)
        self._set("table", plan.table.ctypes.data)
        self._set("phases", len(plan.table))
        self._set("args", self._args.ctypes.data)
        self._set("values", self.values.ctypes.data)
        self._set("index", plan.index.ctypes.data)
        self._set("index_count", plan.index.size)
        self._set("pointers", pointers)
        self._set("int_type", id(int))
        self._set("gil_ns", GIL_NS)
        self.run: Callable[..., int] = (
            _fastcall(native.entry, self._address) if native.entry else self._run_by_ctypes
        )

    def _set(self, name: str, value: int) -> None:
        self._block[CALL[name]] = value

    def set_scratch(self, address: int, stride: int) -> None:
        """Thread t of the pool gets the memory at `address + t * stride`."""
        self._set("scratch", address)
        self._set("stride", stride)

    def select(self, first: int, count: int) -> None:
        """Run only launches first .. first+count-1 from now on (profiling)."""
        self._set("table", self._launches.table.ctypes.data + 32 * first)
        self._set("phases", count)

    def _run_by_ctypes(self, *pointers: object) -> int:
        """The same through ctypes, where the native entry point cannot be used."""
        if len(pointers) != self._block[CALL["pointers"]]:
            return -1
        for position, item in enumerate(pointers):
            if isinstance(item, np.ndarray):
                if not item.flags.c_contiguous:
                    raise BufferError("ndarray is not C-contiguous")
                item = item.ctypes.data
            self.values[position] = item
        return self._native.call(self._address)


def _fastcall(entry: int, address: int) -> Callable[..., int]:
    """A builtin function that calls the native entry point with `address` as its self."""
    if entry not in _METHODS:
        _METHODS[entry] = _MethodDef(b"luminal_run", entry, _METH_FASTCALL, None)
        keep_forever(_METHODS[entry])
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    create.restype = ctypes.py_object
    return create(ctypes.addressof(_METHODS[entry]), address, None)
