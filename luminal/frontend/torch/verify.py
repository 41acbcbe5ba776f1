"""`luminal.torch.verify`: every kernel of a model against eager and the oracle.

In: a model and its inputs. Out: the first fault in plan order, or None. Compiles as torch.compile
does, with a watcher in place of the direct call of each part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from luminal.checking import Fault, first_fault
from luminal.frontend.torch.backend import backend
from luminal.frontend.torch.part import OutputSpec, Part
from luminal.frontend.torch.runner import memory_array

__all__ = ["verify"]


@dataclass(slots=True)
class _Watcher:
    """Checks parts in the order in which they run until one has a fault."""

    tolerance: float | None
    folder: Path | None
    fault: Fault | None = None
    parts: int = 0

    def look(
        self, part: Part, arrays: Mapping[str, np.ndarray], inputs: Sequence[torch.Tensor],
        dims: Mapping[str, int], compiling: tuple[Any, Mapping[str, int], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Checks one part with the settings, hints and weights that it is compiled with."""
        if self.fault is not None:
            return
        self.parts += 1
        config, hints, weights = compiling
        known: dict[Node, Any] = dict(zip(part.inputs, (t.clone() for t in inputs), strict=True))
        wanted = [_wanted(s, known) for s in part.outputs]
        values = [v.double().numpy() for v in known.values() if isinstance(v, torch.Tensor)]
        self.fault = first_fault(
            part.graph, {n: a.copy() for n, a in arrays.items()}, config, dims=dims, hints=hints,
            weights=weights, wanted=wanted, known=values, tolerance=self.tolerance,
            folder=self.folder,
        )  # fmt: skip


def _wanted(spec: OutputSpec, known: dict[Node, Any]) -> np.ndarray | None:
    """The memory of what eager computes for an output from the part's inputs, if it can be told."""
    if spec.node is None:
        return None
    try:
        value = _eager(spec.node, known)
    except (RuntimeError, TypeError, KeyError, IndexError, ValueError):
        return None
    traced = (spec.updates or spec.node).meta["val"]
    strides = traced.stride() if spec.dense else value.contiguous().stride()
    if not all(isinstance(s, int) for s in strides):
        return None
    return memory_array(torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value))


def _eager(node: Node, known: dict[Node, Any]) -> Any:
    """The value of a node by running what it calls, without effects on the known values."""
    if node not in known:
        if node.op != "call_function":
            raise KeyError(node)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: _eager(n, known))
        known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]


def verify(
    model: Callable[..., object], inputs: Sequence[object], tolerance: float | None,
    folder: str | None, options: Mapping[str, object],
) -> Fault | None:  # fmt: skip
    """See `luminal.torch.verify`."""
    watcher = _Watcher(tolerance, Path(folder) if folder else None)
    plain = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", model)
    chosen = {"fallback": "silent", **options, "verify": watcher.look}
    with torch.no_grad():
        torch.compile(plain, backend=backend, options=chosen)(*inputs)
    if watcher.fault is not None:
        print(watcher.fault)
    return watcher.fault
