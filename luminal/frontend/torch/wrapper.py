"""What runs around a compiled graph at each call: what has to run in eager, and the short way in.

In: what AOTAutograd returned and what was noted while it compiled. Out: the callable for Dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule

from luminal.frontend.torch.recipe import Recipe, unboxed

__all__ = ["Notes", "direct", "is_direct", "left_its_base", "views_of_merged", "wrap"]

Function = Callable[..., Any]
Overlap = frozenset[tuple[int, int, int]]


@dataclass(slots=True)
class Notes:
    """What the compilers noted: how often each ran, the last metadata, the boxed callable;
    `example` are the inputs that Dynamo gave."""

    example: tuple[object, ...]
    inference: int = 0
    training: int = 0
    metadata: object | None = None
    inputs: int = -1
    inner: Function | None = None
    mutated: frozenset[int] = field(default_factory=frozenset)

    def parameters(self) -> dict[int, torch.Tensor]:
        """The real tensors of the inputs that are parameters or buffers, by position."""
        places = getattr(self.metadata, "static_input_indices", None) or ()
        if self.inputs != len(self.example):
            return {}
        found = {i: self.example[i] for i in places if i not in self.mutated}
        return {i: t for i, t in found.items() if isinstance(t, torch.Tensor)}

    def note(self, gm: GraphModule) -> None:
        """Records the metadata of the graph that AOTAutograd is compiling."""
        context = torch._guards.TracingContext.try_get()
        self.metadata = context.fw_metadata if context is not None else None
        self.inputs = sum(n.op == "placeholder" for n in gm.graph.nodes)
        infos = getattr(self.metadata, "input_info", ())
        self.mutated = frozenset(i for i, x in enumerate(infos) if x.mutates_data)


def wrap(
    compiled: Function, notes: Notes, gm: GraphModule, example_inputs: Sequence[object]
) -> tuple[Function, Recipe | None]:
    """The callable for Dynamo, and the recipe of what it calls if it does nothing else."""
    if is_direct(notes, len(example_inputs)) and notes.inner is not None:
        return direct(notes.inner, gm), notes.inner.recipe
    return _checking(compiled, notes.mutated, gm, example_inputs), None


def direct(inner: Function, gm: GraphModule) -> Function:
    """The callable for Dynamo that does what a boxed function does and nothing else."""
    return torch._dynamo.disable(unboxed(inner, gm.forward), reason="compiled by luminal")


def is_direct(notes: Notes, count: int) -> bool:
    """True if AOTAutograd's own wrapper has nothing to do."""
    data: Any = notes.metadata
    if notes.training or notes.inference != 1 or data is None or notes.inputs != count:
        return False
    inputs_stay = not any(
        i.mutates_data or i.mutates_metadata or i.mutates_storage_metadata for i in data.input_info
    )
    outputs_own = all(
        o.output_type.name == "non_alias" and not _is_subclass(o.raw_type) for o in data.output_info
    )
    return (
        inputs_stay
        and outputs_own
        and not data.num_intermediate_bases
        and not data.tokens
        and data.grad_enabled_mutation is None
    )


def views_of_merged(notes: Notes) -> bool:
    """True if AOTAutograd took overlapping inputs for views of one tensor and has to make results
    that are views of them: from that one tensor, it makes other views, or fails at the call."""
    data: Any = notes.metadata
    if data is None or notes.inputs >= len(notes.example) or not notes.mutated:
        return False
    return any(o.output_type.name == "alias_of_input" for o in data.output_info)


def _is_subclass(kind: type) -> bool:
    known = ("Tensor", "Parameter", "Buffer", "FakeTensor", "FunctionalTensor")
    return issubclass(kind, torch.Tensor) and kind.__name__ not in known


def _checking(
    compiled: Function, mutated: frozenset[int], gm: GraphModule, example: Sequence[object]
) -> Function:
    """Runs Dynamo's graph in eager where tensors carry tangents (forward-mode differentiation), and
    where inputs overlap in another way than they did at first."""
    known = _overlap(example, mutated)

    def run(*args: object) -> object:
        if forward_ad._current_level >= 0 or (mutated and _overlap(args, mutated) != known):
            return gm.forward(*args)
        return compiled(*args)

    return torch._dynamo.disable(run, reason="compiled by luminal")


def left_its_base(value: object) -> bool:
    """True of a view that no longer lies in its base's memory, because of `set_`."""
    if not isinstance(value, torch.Tensor) or value._base is None:
        return False
    if value.layout != torch.strided or value._base.layout != torch.strided:
        return False
    return value.untyped_storage()._cdata != value._base.untyped_storage()._cdata


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return start, start + extent * tensor.element_size()


def _overlap(args: Sequence[object], mutated: frozenset[int]) -> Overlap:
    """(mutated input, other input, distance in bytes) for all that share memory."""
    spans = [
        (i, *_span(t))
        for i, t in enumerate(args)
        if isinstance(t, torch.Tensor) and t.layout == torch.strided and t.numel()
    ]
    return frozenset(
        (i, j, low2 - low)
        for i, low, high in spans
        if i in mutated
        for j, low2, high2 in spans
        if i != j and low < high2 and low2 < high
    )
