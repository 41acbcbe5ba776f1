"""The executor: a Program whose code is linked, with its memory, ready to be called.

In: a Program, its object code, arrays or addresses. Out: arrays, or results at given addresses.
Safe to call from several threads. Compiles nothing and chooses nothing."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.errors import InternalError, OutOfRangeError, ShapeError
from luminal.ir import Buffer, Program
from luminal.runtime import memory
from luminal.runtime.cpu import link
from luminal.runtime.device import thread_count
from luminal.runtime.native import runtime
from luminal.runtime.pool import UNFIT, Call, launches, shared_pool
from luminal.runtime.signature import Signature, array_shape

Code = Iterable[bytes] | Mapping[str, int]
RECYCLE_BYTES = 8 << 20  # fresh outputs from this size on may reuse storage nobody else holds
INDEX_ERROR = (
    "[index] an index lies outside the dimension that it indexes. Got an index < 0 or >= the "
    "size; expected 0 <= index < size. Try checking the index inputs of this call."
)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where a result comes from: 'fresh' storage number `source`, the memory of 'input' number
    `source`, or a 'constant'."""

    buffer: Buffer
    kind: str
    source: int


class Executor:
    """Calls a compiled program.

    `executor(*inputs)` takes arrays and returns a tuple of arrays; `run_pointers` takes addresses.
    `outputs` says where each result comes from, `fresh` lists the results that need storage, in
    the order in which `run_pointers` expects their addresses. `arena_bytes` is the peak so far.
    `objects` may be the addresses of the program's symbols, if it has been linked elsewhere."""

    def __init__(self, program: Program, objects: Code, threads: int | None = None) -> None:
        plan = program.plan
        for b in plan.buffers:
            if b.layout and b.kind in ("input", "output"):
                raise InternalError(f"[runtime] {b.kind} {b.name} has a layout")
        self.program, self.threads = program, thread_count(threads)
        self.memory = memory.memory_plan(plan)
        written = {self.memory.root[name] for kernel in plan.kernels for name in kernel.writes()}
        self._updated = [n for n, name in enumerate(plan.inputs) if name in written]
        self.signature = Signature(plan, self._updated)
        self.arena_bytes = 0
        self._pool = shared_pool(self.threads)
        scratch = max((c.scratch_bytes for c in program.codes), default=0)
        self.scratch_stride = scratch + -scratch % memory.ALIGNMENT + memory.ALIGNMENT
        self.outputs, self.fresh = self._results()
        exprs = [e for o in self.outputs for e in array_shape(o.buffer)]
        self._output_shapes = memory.compile_exprs(plan.dims, exprs)
        self._shapes: tuple[tuple[int, ...] | None, list[tuple[int, ...]]] = (None, [])
        self._fresh_dtypes = [(n, self.outputs[n].buffer.dtype.np) for n in self.fresh]
        self.constants: dict[str, np.ndarray] = {}
        self.rebind({b.data.name: b.data.array for b in plan.buffers if b.data is not None})
        self.launches = self._bind(objects)
        self._free: list[Call] = []
        self._recycled: dict[int, np.ndarray] = {}

    def _results(self) -> tuple[tuple[OutputSpec, ...], tuple[int, ...]]:
        plan, root = self.program.plan, self.memory.root
        outputs: list[OutputSpec] = []
        fresh: dict[str, int] = {}
        for position, name in enumerate(plan.outputs):
            buffer, kind, source = plan.buffer(name), plan.buffer(root[name]).kind, 0
            if kind == "input":
                source = plan.inputs.index(root[name])
            elif kind != "constant":
                fresh.setdefault(root[name], position)
                kind, source = "fresh", list(fresh).index(root[name])
            outputs.append(OutputSpec(buffer, kind, source))
        return tuple(outputs), tuple(fresh.values())

    def _bind(self, objects: Code) -> tuple[np.ndarray, np.ndarray]:
        arguments, codes = self._arguments(), self.program.codes
        names = [[code.name + s for s in ("", "_grid", "_cost")] for code in codes]
        ready = isinstance(objects, Mapping) or not codes
        self._library = objects if ready else link(objects, [n for each in names for n in each])
        functions = [[self._library[n] for n in names[call]] for call in self.program.calls]
        return launches(functions, arguments)

    def _arguments(self) -> list[tuple[int, ...]]:
        """Where every word of every launch comes from: the words of a call are the addresses of
        inputs, fresh results, constants and slots, the dims, and the address of the error word."""
        plan, root = self.program.plan, self.memory.root
        held = [*plan.inputs, *(root[self.outputs[n].buffer.name] for n in self.fresh)]
        self._held, self._pointers = held, len(held)
        self._words = len(held) + len(self.constants)
        places = {name: n for n, name in enumerate((*held, *self.constants))}
        places |= {name: self._words + slot for name, slot in self.memory.slot.items()}
        first = self._words + len(self.memory.sizes)
        dims = {v.name: first + n for n, v in enumerate(plan.dims)}
        self._count = first + len(dims)
        return [(*(places[root[n]] for n in k.arguments()), *(dims[v.name] for v in k.dims()),
                 self._count) for k in plan.kernels]  # fmt: skip

    def rebind(self, weights: Mapping[str, np.ndarray]) -> None:
        """Use these arrays, as they are now, for the constants of those names.

        Shapes and dtypes must be those of the plan. Repacked constants are packed anew if they
        have changed, so this is also how a change inside an array takes effect."""
        changed = dict(self.constants)
        for buffer in self.program.plan.buffers:
            if buffer.data is not None and buffer.data.name in weights:
                old, new = buffer.data.array, weights[buffer.data.name]
                if new.shape != old.shape or new.dtype != old.dtype:
                    raise ShapeError(
                        f"[rebind] {buffer.data.name} does not fit. Got {new.dtype}{new.shape}; "
                        f"expected {old.dtype}{old.shape}."
                    )
                changed[buffer.name] = memory.constant_array(buffer, new)
        self.constants = changed

    def _take(self, dims: tuple[int, ...]) -> Call:
        """A call that no one uses, prepared for these dims."""
        if self._pool is not None and not self._pool.started:
            self._pool.ensure()
        try:
            call = self._free.pop()
        except IndexError:
            call = Call(runtime(), self._pool, *self.launches, self._count, self._pointers)
        if call.dims != dims:
            self._prepare(call, dims)
        if call.constants is not self.constants:
            call.constants = self.constants
            addresses = [array.ctypes.data for array in call.constants.values()]
            call.values[self._pointers : self._words] = addresses
        return call

    def _prepare(self, call: Call, dims: tuple[int, ...]) -> None:
        """Point the call's temporaries and dims to where they are for these dims."""
        offsets, arena_bytes = self.memory.offsets(dims)
        needed = arena_bytes + self.threads * self.scratch_stride
        if call.arena.size < needed:
            call.arena = memory.aligned(max(needed, call.arena.size * 3 // 2))
        base = call.arena.ctypes.data
        call.values[self._words : -1] = [*(base + offset for offset in offsets), *dims]
        call.set(scratch=base + arena_bytes, stride=self.scratch_stride)
        call.dims = dims
        self.arena_bytes = max(self.arena_bytes, arena_bytes)

    def __call__(
        self, *inputs: Any, dims: Mapping[str, int] | None = None
    ) -> tuple[np.ndarray, ...]:
        """Run on arrays; LuminalError if they do not fit. `dims` gives dims no shape shows."""
        try:
            values = self.signature.known(*inputs) if dims is None else None
        except (AttributeError, TypeError):
            values = None
        if values is not None:
            fresh = self._allocate(values)
            if self.run_pointers(inputs, fresh, values):
                return self._collect(inputs, fresh, values)
        views, values = self.signature.accept(inputs, dims)
        dense = [np.asarray(view, order="C") for view in views]
        fresh = self._allocate(values)
        self.run_pointers(dense, fresh, values)
        for n in self._updated:
            if dense[n] is not views[n]:
                views[n][...] = dense[n]
        given = [i if isinstance(i, np.ndarray) else v for i, v in zip(inputs, views, strict=True)]
        return self._collect(given, fresh, values)

    def run_pointers(
        self, in_ptrs: Sequence[Any], out_ptrs: Sequence[Any], dims: tuple[int, ...] = ()
    ) -> bool:
        """Run on addresses of dense row-major memory, unchecked: inputs as in the plan, then one
        for each of `fresh`. `dims` are in the order of the plan; see `Signature.accept`. Arrays
        may stand for addresses; False, and nothing has happened, if one of them is strided."""
        call = self._take(dims)
        try:
            code = call.run(*in_ptrs, *out_ptrs)
        finally:
            self._free.append(call)
        if code == 0:
            return True
        if code == UNFIT:
            return False
        if code != 1:
            raise InternalError(f"[runtime] the native call failed with code {code}")
        raise OutOfRangeError(INDEX_ERROR)

    def output_shapes(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        known, shapes = self._shapes
        if known != dims:
            flat = iter(self._output_shapes(*dims))
            shapes = [tuple([next(flat) for _ in o.buffer.shape]) for o in self.outputs]
            self._shapes = (dims, shapes)
        return shapes

    def _allocate(self, dims: tuple[int, ...]) -> list[np.ndarray]:
        """New arrays for the results, or the storage of earlier ones that nobody holds any more."""
        shapes = self.output_shapes(dims)
        fresh = []
        for number, dtype in self._fresh_dtypes:
            array = self._recycled.get(number) if self._recycled else None
            if array is None or array.shape != shapes[number] or sys.getrefcount(array) > 3:
                array = np.empty(shapes[number], dtype)
                if array.nbytes >= RECYCLE_BYTES:
                    self._recycled[number] = array
            fresh.append(array)
        return fresh

    def _collect(
        self, inputs: Sequence[Any], fresh: list[np.ndarray], dims: tuple[int, ...]
    ) -> tuple[np.ndarray, ...]:
        if len(fresh) == len(self.outputs):
            return tuple(fresh)
        results: list[np.ndarray] = []
        for number, (spec, shape) in enumerate(zip(self.outputs, self.output_shapes(dims))):
            if spec.kind == "constant":
                array = self.constant_output(number)
            else:
                array = (fresh if spec.kind == "fresh" else inputs)[spec.source]
            results.append(array if array.shape == shape else array.reshape(shape))
        return tuple(results)

    def constant_output(self, number: int) -> np.ndarray:
        """A copy of the value of a result that is a constant."""
        return self.constants[self.memory.root[self.outputs[number].buffer.name]].copy()

    def time_us(
        self, in_ptrs: Sequence[int], out_ptrs: Sequence[int], dims: tuple[int, ...] = (),
        repeats: int = 5,
    ) -> list[float]:  # fmt: skip
        """Best time of each kernel over `repeats` whole runs, µs. Overwrites the outputs."""
        count = len(self.program.plan.kernels)
        best = [float("inf")] * count
        call = self._take(dims)
        try:
            for n in [*range(count)] * repeats:
                call.select(n, 1)
                start = time.perf_counter_ns()
                call.run(*in_ptrs, *out_ptrs)
                best[n] = min(best[n], (time.perf_counter_ns() - start) / 1e3)
        finally:
            call.select(0, count)
            self._free.append(call)
        return best
