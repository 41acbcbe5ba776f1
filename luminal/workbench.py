"""The workbench: a kernel alone, timed and compared with the oracle, or whole plans in turn.

In: what to run, a target, a number of threads. Out: microseconds, or what is wrong with results.
Runs inside the search's worker process, where a crash costs one candidate.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from statistics import median

import numpy as np

from luminal.codegen.generate import generate, kernel_code
from luminal.errors import LuminalError
from luminal.ir.dtype import DType, accumulator
from luminal.ir.expr import axis_var, to_expr
from luminal.ir.graph import ConstantData
from luminal.ir.interp import Points, sample_kernel
from luminal.ir.numeric import decode, encode, value_dtype
from luminal.ir.plan import Buffer, Kernel, Plan, Schedule, Store, with_sizes
from luminal.ir.target import Target
from luminal.ir.term import data_atoms, load, postorder
from luminal.runtime.cpu import compile_object
from luminal.runtime.executor import Executor
from luminal.search.strategy import Outcome, Trial
from luminal.search.whole import Times, Whole

PERIOD = (1 << 20) - 3  # odd, so that no row or block repeats another
PLAIN = ".plain"
LONG_US = 5000.0  # of a call in which starting threads does not count
TOLERANCE = {64: 1e-9, 32: 2e-4, 16: 2e-2}


@dataclass(slots=True)
class _Bench:
    """A candidate, its sources with their object code, the bits of its buffers by name, and the
    arguments of a run."""

    executor: Executor
    code: tuple[tuple[str, bytes], ...]
    bits: dict[str, np.ndarray]
    arguments: tuple[list[int], list[int], tuple[int, ...]]


def run(request: tuple[Trial | Whole, Target, int, int]) -> Outcome | Times:
    """What is asked for: one candidate, or plans in turn."""
    what, target, threads, seed = request
    if isinstance(what, Whole):
        return run_whole((what, target, threads, seed))
    return run_trial((what, target, threads, seed))


def run_whole(request: tuple[Whole, Target, int, int]) -> Times:
    """Compile plans and run them in turn, on random inputs; () if one fails."""
    whole, target, threads, seed = request
    sizes, shown = dict(whole.dims), {b.name: b for p in whole.plans for b in p.buffers}
    held = [b for b in shown.values() if b.kind != "temp"]
    bits = _filled(held, [k for p in whole.plans for k in p.kernels], sizes, seed, alike=True)
    data = {b.name: ConstantData(b.name, bits[b.name]) for b in held if b.kind == "constant"}
    benches: list[_Bench] = []
    try:
        for plan in whole.plans:
            full = tuple(replace(b, data=data.get(b.name)) for b in plan.buffers)
            benches.append(_loaded(replace(plan, buffers=full), sizes, bits, target, threads))
    except LuminalError:
        return ()
    rounds = [[_timed(b) for b in benches] for _ in range(whole.rounds + 1)][1:]
    return tuple(
        tuple(map(median, zip(*times, strict=True))) for times in zip(*rounds, strict=True)
    )


def _timed(bench: _Bench) -> list[float]:
    """Microseconds of a call, without what starts the threads, then of its kernels one by one."""
    whole_us = 0.0
    for _ in range(2):
        start = time.perf_counter()
        bench.executor.run_pointers(*bench.arguments)
        whole_us = (time.perf_counter() - start) * 1e6
        if whole_us > LONG_US:
            break
    return [whole_us, *bench.executor.time_us(*bench.arguments, repeats=1)]


def run_trial(request: tuple[Trial, Target, int, int]) -> Outcome:
    """Compile, run and (if asked) check one candidate, for a target with so many threads and
    inputs of a seed; errors of ours become its outcome."""
    trial, target, threads, seed = request
    try:
        bench = _bench(trial.kernel, trial.buffers, trial.dims, target, threads, seed, trial.check)
        if trial.check:
            for name in set(bench.bits) - set(trial.kernel.reads()):
                bench.bits[name].view(np.uint8)[...] = 255  # what is not written must not be right
            bench.executor.run_pointers(*bench.arguments)
            error = _check(trial, bench, np.random.default_rng(seed))
            if error:
                return Outcome(error=error)
        if not trial.repeats:
            return Outcome(code=bench.code)
        time_us = bench.executor.time_us(*bench.arguments, repeats=2)[0]  # the first warms caches
        if time_us < trial.give_up_us:
            again_us = bench.executor.time_us(*bench.arguments, repeats=trial.repeats)[0]
            time_us = min(time_us, again_us)
        return Outcome(time_us)
    except LuminalError as error:
        return Outcome(error=f"{type(error).__name__}: {error}")


@lru_cache(maxsize=12)
def _bench(
    kernel: Kernel, buffers: tuple[Buffer, ...], dims: tuple[tuple[str, int], ...],
    target: Target, threads: int, seed: int, check: bool,
) -> _Bench:  # fmt: skip
    """Kept while a candidate is measured in turn with others."""
    sizes = dict(dims)
    bits = _contents(replace(kernel, schedule=None), buffers, dims, seed)
    plan = kernel_plan(kernel, buffers, sizes, bits)
    if check:
        plan, bits = _unpacked(plan, sizes, bits)
    return _loaded(plan, sizes, bits, target, threads)


def _loaded(
    plan: Plan, sizes: Mapping[str, int], bits: dict[str, np.ndarray], target: Target, threads: int
) -> _Bench:
    """The plan compiled, with its buffers as arguments."""
    program = generate(plan, target, code=_code)
    objects = [_object(code.source, target) for code in program.codes]
    code = tuple(zip((c.source for c in program.codes), objects, strict=True))
    executor = Executor(program, objects, threads)
    results = [executor.outputs[n].buffer.name for n in executor.fresh]
    ins, outs = ([bits[n].ctypes.data for n in names] for names in (plan.inputs, results))
    return _Bench(executor, code, bits, (ins, outs, tuple(sizes[v.name] for v in plan.dims)))


_code = lru_cache(maxsize=256)(kernel_code)
_object = lru_cache(maxsize=256)(compile_object)


@lru_cache(maxsize=1)
def _contents(
    kernel: Kernel, buffers: tuple[Buffer, ...], dims: tuple[tuple[str, int], ...], seed: int
) -> dict[str, np.ndarray]:
    """Random contents of the buffers, the same arrays for every candidate of one kernel: they and
    their packed copies are made once."""
    ordered = sorted(buffers, key=lambda b: kernel.arguments().index(b.name))
    return _filled(ordered, [kernel], dict(dims), seed)


def _filled(
    buffers: Iterable[Buffer], kernels: Iterable[Kernel], sizes: Mapping[str, int], seed: int,
    alike: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Random contents of buffers that the kernels use, by name; the same ones for those `alike`."""
    limits: dict[str, int] = {}
    known: dict[object, np.ndarray] = {}
    for name, limit in (item for k in kernels for item in _index_limits(k, sizes).items()):
        limits[name] = min(limit, limits.get(name, limit))
    rng, bits = np.random.default_rng(seed), dict[str, np.ndarray]()
    for b in buffers:
        shape = tuple(max(0, e.evaluate(sizes)) for e in b.shape)
        key = (shape, b.dtype, limits.get(b.name, 0), "" if alike else b.name)
        if key not in known:
            known[key] = _random_bits(*key[:3], rng)
        bits[b.name] = aligned(known[key])
    return bits


def kernel_plan(
    kernel: Kernel, buffers: tuple[Buffer, ...], sizes: Mapping[str, int],
    bits: Mapping[str, np.ndarray],
) -> Plan:  # fmt: skip
    """The kernel as a plan of its own. Callers only see row-major arrays, so what has a layout is
    a packed constant or a temporary."""
    parts = []
    for b in sorted(buffers, key=lambda b: kernel.arguments().index(b.name)):
        if b.name in kernel.writes():
            kind = "temp" if b.layout else "output"
        else:
            kind = "constant" if b.layout else "input"
        data = ConstantData(b.name, bits[b.name]) if kind == "constant" else None
        parts.append(replace(b, kind=kind, alias="", data=data))
    shown = {v.name for b in parts for e in b.shape for v in e.variables()}
    variables = tuple(v for v in kernel.dims() if v.name in shown or v.name in sizes)
    inputs, outputs = (
        tuple(b.name for b in parts if b.kind == kind) for kind in ("input", "output")
    )
    return Plan((kernel,), tuple(parts), inputs, outputs, variables)


def _unpacked(
    plan: Plan, sizes: Mapping[str, int], bits: Mapping[str, np.ndarray]
) -> tuple[Plan, dict[str, np.ndarray]]:
    """The plan that copies what it writes in a layout into outputs, which have none, and memory
    for those."""
    kernels, buffers, bits = list(plan.kernels), list(plan.buffers), dict(bits)
    for b in (b for b in plan.buffers if b.kind == "temp"):
        plain = replace(b, name=b.name + PLAIN, kind="output", layout=())
        axes = tuple(axis_var(f"x{d}", e) for d, e in enumerate(b.shape))
        index = tuple(map(to_expr, axes))
        store = Store(plain.name, index, load(b.name, index, b.dtype))
        kernels.append(Kernel("copy", axes, (store,), Schedule()))
        buffers.append(plain)
        bits[plain.name] = np.empty_like(bits[b.name])
    outputs = tuple(b.name for b in buffers if b.kind == "output")
    whole = replace(plan, kernels=tuple(kernels), buffers=tuple(buffers), outputs=outputs)
    return with_sizes(whole), bits


def _random_bits(
    shape: tuple[int, ...], dtype: DType, limit: int, rng: np.random.Generator
) -> np.ndarray:
    """Random contents of a buffer; integers stay in [0, limit) if limit > 0. Large ones repeat."""
    if prod(shape) > PERIOD and dtype.bits >= 8:
        return np.resize(_random_bits((PERIOD,), dtype, limit, rng), shape)
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


def _index_limits(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """For buffers that are used as indices, the size that their values must stay below."""
    found: dict[str, int] = {}
    for atom in data_atoms(*(e for t in kernel.subterms() for e in t.exprs)):
        size = atom.extent.evaluate(sizes) if atom.extent is not None else atom.hi + 1
        for name in {x.buffer for x in postorder(atom.term) if x.op == "load"}:
            found[name] = min(found.get(name, size), size)
    return found


def aligned(array: np.ndarray) -> np.ndarray:
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _check(trial: Trial, bench: _Bench, rng: np.random.Generator) -> str:
    """'' if sampled results agree with the oracle, else the first that does not."""
    buffers = {b.name: b for b in bench.executor.program.plan.buffers}
    decoded = {name: decode(bits, buffers[name].dtype) for name, bits in bench.bits.items()}
    for points in sample_kernel(trial.kernel, decoded, dict(trial.dims), rng):
        buffer = buffers[points.buffer]
        name = buffer.name + PLAIN * (buffer.kind == "temp")
        text = _compare(points, decoded[name], buffer.dtype)
        if text:
            return f"{buffer.name}: {text}"
    return ""


def _compare(points: Points, result: np.ndarray, dtype: DType) -> str:
    got = result[points.index] if points.index else result.reshape(())
    want = points.value
    if dtype.is_float:
        tolerance = TOLERANCE[min(64, max(16, dtype.bits))]
        finite = np.isfinite(want)
        scale = max(1.0, float(np.max(np.abs(want[finite]), initial=0.0)))
        with np.errstate(invalid="ignore"):
            far = np.abs(got.astype(np.float64) - want) > tolerance * scale
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        bad = np.where(finite, far | ~np.isfinite(got), ~same)
    else:
        bad = got != want
    if not np.any(bad):
        return ""
    place = np.unravel_index(np.argmax(bad), bad.shape)
    where = tuple(int(np.broadcast_to(i, bad.shape)[place]) for i in points.index)
    return (f"{np.sum(bad)} of {bad.size} sampled elements differ from the oracle; at {where} "
            f"got {got[place]}, expected {want[place]} ({accumulator(dtype)})")  # fmt: skip
