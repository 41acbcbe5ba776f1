"""Runs parts: natively through the compiler, or in NumPy through the oracle.

In: a `Part`. Out: its `run` function over PyTorch tensors, zero-copy. Facts go to the report.
"""

from __future__ import annotations

import numpy as np
import torch

from luminal.errors import UnsupportedError
from luminal.frontend.torch.options import Options
from luminal.frontend.torch.part import Part, Runner
from luminal.frontend.torch.reports import Report
from luminal.ir.interp import run_graph

__all__ = ["compile_part"]


def compile_part(part: Part, options: Options, report: Report) -> None:
    """Sets `part.run`."""
    if options.executor == "oracle":
        part.run = _oracle(part)
        return
    raise UnsupportedError("[torch] no native executor yet.")


def _oracle(part: Part) -> Runner:
    names = [part.names[n] for n in part.inputs]

    def run(
        inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], dims: tuple[int, ...]
    ) -> None:
        arrays = {n: memory_array(t) for n, t in zip(names, inputs, strict=True)}
        results = run_graph(part.graph, arrays, dict(zip(part.dims, dims, strict=True)))
        for tensor, result in zip(outputs, results, strict=True):
            memory_array(tensor)[...] = result.reshape(-1)

    return run


def memory_array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor from its first to its last element as a flat array."""
    extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    flat = tensor.detach().as_strided((extent if tensor.numel() else 0,), (1,))
    return flat.view(torch.uint16).numpy() if flat.dtype == torch.bfloat16 else flat.numpy()
