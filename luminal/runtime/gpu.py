"""The executor of a Program for a GPU, and the targets that code is generated for without one.

In: a Program, its object code, a `Gpu` that loads and launches. Out: what `Executor` gives. Buffers
are arrays of this process: a device with memory of its own copies in its kernels' `launch`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from luminal.errors import InternalError, OutOfRangeError
from luminal.ir import MMA, SIMDGROUP, Program, Target, ceil_div, layout
from luminal.runtime.executor import INDEX_ERROR, Executor
from luminal.runtime.memory import aligned, compile_exprs

H100 = Target(
    kind="cuda", triple="nvptx64", cpu="sm_90a", vector_bits=128, vector_registers=128, fma=True,
    l1_bytes=48 << 10, l2_bytes=50 << 20, l3_bytes=50 << 20, cores=132, gflops=507.0,
    bandwidth_gbs=3350.0, launch_us=2.5, warp=32, matrix=MMA,
)  # fmt: skip
M2 = Target(
    kind="metal", triple="air64-apple-macosx", cpu="apple-m2", vector_bits=128,
    vector_registers=96, fma=True, l1_bytes=32 << 10, l2_bytes=8 << 20, l3_bytes=8 << 20, cores=10,
    gflops=360.0, bandwidth_gbs=100.0, launch_us=5.0, warp=32, matrix=SIMDGROUP,
)  # fmt: skip
ALIGNMENT = 16  # that of the widest access; what lies elsewhere is copied
PATTERN = 0xFF  # fresh temporaries are NaN


class GpuKernel(Protocol):
    """A loaded kernel."""

    def launch(
        self, blocks: int, threads: int, shared_bytes: int, warp: int,
        buffers: Sequence[tuple[int, int, bool]], sizes: Sequence[int],
    ) -> bool:  # fmt: skip
        """Run on buffers (address, bytes, whether it is written); False: an index error."""
        ...


class Gpu(Protocol):
    """A device."""

    target: Target

    def compile(self, source: str) -> bytes: ...

    def load(self, code: bytes, name: str) -> GpuKernel: ...


class GpuExecutor(Executor):
    """Calls a program kernel by kernel."""

    def __init__(self, program: Program, objects: Sequence[bytes], gpu: Gpu) -> None:
        self.gpu = gpu
        super().__init__(program, objects, 1)

    def _bind(self, objects: Any) -> Any:
        plan = self.program.plan
        codes = self.program.codes
        self._kernels = [self.gpu.load(o, c.name) for o, c in zip(objects, codes, strict=True)]
        self._arguments()
        self._blocks = [compile_exprs(c.launch.dims, [c.launch.blocks]) for c in codes if c.launch]
        bits = [layout.size(b.shape, b.layout) * b.dtype.bits for b in plan.buffers]
        self._sizes = compile_exprs(plan.dims, [ceil_div(e, 8) for e in bits])
        return ()

    def run_pointers(
        self, in_ptrs: Sequence[Any], out_ptrs: Sequence[Any], dims: tuple[int, ...] = ()
    ) -> bool:
        """As in `Executor`."""
        given = (*in_ptrs, *out_ptrs)
        if any(isinstance(a, np.ndarray) and not a.flags.c_contiguous for a in given):
            return False
        addresses = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in given]
        names = (b.name for b in self.program.plan.buffers)
        sizes = dict(zip(names, self._sizes(*dims), strict=True))
        places = dict(zip(self._held, addresses, strict=True))
        places |= {name: a.ctypes.data for name, a in self.constants.items()}
        odd = {n: aligned(sizes[n]) for n, a in places.items() if a % ALIGNMENT and sizes[n]}
        for name, copy in odd.items():
            ctypes.memmove(copy.ctypes.data, places[name], copy.size)
        slots = self._temporaries(dims)
        places |= {name: slots[slot].ctypes.data for name, slot in self.memory.slot.items()}
        self.arena_bytes = max(self.arena_bytes, sum(s.size for s in slots))
        self._run(places | {n: a.ctypes.data for n, a in odd.items()}, sizes, dims)
        for name, copy in odd.items():
            if name not in self.constants:
                ctypes.memmove(places[name], copy.ctypes.data, copy.size)
        return True

    def _temporaries(self, dims: tuple[int, ...]) -> list[np.ndarray]:
        """The memory of every slot."""
        slots = [aligned(n) for n in self.memory.slot_bytes(*dims)]
        for slot in slots:
            slot[...] = PATTERN
        return slots

    def _run(self, places: dict[str, int], sizes: dict[str, int], dims: tuple[int, ...]) -> None:
        """All kernels in order, on buffers at these addresses."""
        values = dict(zip((v.name for v in self.program.plan.dims), dims, strict=True))
        for kernel, call in zip(self.program.plan.kernels, self.program.calls, strict=True):
            own = [values[v.name] for v in kernel.dims()]
            buffers = [(places[self.memory.root[n]], sizes[n], n in kernel.writes())
                       for n in kernel.arguments()]  # fmt: skip
            self._launch(call, buffers, own)

    def _launch(self, call: int, buffers: list[tuple[int, int, bool]], sizes: list[int]) -> None:
        launch = self.program.codes[call].launch
        if launch is None:
            raise InternalError("[runtime] a kernel without a launch")
        (blocks,) = self._blocks[call](*sizes)
        warp = self.gpu.target.warp
        shared_bytes = launch.shared_bytes
        if blocks > 0 and not self._kernels[call].launch(
            blocks, launch.threads, shared_bytes, warp, buffers, sizes
        ):
            raise OutOfRangeError(INDEX_ERROR)
