"""Complex operators of ATen, on pairs of reals.

In: pairs, luminal tensors, Python numbers. Out: pairs, or tensors where the result is real. What
only moves elements is done by the operators of the usual table, to each part.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable
from typing import Any

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, broadcast, cast, scalar
from luminal.frontend.torch.aten.table import Call, Function, Pair, lookup, op
from luminal.ir.dtype import DType

__all__ = ["joined", "parted"]

Value = Pair | Tensor | complex
_MOVES = (
    "view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias", "squeeze", "squeeze.dim",
    "squeeze.dims", "unsqueeze", "permute", "transpose.int", "t", "expand", "alias", "detach",
    "slice.Tensor", "select.int", "split_with_sizes", "split.Tensor", "unbind.int", "cat", "stack",
    "repeat", "flip", "roll", "diagonal", "unfold", "as_strided", "clone", "lift_fresh_copy",
    "lift_fresh", "alias_copy", "index_select", "index.Tensor", "gather", "tril", "triu", "copy",
    "sum", "sum.dim_IntList", "mean", "mean.dim", "cumsum", "neg", "slice_scatter",
    "select_scatter", "zeros_like", "empty_like", "zeros", "empty.memory_format", "new_zeros",
)  # fmt: skip


def joined(x: Pair) -> Tensor:
    """The parts side by side along a new last axis, as complex numbers lie in memory."""
    return F.stack([x.re, x.im], -1)


def parted(x: Tensor) -> Pair:
    """The parts along the last axis."""
    return Pair(F.select(x, -1, 0), F.select(x, -1, 1))


def _part(value: object, imaginary: bool) -> object:
    if isinstance(value, (list, tuple)):
        return [_part(v, imaginary) for v in value]
    if isinstance(value, Pair):
        return value.im if imaginary else value.re
    return value


def _moved(name: str) -> Function:
    def function(call: Call, *args: object, **kwargs: object) -> object:
        move = lookup(call.node.target)
        if move is None or not _all_pairs(args):
            raise UnsupportedError("[torch] real and complex tensors together.")
        sides = [move(call, *_part(args, i), **kwargs) for i in (False, True)]  # type: ignore[misc]
        if isinstance(sides[0], (list, tuple)):
            return [Pair(a, b) for a, b in zip(*sides, strict=True)]
        return Pair(*sides)  # type: ignore[arg-type]

    return function


def _all_pairs(args: tuple[object, ...]) -> bool:
    """False if a float tensor stands beside the pairs."""
    flat = [v for a in args for v in (a if isinstance(a, (list, tuple)) else [a])]
    return not any(isinstance(v, Tensor) and v.dtype.is_float for v in flat)


for _name in _MOVES:
    op(_name, pairs=True)(_moved(_name))


def _pair(call: Call, x: Value, dtype: DType | None = None) -> Pair:
    """A value as a pair of the result's dtype."""
    want = dtype or call.dtype
    if isinstance(x, Pair):
        return Pair(cast(x.re, want), cast(x.im, want))
    if isinstance(x, Tensor):
        real = cast(x, want)
        return Pair(real, F.zeros_like(real))
    z = complex(x)
    return Pair(scalar(z.real, want), scalar(z.imag, want))


def _is_real(x: object) -> bool:
    return not isinstance(x, (Pair, complex))


@op("add.Tensor", "add.Scalar", pairs=True)
def _add(call: Call, a: Value, b: Value, alpha: complex = 1) -> Pair:
    x, y = _pair(call, a), _pair(call, b)
    y = y if alpha == 1 else _product(y, _pair(call, alpha))
    return _sized(call, Pair(F.add(x.re, y.re), F.add(x.im, y.im)))


@op("sub.Tensor", "sub.Scalar", pairs=True)
def _sub(call: Call, a: Value, b: Value, alpha: complex = 1) -> Pair:
    return _add(call, a, b, -alpha)


def _sized(call: Call, x: Pair) -> Pair:
    return Pair(broadcast(x.re, call.dims), broadcast(x.im, call.dims))


def _product(x: Pair, y: Pair) -> Pair:
    real = F.sub(F.mul(x.re, y.re), F.mul(x.im, y.im))
    return Pair(real, F.add(F.mul(x.re, y.im), F.mul(x.im, y.re)))


@op("mul.Tensor", "mul.Scalar", pairs=True)
def _mul(call: Call, a: Value, b: Value) -> Pair:
    return _sized(call, _product(_pair(call, a), _pair(call, b)))


@op("div.Tensor", "div.Scalar", pairs=True)
def _div(call: Call, a: Value, b: Value) -> Pair:
    x = _pair(call, a)
    if _is_real(b):
        y = _pair(call, b).re
        return _sized(call, Pair(F.div(x.re, y), F.div(x.im, y)))
    y = _pair(call, b)
    size = F.maximum(F.abs(y.re), F.abs(y.im))
    safe = F.where(F.eq(size, 0.0), scalar(1, call.dtype), size)
    c, s = F.div(y.re, safe), F.div(y.im, safe)
    square = F.mul(F.add(F.mul(c, c), F.mul(s, s)), size)
    top = _product(x, Pair(c, F.neg(s)))
    return _sized(call, Pair(F.div(top.re, square), F.div(top.im, square)))


@op("_conj", "_conj_physical", "conj_physical", pairs=True)
def _conj(call: Call, x: Pair) -> Pair:
    return Pair(x.re, F.neg(x.im))


@op("resolve_conj", "resolve_neg", pairs=True)
def _resolved(call: Call, x: Pair) -> Pair:
    return x


@op("abs", pairs=True)
def _abs(call: Call, x: Pair) -> Tensor:
    return F.hypot(x.re, x.im)


@op("angle", pairs=True)
def _angle(call: Call, x: Pair) -> Tensor:
    return F.atan2(x.im, x.re)


@op("exp", pairs=True)
def _exp(call: Call, x: Pair) -> Pair:
    size = F.exp(x.re)
    return Pair(F.mul(size, F.cos(x.im)), F.mul(size, F.sin(x.im)))


@op("view_as_real", "view_as_real_copy", pairs=True)
def _view_as_real(call: Call, x: Pair) -> Tensor:
    return joined(x)


@op("view_as_complex", "view_as_complex_copy", pairs=True)
def _view_as_complex(call: Call, x: Tensor) -> Pair:
    return parted(x)


@op("complex", pairs=True)
def _complex(call: Call, re: Tensor, im: Tensor) -> Pair:
    return _sized(call, Pair(re, im))


@op("polar", pairs=True)
def _polar(call: Call, size: Tensor, angle: Tensor) -> Pair:
    return _sized(call, Pair(F.mul(size, F.cos(angle)), F.mul(size, F.sin(angle))))


@op("_to_copy", "prims::convert_element_type.default", pairs=True)
def _to_copy(call: Call, x: Pair | Tensor, *args: object, **kwargs: object) -> Pair:
    if not call.node.meta["val"].is_complex():
        raise UnsupportedError("[torch] a complex tensor made real.")
    return _pair(call, x)


@op("eq.Tensor", "eq.Scalar", pairs=True)
def _eq(call: Call, a: Value, b: Value) -> Tensor:
    x, y = (_pair(call, v, _kind(a, b)) for v in (a, b))
    same = F.logical_and(F.eq(x.re, y.re), F.eq(x.im, y.im))
    return broadcast(same, call.dims)


def _kind(*values: Any) -> DType:
    return next(v.re.dtype for v in values if isinstance(v, Pair))


@op("mm", "bmm", pairs=True)
def _mm(call: Call, a: Value, b: Value) -> Pair:
    x, y = _pair(call, a), _pair(call, b)
    times: Callable[[Tensor, Tensor], Tensor] = F.matmul
    return Pair(F.sub(times(x.re, y.re), times(x.im, y.im)),
                F.add(times(x.re, y.im), times(x.im, y.re)))  # fmt: skip


@op("full", "full_like", "new_full", "scalar_tensor", pairs=True)
def _full(call: Call, *args: object, **kwargs: object) -> Pair:
    values = [a for a in args if isinstance(a, (int, float, complex)) and not isinstance(a, bool)]
    if not values or not cmath.isfinite(values[-1]):
        raise UnsupportedError("[torch] a complex tensor filled with this.")
    return _sized(call, _pair(call, values[-1]))


@op("where.self", pairs=True)
def _where(call: Call, condition: Tensor, a: Value, b: Value) -> Pair:
    x, y = _pair(call, a), _pair(call, b)
    return _sized(call, Pair(F.where(condition, x.re, y.re), F.where(condition, x.im, y.im)))


@op("constant_pad_nd", pairs=True)
def _pad(call: Call, x: Pair, padding: list[int], value: complex = 0) -> Pair:
    z = complex(value)
    return Pair(F.pad(x.re, padding, value=z.real), F.pad(x.im, padding, value=z.imag))
