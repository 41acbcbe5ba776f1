"""A recipe: what the callable of one graph is made of, without tensors and without machine code.

In: lines of source and the constants that they name. Out: the callable, once the parts that it
calls are compiled or loaded (`bind`). A recipe that is `storable` means the same in any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.autograd import forward_ad

from luminal.frontend.torch.storage import CPU, Recycler, allocator
from luminal.frontend.torch.weights import Weights

__all__ = [
    "Bound",
    "Entry",
    "Fresh",
    "Function",
    "PartRecipe",
    "Recipe",
    "bind",
    "exact",
    "unboxed",
]

Function = Callable[[list[object]], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Fresh:
    """Stands for an allocator of one large result."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Stands for a function of the part at a position: a field of `Bound`."""

    part: int
    name: str


@dataclass(frozen=True, slots=True)
class Bound:
    """What the lines of a part call: which weight has changed (-1: none), how to bind the weights
    of now, the kernels."""

    changed: Callable[..., int]
    refresh: Callable[..., None]
    run_pointers: Callable[..., object]

    @classmethod
    def of(cls, executor: Any, weights: Weights) -> Bound:
        """The functions of an executor whose weights are remembered as they are now."""
        constants = [b for b in executor.program.plan.buffers if b.kind == "constant"]
        weights.watch({b.data.name for b in constants if b.data is not None and b.layout})
        return cls(
            weights.changed, partial(weights.refresh, executor.rebind), executor.run_pointers
        )


@dataclass(frozen=True, slots=True)
class PartRecipe:
    """A part: the key of its program, the position of each weight among the graph's inputs, and
    the order of inputs and fresh outputs that its lines of source rely on."""

    key: str
    weights: dict[str, int]
    inputs: tuple[str, ...]
    fresh: tuple[int, ...]


@dataclass(slots=True)
class Recipe:
    """Source of the body of a function of `inputs`, its constants, and the parts by position."""

    inputs: tuple[str, ...]
    source: str
    constants: dict[str, object]
    parts: dict[int, PartRecipe] = field(default_factory=dict)
    device: torch.device = CPU

    @property
    def storable(self) -> bool:
        """True if the constants mean the same in another process."""
        plain = (torch.dtype, Fresh, Entry)
        return (
            bool(self.parts)
            and self.device == CPU
            and all(isinstance(v, plain) for v in self.constants.values())
        )


def exact(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """x with these strides: what an eager operator returns may differ from what was traced."""
    if x.stride() == strides or x.numel() == 0:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def bind(
    recipe: Recipe, parts: Mapping[int, Bound], eager: Callable[..., object] | None = None,
    gradients: Sequence[int] = (),
) -> Function:  # fmt: skip
    """The callable: boxed, that is, it takes a list and empties it. `eager` does the same where the
    inputs that are gradients, by position, are batched (`is_grads_batched=True`)."""
    environment: dict[str, object] = {
        "as_strided": torch.as_strided,
        "empty": allocator(recipe.device),
        "exact": exact,
        "forward_ad": forward_ad,
        "math": math,
        "plain": partial(torch.empty, device=recipe.device),
        "torch": torch,
        "wrapped": _wrapped,
    }
    for name, value in recipe.constants.items():
        match value:
            case Fresh():
                value = Recycler() if recipe.device == CPU else allocator(recipe.device)
            case Entry(part, entry):
                value = getattr(parts[part], entry)
        environment[name] = value
    listed = "".join(name + ", " for name in recipe.inputs)
    take = f"    {listed}= args\n    args.clear()\n" if listed else ""
    if gradients:
        tested = ", ".join(recipe.inputs[n] for n in gradients)
        take += f"    if wrapped({tested}): return eager({listed})\n"
        environment["eager"] = eager
    function = _made(f"def call(args):\n{take}", recipe, environment)
    function._boxed_call = True
    return function


def _wrapped(*tensors: torch.Tensor) -> bool:
    """True if a tensor is a batch of tensors, without memory of its own."""
    return any(is_legacy_batchedtensor(t) or is_functorch_wrapped_tensor(t) for t in tensors)


def unboxed(function: Function, eager: Callable[..., object]) -> Callable[..., tuple[object, ...]]:
    """The same callable with an argument for each input. `eager` does the same for tensors that
    carry tangents (forward-mode differentiation)."""
    recipe: Recipe = function.recipe  # type: ignore[attr-defined]
    listed = ", ".join(recipe.inputs)
    aside = f"    if forward_ad._current_level >= 0: return eager({listed})\n"
    environment = {**function.__globals__, "eager": eager}  # type: ignore[attr-defined]
    return _made(f"def call({listed}):\n{aside}", recipe, environment)


def _made(head: str, recipe: Recipe, environment: dict[str, object]) -> Any:
    exec(compile(head + recipe.source, "<luminal.torch>", "exec"), environment)
    function: Any = environment.pop("call")
    function.source, function.recipe = head + recipe.source, recipe
    return function
