"""Activation functions, as PyTorch defines them.

In and out: float tensors. Half precision computes in f32 and rounds once.
"""

from __future__ import annotations

from math import pi
from math import sqrt as real_sqrt

from luminal.errors import ArgumentError
from luminal.frontend.functional_core import (
    abs,
    add,
    clamp,
    in_f32,
    isnan,
    logical_and,
    logical_not,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    reciprocal,
    sub,
    where,
)
from luminal.frontend.functional_integer import div
from luminal.frontend.functional_math import (
    LOG2_E,
    erf,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    polynomial,
    tanh,
)
from luminal.frontend.tensor import Tensor, cast, fail, scalar
from luminal.ir.dtype import f32, f64

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logit",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]

# log2 of the probability beyond t of a normal variable: 1e-8 of t times that probability
_NORMAL_TAIL = (-1.0, -1.151111045081224, -0.45916214666523053, -0.05262760063409435,
                0.007245406896242697, -0.00027206486468824654, -0.00013147773808255014,
                2.8057903418235734e-05, -1.902147711648266e-06)  # fmt: skip


@in_f32
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return reciprocal(add(exp2(mul(x, -LOG2_E)), 1.0))


@in_f32
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x first clamped to [eps, 1 - eps] if eps is given."""
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return log(div(x, sub(1.0, x)))


@in_f32
def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x))."""
    return sub(minimum(x, 0.0), log1p(exp(neg(abs(x)))))


@in_f32
def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return div(x, add(exp2(mul(x, -LOG2_E)), 1.0))


@in_f32
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function at x ('tanh': its usual approximation)."""
    if approximate == "tanh":  # (1 + tanh u) / 2 is sigmoid(2u)
        slope = real_sqrt(8 / pi)
        inner = mul(x, add(mul(mul(x, x), 0.044715 * slope), slope))
        return div(x, add(exp2(mul(inner, -LOG2_E)), 1.0))
    if approximate != "none":
        raise fail(ArgumentError, "gelu", f"Got approximate={approximate!r}; try 'tanh'.")
    if x.dtype == f64:
        return mul(mul(x, 0.5), add(erf(mul(x, real_sqrt(0.5))), 1.0))
    tail = exp2(polynomial(abs(x), _NORMAL_TAIL))
    return mul(x, where(lt(0.0, x), sub(1.0, tail), tail))


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return maximum(x, 0)


def relu6(x: Tensor) -> Tensor:
    """x limited to [0, 6]."""
    return clamp(x, 0, 6)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x, times a slope below 0."""
    return where(lt(0, x), x, mul(x, negative_slope))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x, times a learnt slope per channel below 0."""
    if weight.ndim == 1 and x.ndim > 1:
        order = [1] * (x.ndim - 2)
        weight = weight.reshape(-1, *order)
    return where(lt(0, x), x, mul(x, weight))


@in_f32
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha (exp(x) - 1) below 0."""
    return where(lt(0.0, x), x, mul(expm1(x), alpha))


@in_f32
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha (exp(x / alpha) - 1) below 0."""
    return where(lt(0.0, x), x, mul(expm1(mul(x, 1.0 / alpha)), alpha))


@in_f32
def selu(x: Tensor) -> Tensor:
    """The self-normalising ELU."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return mul(where(lt(0.0, x), x, mul(expm1(x), alpha)), scale)


@in_f32
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, x itself above the threshold."""
    scaled = mul(x, beta)
    soft = add(maximum(scaled, 0.0), log1p(exp(neg(abs(scaled)))))
    return where(lt(threshold, scaled), x, mul(soft, 1.0 / beta))


@in_f32
def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x))."""
    return mul(x, tanh(softplus(x)))


@in_f32
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(x, add(abs(x), 1.0))


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return sub(x, tanh(x))


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x limited to a range."""
    return clamp(x, min_val, max_val)


@in_f32
def hardsigmoid(x: Tensor) -> Tensor:
    """clamp(x + 3, 0, 6) / 6."""
    return mul(clamp(add(x, 3.0), 0.0, 6.0), 1.0 / 6.0)


@in_f32
def hardswish(x: Tensor) -> Tensor:
    """x hardsigmoid(x)."""
    return mul(x, hardsigmoid(x))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, 0 within [-lambd, lambd]."""
    inside = logical_and(logical_not(lt(lambd, x)), logical_not(lt(x, -lambd)))
    return where(logical_and(inside, logical_not(isnan(x))), scalar(0, x.dtype), x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd."""
    return where(lt(lambd, x), sub(x, lambd), where(lt(x, -lambd), add(x, lambd), mul(x, 0.0)))


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x where it exceeds the threshold, else a value."""
    return where(lt(threshold, x), x, cast(scalar(value, f32), x.dtype))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """First half of an axis times the sigmoid of the second half."""
    a, b = x.chunk(2, dim)
    return mul(a, sigmoid(b))
