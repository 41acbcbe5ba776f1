"""What a compiled callable accepts: number, dtypes and shapes of its inputs, values of its dims.

In: a Plan and the caller's objects. Out: contiguous NumPy arrays (zero-copy where possible) and
the dims, or a LuminalError that says what is wrong. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, DTypeError, InternalError, ShapeError
from luminal.ir.expr import Expr, Var, ceil_div, const
from luminal.ir.plan import Buffer, Plan
from luminal.runtime.memory import compile_exprs

__all__ = ["Signature", "array_shape"]

Dims = tuple[int, ...]
_RAW_BITS = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
_KEEP = 4096  # shapes remembered as good


def array_shape(buffer: Buffer) -> tuple[Expr, ...]:
    """Shape of the NumPy array of a buffer: 4-bit types lie two to a byte."""
    if buffer.dtype.bits != 4 or not buffer.shape:
        return buffer.shape
    return (*buffer.shape[:-1], ceil_div(buffer.shape[-1], 2))


class Signature:
    """The inputs of a plan.

    `known(*inputs)` is the fast path: the dims, if arrays of just these dtypes and shapes have
    been accepted before, else None (AttributeError or TypeError on other objects). `accept` is
    the thorough way.
    """

    __slots__ = ("_dtypes", "_remembered", "_shapes", "_solvers", "buffers", "dims", "known")

    def __init__(self, plan: Plan) -> None:
        self.dims = plan.dims
        self.buffers = tuple(plan.buffer(name) for name in plan.inputs)
        self._dtypes = [b.dtype.np for b in self.buffers]
        self._shapes = compile_exprs(plan.dims, [e for b in self.buffers for e in array_shape(b)])
        self._remembered: dict[tuple[tuple[int, ...], ...], Dims] = {}
        self._solvers = [self._solver(v) for v in plan.dims]
        self.known = self._compile_known()

    def _compile_known(self) -> Callable[..., Dims | None]:
        names = [f"a{i}" for i in range(len(self.buffers))]
        scope: dict[str, Any] = {f"t{i}": d for i, d in enumerate(self._dtypes)}
        key = "".join(f"{n}.shape, " for n in names)
        tests = " and ".join(f"a{i}.dtype is t{i}" for i in range(len(names))) or "True"
        scope["get"] = self._remembered.get
        return eval(f"lambda {', '.join(names)}: get(({key})) if {tests} else None", scope)

    def _solver(self, var: Var) -> tuple[int, int, int, int] | None:
        """(input, dimension, factor, addend) of an extent factor * var + addend."""
        best: tuple[int, int, int, int] | None = None
        for number, buffer in enumerate(self.buffers):
            for position, extent in enumerate(array_shape(buffer)):
                factor = extent.coefficient(var) if extent.variables() == {var} else None
                if factor is None or not factor.value:
                    continue
                addend = (extent - factor * var).value
                if addend is not None and (best is None or abs(factor.value) < abs(best[2])):
                    best = (number, position, factor.value, addend)
        return best

    def accept(
        self, inputs: Sequence[object], given: Mapping[str, int] | None = None
    ) -> tuple[list[np.ndarray], Dims]:
        """C-contiguous arrays and the dims; `given` are dims that no input's shape shows."""
        if len(inputs) != len(self.buffers):
            raise ArgumentError(
                f"[call] wrong number of inputs. Got {len(inputs)}; expected {len(self.buffers)}: "
                f"{', '.join(b.name for b in self.buffers)}."
            )
        arrays = [
            _as_array(value, buffer, dtype, number)
            for number, (value, buffer, dtype) in enumerate(
                zip(inputs, self.buffers, self._dtypes, strict=True)
            )
        ]
        dims = self.dims_of([a.shape for a in arrays], given)
        return [np.ascontiguousarray(a).reshape(a.shape) for a in arrays], dims

    def dims_of(
        self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int] | None = None
    ) -> Dims:
        """The values of the dims for inputs of these shapes; ShapeError if they do not fit."""
        key = tuple(shapes)
        dims = None if given else self._remembered.get(key)
        if dims is not None:
            return dims
        dims = self._check_shapes(shapes, given or {})
        if not given:
            if len(self._remembered) >= _KEEP:
                self._remembered.clear()
            self._remembered[key] = dims
        return dims

    def _check_shapes(self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]) -> Dims:
        for number, (shape, buffer) in enumerate(zip(shapes, self.buffers, strict=True)):
            if len(shape) != len(buffer.shape):
                raise ShapeError(
                    f"[call] {_name(number, buffer)} has the wrong rank. Got shape "
                    f"{tuple(shape)}; expected {_shape_text(buffer)}."
                )
        dims = tuple(self._solve(n, shapes, given) for n in range(len(self.dims)))
        wanted = iter(self._shapes(*dims))
        for number, (shape, buffer) in enumerate(zip(shapes, self.buffers, strict=True)):
            expected = tuple(next(wanted) for _ in shape)
            if tuple(shape) != expected:
                where = ", ".join(f"{v.name}={n}" for v, n in zip(self.dims, dims, strict=True))
                raise ShapeError(
                    f"[call] {_name(number, buffer)} has the wrong shape. Got {tuple(shape)}; "
                    f"expected {_shape_text(buffer)}"
                    + (f" = {expected} with {where}." if where else ".")
                )
        return dims

    def _solve(
        self, position: int, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]
    ) -> int:
        var, solver = self.dims[position], self._solvers[position]
        if var.name in given:
            value, source = int(given[var.name]), "dims"
        elif solver is not None:
            number, axis, factor, addend = solver
            extent = shapes[number][axis]
            source = f"{_name(number, self.buffers[number])} of shape {tuple(shapes[number])}"
            value, rest = divmod(extent - addend, factor)
            if rest:
                raise ShapeError(
                    f"[call] dimension {axis} of {source} does not fit. Got {extent}; expected "
                    f"{const(factor) * var + addend} for a whole {var.name}."
                )
        else:
            raise ArgumentError(
                f"[call] no input's shape tells the dimension {var.name}. Got {list(given)}; "
                f"expected its value. Try dims={{'{var.name}': ...}}."
            )
        if not var.lo <= value <= var.hi:
            raise ShapeError(
                f"[call] dimension {var.name} is out of its range. Got {value} (from {source}); "
                f"expected {var.lo} to {var.hi}. Try compiling with wider dynamic shapes."
            )
        return value


def _name(number: int, buffer: Buffer) -> str:
    return f"input {number} ('{buffer.name}')"


def _shape_text(buffer: Buffer) -> str:
    return "(" + ", ".join(map(str, array_shape(buffer))) + ("," * (len(buffer.shape) == 1)) + ")"


def _as_array(value: Any, buffer: Buffer, dtype: np.dtype, number: int) -> np.ndarray:
    """`value` as an array of `dtype`, without a copy for arrays and DLPack objects."""
    if not isinstance(value, np.ndarray):
        value = _foreign(value, buffer, dtype, number)
    if _RAW_BITS.get(value.dtype.name) == buffer.dtype.name:
        value = value.view(dtype)
    if value.dtype != dtype:
        raise DTypeError(
            f"[call] {_name(number, buffer)} has the wrong dtype. Got {value.dtype.name}; expected "
            f"{buffer.dtype.name} ({dtype.name} array). Try .astype('{dtype.name}')."
        )
    return value


def _foreign(value: Any, buffer: Buffer, dtype: np.dtype, number: int) -> np.ndarray:
    if isinstance(value, (bool, int, float, np.generic)) and not buffer.shape:
        return np.asarray(value, None if isinstance(value, np.generic) else dtype)
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
            return np.asarray(value)
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ArgumentError(
            f"[call] {_name(number, buffer)} is not an array. Got {type(value).__name__} "
            f"({error}); expected a NumPy array, DLPack, __array_interface__ or a buffer."
        ) from None


def check_layouts(plan: Plan) -> None:
    """InternalError if an input or output is not row-major: callers see plain arrays."""
    for buffer in plan.buffers:
        if buffer.layout and buffer.kind in ("input", "output"):
            raise InternalError(f"[runtime] {buffer.kind} {buffer.name} has a layout")
