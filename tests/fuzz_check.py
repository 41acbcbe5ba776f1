"""Checks one case at every stage; meant to run in a worker process, which may crash.

In: a case as text, options. Out: a list of problems, empty if all agree: oracle == plans ==
compiled code with default and with random schedules. Arrays end (or begin) at unmapped pages, so
that wild accesses crash; temporaries start as NaN.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from luminal.codegen.generate import generate
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.compiler import compile_graph
from luminal.config import Config
from luminal.errors import LuminalError, OutOfRangeError
from luminal.ir.dtype import DType, bf16, f16, f32, f64
from luminal.ir.graph import Graph
from luminal.ir.interp import GraphRun, run_graph, run_plan
from luminal.ir.numeric import decode, value_dtype
from luminal.ir.plan import Plan
from luminal.ir.text import plan_text
from luminal.ir.verify import verify_graph, verify_plan
from luminal.rewrite import rewrite
from luminal.runtime.cpu import compile_object
from luminal.runtime.device import select_target
from luminal.runtime.executor import Executor
from luminal.search import tasks
from luminal.search.extract import extract
from luminal.search.schedule import candidates as schedules
from tests.random_cases import graph_of, make_inputs, parse_case
from tests.random_plans import random_plan

__all__ = ["Expected", "Guarded", "check", "expect", "run_guarded"]

PAGE = mmap.PAGESIZE
UNIT = {f64: 2.0**-52, f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}
WIDER = {f32: f64, f16: f32, bf16: f32}
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Memory of an array whose end (or start) touches an unmapped page; the slack is a canary."""

    def __init__(self, array: np.ndarray, at_end: bool):
        pages = max(1, -(-array.nbytes // PAGE))
        self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.bytes = np.frombuffer(self.map, np.uint8, pages * PAGE, PAGE)
        self.bytes[:] = 0xA5
        self.at = pages * PAGE - array.nbytes if at_end else 0
        self.address = base + PAGE + self.at
        self.nbytes, self.dtype, self.shape = array.nbytes, array.dtype, array.shape
        self.bytes[self.at : self.at + self.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        for page in (0, pages + 1):
            _libc.mprotect(ctypes.c_void_p(base + page * PAGE), ctypes.c_size_t(PAGE), 0)

    @property
    def array(self) -> np.ndarray:
        """What the memory holds now."""
        part = self.bytes[self.at : self.at + self.nbytes]
        return np.frombuffer(part.tobytes(), self.dtype).reshape(self.shape)

    @property
    def intact(self) -> bool:
        """True if nothing was written beside the array."""
        inside = np.zeros(self.bytes.size, bool)
        inside[self.at : self.at + self.nbytes] = True
        return bool((self.bytes[~inside] == 0xA5).all())


@dataclass
class Expected:
    """Values that outputs must have, and how far off they may be (None: an index error)."""

    bits: list[np.ndarray] | None
    values: list[np.ndarray]
    slack: list[np.ndarray]
    dtypes: list[DType]


def _widened(graph: Graph) -> Graph:
    return replace(graph, nodes=tuple(
        replace(n, dtype=WIDER.get(n.dtype, n.dtype)) for n in graph.nodes))  # fmt: skip


def _noisy(graph: Graph, wide: Graph, inputs: dict, dims: dict, rng: Any) -> list[np.ndarray]:
    """The wide graph, with the rounding error of `graph` added wherever `graph` rounds."""
    narrow, noisy, clean = (GraphRun(g, inputs, dims) for g in (graph, wide, wide))
    for n, w in zip(graph.nodes, wide.nodes, strict=True):

        def node(run: GraphRun, item: Any) -> np.ndarray:
            args = [run.edge(e) for e in item.inputs]
            if item.op == "Input":
                held = decode(inputs[item.name], n.dtype)
                return held.astype(value_dtype(item.dtype), copy=False)
            if item.op == "Constant" and hasattr(item.value, "array"):
                return decode(item.value.array, n.dtype)
            return run.node(item, args)

        narrow.values.append(node(narrow, n))
        clean.values.append(node(clean, w))
        value = node(noisy, w)
        unit = UNIT.get(n.dtype)
        with np.errstate(all="ignore"):
            rounds = n.dtype in WIDER and not np.array_equal(
                narrow.values[-1], clean.values[-1], equal_nan=True
            )
            if (
                n.op == "SumReduce" and n.dtype == f32
            ):  # partial sums may round where the sum does not
                terms = noisy.edge(n.inputs[0])
                step = np.spacing(np.abs(terms).sum(n.axis, keepdims=True).astype(np.float32))
                rounds |= bool(np.any(np.fmod(terms, step)))
            if n.dtype == f64:
                rounds = not np.array_equal(value * 2**20, np.rint(value * 2**20))
            if unit and n.inputs and not rounds and n.dtype in (f16, bf16):
                unit, rounds = UNIT[f32], True  # constants may meet before anything rounds
            if unit and (rounds or n.op in ("Log2", "Exp2", "Sin", "Sqrt", "Recip")):
                size = np.abs(value)
                if n.op == "SumReduce":
                    size = np.abs(noisy.edge(n.inputs[0])).sum(n.axis)
                sign = rng.choice([-1.0, 1.0], np.shape(value))
                value = (value + sign * 2 * unit * np.where(np.isfinite(size), size, 0)).astype(
                    value.dtype)  # fmt: skip
        noisy.values.append(value)
    return [np.asarray(noisy.edge(o.edge)) for o in graph.outputs]


def expect(graph: Graph, inputs: dict[str, np.ndarray], dims: dict[str, int]) -> Expected:
    """What the oracle says, with slack from two runs with noise."""
    dtypes = [graph.nodes[o.edge.node].dtype for o in graph.outputs]
    try:
        bits = run_graph(graph, inputs, dims)
    except OutOfRangeError:
        return Expected(None, [], [], dtypes)
    values = [decode(b, d) for b, d in zip(bits, dtypes, strict=True)]
    rng = np.random.default_rng(1)
    wide = _widened(graph)
    runs = [_noisy(graph, wide, inputs, dims, rng) for _ in range(2)]
    slack = []
    for number, (value, dtype) in enumerate(zip(values, dtypes, strict=True)):
        if not dtype.is_float:
            slack.append(np.zeros(value.shape))
            continue
        with np.errstate(all="ignore"):
            exact = value.astype(np.float64)
            off = np.zeros(exact.shape)
            for run in runs:
                turned = np.isnan(run[number]) != np.isnan(exact)
                apart = np.abs(run[number].astype(np.float64) - exact)
                apart = np.where(np.isnan(apart), 0, apart)
                off = np.maximum(off, np.where(turned, np.inf, apart))
            finite = off[np.isfinite(off)]
            floor = np.median(finite) if finite.size else 0.0
            size = np.where(np.isfinite(exact), np.abs(exact), 0)
            unit = UNIT[dtype] if off.any() or dtype == f64 else 0.0
            units = 32 if dtype in (f32, f64) else 8
            slack.append(8 * off + 4 * floor + units * unit * size + 1e-30)
    return Expected(bits, values, slack, dtypes)


def compare(
    expected: Expected, got: list[np.ndarray], where: str, exact_special: bool
) -> list[str]:
    """Problems of one set of results."""
    problems = []
    for number, bits in enumerate(got):
        value, slack = expected.values[number], expected.slack[number]
        dtype = expected.dtypes[number]
        if bits.shape != value.shape:
            problems.append(f"{where}: output {number} has shape {bits.shape}, not {value.shape}")
            continue
        found = decode(bits, dtype)
        with np.errstate(all="ignore"):
            a, b = found.astype(np.float64), value.astype(np.float64)
            if not dtype.is_float:
                bad = found != value
            else:
                near = np.abs(a - b) <= slack
                same = (a == b) | (np.isnan(a) & np.isnan(b)) | near
                loose = ~np.isfinite(slack) | ~np.isfinite(a - b) & (slack > 0.01 * np.abs(b))
                bad = ~(same | loose)
                if not exact_special:
                    bad &= np.isfinite(b)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0]) if bad.ndim else ()
            problems.append(
                f"{where}: output {number} {dtype}{list(value.shape)} wrong at {at} "
                f"({int(bad.sum())} of {bad.size}): got {found[at]!r}, expected {value[at]!r}"
            )
    return problems


def run_guarded(
    executor: Executor, graph: Graph, inputs: dict[str, np.ndarray], dims: dict[str, int],
    at_end: bool,
) -> tuple[list[np.ndarray] | None, list[str]]:  # fmt: skip
    """Results (None: an index error) and problems with memory."""
    plan = executor.program.plan
    order = tuple(dims[v.name] for v in plan.dims)
    ins = [Guarded(np.ascontiguousarray(inputs[name]).reshape(inputs[name].shape), at_end)
           for name in plan.inputs]  # fmt: skip
    shapes = executor.output_shapes(order)
    fresh = [Guarded(np.full(shapes[n], 0, executor.outputs[n].buffer.dtype.np), at_end)
             for n in executor.fresh]  # fmt: skip
    for g in fresh:
        g.bytes[:] = 0xA5
    context = executor._take(order)
    context.arena[:] = 0xFF
    executor._free.append(context)
    try:
        executor.run_pointers([g.address for g in ins], [g.address for g in fresh], order)
    except OutOfRangeError:
        return None, []
    problems = []
    if not all(g.intact for g in (*ins, *fresh)):
        problems.append("wrote outside an array")
    updated = {o.updates for o in graph.outputs}
    for name, g in zip(plan.inputs, ins, strict=True):
        if name not in updated and g.array.tobytes() != inputs[name].tobytes():
            problems.append(f"changed input {name}")
    results = []
    for spec, shape in zip(executor.outputs, shapes, strict=True):
        if spec.kind == "constant":
            results.append(executor.constants[spec.buffer.name])
        else:
            results.append(
                (fresh if spec.kind == "fresh" else ins)[spec.source].array.reshape(shape)
            )
    for o, result in zip(graph.outputs, results, strict=True):
        if o.updates:
            memory = ins[plan.inputs.index(o.updates)].array
            if memory.tobytes() != result.tobytes():
                problems.append(f"input {o.updates} was not updated")
    return results, problems


def scheduled(
    plan: Plan, target: Any, hints: dict[str, int], rng: random.Random
) -> Executor | None:
    """The plan with random candidates of its kernels; None if all were illegal."""

    def any_of(*args: Any, limit: int = 1) -> Any:
        return [rng.choice(schedules(*args[:5]))]

    with patch.object(tasks, "candidates", any_of):  # layouts of weights and temporaries, too
        found = tasks.prepare(plan, target, hints, {})
    for _ in range(2):
        for task in found.tasks:
            task.winner = rng.choice(task.candidates(target)).schedule
        try:
            program = generate(found.finish(), target)
        except IllegalSchedule:
            continue
        objects = [compile_object(c.source, target) for c in program.codes]
        executor = Executor(program, objects, 3)
        executor._pool.set(batch_ns=1, wake_ns=0, serial_ns=0)  # every chunk on its own
        return executor
    return None


def _infinite(graph: Graph, inputs: dict[str, np.ndarray], dims: dict[str, int]) -> bool:
    """Whether a value that depends on no input is infinite."""
    run, fixed = GraphRun(graph, inputs, dims), list[bool]()
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            run.values.append(run.node(node, [run.edge(e) for e in node.inputs]))
            fixed.append(node.op != "Input" and all(fixed[e.node] for e in node.inputs))
    values = (v for v, f in zip(run.values, fixed, strict=True) if f and v.dtype.kind == "f")
    return any(np.isinf(v).any() for v in values)


class _Checker:
    """One case, its expectations, and what went wrong so far."""

    def __init__(self, text: str):
        self.case = parse_case(text)
        self.graph = graph_of(self.case)
        self.problems: list[str] = []
        self.runs = []
        for run in self.case.dims:
            dims = dict(run)
            inputs = make_inputs(self.graph, dims, self.case.seed, self.case.wild)
            self.runs.append((inputs, dims, expect(self.graph, inputs, dims)))

    @property
    def special(self) -> bool:
        """Infinite values may occur, with which algebra only holds where results are finite:
        inputs hold some, and so do maxima of nothing and constants like log2(0)."""
        nothing = any(0 in dict(d).values() for d in self.case.dims)
        return "special" in self.case.text or nothing or _infinite(self.graph, *self.runs[0][:2])

    def compiled(self, executor: Executor, where: str, at_end: bool) -> None:
        for inputs, dims, expected in self.runs:
            got, wrong = run_guarded(executor, self.graph, inputs, dims, at_end)
            self.problems += [f"{where} {dims}: {w}" for w in wrong]
            self.judge(got, expected, f"{where} {dims}")

    def judge(self, got: list[np.ndarray] | None, expected: Expected, where: str) -> None:
        if expected.bits is None:
            return
        if got is None:
            self.problems.append(f"{where}: index error where the oracle has none")
        else:
            self.problems += compare(expected, got, where, not self.special)

    def plan(self, plan: Plan, where: str) -> None:
        verify_plan(plan)
        for inputs, dims, expected in self.runs:
            try:
                got = run_plan(plan, inputs, dims)
            except OutOfRangeError:
                got = None
            self.judge(got, expected, f"{where} {dims}")


def check(request: tuple[str, dict[str, Any]]) -> list[str]:
    """Problems of a case (as text). Options: isa, numerics, seed, plans, show."""
    text, options = request
    checker = _Checker(text)
    graph, rng = checker.graph, random.Random(options.get("seed", 0))
    verify_graph(graph)
    isa, numerics = options.get("isa", "native"), options.get("numerics", "exact")
    target, hints = select_target(isa), dict(checker.case.dims[0])
    stage = "rewrite"
    try:
        space = rewrite(graph, numerics=numerics)
        stage = "extract"
        plans = extract(space, target, hints=hints, k=options.get("plans", 3))
        sizes = {n: max(dict(run)[n] for run in checker.case.dims) for n in hints}
        plans += [random_plan(space, target, sizes, rng) for _ in range(options.get("random", 1))]
        stage = "plan"
        for number, plan in enumerate(plans):
            checker.plan(plan, f"plan {number}")
        if checker.problems:
            return [*checker.problems, *(plan_text(p) for p in plans[: options.get("show", 0)])]
        stage = "default schedule"
        config = Config(search="off", isa=isa, numerics=numerics, threads=1, cache="off")
        compiled = compile_graph(graph, config, hints=hints)
        checker.compiled(compiled.executor, stage, True)
        stage = "random schedule"
        for number, plan in enumerate(plans):
            executor = scheduled(plan, target, hints, rng)
            if executor is not None:
                before = len(checker.problems)
                checker.compiled(executor, f"{stage} of plan {number}", bool(number % 2))
                if len(checker.problems) > before and options.get("show"):
                    checker.problems.append(plan_text(executor.program.plan))
    except (LuminalError, NotImplementedError, KeyError, ValueError, TypeError, AssertionError,
            IndexError, AttributeError, RecursionError, ZeroDivisionError) as error:  # fmt: skip
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        checker.problems.append(
            f"{stage}: {type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})"
        )
    return checker.problems
