"""THE pipeline: Graph -> rewrite -> Space -> search -> Plan -> codegen -> Program -> runtime.

In: a graph, constants, settings. Out: a `Compiled`. This is the only file in which the five stages
meet; read it first. It decides nothing itself."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luminal import debug
from luminal.codegen.generate import Alternatives, generate
from luminal.config import Config, from_environment
from luminal.devices import compiler, device_target, loaded
from luminal.errors import InternalError
from luminal.ir import ConstantData, Graph, Kernel, Plan, Program, Schedule, Target
from luminal.ir.text import graph_text, plan_text
from luminal.ir.verify import verify_graph, verify_plan
from luminal.listing import show
from luminal.programs import ProgramCache, versions
from luminal.progress import Progress, progress_bar
from luminal.rewrite import rewrite
from luminal.runtime.device import thread_count
from luminal.runtime.executor import Executor
from luminal.runtime.native import runtime
from luminal.search.extract import extract
from luminal.search.schedule import candidates
from luminal.search.strategy import INTERRUPTED, Outcome, Trial, choose
from luminal.search.whole import Times, Whole
from luminal.search.worker import Worker, WorkerFailed

PLANS = 3
WHOLE_S = 120.0
Weights = Mapping[str, np.ndarray]


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

    `plan` is what won, `stats` how long it took, `explain()` says what was found and why; `key` is
    where the cache has the program."""

    def __init__(
        self, graph: Graph, program: Program, executor: Executor, stats: Stats, key: str
    ) -> None:
        self.graph, self.program, self.executor, self.key = graph, program, executor, key
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
        """What was found: times, notes of the rules, and the plan with its schedules."""
        heads = [f"{len(self.plan.kernels)} kernels, {self.stats}", *self.plan.notes]
        return "\n".join([*(f"# {head}" for head in heads), plan_text(self.plan)])


def compile_graph(
    graph: Graph, config: Config | None = None, *, hints: Mapping[str, int] | None = None,
    weights: Weights | None = None, progress: Progress | None = None,
) -> Compiled:  # fmt: skip
    """Compile a graph for this machine, or take it from the cache.

    `hints` are typical sizes of the symbolic dims. `weights` are inputs that change rarely, by
    name: they are bound here (and by `rebind`), may be repacked, and are no arguments of a call."""
    config = config or from_environment()
    with progress_bar(config) as shown:
        told = progress or shown or (lambda text, share: None)
        return _compile(graph, config, hints or {}, weights or {}, told)


def _compile(
    graph: Graph, config: Config, hints: Mapping[str, int], weights: Weights, progress: Progress
) -> Compiled:
    start = time.perf_counter()
    verify_graph(graph)
    target = device_target(config)
    graph, constants = bind_weights(graph, weights)
    text = graph_text(graph)
    config = debug.with_own_folder(config, text)
    debug.dump(config, "graph.txt", text)
    cache = ProgramCache(config, target)
    runtime(cache.machine_code)
    key = cache.key(text, constants, hints)
    program, searched = cache.load(key, constants), time.perf_counter()
    if program is None:
        plan = search_plan(graph, config, target, cache, dict(hints), progress)
        searched = time.perf_counter()
        program = generate(plan, target, alternatives(plan, target, hints))
        if INTERRUPTED not in plan.notes:
            cache.save(key, program)
    objects = []
    for number, code in enumerate(program.codes):
        objects.append(cache.machine_code(code.source, target, compiler(config)))
        progress(f"machine code {number + 1}/{len(program.codes)}", number / len(program.codes))
    executor = loaded(program, objects, config)
    end = time.perf_counter()
    stats = Stats(len(program.plan.kernels), 0, searched - start, end - searched, end - start,
                  "miss" if cache.compiled else "hit")  # fmt: skip
    debug.log(config, 1, f"{stats}")
    show(config, program)
    return Compiled(graph, program, executor, stats, key)


def search_plan(
    graph: Graph, config: Config, target: Target, cache: ProgramCache, hints: dict[str, int],
    progress: Progress,
) -> Plan:  # fmt: skip
    """The stages from Graph to scheduled Plan."""
    progress("rewriting", 0.0)
    space = rewrite(graph, numerics=config.numerics)
    measured = config.search != "off" and target.kind == "cpu"  # a GPU's schedules by the model
    plans = extract(space, target, hints=hints, k=PLANS if measured else 1)
    for plan in plans:
        verify_plan(plan)
    if not measured:
        return choose(plans, target, config, hints=hints)
    threads = thread_count(config.threads or None)
    with Worker("luminal.workbench:run") as worker:

        def measure(trial: Trial) -> Outcome:
            try:
                outcome = worker.call((trial, target, threads, config.seed))
                cache.keep(outcome.code)
            except WorkerFailed as error:
                outcome = Outcome(error=str(error))
            debug.log(config, 3, f"{trial.kernel.schedule}: {outcome}")
            return outcome

        def whole(plans: Whole) -> Times:
            try:
                return worker.call((plans, target, threads, config.seed), WHOLE_S)
            except WorkerFailed as error:
                debug.log(config, 3, f"whole plans: {error}")
                return ()

        return choose(plans, target, config, measure=measure, cache=cache.store, hints=hints,
                      versions=versions(), progress=progress, whole=whole)  # fmt: skip


def alternatives(plan: Plan, target: Target, hints: Mapping[str, int]) -> Alternatives:
    """What to try where the chosen schedule cannot be lowered: the model's, best first, for the
    layouts as they are."""
    buffers = {b.name: b for b in plan.buffers}

    def of(kernel: Kernel) -> Iterator[Schedule]:
        return (c.schedule for c in candidates(kernel, buffers, target, hints) if not c.layouts)

    return of


def bind_weights(graph: Graph, weights: Weights) -> tuple[Graph, dict[str, ConstantData]]:
    """The graph in which the named inputs are constants that hold the given arrays, and all its
    constants by name; names are made distinct."""
    nodes = list(graph.nodes)
    known: dict[str, ConstantData] = {}
    for number, node in enumerate(nodes):
        data = node.value
        if node.op == "Input" and node.name in weights:
            data = ConstantData(node.name, weights[node.name])
        if isinstance(data, ConstantData):
            if known.get(data.name, data) is not data or (
                data.name in weights and node.op != "Input"
            ):
                data = ConstantData(f"{data.name}.{number}", data.array)
            known[data.name] = data
            nodes[number] = replace(node, op="Constant", name=data.name, value=data)
    missing = set(weights) - set(known)
    if missing:
        raise InternalError(f"[compile] weights {sorted(missing)} are no inputs of the graph.")
    return replace(graph, nodes=tuple(nodes)), known
