"""What this machine can do at most, measured: fused multiply-adds in registers, reads from memory.

`Peak(threads)` and `Read(threads)` are called like any contender of a benchmark; `rate(ms)` turns
the time of a call into GFLOP/s or GB/s.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from luminal.programs import native_functions
from luminal.runtime.device import select_target

LANES = select_target("native").vector_bits // 32
VECTOR = f"<{LANES} x float>"
CHAINS = 12
STREAMS = 8


def _loop(chains: int, step: Callable[[int], str], count: int) -> str:
    """A function of (address, n) that updates `chains` vectors `count` elements at a time."""
    text = [f"declare {VECTOR} @llvm.fma.v{LANES}f32({VECTOR}, {VECTOR}, {VECTOR})",
            "define float @probe(ptr %p, i64 %n) {\nentry:", f"%x = load {VECTOR}, ptr %p, align 4",
            "br label %loop\nloop:", "%i = phi i64 [0, %entry], [%next, %loop]"]  # fmt: skip
    text += [
        f"%a{c} = phi {VECTOR} [zeroinitializer, %entry], [%b{c}, %loop]" for c in range(chains)
    ]
    text += [step(c) for c in range(chains)]
    text += [f"%next = add i64 %i, {count}", "%go = icmp ult i64 %next, %n",
             "br i1 %go, label %loop, label %end\nend:",
             f"%s0 = fadd {VECTOR} %b0, %b0"]  # fmt: skip
    text += [f"%s{c} = fadd {VECTOR} %s{c - 1}, %b{c}" for c in range(1, chains)]
    last = f"extractelement {VECTOR} %s{chains - 1}, i32 0"
    return "\n".join([*text, f"%r = {last}", "ret float %r\n}"])


class _Probe:
    """One native function on all threads at once."""

    def __init__(self, text: str, threads: int) -> None:
        self._library = native_functions(text, ("probe",), {})
        call = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64)
        self._run = call(self._library["probe"])
        self._pool = ThreadPoolExecutor(max(1, threads - 1))
        self._work: list[tuple[int, int]] = []

    def __call__(self) -> None:
        others = [self._pool.submit(self._run, *work) for work in self._work[1:]]
        self._run(*self._work[0])
        for other in others:
            other.result()


class Peak(_Probe):
    """Fused multiply-adds that need no memory."""

    STEPS = 4_000_000

    def __init__(self, threads: int) -> None:
        def step(c: int) -> str:
            vector = f"{VECTOR} %x, {VECTOR} %x, {VECTOR} %a{c}"
            return f"%b{c} = call {VECTOR} @llvm.fma.v{LANES}f32({vector})"

        super().__init__(_loop(CHAINS, step, 1), threads)
        self._zeros = np.zeros(LANES, np.float32)
        self._work = [(self._zeros.ctypes.data, self.STEPS)] * threads

    def rate(self, ms: float) -> float:
        """GFLOP/s of a call that took `ms`."""
        return len(self._work) * self.STEPS * CHAINS * LANES * 2 / ms / 1e6


class Read(_Probe):
    """Every byte of a buffer that no cache holds, in several streams a thread."""

    def __init__(self, threads: int, size_bytes: int = 256 << 20) -> None:
        part = size_bytes // 4 // threads // STREAMS // LANES * LANES

        def step(c: int) -> str:
            return (
                f"%o{c} = add i64 %i, {c * part}\n"
                f"%q{c} = getelementptr float, ptr %p, i64 %o{c}\n"
                f"%v{c} = load {VECTOR}, ptr %q{c}, align 4\n"
                f"%b{c} = fadd {VECTOR} %a{c}, %v{c}"
            )

        super().__init__(_loop(STREAMS, step, LANES), threads)
        self._data = np.ones(part * STREAMS * threads, np.float32)
        first, share = self._data.ctypes.data, part * STREAMS * 4
        self._work = [(first + n * share, part) for n in range(threads)]

    def rate(self, ms: float) -> float:
        """GB/s of a call that took `ms`."""
        return self._data.nbytes / ms / 1e6
