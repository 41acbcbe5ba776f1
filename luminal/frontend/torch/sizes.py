"""One graph for all sizes, 1 among them: Dynamo alone makes a second graph for size 1.

In: a frame that Dynamo converts for our backend. Out: its conversion with symbols for sizes of 1
too, no two sizes taken for one, and operators traced as if sizes were not 1. `agrees` compares what
was traced with what operators do at size 1; where it differs, the frame is converted as usual.
Nothing is changed for other backends.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch._dynamo import convert_frame, utils
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.variables.tensor import TensorVariable
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental import _config as settings
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo

from luminal.frontend.torch.collector import resting
from luminal.frontend.torch.positions import keep_positions
from luminal.frontend.torch.reports import count, forget
from luminal.frontend.torch.unconverted import in_eager

__all__ = ["attempt", "check_sizes", "convert_as_usual", "exclude_empty", "install"]

_MOST_SIZES = 4
_OTHER = (5, 7, 11, 13)


class _Diverges(Exception):
    """Operators behave in another way at size 1 than the graph was traced."""


class _State(threading.local):
    """Whether a frame is converted for our backend now, and in this way, is inside operators, and
    met symbols."""

    ours = False
    active = False
    inside = False
    met = False


_STATE = _State()


def install(backend: Callable[..., object]) -> None:
    """Makes Dynamo convert frames for this backend, and only those, in this way."""
    if not (hasattr(convert_frame, "ConvertFrameAssert") and hasattr(utils, "run_node")):
        return  # a version of PyTorch that we do not know
    convert = convert_frame.ConvertFrameAssert.__call__
    evaluate, run_node = ShapeEnv.evaluate_sym_node, utils.run_node

    def converted(self: Any, frame: Any, entry: Any, hooks: Any, state: Any, **rest: Any) -> Any:
        if _STATE.active or _innermost(self._torchdynamo_orig_backend) is not backend:
            return convert(self, frame, entry, hooks, state, **rest)
        before, reports = dict(state), count()
        try:
            with resting(), _ours():
                try:
                    with _generic():
                        return convert(self, frame, entry, hooks, state, **rest)
                except Exception:
                    if not _STATE.met:
                        raise
                state.clear()
                state.update(before)
                forget(reports)
                return convert(self, frame, entry, hooks, state, **rest)
        except Exception as error:
            forget(reports)
            return in_eager(self, frame.f_code, error)

    def evaluated(
        self: Any, node: Any, size_oblivious: bool = False, *args: Any, **rest: Any
    ) -> Any:
        _STATE.met = True
        generic = _STATE.active and _STATE.inside
        return evaluate(self, node, size_oblivious or generic, *args, **rest)

    def ran(tracer: Any, node: Node, *args: Any, **rest: Any) -> Any:
        if _STATE.ours:
            keep_positions(node)
        try:
            with _inside():
                return run_node(tracer, node, *args, **rest)
        except RuntimeError as error:  # Dynamo would break the graph
            if _STATE.active and _STATE.met and _is_of_sizes(error.__cause__):
                raise _Diverges from error
            raise

    _keep_shapes_known()
    convert_frame.ConvertFrameAssert.__call__ = converted  # type: ignore[method-assign]
    ShapeEnv.evaluate_sym_node = evaluated  # type: ignore[method-assign]
    utils.run_node = ran


def _keep_shapes_known() -> None:
    """After `unsqueeze_` and its like, Dynamo takes a tensor's shape to be what it was before."""
    sync = getattr(TensorVariable, "_sync_if_inplace_mutation", None)
    if sync is None:
        return

    def synced(self: Any, tx: Any, version: Any, has_tensor_arg: bool) -> None:
        sync(self, tx, version, has_tensor_arg or _STATE.ours)

    TensorVariable._sync_if_inplace_mutation = synced  # type: ignore[method-assign]


def _is_of_sizes(error: object) -> bool:
    """True if an operator depends on data only because symbols are general."""
    data = isinstance(error, DataDependentOutputException)
    return data and torch.Tag.data_dependent_output not in error.func.tags


@contextmanager
def _ours() -> Iterator[None]:
    before, _STATE.ours = _STATE.ours, True
    try:
        yield
    finally:
        _STATE.ours = before


def _innermost(function: Any) -> Any:
    while hasattr(function, "_torchdynamo_orig_backend"):
        function = function._torchdynamo_orig_backend
    return getattr(function, "compiler_fn", function)


@contextmanager
def _generic() -> Iterator[None]:
    _STATE.active, _STATE.met = True, False
    try:
        with settings.patch(backed_size_oblivious=True, use_duck_shape=False):
            yield
    finally:
        _STATE.active = False


@contextmanager
def _inside() -> Iterator[None]:
    """While operators are traced: their questions whether a size is 1 are answered with no."""
    before, _STATE.inside = _STATE.inside, True
    try:
        yield
    finally:
        _STATE.inside = before


@contextmanager
def attempt() -> Iterator[None]:
    """While our backend runs: any failure, if sizes were taken for general, makes Dynamo convert
    the frame again instead of breaking the graph."""
    try:
        with _inside():
            yield
    except TensorifyScalarRestartAnalysis:
        raise
    except Exception as error:
        if _STATE.active and _STATE.met:
            raise _Diverges(str(error)) from error
        raise


def convert_as_usual() -> None:
    """Makes Dynamo convert the frame again as usual if sizes were taken for general: what cannot
    be compiled may be due to sizes that are equal, which the usual way takes for one."""
    if _STATE.active and _STATE.met:
        raise _Diverges


def exclude_empty(gm: GraphModule, environment: Any) -> list[sympy.Symbol]:
    """Excludes size 0, as Dynamo does; returns the symbols that were taken for general."""
    if not _STATE.active or environment is None:
        return []
    free = [s for s in _symbols(gm) if s not in environment.replacements]
    for symbol in free:
        if environment.backed_var_to_val[symbol] > 0:  # no guard: s >= 1 is true for sympy
            environment.constrain_symbol_range(symbol, 1, int_oo)
    return free


def check_sizes(gm: GraphModule, environment: Any, writes: bool) -> None:
    """Excludes size 0; raises an error where the graph would be wrong at size 1."""
    free = exclude_empty(gm, environment)
    if not free:
        return
    values = environment.backed_var_to_val
    _STATE.met = True
    if len(free) > _MOST_SIZES or writes or environment.deferred_runtime_asserts:
        raise _Diverges
    for ones in itertools.product((False, True), repeat=len(free)):
        sizes = {
            s: sympy.Integer(1) if one else values[s] if values[s] > 1 else sympy.Integer(other)
            for s, one, other in zip(free, ones, _OTHER, strict=False)
        }
        guards = [g.expr.subs(environment.replacements).subs(sizes) for g in environment.guards]
        if any(ones) and not any(g == sympy.false for g in guards):
            with unset_fake_temporarily(), settings.patch(backed_size_oblivious=False):
                _Replay(gm, environment.replacements, sizes).compare()


def _symbols(gm: GraphModule) -> list[sympy.Symbol]:
    found: dict[sympy.Symbol, None] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        for number in _numbers(node.meta.get("example_value")):
            if isinstance(number, torch.SymInt):
                found |= dict.fromkeys(sorted(number.node.expr.free_symbols, key=str))
    return list(found)


def _numbers(value: object) -> Sequence[object]:
    if isinstance(value, torch.Tensor):
        return (*value.shape, *value.stride(), value.storage_offset())
    return (value,)


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch logs, with a traceback, when an operator refuses sizes; here that is an answer."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class _Replay(Interpreter):
    """Runs Dynamo's graph on tensors without data, at given sizes, and compares it with what was
    traced: every shape, and the strides of results and the storage that they share. Writes differ:
    what they reach depends on what is a view, and that on sizes."""

    def __init__(self, gm: GraphModule, equal: Mapping[Any, Any], sizes: Mapping[Any, Any]) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self._equal, self._sizes = equal, sizes
        self._versions: list[tuple[torch.Tensor, int]] = []

    def compare(self) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        inputs = self.module.graph.find_nodes(op="placeholder")
        with mode, _quiet():
            given = [self._input(n.meta["example_value"]) for n in inputs]
            results = self.run(*given)
        output = next(iter(reversed(self.module.graph.nodes)))
        traced = [n.meta.get("example_value") for n in inputs]
        wanted = torch.fx.map_arg(output.args[0], lambda n: n.meta["example_value"])
        written = any(tensor._version != version for tensor, version in self._versions)
        if written or _storages(given, results) != _storages(traced, wanted):
            raise _Diverges
        for result, want in zip(results, wanted, strict=True):
            if isinstance(want, torch.Tensor) and self._ints(want.stride()) != result.stride():
                raise _Diverges

    def run_node(self, n: Node) -> Any:
        traced = n.meta.get("example_value")
        if isinstance(traced, torch.SymFloat):
            return traced.node.hint
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and not result.is_inference():
            self._versions.append((result, result._version))
        if n.op not in ("placeholder", "output") and traced is not None:
            self._same(result, traced)
        return result

    def _same(self, result: object, traced: object) -> None:
        match traced:
            case torch.Tensor():
                same = tuple(result.shape) == self._ints(traced.shape)  # type: ignore[attr-defined]
            case list() | tuple():
                same = len(result) == len(traced)  # type: ignore[arg-type]
                for part, want in zip(result, traced, strict=False):  # type: ignore[call-overload]
                    self._same(part, want)
            case torch.SymInt():
                same = result == self._int(traced)
            case _:
                same = not isinstance(traced, (int, float, bool, str)) or result == traced
        if not same:
            raise _Diverges

    def _int(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        found = value.node.expr.subs(self._equal).subs(self._sizes)
        if not found.is_Integer:
            raise _Diverges
        return int(found)

    def _ints(self, values: Sequence[object]) -> tuple[Any, ...]:
        return tuple(self._int(v) for v in values)

    def _input(self, traced: Any) -> Any:
        if not isinstance(traced, torch.Tensor):
            return self._int(traced)
        made = torch.empty_strided(
            self._ints(traced.shape), self._ints(traced.stride()), dtype=traced.dtype,
            device=traced.device, requires_grad=traced.requires_grad,
        )  # fmt: skip
        return torch.nn.Parameter(made) if isinstance(traced, torch.nn.Parameter) else made


def _storages(inputs: Sequence[object], results: Sequence[object]) -> list[int]:
    """For each result the first tensor, among inputs and results, with its storage."""
    all_of = [t for t in (*inputs, *results) if isinstance(t, torch.Tensor)]
    places = [t.untyped_storage()._cdata for t in all_of]
    return [places.index(p) for p in places]
