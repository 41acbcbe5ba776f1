"""Elementwise operators of ATen: arithmetic, comparison, logic, selection, activations.

In: luminal tensors and scalars. Out: tensors in the traced dtype. Operands are first brought to
the dtype that PyTorch computes in; Python scalars stay unrounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.functional_reduce import size_scalar
from luminal.frontend.tensor import Tensor, cast
from luminal.frontend.torch.aten.table import Call, convert, op
from luminal.frontend.torch.layout import DTYPES
from luminal.ir.dtype import DType, f32, f64, i64
from luminal.ir.expr import Expr

__all__: list[str] = []

Operand = Tensor | float | int | bool
_SAME = (
    "neg", "abs", "sign", "floor", "ceil", "trunc", "relu", "square",
)  # fmt: skip
_FLOAT = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "erfinv", "sigmoid", "silu", "mish", "softsign", "lgamma", "digamma", "hardswish",
    "hardsigmoid", "log_sigmoid", "relu6", "selu", "sinc", "i0",
)  # fmt: skip
_TESTS = ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not")


def as_dtype(x: Operand | Expr, dtype: DType) -> Operand:
    """A tensor converted to `dtype`, a size as a tensor of it, a Python scalar as it is."""
    if isinstance(x, Expr):
        return cast(size_scalar(x, i64), dtype)
    return cast(x, dtype) if isinstance(x, Tensor) else x


def common_dtype(call: Call) -> DType:
    """The dtype that PyTorch promotes the operands of a binary operator to."""
    values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in call.node.args[:2]]
    found = DTYPES.get(torch.result_type(*values))
    if found is None:
        raise UnsupportedError("[torch] operands of a dtype that luminal lacks.")
    return found


def _register_unary(names: tuple[str, ...], convert: bool) -> None:
    for name in names:
        function = getattr(F, name, None)
        if function is None:
            continue

        def translated(
            call: Call, x: Tensor, _f: Callable[..., Tensor] = function, _c: bool = convert
        ) -> Tensor:
            return _f(cast(x, call.dtype) if _c else x)

        op(name)(translated)


def _register() -> None:
    _register_unary(_SAME, False)
    _register_unary(_FLOAT, True)
    _register_unary(_TESTS, False)


_register()


@op("add.Tensor", "add.Scalar")
def _add(call: Call, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    return F.add(as_dtype(a, call.dtype), as_dtype(b, call.dtype), alpha=alpha)


@op("sub.Tensor", "sub.Scalar")
def _sub(call: Call, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    return F.sub(as_dtype(a, call.dtype), as_dtype(b, call.dtype), alpha=alpha)


@op("rsub.Tensor", "rsub.Scalar")
def _rsub(call: Call, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    return _sub(call, b, a, alpha)


@op("mul.Tensor", "mul.Scalar")
def _mul(call: Call, a: Operand, b: Operand) -> Tensor:
    return F.mul(as_dtype(a, call.dtype), as_dtype(b, call.dtype))


@op("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(call: Call, a: Operand, b: Operand) -> Tensor:
    if isinstance(b, (int, float)) and not isinstance(b, bool) and b != 0:
        inverse = 1.0 / b
        if math.frexp(b)[0] in (0.5, -0.5) and inverse != 0:  # a power of two: exact
            return F.mul(as_dtype(a, call.dtype), inverse)
    return F.div(as_dtype(a, call.dtype), as_dtype(b, call.dtype))


@op("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(call: Call, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return _div(call, a, b)
    _refuse_zero(call, b)
    return F.div(as_dtype(a, call.dtype), as_dtype(b, call.dtype), rounding_mode=rounding_mode)


@op("floor_divide.default", "floor_divide.Scalar")
def _floor_divide(call: Call, a: Operand, b: Operand) -> Tensor:
    return _div_mode(call, a, b, "floor")


def _refuse_zero(call: Call, b: Operand) -> None:
    """What eager does about a divisor of 0 among integers."""
    if not call.dtype.is_int:
        return
    if isinstance(b, Tensor):
        call.refuse("ZeroDivisionError", F.eq(b, 0))
    elif b == 0:
        raise UnsupportedError("[torch] integer division by zero raises in eager.")


@op("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(call: Call, a: Operand, b: Operand) -> Tensor:
    _refuse_zero(call, b)
    return F.remainder(as_dtype(a, call.dtype), as_dtype(b, call.dtype))


@op("fmod.Tensor", "fmod.Scalar")
def _fmod(call: Call, a: Operand, b: Operand) -> Tensor:
    _refuse_zero(call, b)
    return F.fmod(as_dtype(a, call.dtype), as_dtype(b, call.dtype))


def _register_compare() -> None:
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(F, name)

        def translated(
            call: Call, a: Operand, b: Operand, _f: Callable[..., Tensor] = function
        ) -> Tensor:
            dtype = common_dtype(call)
            return _f(as_dtype(a, dtype), as_dtype(b, dtype))

        op(f"{name}.Tensor", f"{name}.Scalar")(translated)
    for name in ("logical_and", "logical_or", "logical_xor"):
        function = getattr(F, name)

        def logical(
            call: Call, a: Tensor, b: Tensor, _f: Callable[..., Tensor] = function
        ) -> Tensor:
            return _f(a, b)

        op(name)(logical)
    for name in ("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign.Tensor",
                 "copysign.Scalar", "xlogy.Tensor", "logaddexp"):  # fmt: skip
        function = getattr(F, name.split(".")[0], None)
        if function is None:
            continue

        def binary(
            call: Call, a: Operand, b: Operand, _f: Callable[..., Tensor] = function
        ) -> Tensor:
            return _f(as_dtype(a, call.dtype), as_dtype(b, call.dtype))

        op(name)(binary)


_register_compare()


@op("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(call: Call, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    return F.where(condition, call.ready(a), call.ready(b))


@op("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(call: Call, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return F.where(mask, call.ready(value), call.ready(x))


@op("clamp")
def _clamp(
    call: Call, x: Tensor, low: float | Expr | None = None, high: float | Expr | None = None
) -> Tensor:
    ends = [as_dtype(e, call.dtype) if isinstance(e, Expr) else e for e in (low, high)]
    return F.clamp(cast(x, call.dtype), *ends)


@op("clamp.Tensor")
def _clamp_tensor(
    call: Call, x: Tensor, min: Tensor | None = None, max: Tensor | None = None
) -> Tensor:
    out = call.ready(x)
    out = out if min is None else F.maximum(out, call.ready(min))
    return out if max is None else F.minimum(out, call.ready(max))


@op("clamp_min", "clamp_min.Tensor")
def _clamp_min(call: Call, x: Tensor, low: Operand) -> Tensor:
    return F.maximum(call.ready(x), call.ready(low))


@op("clamp_max", "clamp_max.Tensor")
def _clamp_max(call: Call, x: Tensor, high: Operand) -> Tensor:
    return F.minimum(call.ready(x), call.ready(high))


@op("hardtanh")
def _hardtanh(call: Call, x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    return F.clamp(x, low, high)


@op("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(call: Call, a: Operand, b: Operand) -> Tensor:
    if call.dtype.is_int and isinstance(b, int) and b < 0:
        raise UnsupportedError("[torch] integers to a negative power.")
    return F.pow(as_dtype(a, call.dtype), as_dtype(b, call.dtype))


@op("gelu")
def _gelu(call: Call, x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@op("leaky_relu")
def _leaky_relu(call: Call, x: Tensor, slope: float = 0.01) -> Tensor:
    return F.where(F.gt(x, 0), x, F.mul(x, slope))


@op("elu")
def _elu(
    call: Call, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    below = F.mul(F.expm1(F.mul(x, input_scale)), alpha * scale)
    return F.where(F.gt(x, 0), F.mul(x, scale), below)


@op("round", "round.decimals")
def _round(call: Call, x: Tensor, *, decimals: int = 0) -> Tensor:
    return F.round(x, decimals=decimals)


@op("ceil")
def _ceil(call: Call, x: Tensor) -> Tensor:
    return F.neg(F.floor(F.neg(x))) if x.dtype.is_float else x


@op("addcmul")
def _addcmul(call: Call, x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    product = F.mul(cast(a, call.dtype), cast(b, call.dtype))
    return F.add(cast(x, call.dtype), product, alpha=value)


@op("prims::fma")
def _fma(call: Call, a: Tensor, b: Operand, x: Tensor) -> Tensor:
    return F.add(F.mul(cast(a, call.dtype), as_dtype(b, call.dtype)), cast(x, call.dtype))


@op("_to_copy", "_to_copy.default", "to.dtype")
def _to_copy(call: Call, x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return convert(x, call.dtype)


@op("prims::convert_element_type.default")
def _convert(call: Call, x: Tensor, dtype: DType) -> Tensor:
    return convert(x, call.dtype)


@op("clone", "lift_fresh_copy", "lift_fresh", "contiguous", "alias_copy")
def _clone(call: Call, x: Tensor, **kwargs: object) -> Tensor:
    return x


@op("copy")
def _copy(call: Call, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return call.ready(convert(source, call.dtype))


@op("fill.Scalar", "fill.Tensor")
def _fill(call: Call, x: Tensor, value: Operand) -> Tensor:
    return call.ready(value)


def wide(x: Tensor) -> Tensor:
    """x in the dtype that reductions over it accumulate in."""
    return cast(x, f32) if x.dtype.is_float and x.dtype not in (f32, f64) else x
