"""A GPU that the CPU emulates: kernels are compiled as C++ and run with every access checked.

In: CUDA or MSL text, launches with addresses of NumPy arrays. Out: results, or an `EmulatorError`
that says what hardware would not have forgiven: access out of bounds or misaligned, a read of what
another thread wrote without a barrier, barriers that not all threads meet, writes to read-only
buffers, more shared memory than there is. A C++ compiler is needed (`compiler()`); slow."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

from luminal.errors import DeviceError, InternalError
from luminal.ir import Program, Target, ceil_div, layout

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing",
         "-Wall", "-Werror", "-Wno-attributes", "-Wno-tsan",
         "-Wno-tautological-compare")  # fmt: skip
CHECKS = ("-fsanitize=thread", "-fsanitize=bounds")
HEADERS = {"cuda": '#include "cuda.h"\n', "metal": ""}
_ONE_AT_A_TIME = Lock()
KERNEL = re.compile(r"\b(?:__global__|kernel) void\s(?:__launch_bounds__\(\d+\)\s)?(\w+)\(")

ASM = re.compile(r"\basm(?: volatile)?\(((?:\s*\"[^\"]*\")+)([^;]*)\);")
OPERAND = re.compile(r"\"[+=]?[frlh]\"\(((?:[^()]|\([^()]*\))*)\)")


def _assembly(found: re.Match[str]) -> str:
    """A PTX statement as a call of the engine, on the same text and operands."""
    return f"LM_ASM({', '.join((found[1].strip(), *OPERAND.findall(found[2])))});"


class EmulatorError(InternalError):
    """A kernel did what a GPU would not forgive."""


class _Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_uint64),
                ("writable", ctypes.c_int), ("shared_word", ctypes.c_int)]  # fmt: skip


class _Job(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p), ("words", ctypes.c_void_p), ("word_count", ctypes.c_uint64),
        ("ranges", ctypes.POINTER(_Range)), ("range_count", ctypes.c_uint64),
        ("blocks", ctypes.c_int64), ("threads", ctypes.c_uint32), ("warp", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32), ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_uint64), ("accesses", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64), ("counts", ctypes.POINTER(ctypes.c_uint64)),
    ]  # fmt: skip


@dataclass(slots=True)
class Counts:
    """What warps of a launch did, in instructions; sectors of 32 bytes of global memory; cycles of
    shared memory (as many as accesses of up to 128 bytes, where no banks conflict)."""

    reads: int = 0
    writes: int = 0
    sectors_read: int = 0
    sectors_written: int = 0
    shared_accesses: int = 0
    shared_cycles: int = 0
    exchanges: int = 0
    products: int = 0
    barriers: int = 0


def compiler() -> str | None:
    """The C++ compiler that kernels are compiled with; None if there is none that can."""
    return shutil.which("g++")


def _built(name: str, text: str, flags: Sequence[str]) -> bytes:
    """A shared library of C++ text, as bytes."""
    found = compiler()
    if found is None:
        raise DeviceError("[device] the emulator compiles kernels as C++. Got no g++; expected one "
                          "in PATH. Try installing g++, or device='cpu'.")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source, part, out = (Path(folder, f"{name}{end}") for end in (".cpp", ".o", ".so"))
        source.write_text(text)
        include = ("-I", str(HERE / "include"), "-march=native")
        link = [found] if name == "engine" else ["ld"]
        for command in ([found, *FLAGS, *flags, *include, "-c", source, "-o", part],
                        [*link, "-shared", part, "-o", out]):  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                raise InternalError(f"[emulator] {done.stderr[:4000]}\n{text}")
        return out.read_bytes()


def _loaded(code: bytes, mode: int = 0) -> ctypes.CDLL:
    handle, path = tempfile.mkstemp(".so")
    with os.fdopen(handle, "wb") as file:
        file.write(code)
    try:
        return ctypes.CDLL(path, mode=mode)
    finally:
        os.unlink(path)


@cache
def engine() -> ctypes.CDLL:
    """The engine that runs fibres; its symbols serve all kernels of the process."""
    text = (HERE / "engine.cpp").read_text()
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir(), f"luminal-emulator-{os.getuid()}-{key}.so")
    if not kept.exists():
        code = _built("engine", text, ("-O2",))
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, kept)
    library = ctypes.CDLL(str(kept), mode=ctypes.RTLD_GLOBAL)
    library.lm_run.argtypes = [ctypes.POINTER(_Job)]
    return library


class Kernel:
    """A kernel that is ready to run. `accesses` and `bytes` count those of its launches so far;
    `counts`, if it is set, much more."""

    counts: Counts | None = None

    def __init__(self, code: bytes) -> None:
        engine()
        self._library = _loaded(code)
        self._entry = ctypes.cast(self._library.lm_entry, ctypes.c_void_p)
        self.accesses = self.bytes = 0

    def launch(
        self, blocks: int, threads: int, shared_bytes: int, warp: int,
        buffers: Sequence[tuple[int, int, bool]], sizes: Sequence[int],
    ) -> bool:  # fmt: skip
        """Runs all blocks on buffers (address, bytes, whether it is written); False if an index
        was out of range."""
        error = ctypes.c_uint32(0)
        address = ctypes.addressof(error)
        words = [*(base for base, _, _ in buffers), *sizes, address]
        ranges = [*((base, size, int(w), 0) for base, size, w in buffers), (address, 4, 1, 1)]
        self.run(words, ranges, blocks, threads, shared_bytes, warp)
        return not error.value

    def run(
        self, words: Sequence[int], ranges: Sequence[tuple[int, int, int, int]], blocks: int,
        threads: int, shared_bytes: int, warp: int,
    ) -> None:  # fmt: skip
        """Runs all blocks on these arguments; only memory in `ranges` (address, bytes, whether it
        is written, whether any thread may at any time) is touched."""
        extra = (ctypes.addressof(ctypes.c_char.in_dll(engine(), "shared")),)
        given = (ctypes.c_uint64 * (len(words) + 3))(*words, *extra)
        own = ctypes.addressof(given)
        ranges = [*ranges, (own, ctypes.sizeof(given), 0, 0)]
        message = ctypes.create_string_buffer(512)
        job = _Job(self._entry, own, len(given), (_Range * len(ranges))(*ranges), len(ranges),
                   blocks, threads, warp, shared_bytes, ctypes.cast(message, ctypes.c_char_p),
                   512)  # fmt: skip
        numbers = (ctypes.c_uint64 * len(fields(Counts)))()
        if self.counts is not None:
            job.counts = numbers
        with _ONE_AT_A_TIME:
            failed = engine().lm_run(ctypes.byref(job))
        self.accesses, self.bytes = self.accesses + job.accesses, self.bytes + job.bytes
        if self.counts is not None:
            old = astuple(self.counts)
            self.counts = Counts(*(a + b for a, b in zip(old, numbers, strict=True)))
        if failed:
            raise EmulatorError(f"[emulator] {message.value.decode()}")


class EmulatedDevice:
    """Compiles and launches kernels for a target; its memory is that of the process."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def compile(self, source: str) -> bytes:
        """A shared library of the kernel in a text."""
        name = KERNEL.search(source)[1]  # type: ignore[index]
        text = ASM.sub(_assembly, source)
        text = f"{HEADERS[self.target.kind]}{text}\nLM_ENTRY({name})\n"
        return _built("kernel", text, CHECKS)

    def load(self, code: bytes, name: str) -> Kernel:
        """A compiled kernel."""
        return Kernel(code)


def counts(
    program: Program, dims: Mapping[str, int] | None = None, blocks: int = 2
) -> list[Counts]:  # fmt: skip
    """What each kernel of a program does, in its order: counted for the first `blocks` of a kernel,
    on buffers of zeros, and scaled to all. It needs no more of a model than its sizes."""
    found, device, dims = list[Counts](), EmulatedDevice(program.target), dims or {}
    plan = program.plan
    sizes = {b.name: ceil_div(layout.size(b.shape, b.layout) * b.dtype.bits, 8).evaluate(dims)
             for b in plan.buffers}  # fmt: skip
    codes = [device.load(device.compile(c.source), c.name) for c in program.codes]
    for kernel, call in zip(plan.kernels, program.calls, strict=True):
        launch, names = program.codes[call].launch, kernel.arguments()
        assert launch is not None
        own = [dims[v.name] for v in kernel.dims()]
        here = (v.name for v in launch.dims)
        total = launch.blocks.evaluate(dict(zip(here, own, strict=True)))
        memory = {n: np.zeros(sizes[n] + 256, np.uint8) for n in names}
        given = [(-(-memory[n].ctypes.data // 256) * 256, sizes[n], n in kernel.writes())
                 for n in names]  # fmt: skip
        ready, some = codes[call], min(blocks, total)
        ready.counts = Counts()
        ready.launch(some, launch.threads, launch.shared_bytes, program.target.warp, given, own)
        found.append(Counts(*(n * total // max(1, some) for n in astuple(ready.counts))))
    return found
