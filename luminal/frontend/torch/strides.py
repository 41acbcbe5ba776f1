"""Decompositions whose results lie in memory as ATen's do, where PyTorch's own lose the order.

In: tensors of any strides. Out: the same values as PyTorch's decompositions give, channels_last for
channels_last operands, or with the strides that are asked for; never an operand itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format

__all__ = ["laid_out_like", "table"]


def laid_out_like(out: Tensor, x: Tensor) -> Tensor:
    """A copy of `out`, channels_last if x is, else contiguous: ATen's `suggest_memory_format`."""
    return out.clone(memory_format=suggest_memory_format(x))


def _keeping(function: Callable[..., object], last: bool = True) -> Callable[..., object]:
    """`function` with results that are contiguous, or (if `last`) channels_last as its first
    operand is."""

    def decomposition(x: Tensor, *args: object, **kwargs: object) -> object:
        out = function(x, *args, **kwargs)
        layout = suggest_memory_format(x) if last else torch.contiguous_format
        if isinstance(out, Tensor):
            return out.contiguous(memory_format=layout)
        if out is NotImplemented:
            return out
        fitting = (layout if o.dim() == x.dim() else torch.contiguous_format for o in out)
        return tuple(o.contiguous(memory_format=f) for o, f in zip(out, fitting, strict=True))

    return decomposition


def _regular(overload: torch._ops.OpOverload) -> Callable[..., object]:
    """`overload` of a first operand that is contiguous or channels_last."""

    def decomposition(x: Tensor, *args: object, **kwargs: object) -> object:
        layout = suggest_memory_format(x)
        if x.is_contiguous(memory_format=layout):
            return NotImplemented
        return overload(x.contiguous(memory_format=layout), *args, **kwargs)

    return decomposition


def _copy_strided(x: Tensor, strides: Sequence[int]) -> object:
    if not all(isinstance(n, int) for n in (*x.shape, *strides)):
        return NotImplemented
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], x.shape[d] == 1))
    expected = 1
    for d in reversed(order):
        if x.shape[d] != 1 and strides[d] != expected:
            return NotImplemented  # gaps or overlaps
        expected *= x.shape[d]
    back = sorted(range(x.dim()), key=order.__getitem__)
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _elementwise(function: Callable[..., object]) -> Callable[..., object]:
    """`function` of one value at a time, with the strides that all operands together give; those
    of a chain of operators with two operands each may differ."""

    def decomposition(*args: object, **kwargs: object) -> object:
        out = function(*args, **kwargs)
        operands = [a for a in args if isinstance(a, Tensor)]
        if not isinstance(out, Tensor) or not all(isinstance(n, int) for n in out.shape):
            return out
        wide = [a.expand(out.shape) for a in operands]
        wanted = compute_elementwise_output_strides(*wide)
        equal = all(
            n == 1 or a == b for n, a, b in zip(out.shape, wanted, out.stride(), strict=True)
        )
        return out if equal else _laid_out(out, wanted)

    return decomposition


def _like_clone(function: Callable[..., object]) -> Callable[..., object]:
    """`function`, whose result lies in memory as a clone of its first operand does."""

    def decomposition(x: Tensor, *args: object, **kwargs: object) -> object:
        out, sizes = function(x, *args, **kwargs), (*x.shape, *x.stride())
        if not isinstance(out, Tensor) or not all(isinstance(n, int) for n in sizes):
            return out
        wanted = torch.empty_like(x).stride()
        return out if out.stride() == wanted else _laid_out(out, wanted)

    return decomposition


def _laid_out(x: Tensor, strides: Sequence[int]) -> Tensor:
    copied = _copy_strided(x, strides)
    return copied if isinstance(copied, Tensor) else x


def _several_operands(overload: torch._ops.OperatorBase) -> bool:
    """True of an operator that computes one value at a time of two tensors or more, without
    writing."""
    if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
        return False
    if overload._schema.name == "aten::masked_fill":  # always contiguous in eager
        return False
    if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"):
        return False  # a chain in eager too
    tensors = sum("Tensor" in str(a.type) for a in overload._schema.arguments)
    return torch.Tag.pointwise in overload.tags and tensors > 1


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> object:
    """As ATen's kernel, whose result has the strides of the last concatenation."""
    if suggest_memory_format(x) == torch.contiguous_format or not dims or x.numel() == 0:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        start = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def _power_of_number(base: float, x: Tensor) -> object:
    """As ATen, whose result is contiguous."""
    return NotImplemented if x.is_contiguous() else torch.pow(base, x.contiguous())


def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    shuffled = x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    return laid_out_like(shuffled, x)


def table(
    found: dict[torch._ops.OperatorBase, Callable[..., object]],
) -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload; some of them are those `found` so far, with the layout."""
    aten = torch.ops.aten
    keeping = (
        aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default,
        aten.max_unpool2d.default, aten.native_batch_norm.default,
        aten._batch_norm_with_update_functional.default,
    )  # fmt: skip
    regular = (
        aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default,
    )  # fmt: skip
    return {
        **{o: _elementwise(f) for o, f in found.items() if _several_operands(o)},
        **{
            o: _like_clone(found[o])
            for o in (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
        },
        **{o: _keeping(found[o]) for o in keeping},
        **{o: _regular(o) for o in regular},
        aten.baddbmm.default: _keeping(found[aten.baddbmm.default], last=False),
        aten.grid_sampler_3d.default: _keeping(found[aten.grid_sampler_3d.default], last=False),
        torch.ops.prims.copy_strided.default: _copy_strided,
        aten.roll.default: _roll,
        aten.pow.Scalar: _power_of_number,
        aten.channel_shuffle.default: _channel_shuffle,
    }
