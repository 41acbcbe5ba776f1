"""The runtime's own native code: LLVM text completed from native.ll, linked once a process.

In: a triple and the platform's way to park a thread. Out: the functions `lm_*`, and blocks of
words that they share with Python (CALL, POOL)."""

from __future__ import annotations

import ctypes
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from luminal.ir.target import Target
from luminal.runtime.cpu import compile_object, keep_forever, link
from luminal.runtime.device import host_target

# Byte offsets of the words (i64) in a block.
CALL = {name: 8 * i for i, name in enumerate((
    "pool", "table", "phases", "args", "scratch", "stride", "values", "index", "index_count",
    "pointers", "error", "int_type", "array_type", "gil_ns",
))}  # fmt: skip
# In a pool, words that different threads write lie in different cache lines, one a row here.
POOL = {name: 64 * row + 8 * i for row, names in enumerate((
    ("ticket",), ("pending",), ("sleepers", "finished", "busy"),
    ("table", "phase", "phases", "args", "scratch", "stride"),
    ("kernel", "kernel_args", "grid", "batch", "batches"),
    ("threads", "spins", "batch_ns", "wake_ns", "serial_ns"),
    ("mutex",), (), ("condition",), (), ("end",),
)) for i, name in enumerate(names)}  # fmt: skip

ENTRIES = ("lm_help", "lm_spin", "lm_call")
PYTHON_API = ("PyLong_AsVoidPtr", "PyLong_FromLong", "PyEval_SaveThread", "PyEval_RestoreThread")
_METH_FASTCALL = 0x80
_PARK = {"linux": "futex", "windows": "address"}  # by system; "condition" elsewhere
_RUNTIME: list[Runtime] = []


class Block:
    """Words at a fixed, aligned `address`, by the names of `offsets`."""

    __slots__ = ("_offsets", "_words", "address")

    def __init__(self, offsets: dict[str, int]) -> None:
        self._offsets = offsets
        room = np.zeros(max(offsets.values()) // 8 + 9, np.int64)
        self._words = room[-room.ctypes.data % 64 // 8 :]
        self.address: int = self._words.ctypes.data

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self._words[self._offsets[name] // 8] = value

    def clear(self) -> None:
        self._words[:] = 0


def runtime_text(triple: str, python: bool = True, park: str = "") -> str:
    """LLVM text of the runtime for `triple`.

    `python` adds the CPython entry point; `park` is "futex", "address" or "condition", by
    default what the system has."""
    wanted = {
        "x86_64" if triple.startswith("x86_64") else "aarch64",
        park or next((p for s, p in _PARK.items() if s in triple), "condition"),
        "python" if python else "",
    }

    def section(found: re.Match[str]) -> str:
        return found[2] if found[1] in wanted else ""

    def fields(found: re.Match[str]) -> str:
        names = found[1].split(",")
        return "\n".join(f"  %p.{n} = getelementptr i8, ptr %pool, i64 {POOL[n]}" for n in names)

    def word(found: re.Match[str]) -> str:
        kind, name = found[1].split(",")
        place = f"  %b.{name} = getelementptr i8, ptr %b, i64 {CALL[name]}"
        return f"{place}\n  %{name} = load {kind}, ptr %b.{name}\n"

    text = Path(__file__).with_name("native.ll").read_text()
    text = re.sub(r"^;\[(\w+)$(.*?)^;\]$", section, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^;.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\$at\{(.*?)\}", fields, text)
    return re.sub(r"\$word\{(.*?)\}", word, text)


def has_fastcall() -> bool:
    """True where native code may read the objects of CPython and NumPy: in builds with a GIL, in
    which the address of an array's data follows a header of 16 bytes."""
    array = np.zeros(1)
    return sys.implementation.name == "cpython" and (
        ctypes.c_size_t.from_address(id(array) + 16).value == array.ctypes.data
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """The linked native runtime of this process.

    `help(pool, number)` never returns, `call(block)` runs a prepared call; `method` is the address
    of the definition of a builtin function that does so for a block as its self, 0 outside
    CPython. `spins_per_us` is how many pauses a thread executes in a microsecond."""

    help: Callable[[int, int], None]
    call: Callable[[int], int]
    method: int
    spins_per_us: float


def runtime(compiler: Callable[[str, Target], bytes] = compile_object) -> Runtime:
    """The native runtime, compiled (by `compiler`, which may cache) and linked once.

    Without a lock, which a fork might leave locked: two threads at once may link two."""
    if not _RUNTIME:
        target, python = host_target(), has_fastcall()
        object_code = compiler(runtime_text(target.triple, python), target)
        imports = {n: address(ctypes.pythonapi, n) for n in PYTHON_API} if python else {}
        adopt(link([object_code], [*ENTRIES, *["lm_entry"] * python], imports), python)
    return _RUNTIME[0]


def address(library: ctypes.CDLL, name: str) -> int:
    """Where a function of a loaded library lies."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def adopt(library: Mapping[str, int], python: bool) -> None:
    """Make these addresses of `ENTRIES` (and lm_entry) the runtime, if the process has none."""
    if _RUNTIME:
        return
    keep_forever(library)
    word, block = ctypes.c_int64, ctypes.c_void_p
    spin = ctypes.CFUNCTYPE(None, word)(library["lm_spin"])
    elapsed_ns = []
    for _ in range(5):
        start = time.perf_counter_ns()
        spin(200)
        elapsed_ns.append(time.perf_counter_ns() - start)
    method = 0
    if python:  # the words of a PyMethodDef: name, function, flags, documentation
        name = ctypes.cast(ctypes.c_char_p(b"luminal_run"), block).value
        definition = (block * 4)(name, library["lm_entry"], _METH_FASTCALL, None)
        keep_forever(definition)
        method = ctypes.addressof(definition)
    _RUNTIME.append(Runtime(
        ctypes.CFUNCTYPE(None, block, word)(library["lm_help"]),
        ctypes.CFUNCTYPE(ctypes.c_int32, block)(library["lm_call"]),
        method, 200e3 / max(min(elapsed_ns), 1),
    ))  # fmt: skip
