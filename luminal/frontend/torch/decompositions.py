"""The decomposition table: PyTorch's core table without its faults, and our attention pair.

In: nothing. Out: `table()`, OpOverload -> function, for AOTAutograd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from luminal.frontend.torch import (
    bags,
    foreach,
    grouped,
    matrices,
    polynomials,
    sdpa,
    special,
    strides,
    windows,
)
from luminal.frontend.torch.encoder_layer import encoder_layer

__all__ = ["table"]

_FAULTY = (
    "std", "std_mean",  # overflow in f32, where eager accumulates in double
    "roll", "select_scatter",  # lose the strides
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform",
    "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "uniform_",  # other numbers
    "index_add", "index_add_", "index_copy", "index_copy_",  # accept indices that eager refuses
)  # fmt: skip
_MORE = (
    "_batch_norm_with_update_functional", "as_strided_copy", "as_strided_scatter", "dist",
    "ldexp", "narrow_copy", "native_batch_norm", "permute_copy", "unbind_copy",
    "upsample_bicubic2d", "upsample_trilinear3d",
)  # fmt: skip


def _grid_sampler_2d(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> object:
    """PyTorch's decomposition, except for bicubic sampling, which makes very large kernels."""
    overload = torch.ops.aten.grid_sampler_2d.default
    if mode == 2:
        return NotImplemented
    return get_decompositions([overload])[overload](x, grid, mode, padding, align)


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions to trace with."""
    return _builtin() | grouped.table()


@cache
def _builtin() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    aten = torch.ops.aten
    found = dict(core_aten_decompositions())
    found |= get_decompositions([getattr(aten, n) for n in _MORE if hasattr(aten, n)])
    for name in _FAULTY:
        packet = getattr(aten, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            found.pop(getattr(packet, overload), None)
    found[aten._scaled_dot_product_flash_attention_for_cpu.default] = sdpa.forward
    found[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = sdpa.backward
    found[aten.grid_sampler_2d.default] = _grid_sampler_2d
    for module in (special, polynomials, matrices, windows, bags, foreach):
        found |= module.table()
    found[aten._transformer_encoder_layer_fwd.default] = encoder_layer
    return found | strides.table(found)
