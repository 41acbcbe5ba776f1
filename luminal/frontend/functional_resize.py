"""Interpolation of spatial axes: exact rational positions as index maps, weights from iotas.

In and out: tensors [n, c, ..]. Antialiasing is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor
from typing import Any

from luminal.errors import ArgumentError, UnsupportedError
from luminal.frontend.functional_core import add, mul, sub
from luminal.frontend.functional_reduce import size_scalar
from luminal.frontend.functional_shape import reshape
from luminal.frontend.tensor import Tensor, cast, fail, half_up, index_tensor
from luminal.ir.dtype import f32, f64
from luminal.ir.expr import Expr, const, maximum, minimum, to_expr
from luminal.ir.view import View, axes_of

__all__ = ["interpolate", "upsample"]

_Position = tuple[Expr, Expr]  # numerator (may be negative), denominator


def _picked(x: Tensor, d: int, index: Callable[[Expr], Expr], out: Expr) -> Tensor:
    """x with axis d read at index(i) for i = 0 .. out-1."""
    dims = (*x.dims[:d], out, *x.dims[d + 1 :])
    axes = [to_expr(a) for a in axes_of(dims)]
    axes[d] = index(axes[d])
    return x.through(View(dims, x.dims, tuple(axes)))


def _position(i: Expr, length: Expr, out: Expr, align: bool, scale: Fraction | None) -> _Position:
    """The source position of element i as a fraction."""
    if align:
        return i * (length - 1), maximum(out - 1, 1)
    if scale is not None:
        p, q = scale.numerator, scale.denominator
        return (2 * i + 1) * q - p, const(2 * p)
    return (2 * i + 1) * length - out, 2 * out


def _nearest(x: Tensor, d: int, out: Expr, exact: bool, scale: Fraction | None) -> Tensor:
    length, last = x.dims[d], x.dims[d] - 1
    num, den = (
        (length, out) if scale is None else (const(scale.denominator), const(scale.numerator))
    )
    if exact:
        return _picked(x, d, lambda i: minimum((2 * i + 1) * num // (2 * den), last), out)
    return _picked(x, d, lambda i: minimum(i * num // den, last), out)


def _fraction(x: Tensor, d: int, out: Expr, at: _Position) -> Tensor:
    """The part of the position beyond its integer part, as a vector along axis d."""
    axis = axes_of((out,))[0]
    work = x.dtype if x.dtype == f64 else f32
    rest = index_tensor(at[0] % at[1], axis, at[1])
    part = cast(rest, work).div(size_scalar(at[1], work))
    return reshape(part, -1, *([1] * (x.ndim - 1 - d)))


def _linear(x: Tensor, d: int, out: Expr, align: bool, scale: Fraction | None) -> Tensor:
    length = x.dims[d]

    def at(i: Expr) -> _Position:
        top, bottom = _position(i, length, out, align, scale)
        return maximum(top, 0), bottom

    def low(i: Expr) -> Expr:
        top, bottom = at(i)
        return minimum(top // bottom, length - 1)

    i = to_expr(axes_of((out,))[0])
    a = _picked(x, d, low, out)
    b = _picked(x, d, lambda i: minimum(low(i) + 1, length - 1), out)
    top, bottom = at(i)
    weight = _fraction(x, d, out, (top, bottom))
    return add(mul(a, sub(1.0, weight)), mul(b, weight))


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the four neighbours, for a cubic convolution with a = -0.75."""
    a = -0.75

    def near(s: Tensor) -> Tensor:
        return add(mul(mul(sub(mul(s, a + 2), a + 3), s), s), 1.0)

    def far(s: Tensor) -> Tensor:
        return sub(mul(add(mul(sub(mul(s, a), 5 * a), s), 8 * a), s), 4 * a)

    back = sub(1.0, t)
    return [far(add(t, 1.0)), near(t), near(back), far(add(back, 1.0))]


def _cubic(x: Tensor, d: int, out: Expr, align: bool, scale: Fraction | None) -> Tensor:
    length = x.dims[d]

    def tap(offset: int) -> Callable[[Expr], Expr]:
        def index(i: Expr) -> Expr:
            top, bottom = _position(i, length, out, align, scale)
            return minimum(maximum(top // bottom + offset, 0), length - 1)

        return index

    i = to_expr(axes_of((out,))[0])
    top, bottom = _position(i, length, out, align, scale)
    weights = _cubic_weights(_fraction(x, d, out, (top, bottom)))
    total: Any = None
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        part = mul(_picked(x, d, tap(offset), out), weight)
        total = part if total is None else add(total, part)
    return total


def interpolate(
    x: Tensor, size: int | Sequence[Any] | None = None,
    scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """x [n, c, ..] resized: 'nearest', 'nearest-exact', 'linear', 'bilinear', 'trilinear' or
    'bicubic'; to `size`, or by `scale_factor`."""
    n = x.ndim - 2
    if antialias:
        raise fail(UnsupportedError, "interpolate", "antialiasing is not done. Got antialias=True.")
    if (size is None) == (scale_factor is None):
        raise fail(ArgumentError, "interpolate", "needs size or scale_factor, and only one.")
    scales: list[Fraction | None] = [None] * n
    if scale_factor is not None:
        given = [scale_factor] * n if isinstance(scale_factor, int | float) else scale_factor
        exact = [Fraction(s).limit_denominator(1 << 16) for s in given]
        outs = [
            to_expr(floor(d.value * s)) if d.value is not None else d * s.numerator // s.denominator
            for d, s in zip(x.dims[2:], exact, strict=True)
        ]
        scales = [None] * n if recompute_scale_factor else list(exact)
    else:
        listed = [size] * n if isinstance(size, int | Expr) else size
        outs = [to_expr(s) for s in listed]  # type: ignore[union-attr]
    dtype, x = x.dtype, x if mode.startswith("nearest") else half_up(x)
    for p, (out, scale) in enumerate(zip(outs, scales, strict=True)):
        if mode in ("nearest", "nearest-exact"):
            x = _nearest(x, 2 + p, out, mode == "nearest-exact", scale)
        elif mode in ("linear", "bilinear", "trilinear"):
            x = _linear(x, 2 + p, out, bool(align_corners), scale)
        elif mode == "bicubic":
            x = _cubic(x, 2 + p, out, bool(align_corners), scale)
        else:
            raise fail(ArgumentError, "interpolate", f"Got mode={mode!r}; try 'bilinear'.")
    return cast(x, dtype)


upsample = interpolate
