"""Metal: kernels of the `metal` dialect on an Apple GPU, through pyobjc.

In: MSL text, addresses of memory of this process. Out: results in that memory, which the GPU shares
with the CPU. A call is one command buffer. Only file that imports pyobjc, when it is asked for."""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import replace
from typing import Any

import numpy as np

from luminal.errors import DeviceError, InternalError, OutOfRangeError
from luminal.runtime.executor import INDEX_ERROR
from luminal.runtime.gpu import M2, GpuExecutor
from luminal.runtime.memory import ALIGNMENT, aligned

PAGE = mmap.PAGESIZE
COMPLETED = 4  # MTLCommandBufferStatusCompleted
SHARED = 0  # MTLResourceStorageModeShared
BUFFERS = 1  # MTLBarrierScopeBuffers


def modules() -> tuple[Any, Any]:
    """pyobjc's Metal and objc. DeviceError if they are missing."""
    try:
        import Metal
        import objc
    except ImportError:
        raise DeviceError(
            "[metal] pyobjc-framework-Metal is not installed. Try pip install 'luminal[metal]' on "
            "a Mac, or device='cpu'."
        ) from None
    return Metal, objc


class MetalDevice:
    """The default GPU of this Mac."""

    def __init__(self) -> None:
        self.metal, self.objc = modules()
        self.device = self.metal.MTLCreateSystemDefaultDevice()
        if self.device is None:
            raise DeviceError("[metal] no GPU. Got none from macOS; expected one. Try "
                              "device='cpu'.")  # fmt: skip
        self.queue = self.device.newCommandQueue()
        self.target = replace(M2, features=f"device {self.device.name()}")

    def compile(self, source: str) -> bytes:
        """The text itself: macOS keeps what it has compiled. InternalError if it is refused."""
        self._library(source)
        return source.encode()

    def _library(self, source: str) -> Any:
        options = self.metal.MTLCompileOptions.alloc().init()
        options.setFastMathEnabled_(False)  # NaN and infinities count
        library, error = self.device.newLibraryWithSource_options_error_(source, options, None)
        if library is None:
            raise InternalError(f"[metal] {_reason(error)}\n{source}")
        return library

    def load(self, code: bytes, name: str) -> Any:
        """The pipeline state of a kernel."""
        function = self._library(code.decode()).newFunctionWithName_(name)
        pipeline, error = self.device.newComputePipelineStateWithFunction_error_(function, None)
        if pipeline is None:
            raise InternalError(f"[metal] {_reason(error)}")
        return pipeline

    def buffer(self, size_bytes: int) -> Any:
        """Fresh memory. DeviceError if there is none."""
        found = self.device.newBufferWithLength_options_(max(ALIGNMENT, size_bytes), SHARED)
        if found is None:
            raise DeviceError(f"[metal] out of memory. Got no buffer of {size_bytes} bytes; "
                              "expected one. Try smaller inputs.")  # fmt: skip
        return found

    def view(self, address: int, size_bytes: int) -> View:
        """The memory at an address as the GPU sees it: the pages around it, or else a copy."""
        start = address - address % PAGE
        length = address + size_bytes - start
        length += -length % PAGE
        pages = (ctypes.c_uint8 * length).from_address(start)
        shared = self.device.newBufferWithBytesNoCopy_length_options_deallocator_(
            memoryview(pages).cast("B"), length, SHARED, None
        ) if size_bytes else None  # fmt: skip
        if shared is not None:
            return View(shared, address - start, b"")
        copy = self.buffer(size_bytes)
        inside = copy.contents().as_buffer(max(ALIGNMENT, size_bytes))
        inside[:size_bytes] = ctypes.string_at(address, size_bytes)
        return View(copy, 0, inside[:size_bytes])


class View:
    """A place in a buffer; `copied` is its content where it could not be shared."""

    __slots__ = ("buffer", "copied", "offset")

    def __init__(self, buffer: Any, offset: int, copied: Any) -> None:
        self.buffer, self.offset, self.copied = buffer, offset, copied


class MetalExecutor(GpuExecutor):
    """Calls a program as one command buffer, and waits for it."""

    gpu: MetalDevice

    def _bind(self, objects: Any) -> Any:
        self._error = self.gpu.buffer(4)
        self._arena = np.empty(0, np.uint8)
        self._lasting: dict[str, tuple[int, View]] = {}
        return super()._bind(objects)

    def _temporaries(self, dims: tuple[int, ...]) -> list[np.ndarray]:
        """Slots of an arena that is kept."""
        offsets, total = self.memory.offsets(dims)
        if self._arena.size < total:
            self._arena = aligned(total)
        sizes = self.memory.slot_bytes(*dims)
        return [self._arena[o : o + n] for o, n in zip(offsets, sizes, strict=True)]

    def _view(self, name: str, address: int, size: int) -> View:
        """Memory of callers is looked at anew each time, our own once."""
        if name not in self.constants:
            return self.gpu.view(address, size)
        known, view = self._lasting.get(name, (0, None))
        if view is None or known != address:
            view = self.gpu.view(address, size)
            self._lasting[name] = (address, view)
        return view

    def _run(self, places: dict[str, int], sizes: dict[str, int], dims: tuple[int, ...]) -> None:
        with self.gpu.objc.autorelease_pool():
            views = {n: self._view(n, a, sizes[n]) for n, a in places.items()}
            flag = self._error.contents().as_buffer(4)
            flag[:4] = bytes(4)
            commands = self.gpu.queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            values = dict(zip((v.name for v in self.program.plan.dims), dims, strict=True))
            for number in range(len(self.program.calls)):
                self._encode(encoder, number, views, values)
            encoder.endEncoding()
            commands.commit()
            commands.waitUntilCompleted()
            if commands.status() != COMPLETED:
                raise DeviceError(f"[metal] a call failed. Got {_reason(commands.error())}; "
                                  "expected results. Try smaller inputs.")  # fmt: skip
            written = {self.memory.root[n] for k in self.program.plan.kernels for n in k.writes()}
            for name in written:
                if len(copied := views[name].copied):
                    ctypes.memmove(places[name], bytes(copied), len(copied))
            if flag[0]:
                raise OutOfRangeError(INDEX_ERROR)

    def _encode(
        self, encoder: Any, number: int, views: dict[str, View], values: dict[str, int]
    ) -> None:
        """One kernel, which sees what those before it wrote."""
        kernel, call = self.program.plan.kernels[number], self.program.calls[number]
        launch, pipeline = self.program.codes[call].launch, self._kernels[call]
        own = [values[v.name] for v in kernel.dims()]
        (blocks,) = self._blocks[call](*own)
        if launch is None or blocks <= 0:
            return
        if launch.threads > pipeline.maxTotalThreadsPerThreadgroup():
            raise DeviceError(
                f"[metal] this GPU runs too few threads. Got {launch.threads} in a group; expected "
                f"at most {pipeline.maxTotalThreadsPerThreadgroup()}. Try device='cpu'."
            )
        encoder.setComputePipelineState_(pipeline)
        arguments = kernel.arguments()
        for n, name in enumerate(arguments):
            view = views[self.memory.root[name]]
            encoder.setBuffer_offset_atIndex_(view.buffer, view.offset, n)
        for n, size in enumerate(own, len(arguments)):
            encoder.setBytes_length_atIndex_(struct.pack("<q", size), 8, n)
        encoder.setBuffer_offset_atIndex_(self._error, 0, len(arguments) + len(own))
        encoder.setThreadgroupMemoryLength_atIndex_(max(16, launch.shared_bytes), 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((blocks, 1, 1), (launch.threads, 1, 1))
        encoder.memoryBarrierWithScope_(BUFFERS)


def _reason(error: Any) -> str:
    return str(error.localizedDescription()) if error is not None else "no reason"
