"""The lazy tensor: an immutable expression over the 15 primitives, seen through a view.

In: arrays, scalars, named inputs. Out: `Tensor`, and `to_graph`, which walks expressions into a
`Graph`. This module knows primitives, dtype promotion and broadcasting; every operation that is
made of them lives in the `functional_*` modules, which also give `Tensor` its methods."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from luminal.errors import ArgumentError, DTypeError, LuminalError, ShapeError
from luminal.frontend.views import expand
from luminal.ir import ConstantData, Edge, Expr, ExprLike, Graph, Node, Output, Var, const, to_expr
from luminal.ir.dtype import DType, bf16, boolean, by_name, f16, f32, f64, from_numpy, i64, promote
from luminal.ir.graph import depth_first
from luminal.ir.numeric import cast as cast_values
from luminal.ir.numeric import encode
from luminal.ir.ops import result_dtype
from luminal.ir.view import Shape, View, axes_of, identity

Scalar = float | int | bool
_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2}
_PACKAGE = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One primitive or leaf of an expression; the fields mean what they mean in `ir.graph.Node`."""

    op: str
    inputs: tuple[Tensor, ...]
    shape: Shape
    dtype: DType
    axis: int = 0
    name: str = ""
    value: Scalar | ConstantData | None = None


class Tensor:
    """A lazy n-dimensional array. Nothing is computed before `numpy()` or `luminal.compile`.

    `source` is the primitive that yields the data, `view` the index map through which it is seen.
    Methods and operators are those of `luminal.frontend.functional`, as a PyTorch user knows them.
    """

    __slots__ = ("index_map", "source")
    __array_ufunc__ = None  # so that NumPy leaves mixed arithmetic to this class

    if TYPE_CHECKING:  # the functional modules install methods and operators by table

        def __getattr__(self, name: str) -> Any: ...
        def _binary(self, other: object) -> Tensor: ...
        def _unary(self) -> Tensor: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _binary
        __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = __matmul__ = _binary
        __and__ = __or__ = __xor__ = __lt__ = __le__ = __gt__ = __ge__ = _binary
        __eq__ = __ne__ = __getitem__ = _binary  # type: ignore[assignment]
        __invert__ = __neg__ = __abs__ = _unary

    def __init__(self, source: Value, view: View | None = None) -> None:
        self.source = source
        self.index_map = identity(source.shape) if view is None else view

    __hash__ = object.__hash__

    @staticmethod
    def from_input(name: str, shape: Sequence[ExprLike], dtype: DType) -> Tensor:
        """A tensor given at each call of the compiled function."""
        return Tensor(Value("Input", (), shape_of(shape), dtype, name=name))

    @property
    def dims(self) -> Shape:
        """The dimensions, all as expressions."""
        return self.index_map.shape

    @property
    def shape(self) -> tuple[Any, ...]:
        """The dimensions: ints where known, expressions where symbolic."""
        return tuple(d if d.value is None else d.value for d in self.index_map.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.source.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.index_map.shape)

    def through(self, view: View) -> Tensor:
        """This tensor through one more view; a copy is made where two paddings differ."""
        joined = self.index_map.then(view)
        if joined is not None:
            return Tensor(self.source, joined)
        zero = scalar(-0.0 if self.dtype.is_float else 0, self.dtype)
        return Tensor(apply("Add", self, broadcast(zero, self.dims)).source, view)

    def __len__(self) -> int:
        if not self.ndim or self.dims[0].value is None:
            raise fail(ShapeError, "len", f"no known first dimension. Got shape {self.shape}.")
        return self.dims[0].value

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Tensor({self.source.op}, shape={self.shape}, dtype={self.dtype})"


TensorLike = Tensor | Scalar | np.ndarray


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """An output that overwrites the memory of the input `target` with `value`."""

    target: Tensor
    value: Tensor


def update(target: Tensor, value: Tensor) -> Update:
    """Declares, among the outputs of a function, that input `target` becomes `value` in place."""
    if target.source.op != "Input" or not target.index_map.is_identity:
        raise fail(ArgumentError, "update", f"the target is not an input. Got {target!r}.")
    if target.dims != value.dims or target.dtype != value.dtype:
        have, want = (f"{t.dtype}{list(t.shape)}" for t in (value, target))
        text = f"the new value does not fit. Got {have}; expected {want}."
        raise fail(ShapeError, "update", text)
    return Update(target, value)


def fail(kind: type[LuminalError], op: str, text: str) -> LuminalError:
    """An error that names the operation and the user's source line."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    where = f" (at {frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
    return kind(f"[{op}] {text}{where}")


def shape_of(shape: Sequence[ExprLike]) -> Shape:
    """A shape as expressions; ShapeError on a negative or non-integer size."""
    try:
        dims = tuple(to_expr(d) for d in shape)
    except (TypeError, ValueError):
        raise fail(ShapeError, "shape", f"sizes must be integers. Got {shape!r}.") from None
    if any(d.value is not None and d.value < 0 for d in dims):
        raise fail(ShapeError, "shape", f"sizes must be >= 0. Got {list(shape)}.")
    return dims


def dtype_of(dtype: DType | str | np.dtype | type) -> DType:
    """A luminal dtype from a DType, a name, or a NumPy dtype."""
    if isinstance(dtype, DType):
        return dtype
    try:
        return {float: f32, int: i64, bool: boolean}.get(dtype) or by_name(dtype)  # type: ignore[arg-type]
    except (KeyError, TypeError):
        found = from_numpy(np.dtype(dtype))
        if found is None:
            raise fail(DTypeError, "dtype", f"unknown dtype. Got {dtype!r}.") from None
        return found


def scalar(value: Scalar, dtype: DType) -> Tensor:
    """A constant of shape (); the value is converted to the dtype's kind."""
    kind = float if dtype.is_float else bool if dtype.kind == "b" else int
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        value = (int(value) - int(info.min)) % (1 << dtype.bits) + int(info.min)
    if dtype in (f16, bf16):
        value = float(cast_values(np.asarray(value, np.float64), f64, dtype))
    return Tensor(Value("Constant", (), (), dtype, value=kind(value)))


def tensor(data: Any, dtype: DType | str | None = None, name: str = "") -> Tensor:
    """A constant tensor from an array, nested lists or a scalar.

    Python floats become f32 and ints i64, as in PyTorch; arrays keep their dtype."""
    if isinstance(data, Tensor):
        return data if dtype is None else cast(data, dtype_of(dtype))
    array = np.asarray(data)
    if not isinstance(data, np.ndarray | np.generic) and array.dtype == np.float64:
        array = array.astype(np.float32) if dtype is None else array
    want = dtype_of(dtype) if dtype is not None else None
    have = from_numpy(array.dtype)
    if have is None:
        raise fail(DTypeError, "tensor", f"no such dtype. Got {array.dtype}; try float32 or int64.")
    if want is not None and want != have:
        if want.storage:
            raise fail(DTypeError, "tensor", f"{want} is storage only. Try tensor_from_bits.")
        array, have = encode(cast_values(array, have, want), want), want
    return tensor_from_bits(array, have, name)


def tensor_from_bits(array: np.ndarray, dtype: DType, name: str = "") -> Tensor:
    """A constant whose memory is `array` (of `dtype.numpy`), not copied if contiguous.

    4-bit dtypes are packed two to a byte along the last dimension, low nibble first."""
    if array.dtype != dtype.np:
        raise fail(DTypeError, "tensor", f"Got {array.dtype}; expected {dtype.numpy} for {dtype}.")
    array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    shape = list(array.shape)
    if dtype.bits < 8:
        shape[-1] *= 2
    if not shape and not dtype.storage and dtype != bf16:
        return scalar(array.item(), dtype)
    return Tensor(Value("Constant", (), shape_of(shape), dtype, value=ConstantData(name, array)))


def apply(op: str, *inputs: Tensor) -> Tensor:
    """An elementwise primitive other than Cast; all inputs have one shape and dtype."""
    dtype = result_dtype(op, tuple(x.dtype for x in inputs))
    return Tensor(Value(op, inputs, inputs[0].dims, dtype))


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x converted to `dtype` (the primitive Cast); x itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    value = x.source.value
    if isinstance(value, float | int) and not x.index_map.valid:
        wide = dtype.is_float and x.dtype.bits >= 32
        if not x.dtype.is_float or (wide and float(np.float32(value)) == value):
            return Tensor(scalar(value, dtype).source, x.index_map)
    return Tensor(Value("Cast", (x,), x.dims, dtype))


def reduce_axis(op: str, x: Tensor, axis: int) -> Tensor:
    """SumReduce or MaxReduce along one axis, which disappears."""
    return Tensor(Value(op, (x,), x.dims[:axis] + x.dims[axis + 1 :], x.dtype, axis))


def iota(extent: ExprLike, dtype: DType = i64) -> Tensor:
    """The vector 0, 1, ..., extent-1."""
    return Tensor(Value("Iota", (), (to_expr(extent),), dtype))


def gather_primitive(src: Tensor, index: Tensor, axis: int) -> Tensor:
    """out[.., o, ..] = src[.., index[.., o, ..], ..]; src has index's shape except along axis."""
    return Tensor(Value("Gather", (src, index), index.dims, src.dtype, axis))


def scatter_primitive(dest: Tensor, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """dest with dest[.., index[o], ..] = src[o]; index and src have one shape."""
    return Tensor(Value("Scatter", (dest, index, src), dest.dims, dest.dtype, axis))


def normal_axis(op: str, axis: int, ndim: int) -> int:
    """The axis counted from 0; ArgumentError if there is no such axis."""
    if not isinstance(axis, int) or not -max(ndim, 1) <= axis < max(ndim, 1):
        raise fail(ArgumentError, op, f"no such axis. Got {axis}; the tensor has {ndim} axes.")
    return axis % ndim if ndim else 0


def broadcast(x: Tensor, dims: Shape) -> Tensor:
    """x seen with shape `dims`, to which it must be broadcastable."""
    return x if x.dims == dims else x.through(expand(x.dims, dims))


def broadcast_dims(op: str, *shapes: Shape) -> Shape:
    """The common shape; equal dimensions or 1, aligned at the right. ShapeError otherwise."""
    rank = max(len(s) for s in shapes)
    out: list[Expr] = [const(1)] * rank
    for shape in shapes:
        for position, d in enumerate(shape, rank - len(shape)):
            if out[position].value == 1:
                out[position] = d
            elif d.value != 1 and d != out[position]:
                got = " and ".join(str(list(s)) for s in shapes)
                where = f"(axis {position - rank}: {out[position]} against {d})"
                text = f"shapes do not broadcast. Got {got}; expected equal sizes or 1 {where}."
                raise fail(ShapeError, op, text)
    return tuple(out)


def result_type(*values: TensorLike) -> DType:
    """The dtype of an operation on these, as PyTorch promotes: dimensioned tensors first, then
    0-d tensors, then Python scalars; a lower class counts only if its kind is higher."""
    classes: list[list[DType]] = [[], [], []]
    for value in values:
        if isinstance(value, Tensor):
            level, dtype = (0 if value.ndim else 1), value.dtype
        else:
            level = 2
            dtype = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f32
        if dtype.storage:
            raise fail(DTypeError, "promote", f"{dtype} is storage only. Try .cast('f32') first.")
        classes[level].append(dtype)
    best: list[DType] = []
    for dtypes in filter(None, classes):
        dtype = reduce(promote, dtypes)
        if not best or _KINDS[dtype.kind] > _KINDS[best[-1].kind]:
            best.append(dtype)
    return reduce(promote, best) if best else f32


def common(
    op: str, *values: TensorLike, dtype: DType | None = None, like: Shape | None = None
) -> tuple[Tensor, ...]:
    """The values in their common dtype (or `dtype`) and broadcast to their common shape."""
    values = tuple(tensor(v) if isinstance(v, np.ndarray | np.generic) else v for v in values)
    for value in values:
        if not isinstance(value, Tensor | float | int):
            raise fail(DTypeError, op, f"not a tensor or number. Got {type(value).__name__}.")
    want = result_type(*values) if dtype is None else dtype
    ready = [cast(v, want) if isinstance(v, Tensor) else scalar(v, want) for v in values]
    dims = broadcast_dims(op, *(v.dims for v in ready), *(() if like is None else (like,)))
    return tuple(broadcast(v, dims) for v in ready)


def index_tensor(index: Expr, axis: Var, upper: ExprLike, dtype: DType = i64) -> Tensor:
    """The vector of the values of `index` for axis = 0, 1, ..., all of them in [0, upper)."""
    whole = iota(upper, dtype)
    dims = (axis.extent,)
    env = {axis: to_expr(axes_of(dims)[0])}
    return whole.through(View(dims, whole.dims, (index.substitute(env),)))


def half_up(x: Tensor) -> Tensor:
    """x in the dtype that its arithmetic uses: f16 and bf16 in f32."""
    return cast(x, f32) if x.dtype in (f16, bf16) else x


def to_graph(
    outputs: Sequence[Tensor | Update], inputs: Sequence[Tensor] = (), names: Sequence[str] = ()
) -> Graph:
    """The graph that computes `outputs`; `inputs` come first in it, used or not."""
    targets = [o.value if isinstance(o, Update) else o for o in outputs]
    nodes: dict[Node, int] = {}
    numbers, used, taken = {}, 0, {""}
    roots = (t.source for t in (*inputs, *targets))
    for value in depth_first(roots, lambda v: [t.source for t in v.inputs]):
        edges = tuple(Edge(numbers[id(t.source)], t.index_map) for t in value.inputs)
        payload, name = value.value, value.name
        if isinstance(payload, ConstantData):
            if payload.name in taken:
                payload = ConstantData(f"{payload.name or 'constant'}.{used}", payload.array)
            name, used = payload.name, used + 1
            taken.add(name)
        elif value.op == "Constant":
            name = repr(payload)
        node = Node(value.op, edges, value.shape, value.dtype, value.axis, name, payload)
        numbers[id(value)] = nodes.setdefault(node, len(nodes))  # equal nodes are shared
    results = []
    for position, (out, target) in enumerate(zip(outputs, targets, strict=True)):
        name = names[position] if names else f"out{position}"
        updates = out.target.source.name if isinstance(out, Update) else ""
        results.append(Output(name, Edge(numbers[id(target.source)], target.index_map), updates))
    views = [e.view for e in (*(e for n in nodes for e in n.inputs), *(r.edge for r in results))]
    exprs = [d for n in nodes for d in n.shape]
    exprs += [e for v in views for e in (*v.shape, *v.index, *v.valid)]
    axes = {a for v in views for a in axes_of(v.shape)}
    found = {v: None for e in exprs for v in sorted(e.variables() - axes, key=repr)}
    return Graph(tuple(nodes), tuple(results), tuple(found))
