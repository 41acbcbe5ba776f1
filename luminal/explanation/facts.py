"""Facts about each kernel of a compiled graph: measured time, work, traffic, code.

In: a `Compiled` and sizes of its dims. Out: `KernelFacts` and the limits of the machine, measured
by two small programs of our own. Runs the graph on zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from time import perf_counter

import numpy as np

from luminal.codegen.generate import lower_canonical
from luminal.codegen.loopir_text import function_text
from luminal.compiler import Compiled
from luminal.explanation.notation import SIGNS, formula, schedule_tree
from luminal.function import compile_function
from luminal.ir.canonical import canonical
from luminal.ir.expr import Expr
from luminal.ir.plan import Buffer, Kernel, Schedule
from luminal.ir.term import REDUCTIONS, Term

__all__ = ["KernelFacts", "Limits", "Tried", "duration", "kernel_facts", "kernel_flops",
           "machine_limits", "rules_fired"]  # fmt: skip

_FREE = ("load", "const", "index", "cond", "cast", "select", "and", "or", "not")
_TYPICAL = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do on the threads of this process: GB/s read, f32 GFLOP/s."""

    bandwidth_gbs: float
    gflops: float


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule that the search measured and that lost: why, how it goes, and how many times the
    winner's its time was (0: unknown)."""

    why: str
    schedule: tuple[str, ...]
    times: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One launch. `time_us` is measured; `flops` counts primitives, `size_bytes` each buffer that
    it touches once; `uses` is how many launches of the plan share its code; `gist` says the size of
    what it stores and what is reduced for each element."""

    name: str
    code: str
    uses: int
    time_us: float
    flops: float
    size_bytes: float
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    formula: tuple[str, ...]
    schedule: tuple[str, ...]
    loops: str
    source: str
    tried: tuple[Tried, ...] = ()
    gist: str = ""

    @property
    def gflops(self) -> float:
        """GFLOP/s."""
        return self.flops / max(self.time_us, 1e-3) / 1e3

    @property
    def bandwidth_gbs(self) -> float:
        """GB/s."""
        return self.size_bytes / max(self.time_us, 1e-3) / 1e3

    def share(self, limits: Limits) -> float:
        """Part of the roofline that is reached."""
        attainable = max(self.flops / limits.gflops, self.size_bytes / limits.bandwidth_gbs) / 1e3
        return attainable / max(self.time_us, 1e-3)

    def bound(self, limits: Limits) -> str:
        """The limit that is nearer: 'arithmetic' or 'memory'."""
        by_arithmetic = self.flops / limits.gflops > self.size_bytes / limits.bandwidth_gbs
        return "arithmetic" if by_arithmetic else "memory"


def duration(time_us: float) -> str:
    """A time with its unit.

    >>> duration(12.34), duration(80_700.0)
    ('12.3 µs', '80.7 ms')
    """
    return f"{time_us:.1f} µs" if time_us < 1e3 else f"{time_us / 1e3:,.{1 + (time_us < 1e4)}f} ms"


@lru_cache(maxsize=1)
def machine_limits() -> Limits:
    """Read bandwidth by row sums of 256 MB, arithmetic by a matrix product, seconds in all."""
    rows = np.ones((4096, 16384), np.float32)
    square = np.ones((1536, 1536), np.float32)
    total = compile_function(lambda x: x.sum(-1), [rows], search="off")
    product = compile_function(lambda a, b: a @ b, [square, square], search="off")
    read_s = min(_time(lambda: total(rows)) for _ in range(20))
    multiply_s = min(_time(lambda: product(square, square)) for _ in range(9))
    return Limits(rows.nbytes / read_s / 1e9, 2 * 1536**3 / multiply_s / 1e9)


def _time(run: object) -> float:
    start = perf_counter()
    run()  # type: ignore[operator]
    return perf_counter() - start


def kernel_facts(compiled: Compiled, sizes: Mapping[str, int] | None = None) -> list[KernelFacts]:
    """Every launch of the plan in order, timed on zeros with these sizes of the dims."""
    program = compiled.program
    plan = program.plan
    env = {v.name: min(max(_TYPICAL, v.lo), v.hi) for v in plan.dims} | dict(sizes or {})
    times = _times(compiled, env)
    buffers = {b.name: b for b in plan.buffers}
    loops: dict[int, str] = {}
    found = []
    calls = zip(plan.kernels, program.calls, times, strict=True)
    for number, (kernel, call, time_us) in enumerate(calls):
        if call not in loops:
            loops[call] = function_text(lower_canonical(kernel, program.target, buffers))
        code = program.codes[call]
        found.append(
            KernelFacts(
                kernel.name, code.name, program.calls.count(call), time_us,
                kernel_flops(kernel, env), _bytes(kernel, buffers, env), kernel.reads(),
                kernel.writes(),
                tuple(formula(kernel)), tuple(schedule_tree(kernel.schedule)), loops[call],
                code.source, _runners_up(kernel, plan.tried[number] if plan.tried else ()),
                _gist(kernel),
            )
        )  # fmt: skip
    return found


def _gist(kernel: Kernel) -> str:
    free = "×".join(repr(a.extent) for a in kernel.axes) or "one value"
    loops: dict[str, None] = {}
    for t in kernel.subterms():
        if t.op in REDUCTIONS:
            loops[f"{SIGNS.get(t.op, t.op)} {'×'.join(repr(a.extent) for a in t.axes)}"] = None
    return " · ".join([free, *loops])


def _runners_up(
    kernel: Kernel, tried: tuple[tuple[Schedule, float, str], ...]
) -> tuple[Tried, ...]:
    """What the search measured beside the winner, fastest first, and why it lost."""
    form = canonical(kernel)
    named = {form.restored(schedule): (us, error) for schedule, us, error in tried}
    best_us = named.get(kernel.schedule or Schedule(), (0.0, ""))[0]
    found = []
    for schedule, (us, error) in named.items():
        slower = f", {us / best_us:.2f} times the winner's" if best_us else ""
        why = f"{us:,.1f} µs{slower}" if isfinite(us) else "failed"
        why += f": {error}" if error else ""
        if schedule != kernel.schedule:
            times = us / best_us if best_us and isfinite(us) else 0.0
            found.append(Tried(why, tuple(schedule_tree(schedule)), times))
    return tuple(found)


def rules_fired(compiled: Compiled) -> dict[str, int]:
    """How often each rule fired, most first; other notes of the rewriting count 1."""
    counts: dict[str, int] = {}
    for note in compiled.plan.notes:
        name, _, number = note.rpartition(": ")
        name, count = (name, int(number)) if name and number.isdigit() else (note, 1)
        counts[name] = counts.get(name, 0) + count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _times(compiled: Compiled, env: Mapping[str, int]) -> list[float]:
    plan, executor = compiled.program.plan, compiled.executor
    wanted = [plan.buffer(name) for name in plan.inputs]
    wanted += [executor.outputs[n].buffer for n in executor.fresh]
    arrays = [np.zeros(_count(b, env), b.dtype.np) for b in wanted]
    pointers = [a.ctypes.data for a in arrays]
    if (device := getattr(executor, "device", None)) is not None:
        with device:
            held = [device.upload(a) for a in arrays]
        pointers = [memory.address for memory in held]
    count = len(plan.inputs)
    dims = tuple(env[v.name] for v in plan.dims)
    return executor.time_us(pointers[:count], pointers[count:], dims, repeats=5)


def _count(buffer: Buffer, env: Mapping[str, int]) -> int:
    total = 1
    for size in buffer.shape:
        total *= _value(size, env)
    return total


def _value(size: Expr, env: Mapping[str, int]) -> int:
    return max(0, size.evaluate({v.name: env[v.name] for v in size.variables()}))


def kernel_flops(kernel: Kernel, env: Mapping[str, int]) -> float:
    """Applications of primitives, conversions and choices apart."""

    def points(t: Term) -> float:
        total = 1
        inside = {v for a in t.args for v in a.free} if t.op in REDUCTIONS else set(t.free)
        for axis in inside - set(kernel.dims()):
            total *= _value(axis.extent, env)
        return float(total)

    wide = (t for t in kernel.subterms() if t.op not in _FREE and t.dtype.is_float)
    return sum(points(t) * (2 if t.op == "rsum" else 1) for t in wide)


def _bytes(kernel: Kernel, buffers: Mapping[str, Buffer], env: Mapping[str, int]) -> float:
    return sum(_count(buffers[n], env) * buffers[n].dtype.bits / 8 for n in kernel.arguments())
