"""OpenCL: kernels of the `opencl` dialect through whatever driver is installed (PoCL on CPUs).

In: OpenCL C text, launches with addresses of memory of this process. Out: results in that memory.
Only file that imports pyopencl, when a device is asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from luminal.errors import DeviceError, InternalError
from luminal.ir import Target

GENERIC = Target(
    kind="opencl", triple="spir64", cpu="", vector_bits=128, vector_registers=64, fma=True,
    l1_bytes=32 << 10, l2_bytes=4 << 20, l3_bytes=4 << 20, cores=16, gflops=100.0,
    bandwidth_gbs=100.0, launch_us=10.0, warp=32,
)  # fmt: skip


class OpenClDevice:
    """The first device of the first platform."""

    def __init__(self) -> None:
        try:
            import pyopencl
        except ImportError:
            raise _missing("no pyopencl", "pip install 'luminal[opencl]'") from None
        self.cl: Any = pyopencl
        try:
            found = [d for p in pyopencl.get_platforms() for d in p.get_devices()]
        except pyopencl.Error as error:
            raise _missing(f"no platform ({error})", "installing a driver, such as PoCL") from None
        if not found:
            raise _missing("platforms without devices", "installing a driver, such as PoCL")
        self.context = pyopencl.Context(found[:1])
        self.queue = pyopencl.CommandQueue(self.context)
        self.target = GENERIC

    def compile(self, source: str) -> bytes:
        """The driver's own form of a kernel."""
        program = self.cl.Program(self.context, source)
        try:
            program.build(options=["-cl-std=CL1.2"])
        except self.cl.Error as error:
            raise InternalError(f"[opencl] {error}\n{source}") from None
        return program.get_info(self.cl.program_info.BINARIES)[0]

    def load(self, code: bytes, name: str) -> OpenClKernel:
        """A kernel from what `compile` gave."""
        program = self.cl.Program(self.context, self.context.devices, [code])
        return OpenClKernel(self, getattr(program.build(), name))


def _memory(address: int, size_bytes: int) -> np.ndarray:
    """An array over memory of this process."""
    return np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), np.uint8)


def _missing(got: str, what: str) -> DeviceError:
    return DeviceError(f"[opencl] no OpenCL device. Got {got}; expected one. Try {what}.")


class OpenClKernel:
    """A kernel that is ready to run."""

    def __init__(self, device: OpenClDevice, kernel: Any) -> None:
        self.device, self.kernel = device, kernel

    def launch(
        self, blocks: int, threads: int, shared_bytes: int, warp: int,
        buffers: Sequence[tuple[int, int, bool]], sizes: Sequence[int],
    ) -> bool:  # fmt: skip
        """Runs all blocks and waits; False if an index was out of range."""
        cl, queue = self.device.cl, self.device.queue
        error = np.zeros(1, np.uint32)
        most = {a: max(n for b, n, _ in buffers if b == a) for a, _, _ in buffers}
        arrays = {a: _memory(a, n) if n else np.zeros(1, np.uint8)
                  for a, n in most.items()}  # fmt: skip
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        held = {a: cl.Buffer(self.device.context, flags, hostbuf=x) for a, x in arrays.items()}
        last = cl.Buffer(self.device.context, flags, hostbuf=error)
        given = [*(held[a] for a, _, _ in buffers), *map(np.int64, sizes), last]
        self.kernel(queue, (blocks * threads,), (threads,), *given,
                    cl.LocalMemory(max(16, shared_bytes)))  # fmt: skip
        written = {a for a, n, w in buffers if w and n}
        for buffer, array in [*((held[a], arrays[a]) for a in written), (last, error)]:
            mapped, _ = cl.enqueue_map_buffer(
                queue, buffer, cl.map_flags.READ, 0, array.shape, array.dtype
            )
            mapped.base.release(queue)
        queue.finish()
        return not error[0]
