"""A fake of just those calls of cuda-bindings that the CUDA runtime makes, backed by the emulator.

Work waits in a queue until something synchronises, so that whoever reads too early sees it. What
the real driver would refuse (or what would hurt there) is an error here: freed memory, no current
context, too many threads, more shared memory than asked for, a graph after its end, a call that may
not happen while a stream is recorded. `FakeTorch` stands for PyTorch on the same device."""

from __future__ import annotations

import bisect
import ctypes
import enum
import pickle
import re
import threading
from types import SimpleNamespace

import numpy as np

from luminal.emulator.emulated import EmulatedDevice
from luminal.runtime.gpu import H100

CUresult = enum.IntEnum("CUresult", {
    "CUDA_SUCCESS": 0, "CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_NOT_INITIALIZED": 3, "CUDA_ERROR_NO_DEVICE": 100, "CUDA_ERROR_INVALID_DEVICE": 101,
    "CUDA_ERROR_INVALID_IMAGE": 200, "CUDA_ERROR_INVALID_CONTEXT": 201,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": 209, "CUDA_ERROR_INVALID_HANDLE": 400,
    "CUDA_ERROR_NOT_FOUND": 500, "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": 701, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": 900,
})  # fmt: skip
CUdevice_attribute = enum.IntEnum("CUdevice_attribute", {
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 16, "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": 36,
    "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": 37, "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": 38,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 75,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 76,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
})  # fmt: skip
CUfunction_attribute = enum.IntEnum("CUfunction_attribute", {
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 8,
})  # fmt: skip
CUmemPool_attribute = enum.IntEnum("CUmemPool_attribute", {"CU_MEMPOOL_ATTR_RELEASE_THRESHOLD": 4})
CUstreamCaptureStatus = enum.IntEnum("CUstreamCaptureStatus", {
    "CU_STREAM_CAPTURE_STATUS_NONE": 0, "CU_STREAM_CAPTURE_STATUS_ACTIVE": 1,
})  # fmt: skip
ENUMS = (CUresult, CUdevice_attribute, CUfunction_attribute, CUmemPool_attribute,
         CUstreamCaptureStatus)  # fmt: skip
H100_FACTS = {16: 132, 36: 2_619_000, 37: 5120, 38: 50 << 20, 75: 9, 76: 0, 97: 227 << 10}
MOST_BLOCKS, MOST_THREADS, PLAIN_SHARED = (1 << 31) - 1, 1024, 48 << 10
KERNEL = re.compile(r"__global__\svoid\s(?:__launch_bounds__\((\d+)\)\s)?(\w+)\(([^)]*)\)")


class CUDA_KERNEL_NODE_PARAMS:
    """The fields of the real one."""

    __slots__ = ("blockDimX", "blockDimY", "blockDimZ", "ctx", "extra", "func", "gridDimX",
                 "gridDimY", "gridDimZ", "kern", "kernelParams", "sharedMemBytes")  # fmt: skip


class Refused(Exception):
    """Becomes the status of a call."""


def refuse(kind: str) -> Refused:
    return Refused(CUresult[f"CUDA_ERROR_{kind}"])


class Handle:
    """A pointer to something of the driver."""

    def __init__(self, what: str, **fields: object) -> None:
        self.what, self.alive = what, True
        self.__dict__.update(fields)


def expect(handle: object, what: str) -> Handle:
    """The handle, if it is one of that kind and has not been destroyed."""
    if not isinstance(handle, Handle) or handle.what != what or not handle.alive:
        raise refuse("INVALID_HANDLE")
    return handle


class FakeDriver:
    """The module `cuda.bindings.driver` of a machine with some H100s. `calls` counts by name."""

    CUDA_KERNEL_NODE_PARAMS = CUDA_KERNEL_NODE_PARAMS

    def __init__(self, devices: int = 1, version: int = 13_000, memory_bytes: int = 1 << 30):
        self.devices, self.version, self.left = devices, version, memory_bytes
        self.calls: dict[str, int] = {}
        self.live: dict[int, np.ndarray] = {}  # allocations of the device by address
        self.host: dict[int, ctypes.Array] = {}
        self.starts: list[int] = []
        self.queue: list = []
        self.streams: dict[int, list | None] = {0: None}  # what is being recorded, if anything
        self.begun = self.broken = False
        self.thread, self.draining = threading.local(), threading.RLock()
        for e in ENUMS:
            setattr(self, e.__name__, e)
        for name in [n for n in dir(self) if n.startswith("_cu")]:
            setattr(self, name[1:], self._guarded(name[1:], getattr(self, name)))

    @staticmethod
    def cuuint64_t(value: int) -> int:
        return value

    def _guarded(self, name: str, body):
        free = ("cuInit", "cuDriverGetVersion", "cuGetErrorString", "cuDeviceGet",
                "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
                "cuDeviceGetDefaultMemPool")  # fmt: skip

        def call(*args):
            self.calls[name] = self.calls.get(name, 0) + 1
            try:
                if not self.begun and name not in free[:3]:
                    raise refuse("NOT_INITIALIZED")
                if name not in free and not self.stack:
                    raise refuse("INVALID_CONTEXT")
                if self.broken and name not in (*free, "cuCtxPopCurrent"):
                    raise refuse("ILLEGAL_ADDRESS")
                found = body(*args)
            except Refused as error:
                return (error.args[0], None)
            if isinstance(found, tuple):
                return (CUresult.CUDA_SUCCESS, *found)
            return (CUresult.CUDA_SUCCESS,) if found is None else (CUresult.CUDA_SUCCESS, found)

        return call

    @property
    def stack(self) -> list:
        """The contexts of this thread."""
        if not hasattr(self.thread, "contexts"):
            self.thread.contexts = []
        return self.thread.contexts

    # ---- device and context

    def _cuInit(self, Flags):
        if Flags:
            raise refuse("INVALID_VALUE")
        if not self.devices:
            raise refuse("NO_DEVICE")
        self.begun = True

    def _cuDriverGetVersion(self):
        return self.version

    def _cuGetErrorString(self, error):
        return error.name.removeprefix("CUDA_ERROR_").lower().replace("_", " ").encode()

    def _cuDeviceGet(self, ordinal):
        if not 0 <= ordinal < self.devices:
            raise refuse("INVALID_DEVICE")
        return ordinal

    def _cuDeviceGetAttribute(self, attrib, dev):
        return H100_FACTS[int(CUdevice_attribute(attrib))]

    def _cuDevicePrimaryCtxRetain(self, dev):
        return Handle("context", device=dev)

    def _cuCtxPushCurrent(self, ctx):
        self.stack.append(expect(ctx, "context"))

    def _cuCtxPopCurrent(self):
        return self.stack.pop()

    # ---- modules

    def _cuModuleLoadData(self, image):
        try:
            name, bounds, kinds, code = pickle.loads(image)
        except Exception:
            raise refuse("INVALID_IMAGE") from None
        kernel = EmulatedDevice(H100).load(code, name)
        return Handle("module", name=name, bounds=bounds, kinds=kinds, kernel=kernel)

    def _cuModuleGetFunction(self, hmod, name):
        module = expect(hmod, "module")
        if name != module.name.encode():
            raise refuse("NOT_FOUND")
        return Handle("function", module=module, shared=PLAIN_SHARED)

    def _cuFuncSetAttribute(self, hfunc, attrib, value):
        if value > H100_FACTS[97]:
            raise refuse("INVALID_VALUE")
        expect(hfunc, "function").shared = value

    # ---- memory

    def take(self, size: int) -> int:
        """An allocation; its address."""
        if size > self.left:
            raise refuse("OUT_OF_MEMORY")
        room = np.full(size + 256, 0xFF, np.uint8)
        start = -room.ctypes.data % 256
        self.left -= size
        block = room[start : start + size]
        address = block.ctypes.data
        self.live[address] = block
        bisect.insort(self.starts, address)
        return address

    def drop(self, address: int) -> None:
        block = self.live.pop(address)
        self.starts.remove(address)
        self.left += block.size
        block[...] = 0xFF

    def inside(self, address: int, size: int) -> tuple[int, int]:
        """The allocation that these bytes lie in: address and bytes."""
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0 or address + size > self.starts[at] + self.live[self.starts[at]].size:
            raise refuse("INVALID_VALUE")
        return self.starts[at], self.live[self.starts[at]].size

    def _cuDeviceGetDefaultMemPool(self, dev):
        return Handle("pool")

    def _cuMemPoolSetAttribute(self, pool, attr, value):
        expect(pool, "pool")
        CUmemPool_attribute(attr)

    def _cuMemAllocAsync(self, bytesize, hStream):
        self._uncaptured(hStream)
        if bytesize <= 0:
            raise refuse("INVALID_VALUE")
        return self.take(bytesize)

    def _cuMemFreeAsync(self, dptr, hStream):
        self._uncaptured(hStream)
        if dptr not in self.live:
            raise refuse("INVALID_VALUE")
        self.queue.append(lambda: self.drop(dptr))

    def _cuMemHostAlloc(self, bytesize, Flags):
        self._nothing_captured()
        block = (ctypes.c_uint8 * bytesize)()
        address = ctypes.addressof(block)
        if Flags & 2:
            self.host[address] = block
        return address

    def _cuMemcpyHtoDAsync(self, dstDevice, srcHost, ByteCount, hStream):
        self._uncaptured(hStream)
        self.inside(dstDevice, ByteCount)
        data = ctypes.string_at(srcHost, ByteCount)  # pageable memory is read before this returns
        self.queue.append(lambda: self._move(dstDevice, data, ByteCount))

    def _cuMemcpyDtoHAsync(self, dstHost, srcDevice, ByteCount, hStream):
        self._uncaptured(hStream)
        self.inside(srcDevice, ByteCount)
        self.queue.append(lambda: ctypes.memmove(dstHost, srcDevice, ByteCount))

    def _cuMemcpyDtoDAsync(self, dstDevice, srcDevice, ByteCount, hStream):
        self.inside(dstDevice, ByteCount)
        self.inside(srcDevice, ByteCount)
        self._put(hStream, lambda: self._move(dstDevice, srcDevice, ByteCount))

    def _move(self, target, source, size):
        self.inside(target, size)
        ctypes.memmove(target, source, size)

    # ---- streams and events

    def _put(self, stream, work):
        recorded = self._stream(stream)
        (self.queue if recorded is None else recorded).append(work)

    def _stream(self, stream):
        if int(stream) not in self.streams:
            raise refuse("INVALID_HANDLE")
        return self.streams[int(stream)]

    def _uncaptured(self, stream):
        if self._stream(stream) is not None:
            raise refuse("STREAM_CAPTURE_UNSUPPORTED")

    def _nothing_captured(self):
        if any(s is not None for s in self.streams.values()):
            raise refuse("STREAM_CAPTURE_UNSUPPORTED")

    def drain(self) -> None:
        """Does all work that waits."""
        with self.draining:
            work, self.queue = self.queue, []
            for each in work:
                try:
                    each()
                except Refused as error:
                    self.broken = True
                    raise error

    def _cuStreamCreate(self, Flags):
        number = 100 + len(self.streams)
        self.streams[number] = None
        return number

    def _cuStreamSynchronize(self, hStream):
        self._uncaptured(hStream)
        self.drain()

    def _cuStreamIsCapturing(self, hStream):
        return CUstreamCaptureStatus(self._stream(hStream) is not None)

    def _cuEventCreate(self, Flags):
        return Handle("event")

    def _cuEventRecord(self, hEvent, hStream):
        expect(hEvent, "event")
        self._stream(hStream)

    def _cuEventSynchronize(self, hEvent):
        expect(hEvent, "event")
        self.drain()

    def _cuEventElapsedTime(self, hStart, hEnd):
        expect(hStart, "event"), expect(hEnd, "event")
        return 0.001

    def _cuEventDestroy(self, hEvent):
        expect(hEvent, "event").alive = False

    # ---- launches

    def _prepared(self, f, grid, block, shared, parameters):
        """What runs a launch later: the arguments are read now."""
        function = expect(f, "function")
        module = function.module
        threads = block[0] * block[1] * block[2]
        if not 1 <= grid[0] <= MOST_BLOCKS or grid[1:] != (1, 1) or not 1 <= threads:
            raise refuse("INVALID_VALUE")
        if threads > MOST_THREADS or block[1:] != (1, 1) or shared > function.shared:
            raise refuse("INVALID_VALUE")
        if module.bounds and threads > module.bounds:
            raise refuse("LAUNCH_OUT_OF_RESOURCES")
        pointers = (ctypes.c_void_p * len(module.kinds)).from_address(int(parameters))
        words = [ctypes.c_uint64.from_address(p).value for p in pointers]

        def work():
            ranges: dict[int, tuple] = {}
            for word, kind in zip(words, module.kinds):
                if kind == "size":
                    continue
                if page := next((h for h in self.host if h <= word < h + len(self.host[h])), 0):
                    ranges[page] = (page, len(self.host[page]), 1, 1)
                    continue
                try:
                    base, size = self.inside(word, 1)
                except Refused:
                    raise refuse("ILLEGAL_ADDRESS") from None
                written = kind == "written" or bool(ranges.get(base, (0, 0, 0))[2])
                ranges[base] = (base, size, int(written), 0)
            module.kernel.run(words, [*ranges.values()], grid[0], threads, shared, 32)

        return work

    def _cuLaunchKernel(self, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                        sharedMemBytes, hStream, kernelParams, extra):  # fmt: skip
        if extra:
            raise refuse("INVALID_VALUE")
        grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
        self._put(hStream, self._prepared(f, grid, block, sharedMemBytes, kernelParams))

    # ---- graphs

    def _cuGraphCreate(self, flags):
        return Handle("graph", nodes=[])

    def _of(self, p):
        grid, block = (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
        return self._prepared(p.func, grid, block, p.sharedMemBytes, p.kernelParams)

    def _cuGraphAddKernelNode(self, hGraph, dependencies, numDependencies, nodeParams):
        graph = expect(hGraph, "graph")
        if len(dependencies) != numDependencies or any(d not in graph.nodes for d in dependencies):
            raise refuse("INVALID_VALUE")
        if graph.nodes and graph.nodes[-1] not in dependencies:
            raise AssertionError("kernels of a plan run in order")
        graph.nodes.append(Handle("node", work=self._of(nodeParams), func=nodeParams.func))
        return graph.nodes[-1]

    def _cuGraphInstantiate(self, hGraph, flags):
        graph = expect(hGraph, "graph")
        works = {n: [n.work, True] for n in graph.nodes}
        return Handle("exec", graph=graph, works=works)

    def _cuGraphExecKernelNodeSetParams(self, hGraphExec, hNode, nodeParams):
        ready, node = expect(hGraphExec, "exec"), expect(hNode, "node")
        if node not in ready.works or nodeParams.func is not node.func:
            raise refuse("INVALID_VALUE")
        ready.works[node][0] = self._of(nodeParams)

    def _cuGraphNodeSetEnabled(self, hGraphExec, hNode, isEnabled):
        ready, node = expect(hGraphExec, "exec"), expect(hNode, "node")
        if node not in ready.works:
            raise refuse("INVALID_VALUE")
        ready.works[node][1] = bool(isEnabled)

    def _cuGraphLaunch(self, hGraphExec, hStream):
        self._uncaptured(hStream)
        for work, enabled in [tuple(w) for w in expect(hGraphExec, "exec").works.values()]:
            if enabled:
                self.queue.append(work)

    def _cuGraphExecDestroy(self, hGraphExec):
        expect(hGraphExec, "exec").alive = False

    def _cuGraphDestroy(self, hGraph):
        graph = expect(hGraph, "graph")
        graph.alive = False
        for node in graph.nodes:
            node.alive = False


class FakeNvrtc:
    """The module `cuda.bindings.nvrtc`, whose cubins are libraries of the emulator."""

    nvrtcResult = SimpleNamespace(NVRTC_SUCCESS=0)

    def __init__(self, compile_library) -> None:
        self.compile_library, self.compiled = compile_library, 0

    def nvrtcVersion(self):
        return 0, 13, 0

    def nvrtcCreateProgram(self, src, name, numHeaders, headers, includeNames):
        return 0, {"text": src.decode()}

    def nvrtcCompileProgram(self, prog, numOptions, options):
        assert numOptions == len(options) and b"--gpu-architecture=sm_90a" in options
        self.compiled += 1
        bounds, name, parameters = KERNEL.search(prog["text"]).groups()
        kinds = ["size" if "*" not in p else "read" if "const" in p else "written"
                 for p in parameters.split(",")]  # fmt: skip
        code = self.compile_library(prog["text"])
        prog["cubin"] = pickle.dumps((name, int(bounds or 0), kinds, code))
        return (0,)

    def nvrtcGetProgramLogSize(self, prog):
        return 0, 1

    def nvrtcGetProgramLog(self, prog, log):
        return (0,)

    def nvrtcGetCUBINSize(self, prog):
        return 0, len(prog["cubin"])

    def nvrtcGetCUBIN(self, prog, cubin):
        # the real one writes into the bytes, too
        ctypes.memmove(cubin, prog["cubin"], len(prog["cubin"]))
        return (0,)

    def nvrtcDestroyProgram(self, prog):
        return (0,)


class FakeTensor:
    """A CUDA tensor of PyTorch, as far as the runtime looks at it."""

    is_cuda = True

    def __init__(self, torch, address, shape, dtype, index=0, keep=None, dense=True) -> None:
        self.torch, self.address, self.shape, self.dtype = torch, address, tuple(shape), dtype
        self.device, self.keep, self.dense = SimpleDevice("cuda", index), keep, dense

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.dense

    def contiguous(self):
        made = self.torch.empty(self.shape, self.dtype, "cuda:0")
        return made.put(self.get())

    def copy_(self, other):
        self.put(other.get())

    def reshape(self, shape):
        return FakeTensor(self.torch, self.address, shape, self.dtype, keep=self.keep)

    @property
    def nbytes(self):
        return int(np.prod(self.shape)) * np.dtype(self.dtype.np).itemsize

    def get(self):
        """The value, after a synchronisation."""
        self.torch.driver.drain()
        raw = ctypes.string_at(self.address, self.nbytes)
        shape = self.shape if self.dense else self.shape[::-1]
        array = np.frombuffer(raw, self.dtype.np).reshape(shape)
        return array if self.dense else array.T  # "not contiguous" means stored transposed here

    def put(self, array):
        self.torch.driver.drain()
        array = array if self.dense else array.T
        ctypes.memmove(self.address, np.ascontiguousarray(array, self.dtype.np).ctypes.data,
                       self.nbytes)  # fmt: skip
        return self


class SimpleDevice(SimpleNamespace):
    """`torch.device`."""

    def __init__(self, type, index):
        super().__init__(type=type, index=index)

    def __hash__(self):
        return hash((self.type, self.index))


class FakeDType:
    """`torch.dtype`."""

    def __init__(self, name, np_name) -> None:
        self.name, self.np = name, np_name

    def __str__(self):
        return f"torch.{self.name}"


class Storage:
    """Memory of the caching allocator: what dies may be given again."""

    def __init__(self, torch, size) -> None:
        self.torch, self.size = torch, size
        kept = torch.kept.get(size, [])
        self.address = kept.pop() if kept else torch.driver.take(size)

    def __del__(self):
        self.torch.kept.setdefault(self.size, []).append(self.address)


class FakeTorch:
    """PyTorch with CUDA on a fake driver: allocator, current stream, recording of a graph."""

    float32, float64 = FakeDType("float32", "f4"), FakeDType("float64", "f8")
    float16, bfloat16 = FakeDType("float16", "f2"), FakeDType("bfloat16", "u2")
    int64, int32 = FakeDType("int64", "i8"), FakeDType("int32", "i4")
    uint8, bool = FakeDType("uint8", "u1"), FakeDType("bool", "?")

    def __init__(self, driver: FakeDriver) -> None:
        self.driver, self.now, self.allocated = driver, 0, 0
        self.kept: dict[int, list[int]] = {}
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True, current_device=lambda: 0,
            current_stream=lambda device: SimpleNamespace(cuda_stream=self.now),
        )  # fmt: skip

    def empty(self, shape, dtype, device):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.allocated += 1
        size = max(1, int(np.prod(shape)) * np.dtype(dtype.np).itemsize)
        held = Storage(self, -(-size // 512) * 512)
        return FakeTensor(self, held.address, shape, dtype, int(device[-1]), held)

    def tensor(self, array, dtype=None):
        """A tensor with the value of an array."""
        found = dtype or getattr(self, str(array.dtype))
        return self.empty(array.shape, found, "cuda:0").put(array)

    def capture(self, run):
        """As `with torch.cuda.graph(...)`: what `run` enqueues is returned, not done."""
        stream, self.now = self.now, 7
        self.driver.streams[7] = []
        try:
            run()
            return self.driver.streams[7]
        finally:
            self.driver.streams[7], self.now = None, stream
