"""The executor of a Program on an NVIDIA GPU: the whole plan is one CUDA graph, patched per call.

In: a Program, cubins, a `CudaDevice`, arrays of PyTorch, of the device or of NumPy. Out: what
`Executor` gives, where the inputs are. A call on arrays of the device waits for nothing; an index
out of range is found when that or a later call can see it without waiting."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, DeviceError, DTypeError, OutOfRangeError
from luminal.ir import Buffer, Program, ceil_div, layout
from luminal.runtime.cuda import CudaDevice, DeviceArray, Memory, pytorch
from luminal.runtime.executor import INDEX_ERROR, Executor
from luminal.runtime.gpu import ALIGNMENT
from luminal.runtime.memory import compile_exprs
from luminal.runtime.signature import RAW_BITS

EARLIER = " (It was this or an earlier call: calls on a GPU do not wait for their results.)"
MOST_SEEN = 4096  # shapes remembered as good
_TORCH = {ours: theirs for theirs, ours in RAW_BITS.items()}


class CudaExecutor(Executor):
    """Calls a program on the device. `run_pointers` takes addresses of its memory, enqueues all
    work in the stream of now, and returns; `synchronize` waits, and says if an index was wrong."""

    def __init__(self, program: Program, objects: Sequence[bytes], device: CudaDevice) -> None:
        self.device = device
        self._resident: dict[str, Memory] = {}
        self._seen: dict[object, tuple[int, ...]] = {}
        super().__init__(program, objects, 1)

    def rebind(self, weights: Mapping[str, np.ndarray]) -> None:
        """As in `Executor`; copies these to the device."""
        super().rebind(weights)
        data = {b.name: b.data.name for b in self.program.plan.buffers if b.data is not None}
        with self.device:
            self._resident = {
                n: self.device.upload(a) if data[n] in weights else self._resident[n]
                for n, a in self.constants.items()
            }
            self.device.synchronize()
        self._fixed = [m.address for m in self._resident.values()]

    def _bind(self, objects: Any) -> Any:
        plan, codes = self.program.plan, self.program.codes
        launches = [c.launch for c in codes if c.launch]
        loaded = [self.device.load(o, c.name, s.shared_bytes)
                  for o, c, s in zip(objects, codes, launches, strict=True)]  # fmt: skip
        blocks = [compile_exprs(s.dims, [s.blocks]) for s in launches]
        arguments = self._arguments()
        self._values = (ctypes.c_uint64 * (self._count + 1))()
        base = ctypes.addressof(self._values)
        with self.device:
            self._error = self.device.error_word()
        self._values[self._count] = ctypes.addressof(self._error)
        self._users: list[list[int]] = [[] for _ in range(self._count + 1)]
        for number, words in enumerate(arguments):
            for w in set(words):
                self._users[w].append(number)
        self._kernels: list[_Kernel] = []
        for call, words in zip(self.program.calls, arguments, strict=True):
            pointers = (ctypes.c_void_p * len(words))(*(base + 8 * w for w in words))
            size_words = words[len(words) - 1 - len(launches[call].dims) : -1]
            self._kernels.append(_Kernel(loaded[call], launches[call].threads,
                                         launches[call].shared_bytes, pointers, blocks[call],
                                         size_words))  # fmt: skip
        bits = [layout.size(b.shape, b.layout) * b.dtype.bits for b in map(plan.buffer, self._held)]
        self._sizes = compile_exprs(plan.dims, [ceil_div(e, 8) for e in bits])
        written = {self.memory.root[n] for k in plan.kernels for n in k.writes()}
        self._writes = [n in written for n in self._held]
        self._last: list[int] = []
        self._graph: _Graph | None = None
        return ()

    # ---- one call

    def run_pointers(
        self, in_ptrs: Sequence[Any], out_ptrs: Sequence[Any], dims: tuple[int, ...] = ()
    ) -> bool:
        """As in `Executor`, on addresses of the device. Waits for nothing."""
        with self.device:
            self._check()
            given = [*in_ptrs, *out_ptrs]
            copies = self._moved(given, dims) if any(a % ALIGNMENT for a in given) else []
            stream = self.device.stream()
            for place, copy, size in copies:
                self._copy(copy.address, given[place], size, stream)
            moved = {place: copy.address for place, copy, _ in copies}
            self._enqueue(stream, [moved.get(n, a) for n, a in enumerate(given)], dims)
            for place, copy, size in copies:
                if self._writes[place]:
                    self._copy(given[place], copy.address, size, stream)
        return True

    def _copy(self, target: int, source: int, size: int, stream: int) -> None:
        self.device.call("cuMemcpyDtoDAsync", target, source, size, stream)

    def _moved(self, given: list[int], dims: tuple[int, ...]) -> list[tuple[int, Memory, int]]:
        """Memory for those buffers that no wide access may touch where they lie, and its size."""
        sizes = self._sizes(*dims)
        return [(n, self.device.empty(sizes[n]), sizes[n]) for n, a in enumerate(given)
                if a % ALIGNMENT and sizes[n]]  # fmt: skip

    def _check(self) -> None:
        if self._error.value:
            self._error.value = 0
            raise OutOfRangeError(INDEX_ERROR + EARLIER)

    def synchronize(self) -> None:
        """Wait for the results of all calls; OutOfRangeError if one had a wrong index."""
        with self.device:
            self.device.synchronize()
            self._check()

    def _enqueue(self, stream: int, given: list[int], dims: tuple[int, ...]) -> None:
        offsets, arena_bytes = self.memory.offsets(dims)
        capturing = self.device.capturing(stream)
        take = self.device.empty if capturing else lambda n: self.device.arena(stream, n)
        arena = take(arena_bytes)
        self.arena_bytes = max(self.arena_bytes, arena_bytes)
        words = [*given, *self._fixed, *(arena.address + o for o in offsets), *dims]
        old, self._last = self._last, []  # if anything fails, the next call starts anew
        self._values[: self._count] = words
        if capturing or len(self._kernels) == 1:
            for kernel in self._kernels:
                kernel.launch(self.device, stream, words)
            self._last = old  # what the graph holds
        elif self._kernels:
            if not old or self._graph is None:
                self._graph = _Graph(self.device, self._kernels, words)
            elif old != words:
                pairs = zip(self._users, zip(old, words))
                changed = {k for users, (was, now) in pairs if was != now for k in users}
                for k in sorted(changed):
                    self._graph.patch(k, words)
            self.device.call("cuGraphLaunch", self._graph.ready, stream)
            self._last = words

    # ---- arrays

    def __call__(self, *inputs: Any, dims: Mapping[str, int] | None = None) -> tuple[Any, ...]:
        """Run on arrays. Those of the device give results there, others NumPy arrays."""
        if any(map(_on_device, inputs)):
            return self._call_resident(inputs, dims)
        views, values = self.signature.accept(inputs, dims)
        with self.device:
            held = [self.device.upload(np.ascontiguousarray(v)) for v in views]
            fresh = [np.empty(self.output_shapes(values)[n], d) for n, d in self._fresh_dtypes]
            made = [self.device.empty(a.nbytes) for a in fresh]
            self.run_pointers([m.address for m in held], [m.address for m in made], values)
            updated = [(v, np.empty(v.shape, v.dtype), held[n]) for n, v in enumerate(views)
                       if n in self._updated]  # fmt: skip
            for _, array, memory in (*updated, *zip(fresh, fresh, made)):
                self.device.download(array, memory.address)
            self.synchronize()
        for view, array, _ in updated:
            view[...] = array
        given = [i if isinstance(i, np.ndarray) else v for i, v in zip(inputs, views, strict=True)]
        return self._collect(given, fresh, values)

    def _call_resident(self, inputs: Sequence[Any], dims: Any) -> tuple[Any, ...]:
        torch = pytorch() if any(getattr(i, "is_cuda", False) for i in inputs) else None
        with self.device:
            views, values = self._accepted(inputs, dims)
            given = [*map(self._dense, views)]
            shapes = self.output_shapes(values)
            fresh = [self._new(torch, shapes[n], self.outputs[n].buffer)
                     for n, _ in self._fresh_dtypes]  # fmt: skip
            self.run_pointers([x.data_ptr() for x in given], [x.data_ptr() for x in fresh], values)
            for n in self._updated:
                if given[n] is not inputs[n]:
                    inputs[n].copy_(given[n])
                given[n] = inputs[n]
            results = self._collect(given, fresh, values)
            return tuple([self._sent(torch, n, r) if isinstance(r, np.ndarray) else r
                          for n, r in enumerate(results)])  # fmt: skip

    def _accepted(self, inputs: Sequence[Any], dims: Any) -> tuple[Sequence[Any], tuple[int, ...]]:
        """The inputs and the dims of a call, after checking all that can be wrong with them."""
        key = all(map(_on_device, inputs)) and dims is None
        key = key and tuple([(tuple(x.shape), x.dtype, x.device) for x in inputs])
        if key in self._seen:
            return inputs, self._seen[key]
        fields = enumerate(zip(inputs, self.signature.buffers))
        stands = [self._stand_in(x, b, n) for n, (x, b) in fields]
        views, values = self.signature.accept([*stands, *inputs[len(stands) :]], dims)
        if key:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen[key] = values
        return [x if _on_device(x) else v for x, v in zip(inputs, views)], values

    def _stand_in(self, x: Any, buffer: Buffer, number: int) -> Any:
        """An array of NumPy that has the shape and the dtype of one on the device."""
        if not _on_device(x):
            if number in self._updated:
                raise ArgumentError(
                    f"[call] input {number} ('{buffer.name}') is updated in place. Got an array "
                    "of the host beside arrays of the device; expected one of the device."
                )
            return x
        theirs = x.device.ordinal if isinstance(x, DeviceArray) else x.device.index
        if theirs != self.device.ordinal:
            raise DeviceError(
                f"[call] input {number} ('{buffer.name}') is on another device. Got cuda:{theirs}; "
                f"expected cuda:{self.device.ordinal}. Try .to('cuda:{self.device.ordinal}')."
            )
        name = str(x.dtype).rpartition(".")[2]
        if RAW_BITS.get(name) == buffer.dtype.name:
            name = buffer.dtype.np.name
        try:
            dtype = np.dtype(name)
        except TypeError:
            raise DTypeError(f"[call] input {number} has the wrong dtype. Got {name}; expected "
                             f"{buffer.dtype.name}.") from None  # fmt: skip
        return np.ndarray(tuple(x.shape), dtype, bytearray(16), strides=(0,) * len(x.shape))

    def _dense(self, x: Any) -> Any:
        """The input on the device, row-major."""
        if _on_device(x):
            return x if isinstance(x, DeviceArray) or x.is_contiguous() else x.contiguous()
        return DeviceArray(
            self.device, self.device.upload(np.ascontiguousarray(x)), x.shape, x.dtype
        )

    def _new(self, torch: Any, shape: tuple[int, ...], buffer: Buffer) -> Any:
        """Where a result goes."""
        if torch is None:
            size = prod(shape) * buffer.dtype.np.itemsize
            return DeviceArray(self.device, self.device.empty(size), shape, buffer.dtype.np)
        dtype = getattr(torch, _TORCH.get(buffer.dtype.name, buffer.dtype.np.name))
        return torch.empty(shape, dtype=dtype, device=f"cuda:{self.device.ordinal}")

    def _sent(self, torch: Any, number: int, constant: np.ndarray) -> Any:
        """A result that is a constant, on the device."""
        made = self._new(torch, constant.shape, self.outputs[number].buffer)
        self.device.send(np.ascontiguousarray(constant), made.data_ptr())
        return made

    def time_us(
        self, in_ptrs: Sequence[int], out_ptrs: Sequence[int], dims: tuple[int, ...] = (),
        repeats: int = 5,
    ) -> list[float]:  # fmt: skip
        """As in `Executor`, by the clock of the device."""
        call, best = self.device.call, [float("inf")] * len(self._kernels)
        with self.device:
            self.run_pointers(in_ptrs, out_ptrs, dims)
            stream, words = self.device.stream(), list(self._values[: self._count])
            start, end = call("cuEventCreate", 0), call("cuEventCreate", 0)
            for n, kernel in [*enumerate(self._kernels)] * repeats:
                call("cuEventRecord", start, stream)
                kernel.launch(self.device, stream, words)
                call("cuEventRecord", end, stream)
                call("cuEventSynchronize", end)
                best[n] = min(best[n], 1e3 * call("cuEventElapsedTime", start, end))
            call("cuEventDestroy", start)
            call("cuEventDestroy", end)
        return best


def _on_device(x: Any) -> bool:
    return isinstance(x, DeviceArray) or getattr(x, "is_cuda", False)


class _Kernel:
    """One launch of a plan: its function and where its arguments lie."""

    __slots__ = ("_blocks", "_sizes", "function", "parameters", "pointers", "shared", "threads")

    def __init__(
        self, function: Any, threads: int, shared: int, pointers: Any, blocks: Any,
        sizes: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.function, self.threads, self.shared = function, threads, shared
        self.pointers, self.parameters = pointers, ctypes.addressof(pointers)
        self._blocks, self._sizes = blocks, sizes

    def blocks(self, words: Sequence[int]) -> int:
        """How many blocks for these words."""
        return max(0, self._blocks(*(words[n] for n in self._sizes))[0])

    def launch(self, device: CudaDevice, stream: int, words: Sequence[int]) -> None:
        """Enqueue it alone."""
        if blocks := self.blocks(words):
            device.call("cuLaunchKernel", self.function, blocks, 1, 1, self.threads, 1, 1,
                        self.shared, stream, self.parameters, 0)  # fmt: skip


class _Graph:
    """A plan as a CUDA graph: a chain of kernels, whose arguments are read anew by `patch`."""

    def __init__(
        self, device: CudaDevice, kernels: Sequence[_Kernel], words: Sequence[int]
    ) -> None:
        self.device, self.kernels = device, kernels
        graph, self._nodes = device.call("cuGraphCreate", 0), list[Any]()
        self._parameters = [self._node(kernel, words) for kernel in kernels]
        for p in self._parameters:
            before = self._nodes[-1:]
            self._nodes.append(device.call("cuGraphAddKernelNode", graph, before, len(before), p))
        self.ready = device.call("cuGraphInstantiate", graph, 0)
        device.finalizer(self, ("cuGraphExecDestroy", self.ready), ("cuGraphDestroy", graph))
        self._enabled = [True] * len(kernels)
        for number, kernel in enumerate(kernels):
            self._switch(number, kernel.blocks(words) > 0)

    def _node(self, kernel: _Kernel, words: Sequence[int]) -> Any:
        p = self.device.driver.CUDA_KERNEL_NODE_PARAMS()
        p.func, p.blockDimX, p.sharedMemBytes = kernel.function, kernel.threads, kernel.shared
        p.gridDimX, p.gridDimY, p.gridDimZ = kernel.blocks(words) or 1, 1, 1
        p.blockDimY, p.blockDimZ, p.kernelParams, p.extra = 1, 1, kernel.parameters, 0
        return p

    def _switch(self, number: int, enabled: bool) -> None:
        """A kernel without blocks is not launched."""
        if enabled != self._enabled[number]:
            call, node = self.device.call, self._nodes[number]
            call("cuGraphNodeSetEnabled", self.ready, node, int(enabled))
            self._enabled[number] = enabled

    def patch(self, number: int, words: Sequence[int]) -> None:
        """Take the arguments of a kernel as they are now. Launches in flight keep theirs."""
        blocks, p = self.kernels[number].blocks(words), self._parameters[number]
        self._switch(number, blocks > 0)
        if blocks:
            p.gridDimX = blocks
            self.device.call("cuGraphExecKernelNodeSetParams", self.ready, self._nodes[number], p)
