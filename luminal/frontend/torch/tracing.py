"""Tracing: AOTAutograd, our compilers, the wrapper.

In: Dynamo's graph after the prepass, example inputs, options. Out: a callable with eager's results.
Whatever AOTAutograd cannot do runs as Dynamo's graph in eager and is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from luminal.errors import LuminalError
from luminal.frontend.torch.build import build
from luminal.frontend.torch.decompositions import table
from luminal.frontend.torch.folded import Folded, expand, fold
from luminal.frontend.torch.options import Options
from luminal.frontend.torch.recipe import Recipe
from luminal.frontend.torch.reports import Report, record, warn_once
from luminal.frontend.torch.sizes import convert_as_usual
from luminal.frontend.torch.wrapper import Notes, is_direct, left_its_base, views_of_merged, wrap

__all__ = ["Traced", "run_whole", "trace"]

log = logging.getLogger("luminal.torch")
Compiler = Callable[[GraphModule, Sequence[object]], Callable[..., object]]


Traced = tuple[Callable[..., object], Recipe | None]
"""What Dynamo is to call; its recipe, if calls go straight to what we compiled."""


def trace(gm: GraphModule, example_inputs: Sequence[object], chosen: Options) -> Traced:
    """Traces and compiles one graph."""
    if any(map(left_its_base, example_inputs)):  # PyTorch's fake inputs would still share memory
        return run_whole(gm, "set_ gave a view that is an input other memory", chosen), None
    folded = fold(gm, _alone) if _needs_no_gradients(example_inputs) else None
    try:
        return _traced(gm, folded, example_inputs, chosen)
    except (RestartAnalysis, LuminalError):
        raise
    except Exception as error:  # writes through odd views, set_: eager does what AOTAutograd cannot
        convert_as_usual()
        log.debug("AOTAutograd failed", exc_info=True)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return run_whole(gm, reason, chosen), None


def _needs_no_gradients(inputs: Sequence[object]) -> bool:
    tensors = (x for x in inputs if isinstance(x, torch.Tensor))
    return not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors)


def _traced(
    gm: GraphModule, folded: Folded | None, example_inputs: Sequence[object], chosen: Options
) -> Traced:
    notes = Notes(tuple(example_inputs))
    bodies = folded.bodies if folded is not None else ()
    compile_graph = aot_autograd(
        fw_compiler=_compiler("forward", notes, chosen),
        bw_compiler=_compiler("backward", notes, chosen),
        inference_compiler=_compiler("inference", notes, chosen, bodies),
        decompositions=table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    compiled = compile_graph(gm if folded is None else folded.module, example_inputs)
    if notes.metadata is not None:
        notes.metadata.bw_donated_idxs = []  # saved tensors stay: graphs may be retained
    if views_of_merged(notes):
        return run_whole(
            gm, "results are views of inputs that overlap and are written", chosen
        ), None
    return wrap(compiled, notes, gm, example_inputs)


def _alone(gm: GraphModule, example_inputs: Sequence[object]) -> GraphModule | None:
    """The ATen graph of a part without gradients whose results are its own and that writes into
    no input; None of any other part."""
    notes, found = Notes(tuple(example_inputs)), []

    def keep(gm: GraphModule, _: Sequence[object]) -> Callable[..., object]:
        notes.inference += 1
        notes.note(gm)
        found.append(gm)
        return gm.forward

    compile_graph = aot_autograd(
        fw_compiler=keep, inference_compiler=keep, decompositions=table(),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    compile_graph(gm, example_inputs)
    return found[0] if is_direct(notes, len(example_inputs)) else None


def run_whole(gm: GraphModule, reason: str, options: Options) -> Callable[..., object]:
    """Dynamo's graph itself, in eager."""
    report = record(Report("whole", nodes=len(gm.graph.nodes), reasons={"graph": reason}))
    report.fallback["graph"] += 1
    if options.strict:
        raise LuminalError(f"[torch] the whole graph runs in eager: {reason}.")
    if options.fallback == "warn":
        warn_once(report)
    log.info("a whole graph runs in eager: %s", reason)
    return gm.forward


def _compiler(
    kind: str, notes: Notes, options: Options, bodies: Sequence[GraphModule] = ()
) -> Compiler:
    def compile_one(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        expand(gm, bodies)
        if kind == "inference":
            notes.inference += 1
        else:
            notes.training += 1
        if kind != "backward":
            notes.note(gm)
        if kind == "forward":
            log.info("gradients are on: compiling forward and backward; inference is faster "
                     "under torch.no_grad()")  # fmt: skip
        parameters = notes.parameters() if kind == "inference" else {}
        with unset_fake_temporarily():
            notes.inner = build(gm, kind, options, parameters)
        return notes.inner

    return compile_one
