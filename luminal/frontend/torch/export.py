"""Export: a PyTorch model as one graph of luminal, with its weights and its signature.

In: a module, a function or an ExportedProgram, example inputs. Out: a `Traced`. What would run in
eager under torch.compile is an UnsupportedError here that names the operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.fx.experimental import _config

from luminal.errors import ArgumentError, UnsupportedError
from luminal.frontend.tensor import Tensor, Update, index_tensor, scalar, to_graph, update
from luminal.frontend.torch.decompositions import table
from luminal.frontend.torch.export_sizes import right_at_one
from luminal.frontend.torch.layout import DTYPES
from luminal.frontend.torch.nodes import is_scalar_math, name_of, value_of
from luminal.frontend.torch.phases import Phase, split
from luminal.frontend.torch.prepass import interpolate
from luminal.frontend.torch.symbols import SYMBOLIC, Symbols
from luminal.frontend.torch.translate import Translator, refusal
from luminal.frontend.traced import Dim, Leaf, Traced
from luminal.ir.expr import Var, axis_var
from luminal.ir.view import View

__all__ = ["accepts", "trace_model"]

_CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range")
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_aten = torch.ops.aten
_NEAREST = (_aten.upsample_nearest1d.vec, _aten.upsample_nearest2d.vec,
            _aten.upsample_nearest3d.vec)  # fmt: skip


def accepts(model: object, example_inputs: object) -> bool:
    """True for a model of PyTorch, or a function whose examples are PyTorch's."""
    if isinstance(model, (torch.nn.Module, ExportedProgram)):
        return True
    leaves = torch.utils._pytree.tree_leaves(example_inputs)
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def trace_model(model: Any, example_inputs: Any, dynamic_shapes: Any) -> Traced:
    """The graph of a model; ArgumentError or UnsupportedError where it cannot be exported."""
    names: dict[tuple[str, int], str] = {}
    if not isinstance(model, ExportedProgram):
        program, names = _exported(model, example_inputs, dynamic_shapes)
    elif dynamic_shapes is not None:
        raise ArgumentError("[export] an exported program has its dynamic shapes already. "
                            "Try without dynamic_shapes.")  # fmt: skip
    else:
        program = model
    decompositions = {**table(), **dict.fromkeys(_NEAREST, interpolate)}
    with torch.no_grad(), _config.patch(backed_size_oblivious=True):
        with _explained():
            program = program.run_decompositions(decompositions)
        return _Export(program, names).traced()


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever torch.export raises becomes an error of ours."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())[:400]
        raise UnsupportedError(
            f"[export] torch.export cannot trace the model. Got {type(error).__name__}: {text}"
        ) from error


# ---- torch.export


def _exported(
    model: Any, example_inputs: Any, dynamic_shapes: Any
) -> tuple[ExportedProgram, dict[tuple[str, int], str]]:
    """The exported program, and the names of dynamic dims by input and axis."""
    if isinstance(model, torch.nn.Module):
        module = getattr(model, "_orig_mod", model)  # of torch.compile
    else:
        module = torch.nn.Module()
        module.forward = model
    positional, named = _apart(_arguments(example_inputs))
    shapes, names = _shapes(dynamic_shapes, positional, named)
    program = _traced(module, positional, named, shapes)
    order = dict(enumerate(program.graph_signature.user_inputs))
    return program, {(order.get(key, key), axis): name for (key, axis), name in names.items()}  # type: ignore[misc]


def _traced(module: Any, positional: Any, named: Any, shapes: Any) -> ExportedProgram:
    """The program for all sizes, 1 among them, if it is right for those; else as PyTorch makes it:
    sizes that may vary are 2 at least."""
    for general in (True, False):
        try:
            with _explained(), torch.no_grad(), _config.patch(backed_size_oblivious=general):
                program = torch.export.export(module, positional, named, dynamic_shapes=shapes)
        except UnsupportedError:
            if not general or shapes is None:
                raise
            continue
        if not general or right_at_one(program):
            break
    return program


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    match example_inputs:
        case dict():
            return (), dict(example_inputs)
        case list() | tuple():
            return tuple(example_inputs), {}
    raise ArgumentError(
        f"[export] example_inputs must be a list, tuple or dict of arguments. Got "
        f"{type(example_inputs).__name__}. Try [x]."
    )


def _apart(arguments: Any) -> Any:
    """The arguments where no tensor shares memory with another: what is one tensor in the examples
    would be taken for one in all calls."""
    seen: set[int] = set()

    def apart(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        place = leaf.untyped_storage().data_ptr()
        known = place in seen
        seen.add(place)
        return leaf.detach().clone() if known and place else leaf

    return torch.utils._pytree.tree_map(apart, arguments)


def _shapes(
    given: Any, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, dict[tuple[int | str, int], str]]:
    """`given` as torch.export wants it, and the names in it by input and axis."""
    whole = isinstance(given, list | tuple)
    if not whole and not isinstance(given, Mapping):
        return given, {}
    names: dict[tuple[int | str, int], str] = {}
    known: dict[str, Any] = {}

    def mark(key: int | str, axis: int, value: Any) -> Any:
        if isinstance(value, str):
            value = Dim(value)
        if isinstance(value, Dim):
            limits = {"min": value.lo, "max": value.hi}
            known.setdefault(value.name, torch.export.Dim(value.name, **limits))
            value = known[value.name]
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and name.isidentifier():
            names[key, axis] = name
        return value

    def spec(key: int | str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(a, int) for a in value):
            return value
        return {axis: mark(key, axis, v) for axis, v in value.items()}

    if whole:
        return tuple(spec(n, value) for n, value in enumerate(given)), names
    keys: Sequence[int | str] = range(len(positional)) if positional else [*named]
    if not {*given} <= {*keys}:
        if positional and all(isinstance(k, str) for k in given):
            return {k: spec(k, v) for k, v in given.items()}, names
        raise ArgumentError(
            f"[export] dynamic_shapes names inputs that do not exist. Got {[*given]}; expected "
            f"some of {[*keys]}."
        )
    specs = {key: spec(key, given.get(key)) for key in keys}
    return (tuple(specs.values()) if positional else specs), names


# ---- translation


class _Inputs(Translator):
    """A translator whose inputs are contiguous, whatever the strides of the examples."""

    def _input(self, node: Node) -> object:
        fake: Any = value_of(node)
        name = self.phase.names.get(node, node.name)  # type: ignore[attr-defined]
        tensor = Tensor.from_input(name, self.symbols.exprs(fake.shape), DTYPES[fake.dtype])
        self._memory[node] = tensor
        return tensor


class _Named(Phase):
    """A phase that knows what to call the inputs."""

    names: dict[Node, str]


class _Export:
    """One exported program on its way to a graph."""

    def __init__(self, program: ExportedProgram, names: Mapping[tuple[str, int], str]) -> None:
        self.program, self.names = program, names
        self.gm: GraphModule = program.graph_module
        for node in reversed(list(self.gm.graph.nodes)):
            if node.op == "call_function" and not node.users and _is_check(node):
                self.gm.graph.erase_node(node)
        self.symbols = Symbols(self.gm.graph)
        self._name_dims()
        self.places = {n.name: n for n in self.gm.graph.nodes if n.op == "placeholder"}
        self.weights: dict[str, np.ndarray] = {}

    def _name_dims(self) -> None:
        """Symbols of PyTorch (s77) get the names that the user gave."""
        hints = self.symbols.hints()
        for symbol, (node, axis) in self.symbols.sources.items():
            name = self.names.get((node.name, axis or 0))
            if name is not None and axis is not None and name not in hints:
                old = self.symbols.var(symbol)
                self.symbols._vars[symbol] = Var(name, old.lo, old.hi)
                hints[name] = hints[str(symbol)]

    def traced(self) -> Traced:
        """The whole of it."""
        phase = self._phase()
        translator = _Inputs(self.gm, self.symbols, phase, set())
        translator._inside = set(phase.nodes)
        values = translator._values
        names: dict[Node, str] = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind in _STATE:
                node = self.places[spec.arg.name]
                names[node] = spec.target or node.name
                self._bind(node, names[node], values)
        phase.names = names
        inputs = [self.places[n] for n in self._user_inputs()]
        for node in (*inputs, *phase.nodes):
            translator.value(node)
        results, structure = self._results(translator)
        if translator.refused:
            self._refuse({name_of(n.target): why for n, why in translator.refused.items()})
        results += translator._errors.values()
        memory = [translator._memory[n] for n in inputs]
        state = [t for n, t in translator._memory.items() if n not in inputs]
        graph = to_graph(results, [*memory, *state], [f"y{n}" for n in range(len(results))])
        used = {t.source.name for t in state}
        weights = {name: array for name, array in self.weights.items() if name in used}
        hints = {v.name: self.symbols.hints()[v.name] for v in graph.dims}
        return Traced(graph, structure, hints, tuple(n.name for n in inputs), weights,
                      tuple(translator._errors))  # fmt: skip

    def _user_inputs(self) -> list[str]:
        found = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind is not InputKind.USER_INPUT or not hasattr(spec.arg, "name"):
                continue
            value = value_of(self.places[spec.arg.name])
            if isinstance(value, SYMBOLIC):
                raise UnsupportedError(
                    f"[export] the input {spec.arg.name} is a number that may change. Expected "
                    "tensors. Try passing it as a tensor."
                )
            if isinstance(value, torch.Tensor):
                found.append(spec.arg.name)
        return found

    def _phase(self) -> _Named:
        """All nodes as one phase; UnsupportedError if some would run in eager."""
        reasons: dict[str, str] = {}

        def supports(node: Node) -> bool:
            reason = refusal(node, self.symbols)
            if reason is not None and not is_scalar_math(node):
                reasons[name_of(node.target)] = reason
            return reason is None

        found = split(self.gm.graph, self.symbols, supports, set())
        if reasons or found.copies:
            self._refuse(reasons or {"aten.copy_.default": "a write into an input"})
        return _Named(True, [n for p in found.phases for n in p.nodes])

    def _refuse(self, reasons: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name} ({why})" for name, why in sorted(reasons.items()))
        raise UnsupportedError(
            f"[export] operators that luminal does not compile. Got {listed}; "
            "expected none. Try torch.compile(backend='luminal'), which runs them in eager."
        )

    def _bind(self, node: Node, name: str, values: dict[Node, object]) -> None:
        """A parameter, buffer or lifted constant: a literal if it is a single number."""
        program = self.program
        tensor = program.state_dict.get(name)
        tensor = program.constants[name] if tensor is None else tensor
        tensor = tensor.detach()
        if tensor.dtype not in DTYPES or tensor.device.type != "cpu":
            if node.users:
                self._refuse({name: f"a weight of {tensor.dtype} on {tensor.device}"})
            return
        if not tensor.dim():
            values[node] = scalar(tensor.item(), DTYPES[tensor.dtype])
            return
        tensor = tensor.contiguous()
        raw = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        self.weights[name] = raw.numpy()

    def _results(self, translator: Translator) -> tuple[list[Tensor | Update], object]:
        """What the graph computes, and the structure of what the model returns."""
        output = next(n for n in self.gm.graph.nodes if n.op == "output")
        results: list[Tensor | Update] = []
        leaves: list[object] = []
        specs = self.program.graph_signature.output_specs
        for spec, node in zip(specs, output.args[0], strict=True):
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                target = translator._memory[self.places[spec.target or ""]]
                results.append(update(target, translator.value(node)))  # type: ignore[arg-type]
            elif spec.kind is OutputKind.USER_OUTPUT:
                leaves.append(self._leaf(node, translator, results))
            else:
                raise UnsupportedError(
                    f"[export] the model changes its state {spec.target!r}. Expected results only. "
                    "Try model.eval(), or pass the state as an input."
                )
        return results, self.program.call_spec.out_spec.unflatten(leaves)

    def _leaf(self, node: object, translator: Translator, results: list[Tensor | Update]) -> object:
        value = translator.value(node) if isinstance(node, Node) else node
        if not isinstance(value, Tensor):
            if value is None or isinstance(value, bool | int | float | str):
                return Leaf(value)
            value = _as_tensor(value)
        results.append(value)
        return len(results) - 1


def _is_check(node: Node) -> bool:
    return name_of(node.target).removeprefix("aten.").startswith(_CHECKS)


def _as_tensor(size: Any) -> Tensor:
    """A symbolic size as a tensor of one number."""
    vector = index_tensor(size, axis_var("i", 1), size + 1)
    return vector.through(View((), vector.dims, (axis_var("i", 1).extent - 1,)))
