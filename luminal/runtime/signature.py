"""What a compiled callable accepts: number, dtypes and shapes of its inputs, values of its dims.

In: a Plan and the caller's objects. Out: NumPy arrays over the caller's memory and the dims, or a
LuminalError that says what is wrong. Runs nothing."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, DTypeError, ShapeError
from luminal.ir import Buffer, Expr, Plan, Var, ceil_div
from luminal.runtime.memory import compile_exprs

Dims = tuple[int, ...]
RAW_BITS = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
_KEEP = 4096  # shapes remembered as good


def array_shape(buffer: Buffer) -> tuple[Expr, ...]:
    """Shape of the NumPy array of a buffer: 4-bit types lie two to a byte."""
    if buffer.dtype.bits != 4 or not buffer.shape:
        return buffer.shape
    return (*buffer.shape[:-1], ceil_div(buffer.shape[-1], 2))


class Signature:
    """The inputs of a plan, of which those at `updated` are written to.

    `known(*inputs)` is the fast path: the dims, if arrays of just these dtypes and shapes have
    been accepted before, else None (AttributeError or TypeError on other objects). `accept` is
    the thorough way."""

    __slots__ = ("_remembered", "_shapes", "_solvers", "_updated", "buffers", "dims", "known")

    def __init__(self, plan: Plan, updated: Sequence[int]) -> None:
        self.dims, self._updated = plan.dims, updated
        self.buffers = tuple(plan.buffer(name) for name in plan.inputs)
        self._shapes = compile_exprs(plan.dims, [e for b in self.buffers for e in array_shape(b)])
        self._solvers = [self._solver(v) for v in plan.dims]
        self._remembered: dict[tuple[tuple[int, ...], ...], Dims] = {}
        numbers = range(len(self.buffers))
        scope: dict[str, Any] = {f"t{n}": self.buffers[n].dtype.np for n in numbers}
        names = ", ".join(f"a{n}" for n in numbers)
        key = "".join(f"a{n}.shape, " for n in numbers)
        tests = [*(f"a{n}.dtype is t{n}" for n in numbers),
                 *(f"a{n}.flags.writeable" for n in updated)]  # fmt: skip
        source = f"lambda {names}: get(({key})) if {' and '.join(tests) or 'True'} else None"
        self.known: Callable[..., Dims | None] = eval(source, {
            **scope, "get": self._remembered.get})  # fmt: skip

    def _solver(self, var: Var) -> tuple[int, int, int, int] | None:
        """(input, dimension, factor, addend) of an extent factor * var + addend."""
        found = []
        for number, buffer in enumerate(self.buffers):
            for position, extent in enumerate(array_shape(buffer)):
                factor = extent.coefficient(var) if extent.variables() == {var} else None
                addend = (extent - factor * var).value if factor is not None else None
                if factor is not None and factor.value and addend is not None:
                    found.append((number, position, factor.value, addend))
        return min(found, key=lambda f: abs(f[2]), default=None)

    def accept(
        self, inputs: Sequence[object], given: Mapping[str, int] | None = None
    ) -> tuple[list[np.ndarray], Dims]:
        """Arrays over the inputs, and the values of the dims in the order of the plan; `given` are
        dims that no input's shape shows."""
        if len(inputs) != len(self.buffers):
            raise ArgumentError(
                f"[call] wrong number of inputs. Got {len(inputs)}; expected {len(self.buffers)}: "
                f"{', '.join(b.name for b in self.buffers)}. Try one array for each."
            )
        numbered = enumerate(zip(inputs, self.buffers, strict=True))
        arrays = [_as_array(value, buffer, number) for number, (value, buffer) in numbered]
        for n in self._updated:
            if isinstance(inputs[n], np.ndarray) and not arrays[n].flags.writeable:
                raise ArgumentError(
                    f"[call] {_name(n, self.buffers[n])} is updated in place but cannot be "
                    "written. Got a read-only array; expected a writeable one. Try passing a copy."
                )
        shapes = tuple(a.shape for a in arrays)
        dims = None if given else self._remembered.get(shapes)
        if dims is None:
            dims = self._check_shapes(shapes, given or {})
            if len(self._remembered) >= _KEEP:
                self._remembered.clear()
            if not given:
                self._remembered[shapes] = dims
        return arrays, dims

    def _check_shapes(self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]) -> Dims:
        for number, (shape, buffer) in enumerate(zip(shapes, self.buffers, strict=True)):
            if len(shape) != len(buffer.shape):
                raise self._misfit(number, shape, "rank", "")
        dims = tuple(self._solve(n, shapes, given) for n in range(len(self.dims)))
        where = ", ".join(f"{v.name}={n}" for v, n in zip(self.dims, dims, strict=True))
        wanted = iter(self._shapes(*dims))
        for number, shape in enumerate(shapes):
            expected = tuple(islice(wanted, len(shape)))
            if tuple(shape) != expected:
                note = f" = {expected} with {where}" if where else ""
                raise self._misfit(number, shape, "shape", note)
        return dims

    def _misfit(self, number: int, shape: tuple[int, ...], what: str, note: str) -> ShapeError:
        buffer = self.buffers[number]
        wanted = ", ".join(map(str, array_shape(buffer))) + "," * (len(buffer.shape) == 1)
        return ShapeError(f"[call] {_name(number, buffer)} has the wrong {what}. Got "
                          f"{tuple(shape)}; expected ({wanted}){note}.")  # fmt: skip

    def _solve(
        self, position: int, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]
    ) -> int:
        var, solver = self.dims[position], self._solvers[position]
        if var.name in given:
            value, source = int(given[var.name]), "dims"
        elif solver is not None:
            number, axis, factor, addend = solver
            value = (shapes[number][axis] - addend) // factor  # the shapes are compared later
            source = f"{_name(number, self.buffers[number])} of shape {tuple(shapes[number])}"
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


def _as_array(value: Any, buffer: Buffer, number: int) -> np.ndarray:
    """`value` as an array of the buffer's dtype, without a copy for arrays and DLPack objects."""
    dtype = buffer.dtype.np
    try:
        if isinstance(value, np.generic):
            value = np.asarray(value)
        elif isinstance(value, (bool, int, float)) and not buffer.shape:
            value = np.asarray(value, dtype)
        elif not isinstance(value, np.ndarray):
            value = _foreign(value)
    except (TypeError, ValueError, BufferError, RuntimeError, OverflowError) as error:
        raise ArgumentError(
            f"[call] {_name(number, buffer)} is not an array. Got {type(value).__name__} "
            f"({error}); expected a NumPy array, DLPack, __array_interface__ or a buffer. "
            "Try numpy.asarray."
        ) from None
    if RAW_BITS.get(value.dtype.name) == buffer.dtype.name:
        value = value.view(dtype)
    if value.dtype != dtype:
        order = "" if value.dtype.isnative else " in the byte order of another machine"
        raise DTypeError(
            f"[call] {_name(number, buffer)} has the wrong dtype. Got {value.dtype.name}{order}; "
            f"expected {buffer.dtype.name} ({dtype.name} array). Try .astype('{dtype.name}')."
        )
    return value


def _foreign(value: Any) -> np.ndarray:
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return np.asarray(value)
    return np.asarray(memoryview(value))
