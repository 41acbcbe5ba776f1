"""The workbench: one kernel alone, on random inputs, timed and compared with the oracle.

In: a kernel with its buffers, sizes of the dims, a target. Out: microseconds, or what is wrong
with its results. Runs inside the search's worker process, where a crash costs one candidate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from luminal.codegen.generate import generate
from luminal.errors import LuminalError
from luminal.ir.dtype import DType, accumulator
from luminal.ir.expr import Expr, Var
from luminal.ir.graph import ConstantData
from luminal.ir.interp import Points, sample_kernel
from luminal.ir.numeric import decode, encode, value_dtype
from luminal.ir.plan import Buffer, Kernel, Plan
from luminal.ir.target import Target
from luminal.ir.term import Data
from luminal.runtime.cpu import compile_object
from luminal.runtime.executor import Executor

__all__ = ["Request", "Response", "check", "kernel_plan", "random_bits", "run_request"]

TOLERANCE = {64: 1e-9, 32: 2e-4, 16: 2e-2}


@dataclass(frozen=True, slots=True)
class Request:
    """One candidate: a scheduled kernel, its buffers, sizes of its dims, and how to run it.

    `check` compares sampled results with the oracle; `repeats` 0 only checks; candidates slower
    than `give_up_us` at the first run are not repeated.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    dims: tuple[tuple[str, int], ...]
    target: Target
    threads: int = 1
    repeats: int = 5
    check: bool = False
    give_up_us: float = math.inf
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """`time_us` is the best of the repeats (inf if none ran); `error` says why it cannot win."""

    time_us: float = math.inf
    error: str = ""


def kernel_plan(kernel: Kernel, buffers: tuple[Buffer, ...], dims: Mapping[str, int]) -> Plan:
    """The kernel as a plan of its own: what it reads become inputs or packed constants."""
    known = {b.name: b for b in buffers}
    writes, parts, inputs = kernel.writes(), [], []
    for name in kernel.arguments():
        old = known[name]
        if name in writes:
            kind = "output" if not old.layout else "temp"
            parts.append(Buffer(name, old.shape, old.dtype, kind, old.layout))
        else:
            inputs.append(name)
            parts.append(Buffer(name, old.shape, old.dtype, "input", old.layout))
    shown = {v.name for b in parts for e in b.shape for v in e.variables()}
    variables = tuple(v for v in kernel.dims() if v.name in shown or v.name in dims)
    return Plan((kernel,), tuple(parts), tuple(inputs),
                tuple(b.name for b in parts if b.kind == "output"), variables)  # fmt: skip


def random_bits(
    shape: tuple[int, ...], dtype: DType, limit: int, rng: np.random.Generator
) -> np.ndarray:
    """Random contents of a buffer; integers stay in [0, limit) if limit > 0."""
    if dtype.bits == 4:
        return rng.integers(0, 256, (*shape[:-1], -(-shape[-1] // 2)), np.uint8)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.is_int:
        top = limit or min(100, int(np.iinfo(dtype.np).max))
        return rng.integers(0, max(1, top), shape).astype(dtype.np)
    if dtype.storage:
        return rng.integers(0, 120, shape).astype(np.uint8)
    return encode(rng.standard_normal(shape).astype(value_dtype(dtype)), dtype)


def _index_limits(kernel: Kernel, dims: Mapping[str, int]) -> dict[str, int]:
    """For buffers that are used as indices, the size that their values must stay below."""
    found: dict[str, int] = {}

    def visit(e: Expr) -> None:
        for atom in e.atoms():
            if isinstance(atom, Data):
                for term in _loads(atom):
                    size = atom.extent.evaluate(dims) if atom.extent is not None else atom.hi + 1
                    found[term] = min(found.get(term, size), size)
            elif not isinstance(atom, Var):
                visit(atom.a)  # type: ignore[attr-defined]
                visit(atom.b)  # type: ignore[attr-defined]

    for t in kernel.subterms():
        for e in t.indices if t.op == "load" else (t.expr,) if t.op in ("index", "cond") else ():
            visit(e)
    for store in kernel.stores:
        for e in store.index:
            visit(e)
    return found


def _loads(atom: Data) -> list[str]:
    found, stack = [], [atom.term]
    while stack:
        t = stack.pop()
        stack += t.args
        if t.op == "load":
            found.append(t.buffer)
    return found


def run_request(request: Request) -> Response:
    """Compile, run and (if asked) check one candidate; errors of ours become a response."""
    try:
        return _run(request)
    except LuminalError as error:
        return Response(error=f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class _Bench:
    """A compiled candidate with its data, kept while it is measured in turn with others."""

    plan: Plan
    executor: Executor
    bits: dict[str, np.ndarray]
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    values: tuple[int, ...]

    def pointers(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """The arguments of `run_pointers`."""
        ins, outs = ([a.ctypes.data for a in arrays] for arrays in (self.inputs, self.outputs))
        return ins, outs, self.values


@lru_cache(maxsize=12)
def _bench(
    kernel: Kernel, buffers: tuple[Buffer, ...], dims: tuple[tuple[str, int], ...],
    target: Target, threads: int, seed: int,
) -> _Bench:  # fmt: skip
    sizes = dict(dims)
    plan = kernel_plan(kernel, buffers, sizes)
    program = generate(plan, target)
    objects = [compile_object(code.source, target) for code in program.codes]
    rng = np.random.default_rng(seed)
    limits = _index_limits(kernel, sizes)
    bits: dict[str, np.ndarray] = {}
    for b in plan.buffers:
        shape = tuple(max(0, e.evaluate(sizes)) for e in b.shape)
        bits[b.name] = random_bits(shape, b.dtype, limits.get(b.name, 0), rng)
    runnable = _as_constants(plan, bits)
    executor = Executor(replace(program, plan=runnable), objects, threads)
    results = [executor.outputs[n].buffer.name for n in executor.fresh]
    return _Bench(plan, executor, bits, [_aligned(bits[n]) for n in runnable.inputs],
                  [_aligned(bits[n]) for n in results],
                  tuple(sizes[v.name] for v in runnable.dims))  # fmt: skip


def _run(r: Request) -> Response:
    bench = _bench(r.kernel, r.buffers, r.dims, r.target, r.threads, r.seed)
    executor, pointers, error = bench.executor, bench.pointers(), ""
    if r.check:
        executor.run_pointers(*pointers)
        names = [executor.outputs[n].buffer.name for n in executor.fresh]
        results = dict(zip(names, bench.outputs, strict=True))
        rng = np.random.default_rng(r.seed)
        error = check(r.kernel, bench.plan, {**bench.bits, **results}, dict(r.dims), rng)
    if error or not r.repeats:
        return Response(error=error)
    best = executor.time_us(*pointers, repeats=1)[0]
    if best < r.give_up_us:
        best = min(best, executor.time_us(*pointers, repeats=r.repeats)[0])
    return Response(best, error)


def _as_constants(plan: Plan, bits: Mapping[str, np.ndarray]) -> Plan:
    """Inputs that have a layout become packed constants: callers only see row-major arrays."""
    buffers = tuple(
        replace(b, kind="constant", data=ConstantData(b.name, bits[b.name]))
        if b.kind == "input" and b.layout else b
        for b in plan.buffers
    )  # fmt: skip
    inputs = tuple(b.name for b in buffers if b.kind == "input")
    return Plan(plan.kernels, buffers, inputs, plan.outputs, plan.dims)


def _aligned(array: np.ndarray) -> np.ndarray:
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def check(
    kernel: Kernel, plan: Plan, bits: Mapping[str, np.ndarray], dims: Mapping[str, int],
    rng: np.random.Generator,
) -> str:  # fmt: skip
    """'' if sampled results agree with the oracle, else the first that does not."""
    decoded = {b.name: decode(bits[b.name], b.dtype) for b in plan.buffers}
    for points in sample_kernel(kernel, decoded, dims, rng):
        if plan.buffer(points.buffer).kind != "output":
            continue
        dtype = plan.buffer(points.buffer).dtype
        text = _compare(points, decoded[points.buffer], dtype)
        if text:
            return f"{points.buffer}: {text}"
    return ""


def _compare(points: Points, result: np.ndarray, dtype: DType) -> str:
    got = result[points.index] if points.index else result.reshape(())
    want = points.value
    if not dtype.is_float:
        bad = got != want
    else:
        tolerance = TOLERANCE[min(64, max(16, dtype.bits))]
        finite = np.isfinite(want)
        scale = max(1.0, float(np.max(np.abs(want[finite]), initial=0.0)))
        with np.errstate(invalid="ignore"):
            far = np.abs(got.astype(np.float64) - want) > tolerance * scale
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        bad = np.where(finite, far | ~np.isfinite(got), ~same)
    if not np.any(bad):
        return ""
    first = np.argwhere(np.atleast_1d(bad))[0]
    places = (np.atleast_1d(np.broadcast_to(i, np.shape(want))) for i in points.index)
    where = tuple(int(p[tuple(first)]) for p in places)
    return (f"{int(np.sum(bad))} of {bad.size} sampled elements differ from the oracle; at {where} "
            f"got {np.atleast_1d(got)[tuple(first)]}, expected {np.atleast_1d(want)[tuple(first)]} "
            f"({accumulator(dtype)})")  # fmt: skip
