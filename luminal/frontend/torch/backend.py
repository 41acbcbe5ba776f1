"""The backend that torch.compile calls: prepass, AOTAutograd, our compilers, the wrapper.

In: Dynamo's graph and example inputs. Out: a callable with eager's results. Whatever AOTAutograd
cannot do runs as Dynamo's graph in eager and is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from luminal.errors import LuminalError
from luminal.frontend.torch.build import build
from luminal.frontend.torch.decompositions import table
from luminal.frontend.torch.options import Options, parse
from luminal.frontend.torch.prepass import prepass
from luminal.frontend.torch.reports import Report, record
from luminal.frontend.torch.wrapper import Notes, wrap

__all__ = ["backend"]

log = logging.getLogger("luminal.torch")
Compiler = Callable[[GraphModule, Sequence[object]], Callable[..., object]]


def backend(
    gm: GraphModule, example_inputs: Sequence[object], *, mode: str | None = None,
    options: Mapping[str, object] | None = None, **_: object,
) -> Callable[..., object]:  # fmt: skip
    """Compiles one graph for torch.compile(backend="luminal")."""
    chosen = parse(mode, options)
    reason = prepass(gm)
    if reason is not None:
        return _whole(gm, reason, chosen)
    notes = Notes(tuple(example_inputs))
    compile_graph = aot_autograd(
        fw_compiler=_compiler("forward", notes, chosen),
        bw_compiler=_compiler("backward", notes, chosen),
        inference_compiler=_compiler("inference", notes, chosen),
        decompositions=table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    try:
        compiled = compile_graph(gm, example_inputs)
    except (TensorifyScalarRestartAnalysis, LuminalError):
        raise
    except RuntimeError as error:
        if "view chain" not in str(error):
            raise
        return _whole(gm, str(error).splitlines()[0], chosen)
    return wrap(compiled, notes, gm, example_inputs)


def _whole(gm: GraphModule, reason: str, options: Options) -> Callable[..., object]:
    """Dynamo's graph itself, in eager."""
    report = record(Report("whole", nodes=len(gm.graph.nodes), reasons={"graph": reason}))
    report.fallback["graph"] += 1
    if options.strict:
        raise LuminalError(f"[torch] the whole graph runs in eager: {reason}.")
    log.info("a whole graph runs in eager: %s", reason)
    return gm.forward


def _compiler(kind: str, notes: Notes, options: Options) -> Compiler:
    def compile_one(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
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
