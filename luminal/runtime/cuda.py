"""CUDA: context, memory, streams and kernels of one NVIDIA GPU, through its driver.

In: cubins, sizes, addresses. Out: functions to launch, memory, and what failed as a `DeviceError`.
The context is the device's primary one, which PyTorch uses too. Where PyTorch runs on CUDA in this
process, memory comes from its allocator and work goes to its current stream."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from threading import RLock
from typing import Any

import numpy as np

from luminal.errors import DeviceError
from luminal.ir import Target
from luminal.runtime import nvrtc
from luminal.runtime.gpu import H100

PLAIN_SHARED = 48 << 10  # bytes that a block may share without asking for more
OLDEST = 12_000  # CUDA 12.0
NON_BLOCKING = 1  # cuStreamCreate
MAPPED = 3  # cuMemHostAlloc: portable, and in the address space of the device
WORDS = 1024  # error words in one page
_TRY = {
    "CUDA_ERROR_NO_DEVICE": "CUDA_VISIBLE_DEVICES, or device='cpu'",
    "CUDA_ERROR_OUT_OF_MEMORY": "smaller inputs, or freeing memory of this or another process",
    "CUDA_ERROR_INVALID_IMAGE": "a newer driver, or an older nvidia-cuda-nvrtc",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "a newer driver, or an older nvidia-cuda-nvrtc",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "a newer driver, or an older nvidia-cuda-nvrtc",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "reporting it with LUMINAL_DUMP's folder; this process must end",
}


def driver_module() -> Any:
    """The bindings of the driver. DeviceError if they are missing."""
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found]
    except ImportError:
        raise DeviceError("[cuda] no bindings of the driver. Got no cuda-bindings; expected it. "
                          "Try pip install 'luminal[cuda]'.") from None  # fmt: skip
    return driver


def pytorch() -> Any:
    """PyTorch if it runs on CUDA in this process, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class Memory:
    """Bytes on a device, given back in the order of a stream when nobody holds them."""

    __slots__ = ("__weakref__", "_keep", "address", "size_bytes")

    def __init__(self, address: int, size_bytes: int, keep: object = None) -> None:
        self.address, self.size_bytes, self._keep = address, size_bytes, keep


class DeviceArray:
    """An array on a device, as results are where inputs were and PyTorch is not in use."""

    __slots__ = ("device", "dtype", "memory", "shape")

    def __init__(
        self, device: CudaDevice, memory: Memory, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.device, self.memory, self.shape, self.dtype = device, memory, shape, np.dtype(dtype)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.memory.address

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same memory in another shape."""
        return DeviceArray(self.device, self.memory, shape, self.dtype)

    def numpy(self) -> np.ndarray:
        """A copy on the host, once all work before it is done."""
        found = np.empty(self.shape, self.dtype)
        with self.device:
            self.device.download(found, self.memory.address)
            self.device.synchronize()
        return found


class CudaDevice:
    """One GPU. `with device:` makes its context current, for one thread at a time."""

    def __init__(self, ordinal: int = 0) -> None:
        self.driver, self.ordinal = driver_module(), ordinal
        self._lock, self._stream = RLock(), 0
        self._functions: dict[str, Any] = {}
        self._arenas: dict[int, Memory] = {}
        self._error_words: list[int] = []
        self._keeps = False
        try:
            self.call("cuInit", 0)
        except RuntimeError as error:
            if isinstance(error, DeviceError):
                raise
            reason = str(error).splitlines()[0].rstrip(".")
            raise DeviceError(f"[cuda] no NVIDIA driver could be loaded ({reason}). Try installing "
                              "one, or device='cpu'.") from None  # fmt: skip
        self.version = int(self.call("cuDriverGetVersion"))
        if self.version < OLDEST:
            raise DeviceError(f"[cuda] the driver is too old. Got one for CUDA {_dotted(self)}; "
                              "expected 12.0 or later. Try updating it.")  # fmt: skip
        self.handle = self.call("cuDeviceGet", ordinal)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.handle)
        self.target = self._target()

    def _target(self) -> Target:
        def attribute(name: str) -> int:
            kind = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self.call("cuDeviceGetAttribute", kind, self.handle))

        major = attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = attribute("COMPUTE_CAPABILITY_MINOR")
        self.most_shared = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        cores, l2_bytes = attribute("MULTIPROCESSOR_COUNT"), attribute("L2_CACHE_SIZE")
        bits_khz = attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH")
        return replace(
            H100, cpu=f"sm_{major}{minor}{'a' * (major >= 9)}", cores=cores or H100.cores,
            features=f"nvrtc {nvrtc.version()}", l1_bytes=min(H100.l1_bytes, self.most_shared),
            l2_bytes=l2_bytes, l3_bytes=l2_bytes, matrix=H100.matrix if major >= 8 else (),
            bandwidth_gbs=bits_khz / 4e6 or H100.bandwidth_gbs,
        )  # fmt: skip

    def call(self, name: str, *args: object) -> Any:
        """The result of a function of the driver; DeviceError if it failed."""
        status, *values = getattr(self.driver, name)(*args)
        if int(status):
            raise self._failed(name, status)
        return values[0] if values else None

    def _failed(self, name: str, status: Any) -> DeviceError:
        _, text = self.driver.cuGetErrorString(status)
        text, kind = (text or b"?").decode(), status.name
        advice = f" Try {_TRY[kind]}." if kind in _TRY else ""
        version = f" (driver for CUDA {_dotted(self)})" if "driver" in advice else ""
        return DeviceError(f"[cuda] {name} failed. Got {kind}: {text}{version}; expected "
                           f"success.{advice}")  # fmt: skip

    def __enter__(self) -> CudaDevice:
        self._lock.acquire()
        try:
            self.call("cuCtxPushCurrent", self.context)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("cuCtxPopCurrent")
        finally:
            self._lock.release()

    # ---- kernels

    def compile(self, source: str) -> bytes:
        """The cubin of a text; other versions of NVRTC may warn of it."""
        return nvrtc.compile_cubin(source, self.target.cpu, ())[0]

    def load(self, code: bytes, name: str, shared_bytes: int = 0) -> Any:
        """A function that can be launched. It stays loaded: a name stands for one text."""
        if name not in self._functions:
            with self:
                module = self.call("cuModuleLoadData", code)
                found = self.call("cuModuleGetFunction", module, name.encode())
                if shared_bytes > PLAIN_SHARED:
                    kinds = self.driver.CUfunction_attribute
                    kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    self.call("cuFuncSetAttribute", found, kind, shared_bytes)
            self._functions[name] = found
        return self._functions[name]

    # ---- streams; all below wants the context to be current

    def stream(self) -> int:
        """PyTorch's current stream, or one of our own."""
        torch = pytorch()
        if torch is not None:
            return int(torch.cuda.current_stream(self.ordinal).cuda_stream)
        if not self._stream:
            self._stream = int(self.call("cuStreamCreate", NON_BLOCKING))
        return self._stream

    def synchronize(self) -> None:
        """Wait for all work in the stream."""
        self.call("cuStreamSynchronize", self.stream())

    def capturing(self, stream: int) -> bool:
        """Whether somebody records a graph from the stream."""
        return int(self.call("cuStreamIsCapturing", stream)) != 0

    # ---- memory

    def empty(self, size_bytes: int) -> Memory:
        """Fresh memory, to be used in the stream of now."""
        size_bytes = max(16, size_bytes)
        torch = pytorch()
        if torch is not None:
            held = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{self.ordinal}")
            return Memory(held.data_ptr(), size_bytes, held)
        self._keep_freed()
        stream = self.stream()
        memory = Memory(int(self.call("cuMemAllocAsync", size_bytes, stream)), size_bytes)
        weakref.finalize(memory, self._free, memory.address, stream).atexit = False
        return memory

    def _keep_freed(self) -> None:
        """Once: the driver keeps what is freed for the next to come."""
        if self._keeps:
            return
        self._keeps = True
        pool = self.call("cuDeviceGetDefaultMemPool", self.handle)
        kind = self.driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call("cuMemPoolSetAttribute", pool, kind, self.driver.cuuint64_t((1 << 64) - 1))

    def _free(self, address: int, stream: int) -> None:
        with self:
            self.call("cuMemFreeAsync", address, stream)

    def arena(self, stream: int, size_bytes: int) -> Memory:
        """The temporary memory of a stream, which all programs share: they run one by one."""
        found = self._arenas.get(stream)
        if found is None or found.size_bytes < size_bytes:
            self._arenas.pop(stream, None)
            found = self._arenas[stream] = self.empty(size_bytes)
        return found

    def upload(self, array: np.ndarray) -> Memory:
        """A copy on the device; the array may change as soon as this returns."""
        memory = self.empty(array.nbytes)
        self.send(array, memory.address)
        return memory

    def send(self, array: np.ndarray, address: int) -> None:
        """Writes an array to the device; it may change as soon as this returns."""
        if array.nbytes:
            source = array.ctypes.data
            self.call("cuMemcpyHtoDAsync", address, source, array.nbytes, self.stream())

    def download(self, array: np.ndarray, address: int) -> None:
        """Fills an array from the device; wait for the stream before it is read."""
        if array.nbytes:
            target = array.ctypes.data
            self.call("cuMemcpyDtoHAsync", target, address, array.nbytes, self.stream())

    def error_word(self) -> ctypes.c_uint32:
        """A word of the host that kernels write to. Reading it needs no synchronisation."""
        if not self._error_words:
            page = int(self.call("cuMemHostAlloc", 4 * WORDS, MAPPED))
            ctypes.memset(page, 0, 4 * WORDS)
            self._error_words = [page + 4 * n for n in range(WORDS)]
        return ctypes.c_uint32.from_address(self._error_words.pop())

    def finalizer(self, owner: object, *calls: tuple[str, object]) -> Callable[[], None]:
        """Make these calls of the driver once `owner` is gone."""

        def end() -> None:
            with self:
                for name, handle in calls:
                    self.call(name, handle)

        found = weakref.finalize(owner, end)
        found.atexit = False
        return found


def _dotted(device: CudaDevice) -> str:
    return f"{device.version // 1000}.{device.version % 1000 // 10}"
