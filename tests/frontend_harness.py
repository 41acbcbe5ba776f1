"""Runs tensor programs through the NumPy oracle and compares them with PyTorch.

In: a function of lazy tensors, one of torch tensors, arrays. Out: assertions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import luminal.frontend.functional as F
from luminal.frontend.tensor import Tensor, to_graph
from luminal.ir.dtype import by_name
from luminal.ir.expr import dim
from luminal.ir.interp import run_graph
from luminal.ir.verify import verify_graph

F.set_realizer(lambda graph: run_graph(graph, {}, {}))
NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


def bits(t: torch.Tensor) -> np.ndarray:
    t = t.detach().contiguous()
    return t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else t.numpy()


def from_bits(array: np.ndarray, dtype: Any) -> torch.Tensor:
    if dtype.name == "bf16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def evaluate(fn: Callable[..., Any], *args: Any, symbolic: bool | tuple[int, ...] = False) -> Any:
    """fn of lazy inputs, computed by the oracle; tensors among the arguments become inputs.

    `symbolic`: True for every axis, or the axes of the first argument.
    """
    feed, sizes, lazy = {}, {}, []
    for n, a in enumerate(args):
        if not isinstance(a, torch.Tensor):
            lazy.append(a)
            continue
        chosen = symbolic if isinstance(symbolic, tuple) and n == 0 else ()
        chosen = range(a.ndim) if symbolic is True else chosen
        named = [d in chosen and s > 1 for d, s in enumerate(a.shape)]
        shape = [dim(f"n{s}", 1, 64) if k else s for k, s in zip(named, a.shape, strict=True)]
        sizes.update({f"n{s}": s for k, s in zip(named, a.shape, strict=True) if k})
        feed[f"x{n}"] = bits(a)
        lazy.append(Tensor.from_input(f"x{n}", shape, by_name(NAMES[a.dtype])))
    out = fn(*lazy)
    outs = list(out) if isinstance(out, tuple | list) else [out]
    graph = to_graph(outs, [t for t in lazy if isinstance(t, Tensor)])
    verify_graph(graph)
    found = run_graph(graph, feed, sizes)
    done = [from_bits(f, o.dtype) for f, o in zip(found, outs, strict=True)]
    return done if isinstance(out, tuple | list) else done[0]


def check(
    fn: Callable[..., Any],
    reference: Callable[..., Any],
    *args: Any,
    symbolic: bool | tuple[int, ...] = False,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Equal dtypes, shapes and values (PyTorch's default tolerances), static and symbolic."""
    want = reference(*args)
    want = list(want) if isinstance(want, tuple | list) else want
    for mode in (False, symbolic) if symbolic else (False,):
        have = evaluate(fn, *args, symbolic=mode)
        torch.testing.assert_close(have, want, rtol=rtol, atol=atol, equal_nan=True)
