"""Convolution and pooling: padded, unfolded views, contracted or reduced over their windows.

In and out: tensors [n, c, ..] with one to three spatial axes (the batch axis may be missing).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from luminal.errors import ArgumentError, ShapeError
from luminal.frontend.functional_activation import relu
from luminal.frontend.functional_core import abs, add, mul
from luminal.frontend.functional_integer import div
from luminal.frontend.functional_join import pad
from luminal.frontend.functional_linear import contract
from luminal.frontend.functional_power import pow
from luminal.frontend.functional_reduce import argmax, lowest, reduce_many
from luminal.frontend.functional_shape import flip, movedim, reshape, transpose, unsqueeze
from luminal.frontend.tensor import Scalar, Tensor, cast, fail, half_up, index_tensor, scalar
from luminal.frontend.views import pad as pad_view
from luminal.frontend.views import unfold
from luminal.ir.dtype import i64
from luminal.ir.expr import Expr, const, maximum, minimum, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "conv1d", "conv2d", "conv3d", "conv_transpose",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "im2col", "lp_pool1d", "lp_pool2d", "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip

Sizes = int | Sequence[int]


def sizes(op: str, value: Sizes, n: int) -> tuple[int, ...]:
    """One number per spatial axis."""
    given = (value,) * n if isinstance(value, int) else tuple(value)
    given = given * n if len(given) == 1 else given
    if len(given) != n:
        raise fail(ArgumentError, op, f"Got {given}; expected one number or {n}.")
    return given


def _windows(x: Tensor, first: int, size: Sizes, step: Sizes, dilation: Sizes) -> Tensor:
    """Windows along the axes from `first` on; the window axes come last."""
    for p, (k, s, d) in enumerate(zip(size, step, dilation, strict=True)):  # type: ignore[arg-type]
        length = x.dims[first + p]
        if (length - (d * (k - 1) + 1)).hi < 0:
            text = f"the window is larger than the input. Got {d * (k - 1) + 1} for {length}."
            raise fail(ShapeError, "conv", text)
        x = x.through(unfold(x.dims, first + p, k, s, d))
    return x


def _conv_pads(
    padding: Sizes | str, size: Sequence[int], step: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(size)
    if padding == "same":
        if any(s != 1 for s in step):
            raise fail(ArgumentError, "conv", f"'same' needs stride 1. Got {tuple(step)}.")
        totals = [d * (k - 1) for k, d in zip(size, dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    if isinstance(padding, str):
        raise fail(ArgumentError, "conv", f"Got padding={padding!r}; try 'same' or 'valid'.")
    return [(p, p) for p in sizes("conv", padding, len(size))]


def _grouped(
    x: Tensor, weight: Tensor, bias: Tensor | None, step: Any, dilation: Any, groups: int
) -> Tensor:
    """The convolution of padded x [n, c, ..] with weight [o, c / groups, ..]."""
    n, outs, per = weight.ndim - 2, weight.dims[0] // groups, weight.dims[1]
    dtype = x.dtype
    wide = _windows(half_up(x), 2, weight.shape[2:], step, dilation)
    wide = reshape(wide, wide.dims[0], groups, per, *wide.dims[2:])
    wide = unsqueeze(movedim(wide, 2, 2 + n), 2)
    w = reshape(half_up(weight), groups, outs, *([1] * n), per, *weight.dims[2:])
    out = contract(wide, w, range(3 + n, 4 + 2 * n))
    out = reshape(out, out.dims[0], weight.dims[0], *out.dims[3:])
    if bias is not None:
        out = add(out, reshape(half_up(bias), -1, *([1] * n)))
    return cast(out, dtype)


def _check(x: Tensor, weight: Tensor, n: int, inputs: Expr, groups: int, op: str) -> Tensor:
    if x.ndim not in (n + 1, n + 2) or weight.ndim != n + 2:
        text = f"Got input {list(x.shape)} and weight {list(weight.shape)}; expected {n + 2} axes."
        raise fail(ShapeError, op, text)
    x = x if x.ndim == n + 2 else unsqueeze(x, 0)
    if x.dims[1] != inputs or (x.dims[1].value is not None and x.dims[1].value % groups):
        text = f"channels do not fit. Got input {list(x.shape)} and weight {list(weight.shape)}"
        raise fail(ShapeError, op, f"{text}, {groups} groups; expected {inputs} input channels.")
    return x


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """x [n, c, ..] convolved with weight [o, c / groups, ..] over its one to three spatial axes."""
    n, batched = weight.ndim - 2, x.ndim == weight.ndim
    op = f"conv{n}d"
    x = _check(x, weight, n, weight.dims[1] * groups, groups, op)
    step, spread = sizes(op, stride, n), sizes(op, dilation, n)
    pads = _conv_pads(padding, weight.shape[2:], step, spread)
    x = pad(x, [v for pair in reversed(pads) for v in pair])
    out = _grouped(x, weight, bias, step, spread, groups)
    return out if batched else reshape(out, *out.dims[1:])


def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The transpose of a convolution; weight is [c, o / groups, ..]."""
    n, batched = weight.ndim - 2, x.ndim == weight.ndim
    op = f"conv_transpose{n}d"
    x = _check(x, weight, n, weight.dims[0], groups, op)
    step, cut, more, spread = (sizes(op, v, n) for v in (stride, padding, output_padding, dilation))
    for p, k in enumerate(weight.shape[2:]):
        before = spread[p] * (k - 1) - cut[p]
        view = pad_view(x.dims, 2 + p, before, before + more[p], 0.0, step[p] - 1)
        x = x.through(view)
    c, outs = weight.dims[0] // groups, weight.dims[1]
    w = flip(weight, list(range(2, n + 2)))
    w = transpose(reshape(w, groups, c, outs, *weight.dims[2:]), 1, 2)
    w = reshape(w, outs * groups, c, *weight.dims[2:])
    out = _grouped(x, w, bias, (1,) * n, spread, groups)
    return out if batched else reshape(out, *out.dims[1:])


conv1d = conv2d = conv3d = convolution
conv_transpose1d = conv_transpose2d = conv_transpose3d = conv_transpose


def im2col(
    x: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The windows of x [n, c, h, w] as columns [n, c·kh·kw, windows]."""
    size, spread, edge, step = (
        sizes("im2col", v, 2) for v in (kernel_size, dilation, padding, stride)
    )
    x = pad(x, [edge[1], edge[1], edge[0], edge[0]])
    parts = movedim(_windows(x, 2, size, step, spread), (4, 5), (2, 3))
    n, c, kh, kw, h, w = parts.dims
    return reshape(parts, n, c * kh * kw, h * w)


def _pool_windows(
    x: Tensor, n: int, size: Sequence[int], step: Sequence[int], edge: Sequence[int],
    spread: Sequence[int], ceil_mode: bool, fill: Scalar,
) -> Tensor:  # fmt: skip
    first = x.ndim - n
    for p in range(n):
        length, reach = x.dims[first + p], spread[p] * (size[p] - 1) + 1
        after = to_expr(edge[p])
        if ceil_mode:
            count = (length + 2 * edge[p] - reach + (step[p] - 1)) // step[p] + 1
            count = minimum(count, (length + edge[p] - 1) // step[p] + 1)
            after = (count - 1) * step[p] + reach - length - edge[p]
        if edge[p] or after.value != 0:
            x = x.through(pad_view(x.dims, first + p, edge[p], after, fill))
    return _windows(x, first, size, step, spread)


def _max_pool(
    n: int, x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes,
    ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    op = f"max_pool{n}d"
    size = sizes(op, kernel_size, n)
    step = size if stride in (None, (), []) else sizes(op, stride, n)  # type: ignore[arg-type]
    edge, spread = sizes(op, padding, n), sizes(op, dilation, n)
    parts = _pool_windows(x, n, size, step, edge, spread, ceil_mode, lowest(x.dtype))
    out = reduce_many("MaxReduce", parts, range(x.ndim, x.ndim + n), False)
    if not return_indices:
        return out
    places = scalar(0, i64)
    best = argmax(reshape(parts, *out.dims, -1), -1)
    for p in range(n):
        inner = 1
        for k in size[p + 1 :]:
            inner *= k
        offset = best.floor_divide(inner).remainder(size[p])
        start = index_tensor_of(out.dims[x.ndim - n + p], step[p])
        start = reshape(start, -1, *([1] * (n - 1 - p)))
        at = add(add(mul(offset, spread[p]), start), -edge[p])
        places = add(mul(places, _extent(x.dims[x.ndim - n + p])), at)
    return out, places


def _extent(size: Expr) -> Tensor:
    axis = axes_of((const(1),))[0]
    return reshape(index_tensor(size, axis, size + 1), ())


def index_tensor_of(extent: Expr, step: int) -> Tensor:
    """0, step, 2 step, ... ."""
    axis = axes_of((extent,))[0]
    return index_tensor(to_expr(axis) * step, axis, extent * step)


def _avg_pool(
    n: int, x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    op = f"avg_pool{n}d"
    size = sizes(op, kernel_size, n)
    step = size if stride in (None, (), []) else sizes(op, stride, n)  # type: ignore[arg-type]
    edge = sizes(op, padding, n)
    parts = _pool_windows(half_up(x), n, size, step, edge, (1,) * n, ceil_mode, 0.0)
    total = reduce_many("SumReduce", parts, range(x.ndim, x.ndim + n), False)
    uniform = not ceil_mode and (count_include_pad or not any(edge))
    if divisor_override or uniform:
        count = divisor_override or reduce(lambda a, b: a * b, size)
        return cast(mul(total, 1.0 / count), x.dtype)
    for p in range(n):
        axis_at = x.ndim - n + p
        axis = axes_of((total.dims[axis_at],))[0]
        start, extra = to_expr(axis) * step[p] - edge[p], edge[p] if count_include_pad else 0
        end = minimum(start + size[p], x.dims[axis_at] + extra)
        count = index_tensor(end - maximum(start, -extra), axis, size[p] + 1)
        total = div(total, reshape(cast(count, total.dtype), -1, *([1] * (n - 1 - p))))
    return cast(total, x.dtype)


def _bins(x: Tensor, d: int, out: int, fill: Scalar) -> tuple[Tensor, Expr, Any]:
    """Axis d as `out` bins, the members as the last axis; the bin size as an Expr of its axis."""
    length = x.dims[d]
    most: Any = length // out + 2
    if length.value is not None:
        n = length.value
        most = max((-(-(i + 1) * n // out) - i * n // out for i in range(out)), default=0)
    dims = (*x.dims[:d], const(out), *x.dims[d + 1 :], to_expr(most))
    *axes, member = (to_expr(a) for a in axes_of(dims))
    start, end = axes[d] * length // out, ((axes[d] + 1) * length + (out - 1)) // out
    count, axes[d] = end - start, start + member
    inside = count - 1 - member
    valid = () if inside.lo >= 0 else (inside,)
    return x.through(View(dims, x.dims, tuple(axes), valid, fill)), count, axes_of(dims)[d]


def _adaptive(n: int, x: Tensor, output_size: Any, mean: bool) -> Tensor:
    given = (
        (output_size,) * n if output_size is None or isinstance(output_size, int) else output_size
    )
    dtype, x = x.dtype, half_up(x) if mean else x
    for p, out in enumerate(given):
        d = x.ndim - n + p
        if out is None:
            continue
        parts, count, axis = _bins(x, d, out, 0.0 if mean else lowest(x.dtype))
        x = reduce_many("SumReduce" if mean else "MaxReduce", parts, (x.ndim,), False)
        if mean and count.value is not None:
            x = mul(x, 1.0 / count.value)
        elif mean:
            size = index_tensor(count, axis, parts.dims[-1] + 1)
            x = div(x, reshape(cast(size, x.dtype), -1, *([1] * (n - 1 - p))))
    return cast(x, dtype)


def _lp_pool(
    n: int, x: Tensor, p: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool
) -> Tensor:
    size = sizes("lp_pool", kernel_size, n)
    step = size if stride is None else sizes("lp_pool", stride, n)
    parts = _pool_windows(pow(half_up(x), p), n, size, step, (0,) * n, (1,) * n, ceil_mode, 0.0)
    total = reduce_many("SumReduce", parts, range(x.ndim, x.ndim + n), False)
    return cast(pow(mul(total.sign(), relu(abs(total))), 1.0 / p), x.dtype)


def _make(n: int) -> dict[str, Any]:
    def max_pool(
        x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """The maximum of each window (and its place in the plane)."""
        return _max_pool(n, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    def avg_pool(
        x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        """The mean of each window."""
        return _avg_pool(
            n, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    def adaptive_avg_pool(x: Tensor, output_size: Any) -> Tensor:
        """The mean of each of `output_size` bins."""
        return _adaptive(n, x, output_size, True)

    def adaptive_max_pool(x: Tensor, output_size: Any) -> Tensor:
        """The maximum of each of `output_size` bins."""
        return _adaptive(n, x, output_size, False)

    def lp_pool(
        x: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:  # fmt: skip
        """The p-norm of each window."""
        return _lp_pool(n, x, norm_type, kernel_size, stride, ceil_mode)

    made = (max_pool, avg_pool, adaptive_avg_pool, adaptive_max_pool, lp_pool)
    return {f"{f.__name__}{n}d": f for f in made}


max_pool1d, avg_pool1d, adaptive_avg_pool1d, adaptive_max_pool1d, lp_pool1d = _make(1).values()
max_pool2d, avg_pool2d, adaptive_avg_pool2d, adaptive_max_pool2d, lp_pool2d = _make(2).values()
max_pool3d, avg_pool3d, adaptive_avg_pool3d, adaptive_max_pool3d, lp_pool3d = _make(3).values()
