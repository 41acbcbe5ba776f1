"""The executor: a Program whose code is linked, with its memory, ready to be called.

In: a Program, its object code, arrays or addresses. Out: arrays, or results at given addresses.
Safe to call from several threads. Compiles nothing and chooses nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, InternalError, OutOfRangeError, ShapeError
from luminal.ir.plan import Buffer
from luminal.ir.program import Program
from luminal.runtime.constants import constant_array, pack_constant
from luminal.runtime.cpu import link
from luminal.runtime.device import thread_count
from luminal.runtime.entry import CallBlock, Launches, launches
from luminal.runtime.memory import ALIGNMENT, compile_exprs, memory_plan
from luminal.runtime.pool import runtime, shared_pool
from luminal.runtime.signature import Signature, array_shape, check_layouts

__all__ = ["Executor", "OutputSpec"]

RECYCLE_BYTES = 8 << 20  # fresh outputs from this size on may reuse storage nobody else holds
_STRIDED = -2


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where result i comes from: 'fresh' storage number `source`, the memory of 'input' number
    `source`, or a 'constant'."""

    buffer: Buffer
    kind: str
    source: int


class _Context:
    """What one call in flight owns: its block of words and its arena."""

    __slots__ = ("arena", "base", "block", "constants", "dims")

    def __init__(self, block: CallBlock) -> None:
        self.block = block
        self.arena = np.empty(0, np.uint8)
        self.base = 0
        self.dims: tuple[int, ...] | None = None
        self.constants: dict[str, np.ndarray] = {}


class Executor:
    """Calls a compiled program.

    `executor(*inputs)` takes arrays and returns a tuple of arrays; `run_pointers` takes addresses.
    `outputs` says where each result comes from, `fresh` lists the results that need storage, in
    the order in which `run_pointers` expects their addresses. `arena_bytes` is the peak so far.
    """

    def __init__(
        self, program: Program, objects: Iterable[bytes], threads: int | None = None
    ) -> None:
        plan = program.plan
        check_layouts(plan)
        self.program = program
        self.threads = thread_count(threads)
        self.signature = Signature(plan)
        self.arena_bytes = 0
        self._memory = memory_plan(plan)
        suffixes = ("", "_grid", "_cost")
        names = [code.name + s for code in program.codes for s in suffixes]
        self._library = link(objects, names) if names else None
        self._pool = shared_pool(self.threads)
        scratch = max((c.scratch_bytes for c in program.codes), default=0)
        self._scratch_stride = scratch + -scratch % ALIGNMENT + ALIGNMENT
        self.scratch_bytes = self.threads * self._scratch_stride
        self.outputs = self._find_outputs()
        self.fresh = tuple(dict.fromkeys(
            self._first_use(n) for n, o in enumerate(self.outputs) if o.kind == "fresh"
        ))  # fmt: skip
        self._output_shapes = compile_exprs(
            plan.dims, [e for o in self.outputs for e in array_shape(o.buffer)]
        )
        self._shapes: tuple[tuple[int, ...] | None, list[tuple[int, ...]]] = (None, [])
        self._fresh_dtypes = [(n, self.outputs[n].buffer.dtype.np) for n in self.fresh]
        self._simple = len(self.fresh) == len(self.outputs)
        self._updated = [n for n, name in enumerate(plan.inputs) if name in self._written_roots()]
        self._constants = self._load_constants()
        self._launches = self._bind()
        self._free: list[_Context] = []
        self._recycled: dict[int, np.ndarray] = {}

    # What the plan needs, found once.

    def _written_roots(self) -> set[str]:
        kernels = self.program.plan.kernels
        return {self._memory.root[name] for kernel in kernels for name in kernel.writes()}

    def _find_outputs(self) -> tuple[OutputSpec, ...]:
        plan, found = self.program.plan, []
        fresh: dict[str, int] = {}
        for name in plan.outputs:
            root = self._memory.root[name]
            kind = plan.buffer(root).kind
            if kind == "input":
                found.append(OutputSpec(plan.buffer(name), "input", plan.inputs.index(root)))
            elif kind == "constant":
                found.append(OutputSpec(plan.buffer(name), "constant", 0))
            else:
                number = fresh.setdefault(root, len(fresh))
                found.append(OutputSpec(plan.buffer(name), "fresh", number))
        return tuple(found)

    def _first_use(self, number: int) -> int:
        source = self.outputs[number].source
        return next(
            n for n, o in enumerate(self.outputs) if o.kind == "fresh" and o.source == source
        )

    def _load_constants(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for buffer in self.program.plan.buffers:
            if buffer.kind == "constant":
                if buffer.data is None:
                    raise InternalError(f"[runtime] constant {buffer.name} has no data")
                found[buffer.name] = constant_array(buffer, buffer.data.array)
        return found

    def _places(self) -> dict[str, int]:
        """Position in `CallBlock.values` of each storage root."""
        plan = self.program.plan
        places = {name: n for n, name in enumerate(plan.inputs)}
        for output in self.fresh:
            places[self._memory.root[self.outputs[output].buffer.name]] = len(places)
        for name in self._constants:
            places[name] = len(places)
        first = len(places)
        places.update({name: first + slot for name, slot in self._memory.slot.items()})
        return places

    def _bind(self) -> Launches:
        """Where every argument word of every launch comes from."""
        plan, places = self.program.plan, self._places()
        self._pointers = len(plan.inputs) + len(self.fresh)
        self._slot_base = self._pointers + len(self._constants)
        self._dim_base = self._slot_base + len(set(self._memory.slot.values()))
        dims = {v.name: self._dim_base + n for n, v in enumerate(plan.dims)}
        error = self._dim_base + len(plan.dims)
        functions, arguments = [], []
        for kernel, call in zip(plan.kernels, self.program.calls, strict=True):
            code = self.program.codes[call].name
            buffers = [places[self._memory.root[name]] for name in kernel.arguments()]
            arguments.append((*buffers, *(dims[v.name] for v in kernel.dims()), error))
            if self._library is not None:
                address = self._library.address
                functions.append((address(code), address(code + "_grid"), address(code + "_cost")))
        return launches(functions, arguments)

    # Contexts: one for each call in flight.

    def _new_context(self) -> _Context:
        count = self._dim_base + len(self.program.plan.dims)
        return _Context(CallBlock(runtime(), self._pool, self._launches, count, self._pointers))

    def _point_at_constants(self, context: _Context) -> None:
        context.constants = self._constants
        for n, array in enumerate(context.constants.values(), self._pointers):
            context.block.values[n] = array.ctypes.data

    def _prepare(self, context: _Context, dims: tuple[int, ...]) -> None:
        """Point the block's temporaries and dims to where they are for these dims."""
        offsets, arena_bytes = self._memory.offsets(dims)
        needed = arena_bytes + self.scratch_bytes
        if context.arena.size < needed + ALIGNMENT:
            growth = context.arena.size * 3 // 2
            context.arena = np.empty(max(needed, growth) + ALIGNMENT, np.uint8)
            start = context.arena.ctypes.data
            context.base = start + -start % ALIGNMENT
        base = context.base
        words = [*(base + offset for offset in offsets), *dims]
        context.block.values[self._slot_base : self._slot_base + len(words)] = words
        context.block.set_scratch(base + arena_bytes, self._scratch_stride)
        context.dims = dims
        self.arena_bytes = max(self.arena_bytes, arena_bytes)

    def _take(self, dims: tuple[int, ...]) -> _Context:
        if self._pool is not None and not self._pool.started:
            self._pool.ensure()
        try:
            context = self._free.pop()
        except IndexError:
            context = self._new_context()
        if context.dims != dims:
            self._prepare(context, dims)
        if context.constants is not self._constants:
            self._point_at_constants(context)
        return context

    def rebind(self, weights: Mapping[str, np.ndarray]) -> None:
        """Use these arrays, as they are now, for the constants of those names.

        Shapes and dtypes must be those of the plan. Repacked constants are packed anew, so this
        is also how a change inside an array takes effect.
        """
        changed = dict(self._constants)
        for buffer in self.program.plan.buffers:
            if buffer.data is not None and buffer.data.name in weights:
                old, new = buffer.data.array, weights[buffer.data.name]
                if new.shape != old.shape or new.dtype != old.dtype:
                    raise ShapeError(
                        f"[rebind] {buffer.data.name} does not fit. Got {new.dtype}{new.shape}; "
                        f"expected {old.dtype}{old.shape}."
                    )
                changed[buffer.name] = pack_constant(buffer, new)
        self._constants = changed

    # Calls.

    def __call__(
        self, *inputs: Any, dims: Mapping[str, int] | None = None
    ) -> tuple[np.ndarray, ...]:
        """Run on arrays; LuminalError if they do not fit. `dims` gives dims no shape shows."""
        values = None
        if dims is None:
            try:
                values = self.signature.known(*inputs)
            except (AttributeError, TypeError):
                values = None
        if values is None:
            return self._thorough_call(inputs, dims)
        for position in self._updated:
            if not inputs[position].flags.writeable:
                raise _read_only(position)
        fresh = self._allocate(values)
        context = self._take(values)
        try:
            code = context.block.run(*inputs, *fresh)
        except (BufferError, ValueError):
            code = _STRIDED
        finally:
            self._free.append(context)
        if code == _STRIDED:
            return self._thorough_call(inputs, dims)
        if code:
            raise _failure(code)
        if self._simple:
            return tuple(fresh)
        return self._collect(inputs, fresh, values)

    def _thorough_call(
        self, inputs: Sequence[Any], given: Mapping[str, int] | None
    ) -> tuple[np.ndarray, ...]:
        """The slow path: anything array-like, strided arrays, and exact error messages."""
        arrays, dims = self.signature.accept(inputs, given)
        fresh = self._allocate(dims)
        for position in self._updated:
            original = inputs[position]
            if isinstance(original, np.ndarray) and not original.flags.writeable:
                raise _read_only(position)
        context = self._take(dims)
        try:
            code = context.block.run(*(a.ctypes.data for a in arrays), *fresh)
        finally:
            self._free.append(context)
        if code:
            raise _failure(code)
        for position in self._updated:
            original = inputs[position]
            if isinstance(original, np.ndarray) and not np.shares_memory(
                original, arrays[position]
            ):
                original[...] = arrays[position].view(original.dtype)
        sources = [v if isinstance(v, np.ndarray) else a for v, a in zip(inputs, arrays)]
        return self._collect(sources, fresh, dims)

    def run_pointers(
        self, in_ptrs: Sequence[int], out_ptrs: Sequence[int], dims: tuple[int, ...] = ()
    ) -> None:
        """Run on addresses of dense row-major memory, unchecked: inputs as in the plan, then one
        for each of `fresh`. `dims` are in the order of the plan; see `Signature.dims_of`."""
        context = self._take(dims)
        try:
            code = context.block.run(*in_ptrs, *out_ptrs)
        finally:
            self._free.append(context)
        if code:
            raise _failure(code)

    def output_shapes(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Shapes of the results for these dims."""
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
            shape = shapes[number]
            held = self._recycled.get(number) if self._recycled else None
            if held is not None and held.shape == shape and sys.getrefcount(held) == 3:
                fresh.append(held)
                continue
            array = np.empty(shape, dtype)
            if array.nbytes >= RECYCLE_BYTES:
                self._recycled[number] = array
            fresh.append(array)
        return fresh

    def _collect(
        self, inputs: Sequence[Any], fresh: list[np.ndarray], dims: tuple[int, ...]
    ) -> tuple[np.ndarray, ...]:
        """The results in the caller's order."""
        results: list[np.ndarray] = []
        for spec, shape in zip(self.outputs, self.output_shapes(dims), strict=True):
            if spec.kind == "fresh":
                array = fresh[spec.source]
            elif spec.kind == "input":
                array = inputs[spec.source]
            else:
                array = self._constants[self._memory.root[spec.buffer.name]].copy()
            results.append(array if array.shape == shape else array.reshape(shape))
        return tuple(results)

    # Measurement.

    def time_us(
        self, in_ptrs: Sequence[int], out_ptrs: Sequence[int], dims: tuple[int, ...] = (),
        repeats: int = 5,
    ) -> list[float]:  # fmt: skip
        """Best time of each kernel over `repeats` whole runs, µs. Overwrites the outputs."""
        count = len(self.program.plan.kernels)
        best = [float("inf")] * count
        context = self._take(dims)
        try:
            for _ in range(repeats):
                for n in range(count):
                    context.block.select(n, 1)
                    start = time.perf_counter_ns()
                    context.block.run(*in_ptrs, *out_ptrs)
                    best[n] = min(best[n], (time.perf_counter_ns() - start) / 1e3)
        finally:
            context.block.select(0, count)
            self._free.append(context)
        return best


def _read_only(position: int) -> ArgumentError:
    return ArgumentError(
        f"[call] input {position} is updated in place but cannot be written. Got a read-only "
        "array; expected a writeable one. Try passing a copy."
    )


def _failure(code: int) -> Exception:
    if code == 1:
        return OutOfRangeError(
            "[index] an index lies outside the dimension that it indexes. Got an index < 0 or >= "
            "the size; expected 0 <= index < size. Try checking the index inputs of this call."
        )
    return InternalError(f"[runtime] the native call failed with code {code}")
