"""The backend that torch.compile calls: prepass, then the cache on disk, then tracing.

In: Dynamo's graph and example inputs. Out: a callable with eager's results. What traces and
compiles is loaded on first need: a process that finds all its graphs in the cache starts faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch.fx import GraphModule

from luminal.config import Config, from_environment
from luminal.frontend.torch.collector import running
from luminal.frontend.torch.fingerprint import fingerprint, shape_environment
from luminal.frontend.torch.options import Options, parse
from luminal.frontend.torch.prepass import prepass, writes
from luminal.frontend.torch.recall import Recorder, recall
from luminal.frontend.torch.sizes import attempt, check_sizes, exclude_empty, install
from luminal.frontend.torch.wrapper import direct

__all__ = ["backend"]


def backend(
    gm: GraphModule, example_inputs: Sequence[object], *, mode: str | None = None,
    options: Mapping[str, object] | None = None, **_: object,
) -> Callable[..., object]:  # fmt: skip
    """Compiles one graph for torch.compile(backend="luminal")."""
    chosen = parse(mode, options)
    reason = prepass(gm)
    if reason is not None:
        return _tracing().run_whole(gm, reason, chosen)
    with attempt():
        return _compiled(gm, example_inputs, chosen)


def _compiled(
    gm: GraphModule, example_inputs: Sequence[object], chosen: Options
) -> Callable[..., object]:
    config = from_environment().override(**dict(chosen.config))
    key = fingerprint(gm, example_inputs, config) if _may_recall(chosen, config) else None
    found = recall(key, example_inputs, config, chosen.freeze) if key is not None else None
    if found is not None:
        exclude_empty(gm, shape_environment())
        return direct(found, gm)
    recorder = Recorder.start(key)
    check_sizes(gm, shape_environment(), writes(gm))
    try:
        with running():
            call, recipe = _tracing().trace(gm, example_inputs, chosen)
    except TensorifyScalarRestartAnalysis:
        recorder.store_restart(config)
        raise
    if recipe is not None:
        recorder.store(recipe, config)
    return call


def _may_recall(options: Options, config: Config) -> bool:
    """True if nobody wants to see how the program comes about, or to compare it."""
    watched = config.debug or config.dump or options.verify
    return options.executor == "native" and config.cache_dir is not None and not watched


def _tracing() -> object:
    return import_module("luminal.frontend.torch.tracing")


install(backend)
