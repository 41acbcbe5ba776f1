"""`luminal.compile`: a Python function of lazy tensors becomes a compiled callable.

In: a function (or `luminal.nn.Module`) and example inputs. Out: a `Function` that takes arrays and
returns arrays in the structure that the function returned. Traces once; compiles nothing itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from luminal.compiler import Compiled, Progress, Stats, compile_graph
from luminal.config import from_environment
from luminal.errors import ArgumentError, DTypeError
from luminal.frontend.tensor import Tensor, Update, tensor, to_graph
from luminal.frontend.traced import Dim, InputSpec, Traced
from luminal.ir import DType, Expr, ExprLike, Graph, Plan, Var, dim, from_numpy

__all__ = ["Function", "compile_function", "realize_graph", "trace_function"]

DynamicShapes = Mapping[int, Mapping[int, "str | Dim"]]


class Function:
    """A compiled function. Call it with arrays (NumPy, DLPack) in the order of the examples.

    `plan` holds the kernels that won, `stats` times and sizes, `explain()` what was found."""

    __slots__ = ("_restore", "_run", "compiled")

    def __init__(self, compiled: Compiled, structure: object) -> None:
        self.compiled = compiled
        self._run = compiled.executor
        self._restore = None if structure is _SEQUENCE else _restorer(structure)

    def __call__(self, *inputs: object) -> Any:
        """The results for these inputs."""
        results = self._run(*inputs)
        return results if self._restore is None else self._restore(results)

    @property
    def plan(self) -> Plan:
        """Kernels and buffers."""
        return self.compiled.plan

    @property
    def stats(self) -> Stats:
        """Times and sizes."""
        return self.compiled.stats

    def explain(self) -> str:
        """What was found, as text."""
        return self.compiled.explain()


_SEQUENCE = object()


def _flatten(value: object, leaves: list[Tensor | Update]) -> object:
    """Leaves in order, and a template of the structure with their numbers."""
    match value:
        case Tensor() | Update():
            leaves.append(value)
            return len(leaves) - 1
        case dict():
            return {k: _flatten(v, leaves) for k, v in value.items()}
        case list() | tuple():
            items = [_flatten(v, leaves) for v in value]
            if hasattr(value, "_fields"):
                return type(value)(*items)
            return type(value)(items)
        case int() | float() | np.ndarray():
            leaves.append(tensor(value))
            return len(leaves) - 1
    raise ArgumentError(
        f"[compile] the function must return tensors. Got {type(value).__name__}; expected a "
        "Tensor or a tuple, list or dict of tensors."
    )


def _restorer(template: object) -> Callable[[tuple[Any, ...]], Any]:
    if template == 0 and isinstance(template, int):
        return lambda results: results[0]

    def restore(part: Any, results: tuple[Any, ...]) -> Any:
        match part:
            case int():
                return results[part]
            case dict():
                return {k: restore(v, results) for k, v in part.items()}
        items = [restore(v, results) for v in part]
        return type(part)(*items) if hasattr(part, "_fields") else type(part)(items)

    return lambda results: restore(template, results)


def _example(value: object, number: int) -> tuple[tuple[int | Expr | Var, ...], DType]:
    if isinstance(value, InputSpec):
        return tuple(value.shape), value.dtype
    if not isinstance(value, np.ndarray):
        try:
            value = np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise ArgumentError(
                f"[compile] example {number} is not an array. Got {type(value).__name__} "
                f"({error}); expected a NumPy array, a DLPack object or a luminal.InputSpec."
            ) from None
    dtype = from_numpy(value.dtype)
    if dtype is None:
        raise DTypeError(
            f"[compile] example {number} has dtype {value.dtype}, which luminal lacks. "
            "Try float32 or int64."
        )
    return value.shape, dtype


def _symbolic(
    shape: tuple[ExprLike, ...], marks: Mapping[int, str | Dim], known: dict[str, Expr], number: int
) -> tuple[ExprLike, ...]:
    sizes = list(shape)
    for axis, mark in marks.items():
        if not -len(sizes) <= axis < len(sizes):
            raise ArgumentError(
                f"[compile] dynamic_shapes names axis {axis} of example {number}. Got rank "
                f"{len(sizes)}; expected an axis below it."
            )
        wanted = mark if isinstance(mark, Dim) else Dim(mark)
        size = sizes[axis]
        if isinstance(size, int) and not wanted.lo <= size <= wanted.hi:
            raise ArgumentError(
                f"[compile] example {number} has size {size} along axis {axis}. Got a dynamic "
                f"dimension {wanted.name} from {wanted.lo} to {wanted.hi}; expected it to fit."
            )
        sizes[axis] = known.setdefault(wanted.name, dim(wanted.name, wanted.lo, wanted.hi))
    return tuple(sizes)


def trace_function(
    fn: Callable[..., Any], example_inputs: Sequence[object],
    dynamic_shapes: DynamicShapes | None = None,
) -> Traced:  # fmt: skip
    """The graph of `fn` for inputs like the examples; errors as of `compile_function`."""
    if not isinstance(example_inputs, list | tuple):
        raise ArgumentError(
            f"[compile] example_inputs must be a list or tuple of arrays. Got "
            f"{type(example_inputs).__name__}. Try [x]."
        )
    marks, known = dict(dynamic_shapes or {}), {}
    stray = set(marks) - set(range(len(example_inputs)))
    if stray:
        raise ArgumentError(f"[compile] dynamic_shapes names inputs {sorted(stray)}, which do not "
                            f"exist. Got {len(example_inputs)} examples.")  # fmt: skip
    inputs, hints = [], {}
    for number, value in enumerate(example_inputs):
        shape, dtype = _example(value, number)
        sizes = _symbolic(shape, marks.get(number, {}), known, number)
        for size, mark in zip(shape, sizes, strict=True):
            if isinstance(size, int) and isinstance(mark, Expr):
                hints.setdefault(repr(mark), size)
        inputs.append(Tensor.from_input(f"x{number}", sizes, dtype))
    leaves: list[Tensor | Update] = []
    structure = _flatten(fn(*inputs), leaves)
    graph = to_graph(leaves, inputs, [f"y{n}" for n in range(len(leaves))])
    return Traced(graph, structure, hints, tuple(x.source.name for x in inputs))


def compile_function(
    fn: Callable[..., Any], example_inputs: Sequence[object], *,
    dynamic_shapes: DynamicShapes | None = None, device: str | None = None,
    search: str | float | None = None, numerics: str | None = None, threads: int | None = None,
    seed: int | None = None, progress: Progress | None = None,
) -> Function:  # fmt: skip
    """Compile `fn` for inputs like the examples (arrays, scalars or `InputSpec`s).

    `dynamic_shapes` maps input number to {axis: name or Dim}: those sizes may change from call to
    call without compiling again, and equal names are equal sizes. `search` is 'off', 'fast',
    'full' or seconds; `numerics` 'exact', 'relaxed' or 'fast'. ArgumentError, ShapeError or
    DTypeError where something does not fit.

    >>> import luminal
    >>> double = luminal.compile(lambda x: x * 2, [np.ones(3, np.float32)], search="off")
    >>> double(np.array([1, 2, 3], np.float32)).tolist()
    [2.0, 4.0, 6.0]
    """
    config = from_environment().override(
        device=device, search=search, numerics=numerics, threads=threads, seed=seed
    )
    traced = trace_function(fn, example_inputs, dynamic_shapes)
    compiled = compile_graph(traced.graph, config, hints=traced.hints, progress=progress)
    structure, count = traced.structure, len(compiled.graph.outputs)
    plain = type(structure) is tuple and structure == tuple(range(count))
    return Function(compiled, _SEQUENCE if plain else structure)


def realize_graph(graph: Graph) -> list[np.ndarray]:
    """The outputs of a graph without inputs: what `Tensor.numpy()` computes."""
    compiled = compile_graph(graph, from_environment().override(search="off"))
    return [np.asarray(a) for a in compiled()]
