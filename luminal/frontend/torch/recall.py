"""Compiled graphs on disk: a second process neither traces, nor translates, nor searches.

In: the fingerprint of a graph from Dynamo. Out: its callable, made from a stored recipe and the
stored programs, or None. Whatever is missing or does not fit counts as not found.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState

from luminal.config import Config
from luminal.frontend.torch.fingerprint import shape_environment
from luminal.frontend.torch.recipe import Bound, Function, PartRecipe, Recipe, bind
from luminal.frontend.torch.reports import record, reports
from luminal.frontend.torch.weights import Weights
from luminal.ir.graph import ConstantData
from luminal.programs import Cache, load_executor

__all__ = ["Recorder", "recall"]

_KIND = "torch"


def recall(key: str, inputs: Sequence[object], config: Config, freeze: bool) -> Function | None:
    """The callable of the graph that is stored under this key, or None; adds its guards.

    Restarts Dynamo with some numbers fixed where tracing did so.
    """
    data = Cache(config.cache_dir).get(_KIND, key)
    if data is None:
        return None
    try:
        recipe, report, guards, restart = pickle.loads(data)
        parts = {n: _load(p, inputs, config, freeze) for n, p in recipe.parts.items()}
    except Exception:  # another version of Python, or not ours
        return None
    if restart:
        TensorifyState.force_specializations.update(restart)
        raise TensorifyScalarRestartAnalysis
    found = {n: p for n, p in parts.items() if p is not None}
    if len(found) < len(parts):
        return None
    environment = shape_environment()
    for guard in guards:
        environment.evaluate_expr(guard)
    report = replace(report, cache_hit=True, recalled=True, search_s=0.0, compile_s=0.0)
    for part in found.values():
        report.keep(part.run_pointers.__self__)  # type: ignore[attr-defined]
    record(report)
    return bind(recipe, found)


def _load(part: PartRecipe, inputs: Sequence[object], config: Config, freeze: bool) -> Bound | None:
    tensors = {name: inputs[place] for name, place in part.weights.items()}
    weights = Weights(tensors, freeze)  # type: ignore[arg-type]
    constants = {name: ConstantData(name, array) for name, array in weights.arrays().items()}
    executor = load_executor(config, part.key, constants)
    if executor is None or executor.program.plan.inputs != part.inputs:
        return None
    return Bound.of(executor, weights) if executor.fresh == part.fresh else None


@dataclass(slots=True)
class Recorder:
    """Stores what becomes of a graph; remembers how many guards there were before."""

    key: str | None
    environment: Any
    guards: int

    @classmethod
    def start(cls, key: str | None) -> Recorder:
        """To be called before tracing."""
        environment = shape_environment()
        return cls(key, environment, len(environment.guards) if environment is not None else 0)

    def store(self, recipe: Recipe, config: Config) -> None:
        """To be called when all is compiled."""
        new = [] if self.environment is None else self.environment.guards[self.guards :]
        if recipe.storable:
            self._put(config, recipe, reports()[-1].facts(), [g.expr for g in new], ())

    def store_restart(self, config: Config) -> None:
        """To be called when tracing asks Dynamo to start again."""
        self._put(config, Recipe((), "", {}), None, [], (*TensorifyState.force_specializations,))

    def _put(self, config: Config, *entry: object) -> None:
        if self.key is not None:
            Cache(config.cache_dir).put(_KIND, self.key, pickle.dumps(entry))
