"""Memory layouts at the border: dtypes, and which order of dimensions makes a tensor contiguous.

In: traced sizes and strides. Out: luminal dtypes and tensors over the bytes that PyTorch owns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from luminal.frontend.tensor import Tensor
from luminal.frontend.torch.symbols import Symbols
from luminal.frontend.views import permute
from luminal.ir import dtype as dt
from luminal.ir.dtype import DType
from luminal.ir.expr import Expr, const, to_expr
from luminal.ir.view import Shape, View, axes_of

__all__ = ["DTYPES", "PARTS", "input_tensor", "inverse", "memory_order"]

DTYPES: dict[torch.dtype, DType] = {
    torch.float64: dt.f64, torch.float32: dt.f32, torch.float16: dt.f16, torch.bfloat16: dt.bf16,
    torch.int64: dt.i64, torch.int32: dt.i32, torch.int16: dt.i16, torch.int8: dt.i8,
    torch.uint8: dt.u8, torch.bool: dt.boolean,
}  # fmt: skip
PARTS = {torch.complex64: dt.f32, torch.complex128: dt.f64}
"""The dtypes of the real and the imaginary parts."""
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)


def memory_order(sizes: Shape, strides: Shape) -> tuple[int, ...] | None:
    """The dimensions from outermost to innermost in memory, or None if there are gaps or overlaps.

    >>> memory_order((const(2), const(3), const(4)), (const(12), const(1), const(3)))
    (0, 2, 1)
    """
    if any(s.value == 0 for s in sizes):
        return tuple(range(len(sizes)))
    names = sorted({v for e in (*sizes, *strides) for v in e.variables()}, key=lambda v: v.name)
    env = {v.name: max(v.lo, min(v.hi, _PRIMES[i % len(_PRIMES)])) for i, v in enumerate(names)}
    values = [s.evaluate(env) for s in strides]
    order = sorted(range(len(sizes)), key=lambda d: (-values[d], sizes[d].value == 1))
    expected: Expr = const(1)
    for d in reversed(order):
        if sizes[d].value == 1:
            continue
        if strides[d] != expected:
            return None
        expected = expected * sizes[d]
    if [d for d in order if sizes[d].value != 1] == [
        d for d in range(len(sizes)) if sizes[d].value != 1
    ]:
        return tuple(range(len(sizes)))
    return tuple(order)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def input_tensor(name: str, fake: torch.Tensor, symbols: Symbols) -> tuple[Tensor, Tensor]:
    """(the input over the tensor's memory, the same seen with the tensor's sizes)."""
    sizes, strides = symbols.exprs(fake.shape), symbols.exprs(fake.stride())
    dtype = DTYPES[fake.dtype]
    order = memory_order(sizes, strides)
    if order is not None:
        memory = Tensor.from_input(name, tuple(sizes[d] for d in order), dtype)
        return memory, memory.through(permute(memory.dims, inverse(order)))
    extent, place = const(1), const(0)
    for axis, size, stride in zip(axes_of(sizes), sizes, strides, strict=True):
        extent, place = extent + (size - 1) * stride, place + to_expr(axis) * stride
    memory = Tensor.from_input(name, (extent,), dtype)
    return memory, memory.through(View(sizes, (extent,), (place,)))
