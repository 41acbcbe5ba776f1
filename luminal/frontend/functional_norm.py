"""Softmax, normalisation layers and p-norms, from reductions.

In and out: float tensors. Half precision computes in f32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from luminal.errors import ShapeError
from luminal.frontend.functional_core import abs as absolute
from luminal.frontend.functional_core import add, maximum, mul, neg, sub, truth
from luminal.frontend.functional_integer import div
from luminal.frontend.functional_math import exp, log, rsqrt, sqrt
from luminal.frontend.functional_power import pow
from luminal.frontend.functional_reduce import Dims, amax, amin, mean, reduce_many, sum
from luminal.frontend.functional_shape import reshape
from luminal.frontend.tensor import Tensor, cast, dtype_of, fail, half_up, normal_axis
from luminal.ir.dtype import DType, f32
from luminal.ir.expr import to_expr

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "log_softmax",
    "norm",
    "normalize",
    "rms_norm",
    "softmax",
    "softmin",
]


def _softmax_parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    d = normal_axis("softmax", dim, x.ndim)
    shifted = sub(x, reduce_many("MaxReduce", x, (d,), True))
    weights = exp(shifted)
    return shifted, weights


def softmax(x: Tensor, dim: int = -1, *, dtype: DType | str | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, in at least f32."""
    want = dtype_of(dtype) if dtype is not None else x.dtype
    _, weights = _softmax_parts(half_up(cast(x, want)), dim)
    return cast(div(weights, sum(weights, dim, True)), want)


def softmin(x: Tensor, dim: int = -1) -> Tensor:
    """softmax(-x)."""
    return softmax(neg(x), dim)


def log_softmax(x: Tensor, dim: int = -1, *, dtype: DType | str | None = None) -> Tensor:
    """log(softmax(x)) without loss of digits."""
    want = dtype_of(dtype) if dtype is not None else x.dtype
    shifted, weights = _softmax_parts(half_up(cast(x, want)), dim)
    return cast(sub(shifted, log(sum(weights, dim, True))), want)


def norm(x: Tensor, p: float | str = 2, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The p-norm of the elements along axes; p may be inf, -inf, 0 or 'fro'."""
    wide = half_up(x)
    size = absolute(wide)
    if p == inf:
        out = amax(size, dim, keepdim)
    elif p == -inf:
        out = amin(size, dim, keepdim)
    elif p == 0:
        out = sum(cast(truth(wide), wide.dtype), dim, keepdim)
    elif p in (2, "fro"):
        out = sqrt(sum(mul(wide, wide), dim, keepdim))
    elif p == 1:
        out = sum(size, dim, keepdim)
    else:
        out = pow(sum(pow(size, p), dim, keepdim), 1.0 / float(p))
    return cast(out, x.dtype)


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its norm along an axis."""
    return div(x, maximum(norm(x, p, dim, True), eps))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else mul(x, half_up(weight))
    return x if bias is None else add(x, half_up(bias))


def _standard(x: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    off = sub(x, mean(x, axes, True))
    return mul(off, rsqrt(add(mean(mul(off, off), axes, True), eps)))


def layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """x standardised over its last axes, then scaled and shifted."""
    n = len(normalized_shape)
    if x.dims[x.ndim - n :] != tuple(to_expr(d) for d in normalized_shape):
        text = f"Got input {list(x.shape)}; expected it to end in {list(normalized_shape)}."
        raise fail(ShapeError, "layer_norm", text)
    axes = range(x.ndim - n, x.ndim)
    return cast(_affine(_standard(half_up(x), axes, eps), weight, bias), x.dtype)


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:  # fmt: skip
    """x divided by its root mean square over its last axes, then scaled."""
    wide, axes = half_up(x), range(x.ndim - len(normalized_shape), x.ndim)
    tiny = 1.1920928955078125e-07 if wide.dtype == f32 else 2.220446049250313e-16
    level = add(mean(mul(wide, wide), axes, True), tiny if eps is None else eps)
    return cast(_affine(mul(wide, rsqrt(level)), weight, None), x.dtype)


def _channels(v: Tensor | None, ndim: int) -> Tensor | None:
    return None if v is None else reshape(v, -1, *([1] * (ndim - 2)))


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """x [n, c, ..] standardised over each group of channels."""
    if (x.dims[1] % num_groups).terms:
        text = f"channels do not divide. Got {x.dims[1]} channels for {num_groups} groups."
        raise fail(ShapeError, "group_norm", text)
    parts = reshape(half_up(x), x.dims[0], num_groups, x.dims[1] // num_groups, *x.dims[2:])
    flat = reshape(_standard(parts, range(2, parts.ndim), eps), *x.dims)
    return cast(_affine(flat, _channels(weight, x.ndim), _channels(bias, x.ndim)), x.dtype)


def instance_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """x [n, c, ..] standardised for each sample and channel."""
    flat = _standard(half_up(x), range(2, x.ndim), eps)
    return cast(_affine(flat, _channels(weight, x.ndim), _channels(bias, x.ndim)), x.dtype)


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """x [n, c, ..] standardised per channel by the given or (training) the batch's statistics."""
    wide = half_up(x)
    if training or running_mean is None or running_var is None:
        flat = _standard(wide, [a for a in range(x.ndim) if a != 1], eps)
        return cast(_affine(flat, _channels(weight, x.ndim), _channels(bias, x.ndim)), x.dtype)
    scale = rsqrt(add(half_up(running_var), eps))
    scale = scale if weight is None else mul(scale, half_up(weight))
    shift = neg(mul(half_up(running_mean), scale))
    shift = shift if bias is None else add(shift, half_up(bias))
    wide_scale, wide_shift = _channels(scale, x.ndim), _channels(shift, x.ndim)
    return cast(add(mul(wide, wide_scale), wide_shift), x.dtype)  # type: ignore[arg-type]
