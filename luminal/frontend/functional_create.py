"""Tensors from numbers: constants, ranges and one-hot patterns.

In: shapes and scalars. Out: tensors; sizes may be symbolic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luminal.frontend.functional_core import add, mul
from luminal.frontend.tensor import (
    Scalar,
    Tensor,
    broadcast,
    cast,
    dtype_of,
    iota,
    result_type,
    scalar,
    shape_of,
    tensor,
)
from luminal.ir.dtype import DType, boolean, f32, i64
from luminal.ir.expr import Expr, ExprLike, const, to_expr
from luminal.ir.view import View, axes_of

__all__ = [
    "arange",
    "empty",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def full(shape: Any, value: Scalar, *, dtype: DType | str | None = None) -> Tensor:
    """A tensor of one value."""
    sizes = shape_of(shape if isinstance(shape, list | tuple) else (shape,))
    want = dtype_of(dtype) if dtype is not None else result_type(value)
    return broadcast(scalar(value, want), sizes)


def _sizes(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape


def zeros(*shape: Any, dtype: DType | str = f32) -> Tensor:
    """A tensor of zeros."""
    return full(_sizes(shape), 0, dtype=dtype)


def ones(*shape: Any, dtype: DType | str = f32) -> Tensor:
    """A tensor of ones."""
    return full(_sizes(shape), 1, dtype=dtype)


empty = zeros


def full_like(x: Tensor, value: Scalar, *, dtype: DType | str | None = None) -> Tensor:
    """A tensor of one value with x's shape and dtype."""
    return full(x.dims, value, dtype=x.dtype if dtype is None else dtype)


def zeros_like(x: Tensor, *, dtype: DType | str | None = None) -> Tensor:
    """Zeros with x's shape and dtype."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Tensor, *, dtype: DType | str | None = None) -> Tensor:
    """Ones with x's shape and dtype."""
    return full_like(x, 1, dtype=dtype)


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: DType | str | None = None
) -> Tensor:
    """start, start + step, ... below end; i64 for integers, else f32."""
    start, end = (0, start) if end is None else (start, end)
    floats = any(isinstance(v, float) for v in (start, end, step))
    want = dtype_of(dtype) if dtype is not None else f32 if floats else i64
    if floats:
        count: ExprLike = max(0, int(np.ceil((end - start) / step)))
    elif step > 0:
        count = (to_expr(end) - start + (step - 1)) // step
    else:
        count = (to_expr(start) - end + (-step - 1)) // -step
    count = to_expr(count)
    if count.hi < 0:
        count = const(0)
    base = iota(count)
    if floats or (want.is_float and not isinstance(start, Expr)):
        wide = want if want.bits >= 32 else f32
        return cast(add(mul(cast(base, wide), step), start), want)
    if not isinstance(start, Expr) or start.value is not None:
        return cast(add(mul(base, step), int(to_expr(start).value or 0)), want)
    whole = iota(to_expr(start) + count * abs(step))
    index = start + to_expr(axes_of((count,))[0]) * step
    return cast(whole.through(View((count,), whole.dims, (index,))), want)


def linspace(start: float, end: float, steps: int, *, dtype: DType | str = f32) -> Tensor:
    """`steps` numbers evenly from start to end."""
    want = dtype_of(dtype)
    return tensor(np.linspace(start, end, steps), want) if steps else zeros(0, dtype=want)


def eye(n: ExprLike, m: ExprLike | None = None, *, dtype: DType | str = f32) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    want = dtype_of(dtype)
    dims = shape_of((n, n if m is None else m))
    i, j = (to_expr(a) for a in axes_of(dims))
    one = scalar(1, want)
    zero = 0.0 if want.is_float else False if want == boolean else 0
    return one.through(View(dims, (), (), (i - j, j - i), zero))
