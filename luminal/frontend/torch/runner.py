"""Runs parts: natively through the compiler, or in NumPy through the oracle.

In: a `Part`. Out: its `run` function over PyTorch tensors, zero-copy. Facts go to the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch.fx import Node

from luminal.compiler import Compiled, compile_graph
from luminal.config import Config, from_environment
from luminal.frontend.torch.options import Options
from luminal.frontend.torch.part import Emitter, Part, Runner
from luminal.frontend.torch.recipe import Bound, PartRecipe
from luminal.frontend.torch.reports import Report
from luminal.frontend.torch.weights import Weights
from luminal.ir.interp import run_graph

__all__ = ["compile_part", "memory_array"]


def compile_part(
    part: Part, options: Options, report: Report, statics: Mapping[Node, torch.Tensor],
    hints: Mapping[str, int],
) -> None:  # fmt: skip
    """Sets `part.run`; `statics` are the parameters that may be bound as weights, `hints` typical
    sizes."""
    if options.executor == "oracle":
        part.run = _oracle(part)
        return
    bound = {part.names[n]: t for n, t in statics.items() if n in part.names}
    weights = Weights(bound, options.freeze)
    config = from_environment().override(**dict(options.config))
    compiled = compile_graph(part.graph, config, hints=hints, weights=weights.arrays())
    stats = compiled.stats
    report.keep(compiled.executor, part.graph, stats)
    report.kernels += stats.kernels
    report.search_s += stats.search_s
    report.compile_s += stats.compile_s
    report.cache_hit = stats.cache == "hit"
    report.arena_bytes += stats.arena_bytes
    part.bound = Bound.of(compiled.executor, weights)
    native = _native(part, compiled, weights, part.bound)
    part.run = native
    if callable(options.verify):
        part.run = _watched(native, part, config, dict(hints), weights.arrays(), options.verify)
    elif options.verify:
        part.run = _verified(native, _oracle(part), report)
    elif not _copies(part, compiled):
        part.direct = _direct(part, compiled, weights)
        part.recipe = _recipe(part, compiled, weights)


def _recipe(part: Part, compiled: Compiled, weights: Weights) -> PartRecipe | None:
    """How another process finds this part; None if constants of its own would be missing there."""
    buffers = compiled.plan.buffers
    data = {b.data.name for b in buffers if b.kind == "constant" and b.data is not None}
    if not data <= set(weights.names):
        return None
    places = {}
    if weights.names:
        inputs = part.inputs[0].graph.find_nodes(op="placeholder")
        places = {node.name: place for place, node in enumerate(inputs)}
    return PartRecipe(compiled.key, {n: places[n] for n in weights.names},
                      compiled.plan.inputs, compiled.executor.fresh)  # fmt: skip


def _native(part: Part, compiled: Compiled, weights: Weights, bound: Bound) -> Runner:
    plan, executor = compiled.plan, compiled.executor
    place = {part.names[n]: i for i, n in enumerate(part.inputs)}
    takes = [place[name] for name in plan.inputs]
    order = [part.dims.index(v.name) for v in plan.dims]
    fresh = list(executor.fresh)
    copies = _copies(part, compiled)
    watched = [place[name] for name in weights.names]
    pointers = compiled.run_pointers
    plain_dims = order == list(range(len(part.dims)))

    def run(
        inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], dims: tuple[int, ...]
    ) -> None:
        if watched and bound.changed(*(current := [inputs[i] for i in watched])) >= 0:
            bound.refresh(*current)
        pointers(
            [inputs[i].data_ptr() for i in takes],
            [outputs[i].data_ptr() for i in fresh],
            dims if plain_dims else tuple(dims[i] for i in order),
        )
        for copy in copies:
            copy(inputs, outputs)

    return run


def _direct(part: Part, compiled: Compiled, weights: Weights) -> Emitter:
    """Source that does what `_native` does, where no copies remain to be done."""
    plan, place = compiled.plan, {part.names[n]: i for i, n in enumerate(part.inputs)}
    order = [part.dims.index(v.name) for v in plan.dims]

    def emit(
        inputs: list[str], outputs: list[str], dims: str, name_of: Callable[[str], str]
    ) -> list[str]:
        lines = []
        if weights.names:
            watched = ", ".join(inputs[place[name]] for name in weights.names)
            changed, refresh = name_of("changed"), name_of("refresh")
            lines.append(f"if {changed}({watched}) >= 0: {refresh}({watched})")
        takes = "".join(f"{inputs[place[name]]}.data_ptr(), " for name in plan.inputs)
        gives = "".join(f"{outputs[i]}.data_ptr(), " for i in compiled.executor.fresh)
        if order != list(range(len(part.dims))):
            dims = f"tuple([{dims}[i] for i in {order}])"
        call = name_of("run_pointers")
        lines.append(f"{call}(({takes}), ({gives}), {dims})")
        return lines

    return emit


Copy = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]


def _copies(part: Part, compiled: Compiled) -> list[Copy]:
    """What is left to do for results that are another result, an input or a constant."""
    executor, found = compiled.executor, []
    first = {}
    for number, spec in enumerate(executor.outputs):
        if spec.kind == "fresh":
            if number not in executor.fresh:
                found.append(_copy_of("output", first[spec.source], number))
            first.setdefault(spec.source, number)
        elif spec.kind == "input" and part.outputs[number].updates is None:
            name = compiled.plan.inputs[spec.source]
            place = [part.names[n] for n in part.inputs].index(name)
            found.append(_copy_of("input", place, number))
        elif spec.kind == "constant":
            found.append(_constant_copy(compiled, number))
    return found


def _copy_of(kind: str, source: int, number: int) -> Copy:
    def copy(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        given = inputs if kind == "input" else outputs
        _flat(outputs[number]).copy_(_flat(given[source]))

    return copy


def _constant_copy(compiled: Compiled, number: int) -> Copy:
    def copy(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        constant = torch.from_numpy(compiled.executor.constant_output(number).reshape(-1))
        out = _flat(outputs[number])
        out.copy_(constant.view(out.dtype))

    return copy


def shaped_inputs(
    part: Part, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """The memory of the inputs by name, as the graph sees it."""
    names = [part.names[n] for n in part.inputs]
    shapes = {n.name: n.shape for n in part.graph.nodes if n.op == "Input"}
    return {
        n: memory_array(t).reshape([e.evaluate(sizes) for e in shapes[n]])
        for n, t in zip(names, inputs, strict=True)
    }


def _oracle(part: Part) -> Runner:
    def run(
        inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], dims: tuple[int, ...]
    ) -> None:
        sizes = dict(zip(part.dims, dims, strict=True))
        results = run_graph(part.graph, shaped_inputs(part, inputs, sizes), sizes)
        for tensor, result in zip(outputs, results, strict=True):
            memory_array(tensor)[...] = result.reshape(-1)

    return run


def _watched(
    native: Runner, part: Part, config: Config, hints: Mapping[str, int],
    weights: Mapping[str, np.ndarray], watch: Callable[..., None],
) -> Runner:  # fmt: skip
    """Hands the part and its inputs to a watcher before each run."""

    def run(
        inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], dims: tuple[int, ...]
    ) -> None:
        sizes = dict(zip(part.dims, dims, strict=True))
        watch(part, shaped_inputs(part, inputs, sizes), inputs, sizes, (config, hints, weights))
        native(inputs, outputs, dims)

    return run


def _verified(native: Runner, oracle: Runner, report: Report) -> Runner:
    """Runs both and notes the largest relative difference."""

    def run(
        inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], dims: tuple[int, ...]
    ) -> None:
        kept = {id(t): t.clone() for t in (*inputs, *outputs)}
        expected = tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in outputs)
        oracle(tuple(kept[id(t)] for t in inputs), expected, dims)
        native(inputs, outputs, dims)
        for got, want in zip(outputs, expected, strict=True):
            if got.numel():
                off = (got.double() - want.double()).abs().nan_to_num().max()
                error = float(off / want.double().abs().nan_to_num().max().clamp(min=1e-30))
                report.max_error = max(report.max_error or 0.0, error)

    return run


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor from its first to its last element."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.detach().as_strided((extent if tensor.numel() else 0,), (1,))


def memory_array(tensor: torch.Tensor) -> np.ndarray:
    """The same as a flat array."""
    flat = _flat(tensor)
    return flat.view(torch.uint16).numpy() if flat.dtype == torch.bfloat16 else flat.numpy()
