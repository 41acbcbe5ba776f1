"""Losses, as PyTorch defines them.

In: predictions and targets. Out: the loss, reduced by 'mean', 'sum' or not at all ('none').
"""

from __future__ import annotations

from luminal.errors import ArgumentError, ShapeError
from luminal.frontend.functional_core import (
    abs,
    add,
    eq,
    logical_not,
    lt,
    maximum,
    mul,
    neg,
    square,
    sub,
    where,
)
from luminal.frontend.functional_index import gather, take_blocks
from luminal.frontend.functional_integer import div
from luminal.frontend.functional_math import exp, log, log1p
from luminal.frontend.functional_norm import log_softmax, norm
from luminal.frontend.functional_power import xlogy
from luminal.frontend.functional_reduce import mean
from luminal.frontend.functional_reduce import sum as sum_of
from luminal.frontend.functional_shape import reshape, unsqueeze
from luminal.frontend.tensor import Tensor, cast, fail, half_up, scalar
from luminal.ir.dtype import i64

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "hinge_embedding_loss", "huber_loss", "kl_div",
    "l1_loss", "margin_ranking_loss", "mse_loss", "nll_loss", "pairwise_distance",
    "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss",
]  # fmt: skip


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    match reduction:
        case "mean":
            return mean(loss)
        case "sum":
            return sum_of(loss)
        case "none":
            return loss
    raise fail(ArgumentError, "loss", f"Got reduction={reduction!r}; try 'mean'.")


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)²."""
    return _reduced(square(sub(input, target)), reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|."""
    return _reduced(abs(sub(input, target)), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Squares within delta, lines beyond."""
    gap = abs(sub(input, target))
    far = mul(sub(gap, 0.5 * delta), delta)
    return _reduced(where(lt(delta, gap), far, mul(square(gap), 0.5)), reduction)


def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """The Huber loss divided by beta."""
    if beta == 0:
        return l1_loss(input, target, reduction)
    return div(huber_loss(input, target, reduction, beta), beta)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-input[target] for log-probabilities [n, classes, ..]."""
    axis = 1 if input.ndim > 1 else 0
    if target.ndim != input.ndim - 1:
        text = f"Got input {list(input.shape)} and target {list(target.shape)}."
        raise fail(ShapeError, "nll_loss", text)
    kept = logical_not(eq(target, ignore_index))
    safe = cast(where(kept, target, 0), i64)
    picked = gather(input, axis, unsqueeze(safe, axis))
    picked = reshape(picked, *target.dims)
    scale = cast(kept, input.dtype)
    if weight is not None:
        scale = mul(scale, take_blocks(weight, 0, safe))
    loss = where(kept, neg(mul(picked, scale)), scalar(0, input.dtype))
    if reduction != "mean":
        return _reduced(loss, reduction)
    return div(sum_of(loss), sum_of(scale))


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross entropy of logits [n, classes, ..] with class indices or class probabilities."""
    axis = 1 if input.ndim > 1 else 0
    logs = log_softmax(half_up(input), axis)
    count = input.dims[axis]
    scale = None if weight is None else reshape(weight, -1, *([1] * (input.ndim - 1 - axis)))
    weighted = logs if scale is None else mul(logs, scale)
    if target.dtype.is_float:
        spread = half_up(target)
        if label_smoothing:
            spread = add(mul(spread, 1 - label_smoothing), label_smoothing / count.value)  # type: ignore[operator]
        loss = neg(sum_of(mul(weighted, spread), axis))
        if reduction == "mean":
            return cast(mean(loss), input.dtype)
        return cast(_reduced(loss, reduction), input.dtype)
    wide = None if weight is None else half_up(weight)
    hard = nll_loss(logs, target, wide, ignore_index, reduction)
    if not label_smoothing:
        return cast(hard, input.dtype)
    kept = logical_not(eq(target, ignore_index))
    smooth = where(kept, neg(sum_of(weighted, axis)), scalar(0, logs.dtype))
    if reduction == "mean":
        share = cast(kept, logs.dtype)
        if wide is not None:
            share = mul(share, take_blocks(wide, 0, cast(where(kept, target, 0), i64)))
        smooth = div(sum_of(smooth), sum_of(share))
    else:
        smooth = _reduced(smooth, reduction)
    part = label_smoothing / count.value  # type: ignore[operator]
    return cast(add(mul(hard, 1 - label_smoothing), mul(smooth, part)), input.dtype)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log p + (1 - t) log(1 - p)), logarithms at least -100."""
    yes, no = maximum(log(input), -100.0), maximum(log1p(neg(input)), -100.0)
    loss = neg(add(mul(target, yes), mul(sub(1.0, target), no)))
    return _reduced(loss if weight is None else mul(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """binary_cross_entropy of sigmoid(input), without loss of digits."""
    soft = add(log1p(exp(neg(abs(input)))), maximum(neg(input), 0.0))
    if pos_weight is not None:
        soft = mul(soft, add(mul(sub(pos_weight, 1.0), target), 1.0))
    loss = add(mul(sub(1.0, target), input), soft)
    return _reduced(loss if weight is None else mul(loss, weight), reduction)


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target (log target - input), `input` being log-probabilities."""
    if log_target:
        loss = mul(exp(target), sub(target, input))
    else:
        loss = sub(xlogy(target, target), mul(target, input))
    if reduction == "batchmean":
        return div(sum_of(loss), input.shape[0])
    return _reduced(loss, reduction)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative log likelihood of a Poisson distribution, without Stirling's term."""
    if log_input:
        return _reduced(sub(exp(input), mul(target, input)), reduction)
    return _reduced(sub(input, mul(target, log(add(input, eps)))), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target input))."""
    return _reduced(log1p(exp(neg(mul(target, input)))), reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """input where the target is 1, max(0, margin - input) where it is -1."""
    return _reduced(where(eq(target, 1), input, maximum(sub(margin, input), 0.0)), reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target (input1 - input2) + margin)."""
    gap = add(neg(mul(target, sub(input1, input2))), margin)
    return _reduced(maximum(gap, 0.0), reduction)


def cosine_similarity(a: Tensor, b: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between a and b along an axis."""
    sizes = (maximum(norm(t, 2, dim, True), eps) for t in (a, b))
    x, y = (div(t, s) for t, s in zip((a, b), sizes, strict=True))
    return sum_of(mul(x, y), dim)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1."""
    near = cosine_similarity(input1, input2, -1)
    loss = where(eq(target, 1), sub(1.0, near), maximum(sub(near, margin), 0.0))
    return _reduced(loss, reduction)


def pairwise_distance(
    a: Tensor, b: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of a - b + eps along the last axis."""
    return norm(add(sub(a, b), eps), p, -1, keepdim)
