"""Finds the first kernel whose result is wrong, and writes down a minimal reproduction.

In: a graph, the bits of its inputs, settings, perhaps what its results should be. Out: a `Fault`,
or None. Each kernel runs alone on what the oracle says its operands are. `python -m
luminal.checking FOLDER` runs a reproduction again: it exits with 1 while the fault is there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from luminal.codegen.generate import generate
from luminal.compiler import Compiled, compile_graph
from luminal.config import Config, from_environment
from luminal.ir.dtype import DType
from luminal.ir.graph import ConstantData, Edge, Graph
from luminal.ir.interp import GraphRun, run_kernel
from luminal.ir.numeric import decode, encode, value_dtype
from luminal.ir.plan import Kernel, Plan
from luminal.ir.text import graph_text, kernel_text, parse_graph, parse_plan, plan_text
from luminal.runtime.cpu import compile_object
from luminal.runtime.device import select_target, thread_count
from luminal.runtime.executor import Executor
from luminal.workbench import TOLERANCE, aligned, kernel_plan

__all__ = ["Fault", "first_fault"]

Arrays = Mapping[str, np.ndarray]
CAUSES = {
    "code": "its machine code computes something else than its terms",
    "together": "alone it is right, so the memory plan or the cached program is wrong",
    "rewriting": "its terms say something else than the graph",
    "translation": "the graph says something else than eager PyTorch",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """The first wrong kernel in plan order: its name and text, the buffer it stores to, the largest
    error relative to the largest value, why it must be wrong (a key of `CAUSES`), and the folder
    of the reproduction."""

    kernel: str
    text: str
    buffer: str
    error: float
    cause: str
    folder: Path

    def __str__(self) -> str:
        return (
            f"kernel {self.kernel} is the first that is wrong: {self.buffer} is off by "
            f"{self.error:.1e} of its largest value; {CAUSES[self.cause]}.\n{self.text}\n"
            f"run it again: {Path(sys.executable).name} -m luminal.checking {self.folder}"
        )


def first_fault(
    graph: Graph, inputs: Arrays, config: Config | None = None, *,
    dims: Mapping[str, int] | None = None, hints: Mapping[str, int] | None = None,
    weights: Arrays | None = None, wanted: Sequence[np.ndarray | None] = (),
    known: Sequence[np.ndarray] = (),
    tolerance: float | None = None, folder: Path | None = None,
) -> Fault | None:  # fmt: skip
    """Compiles the graph (`weights` and `hints` as in `compile_graph`) and checks every kernel.

    `inputs` are the bits of all inputs, `wanted` those of the outputs where they are known from
    elsewhere, and `known` other values from there. `tolerance` is relative to the largest value of
    a result. Where an output is wrong though all code is right, the first kernel on the way to it
    is blamed that stores what neither is known nor a value of the graph.
    """
    config, sizes = config or from_environment(), dict(dims or {})
    compiled = compile_graph(graph, config, hints=hints, weights=weights)
    case = _Case(graph, compiled, inputs, sizes, config, tolerance, folder)
    return case.kernels() or case.outputs(wanted, known)


@dataclass(frozen=True, slots=True)
class _Case:
    graph: Graph
    compiled: Compiled
    inputs: Arrays
    dims: dict[str, int]
    config: Config
    tolerance: float | None
    folder: Path | None

    def kernels(self) -> Fault | None:
        """The first kernel whose code differs from its terms."""
        plan, values = self.compiled.plan, self._start()
        for kernel in plan.kernels:
            bits = {n: _bits(values[n], plan.buffer(n).dtype) for n in kernel.arguments()}
            run_kernel(kernel, values, self.dims)
            alone = kernel_plan(
                kernel, tuple(plan.buffer(n) for n in kernel.arguments()), self.dims, bits
            )
            found = _run_alone(alone, bits, self.dims, self.config)
            for name, got in found.items():
                dtype = plan.buffer(name).dtype
                want = _bits(values[name], dtype)
                error = difference(got, want, dtype)
                if error > self._limit(dtype):
                    text = plan_text(alone)
                    return self._fault(kernel, name, error, "code", {"kernel.txt": text}, bits,
                                       {name: want})  # fmt: skip
        return None

    def outputs(
        self, wanted: Sequence[np.ndarray | None], known: Sequence[np.ndarray]
    ) -> Fault | None:
        """A kernel on the way to the first output that is not what its terms, the graph or eager
        say."""
        plan, values = self.compiled.plan, self._start()
        for kernel in plan.kernels:
            run_kernel(kernel, values, self.dims)
        given = {n: np.asarray(self.inputs[n]) for n in plan.inputs}
        native = _run(self.compiled.executor, given, self.dims)
        nodes, oracle = self._evaluated()
        eager = [*wanted, *([None] * (len(oracle) - len(wanted)))]
        stated = [_bits(values[n], plan.buffer(n).dtype) for n in plan.outputs]
        order = {n: k for k, kernel in enumerate(plan.kernels) for n in kernel.writes()}
        places = sorted(range(len(oracle)), key=lambda p: order.get(plan.outputs[p], -1))
        for cause, given_by, said in (
            ("together", native, stated), ("rewriting", stated, oracle),
            ("translation", oracle, eager),
        ):  # fmt: skip
            told = {"together": [], "rewriting": nodes, "translation": known}[cause]
            for place in (p for p in places if plan.outputs[p] in order):
                got, want = given_by[place], said[place]
                dtype = plan.buffer(plan.outputs[place]).dtype
                if got is None or want is None:
                    continue
                error = difference(got.reshape(-1), want.reshape(-1), dtype)
                if error > self._limit(dtype):
                    kernel, name = self._blamed(plan.outputs[place], values, told)
                    part = _only(self.graph, place)
                    return self._fault(kernel, name, error, cause, {"graph.txt": graph_text(part)},
                                       self._data(part), {part.outputs[0].name: want})  # fmt: skip
        return None

    def _evaluated(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """What the oracle says of the nodes of the graph, and the bits of its outputs."""
        run = GraphRun(self.graph, self.inputs, self.dims)
        with np.errstate(all="ignore"):
            for node in self.graph.nodes:
                run.values.append(run.node(node, [run.edge(e) for e in node.inputs]))
        edges = [o.edge for o in self.graph.outputs]
        return run.values, [_bits(run.edge(e), run.dtype(e)) for e in edges]

    def _blamed(
        self, output: str, values: Arrays, known: Sequence[np.ndarray]
    ) -> tuple[Kernel, str]:
        """The first kernel on the way to an output that stores values nobody knows, in any order,
        or the one that stores the output."""
        kernels, needed, way = self.compiled.plan.kernels, {output}, []
        for kernel in reversed(kernels):
            if needed & set(kernel.writes()):
                needed |= set(kernel.reads())
                way.append(kernel)
        sorts = [np.sort(k.reshape(-1).astype(np.float64)) for k in known]
        for kernel in reversed(way):
            for name in kernel.writes() if known else ():
                mine = np.sort(values[name].reshape(-1).astype(np.float64))
                limit = self._limit(self.compiled.plan.buffer(name).dtype)
                scale = np.max(np.abs(mine), initial=1.0)
                if not any(
                    k.size == mine.size and np.allclose(k, mine, 0, limit * scale, equal_nan=True)
                    for k in sorts
                ):
                    return kernel, name
        return way[0], output

    def _data(self, part: Graph) -> dict[str, np.ndarray]:
        """The inputs and constants that a graph reads."""
        found = {n.name: np.asarray(self.inputs[n.name]) for n in part.nodes if n.op == "Input"}
        held = [n.value for n in part.nodes if isinstance(n.value, ConstantData)]
        return found | {c.name: c.array for c in held}

    def _start(self) -> dict[str, np.ndarray]:
        """Decoded values of all buffers before the first kernel, in-place ones shared."""
        plan, values = self.compiled.plan, {}
        for b in plan.buffers:
            if b.kind == "constant" and b.data is not None:
                values[b.name] = decode(b.data.array, b.dtype)
            elif b.kind == "input":
                values[b.name] = decode(np.asarray(self.inputs[b.name]), b.dtype).copy()
            elif not b.alias:
                shape = tuple(e.evaluate(self.dims) for e in b.shape)
                values[b.name] = np.zeros(shape, value_dtype(b.dtype))
        for b in plan.buffers:
            root = b
            while root.alias:
                root = plan.buffer(root.alias)
            values[b.name] = values[root.name]
        return values

    def _limit(self, dtype: DType) -> float:
        if not dtype.is_float:
            return 0.0
        usual = TOLERANCE[min(64, max(16, dtype.bits))]
        return usual if self.tolerance is None else self.tolerance

    def _fault(
        self, kernel: Kernel, buffer: str, error: float, cause: str, texts: Mapping[str, str],
        given: Arrays, want: Arrays,
    ) -> Fault:  # fmt: skip
        folder = self.folder or Path(tempfile.mkdtemp(prefix="luminal-fault-"))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        np.savez(folder / "inputs.npz", **dict(given))  # pyright: ignore[reportArgumentType]
        np.savez(folder / "expected.npz", **dict(want))  # pyright: ignore[reportArgumentType]
        dims = "".join(f"{k} {v}\n" for k, v in self.dims.items())
        (folder / "dims.txt").write_text(dims)
        return Fault(kernel.name, kernel_text(kernel), buffer, error, cause, folder)


def _bits(value: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(encode(value, dtype))


def _run_alone(
    plan: Plan, bits: Arrays, dims: Mapping[str, int], config: Config
) -> dict[str, np.ndarray]:
    """The outputs of a plan of one kernel."""
    target = select_target(config.isa)
    program = generate(plan, target)
    objects = [compile_object(code.source, target) for code in program.codes]
    executor = Executor(program, objects, thread_count(config.threads or None))
    pairs = zip(plan.outputs, _run(executor, bits, dims), strict=True)
    return {name: array for name, array in pairs if array is not None}


def _run(executor: Executor, bits: Arrays, dims: Mapping[str, int]) -> list[np.ndarray | None]:
    """The outputs that an executor stores, None for others. Memory that it writes in part starts as
    the bits of that name, if there are any."""
    plan = executor.program.plan
    given = [aligned(bits[name]) for name in plan.inputs]
    results = {}
    for place in executor.fresh:
        buffer = executor.outputs[place].buffer
        shape = tuple(e.evaluate(dims) for e in buffer.shape)
        start = np.zeros(shape, encode(np.zeros((), value_dtype(buffer.dtype)), buffer.dtype).dtype)
        results[place] = aligned(bits.get(buffer.name, start))
    ins, outs = ([a.ctypes.data for a in arrays] for arrays in (given, results.values()))
    executor.run_pointers(ins, outs, tuple(dims[v.name] for v in plan.dims))
    return [results.get(place) for place in range(len(plan.outputs))]


def difference(got: np.ndarray, want: np.ndarray, dtype: DType) -> float:
    """The largest error relative to the largest finite value, for bits of a dtype; infinite where
    other elements are finite, and the share of unequal elements for integers."""
    a, b = decode(got, dtype), decode(want, dtype)
    if not a.size:
        return 0.0
    if not dtype.is_float:
        return float(np.mean(a != b))
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        off = np.where(same, 0.0, np.abs(a.astype(np.float64) - b.astype(np.float64)))
        scale = np.max(np.abs(b[np.isfinite(b)].astype(np.float64)), initial=1.0)
        return float("inf") if np.any(~np.isfinite(off)) else float(off.max() / scale)


def _only(graph: Graph, place: int) -> Graph:
    """The part of a graph that one output needs."""
    needed, stack = set(), [graph.outputs[place].edge.node]
    while stack:
        number = stack.pop()
        if number not in needed:
            needed.add(number)
            stack.extend(e.node for e in graph.nodes[number].inputs)
    new = {old: n for n, old in enumerate(sorted(needed))}

    def moved(edge: Edge) -> Edge:
        return replace(edge, node=new[edge.node])

    nodes = tuple(
        replace(graph.nodes[n], inputs=tuple(map(moved, graph.nodes[n].inputs))) for n in new
    )
    output = replace(graph.outputs[place], edge=moved(graph.outputs[place].edge), updates="")
    return Graph(nodes, (output,), graph.dims)


def run_again(folder: Path) -> float:
    """The error of a reproduction now."""
    given, expected = (dict(np.load(folder / f"{n}.npz")) for n in ("inputs", "expected"))
    lines = (folder / "dims.txt").read_text().split("\n")
    dims = {k: int(v) for k, v in (line.split() for line in lines if line)}
    data = {n: ConstantData(n, a) for n, a in given.items()}
    if (folder / "kernel.txt").exists():
        plan = parse_plan((folder / "kernel.txt").read_text(), data)
        found = _run_alone(plan, given, dims, from_environment())
        return max(difference(found[n], w, plan.buffer(n).dtype) for n, w in expected.items())
    graph = parse_graph((folder / "graph.txt").read_text(), data)
    compiled = compile_graph(graph, from_environment().override(cache="off"), hints=dims)
    names = [n.name for n in graph.nodes if n.op == "Input"]
    got = compiled(*(given[n] for n in names), dims=dims)[0]
    dtype = graph.nodes[graph.outputs[0].edge.node].dtype
    return difference(np.asarray(got).reshape(-1), next(iter(expected.values())).reshape(-1), dtype)


def main(arguments: Sequence[str]) -> int:
    """Prints the error of the reproduction in a folder; 1 if it is still there."""
    error = run_again(Path(arguments[0]))
    print(f"error relative to the largest value: {error:.1e}")
    return int(error > TOLERANCE[32])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
