"""THE pipeline: Graph -> rewrite -> Space -> search -> Plan -> codegen -> Program -> runtime.

In: a graph, constants, settings. Out: a `Compiled`. This is the only file in which the five stages
meet; read it first. It decides nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luminal import debug
from luminal.codegen.generate import generate
from luminal.config import Config, from_environment
from luminal.errors import InternalError
from luminal.ir.graph import ConstantData, Graph
from luminal.ir.plan import Plan
from luminal.ir.program import Program
from luminal.ir.text import graph_text, plan_text
from luminal.ir.verify import verify_graph, verify_plan
from luminal.rewrite import rewrite
from luminal.runtime.cpu import compile_object
from luminal.runtime.device import select_target
from luminal.runtime.executor import Executor
from luminal.search.extract import extract
from luminal.search.schedule import default

__all__ = ["Compiled", "Progress", "Stats", "compile_graph"]

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Stats:
    """What one compilation took and made. Times in seconds; `cache` is 'hit' or 'miss'."""

    kernels: int
    arena_bytes: int
    search_s: float
    compile_s: float
    total_s: float
    cache: str


class Compiled:
    """A compiled graph: call it with arrays, or `run_pointers` with addresses.

    `plan` is what won, `stats` how long it took, `explain()` says what was found and why.
    """

    def __init__(self, graph: Graph, program: Program, executor: Executor, stats: Stats) -> None:
        self.graph, self.program, self.executor = graph, program, executor
        self._stats = stats
        self.run_pointers = executor.run_pointers
        self.rebind = executor.rebind

    @property
    def plan(self) -> Plan:
        """The kernels and buffers that won."""
        return self.program.plan

    @property
    def stats(self) -> Stats:
        """Times and sizes; `arena_bytes` is the peak so far."""
        return replace(self._stats, arena_bytes=self.executor.arena_bytes)

    def __call__(self, *inputs: object, dims: Mapping[str, int] | None = None) -> tuple[Any, ...]:
        """Run on arrays, in the order of the graph's inputs."""
        return self.executor(*inputs, dims=dims)

    def explain(self) -> str:
        """The plan as text."""
        lines = [f"{len(self.plan.kernels)} kernels, {self.stats}"]
        return "\n".join([*lines, *self.plan.notes, plan_text(self.plan)])


def compile_graph(
    graph: Graph, config: Config | None = None, *, hints: Mapping[str, int] | None = None,
    weights: Mapping[str, np.ndarray] | None = None, progress: Progress | None = None,
) -> Compiled:  # fmt: skip
    """Compile a graph for this machine.

    `hints` are typical sizes of the symbolic dims. `weights` are inputs that change rarely, by
    name: they are bound here (and by `rebind`), may be repacked, and are no arguments of a call.
    """
    config = config or from_environment()
    start = time.perf_counter()
    verify_graph(graph)
    target = select_target(config.isa)
    graph = bind_weights(graph, weights or {})
    debug.dump(config, "graph.txt", graph_text(graph))
    space = rewrite(graph, numerics=config.numerics)
    plans = extract(space, target, hints=dict(hints or {}), k=1)
    verify_plan(plans[0])
    buffers = {b.name: b for b in plans[0].buffers}
    free = frozenset(b.name for b in plans[0].buffers if b.kind == "constant" or (b.kind=="temp" and not b.alias))
    kernels = []
    for kernel in plans[0].kernels:
        choice = default(kernel, buffers, target, hints or {}, free)
        for n, l in choice.layouts.items():
            buffers[n] = replace(buffers[n], layout=l)
        free = free - set(kernel.arguments())
        kernels.append(replace(kernel, schedule=choice.schedule))
    plan = replace(plans[0], kernels=tuple(kernels), buffers=tuple(buffers.values()))
    searched = time.perf_counter()
    program = generate(plan, target)
    objects = [compile_object(code.source, target) for code in program.codes]
    executor = Executor(program, objects, config.threads or None)
    end = time.perf_counter()
    stats = Stats(len(plan.kernels), 0, searched - start, end - searched, end - start, "miss")
    debug.dump(config, "plan.txt", plan_text(plan))
    debug.log(config, 1, f"{stats}")
    return Compiled(graph, program, executor, stats)


def bind_weights(graph: Graph, weights: Mapping[str, np.ndarray]) -> Graph:
    """The graph in which the named inputs are constants that hold the given arrays."""
    nodes = list(graph.nodes)
    for number, node in enumerate(nodes):
        if node.op == "Input" and node.name in weights:
            data = ConstantData(node.name, weights[node.name])
            nodes[number] = replace(node, op="Constant", value=data)
    bound = {n.name for n in nodes if isinstance(n.value, ConstantData)}
    missing = set(weights) - bound
    if missing:
        raise InternalError(f"[compile] weights {sorted(missing)} are no inputs of the graph.")
    return replace(graph, nodes=tuple(nodes))
