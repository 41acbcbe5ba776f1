"""A compiled part: one phase as a graph of luminal, and the signature by which it is called.

In: the nodes of a phase and what later code needs of them. Out: `Part`. Does not compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from luminal.frontend.torch.recipe import Bound, PartRecipe
from luminal.ir.graph import Graph

__all__ = ["Emitter", "OutputSpec", "Part", "Runner"]

Runner = Callable[[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], tuple[int, ...]], None]
"""Runs a part: reads the inputs, writes the outputs, given the values of the dimensions."""

Emitter = Callable[[list[str], list[str], str, Callable[[str], str]], list[str]]
"""Source lines that run a part, from the names of inputs and outputs, the tuple of dimensions, and
a function that gives the name of a field of `Bound` in the source; faster than calling `run`."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One result of a part: its node; `dense` if the part can write the strides that PyTorch
    expects (otherwise it writes a contiguous tensor, which is copied); `updates` is the input
    that it overwrites, if any. A spec with `error` (name and text of an exception) has no node: the
    result is a truth value, and the exception is raised if it is true."""

    node: Node | None
    dense: bool = True
    updates: Node | None = None
    error: tuple[str, str] = ("", "")


@dataclass(slots=True)
class Part:
    """One compiled phase. `dims` are names of symbols; `run`, and perhaps `direct`, `bound` and
    `recipe`, are set once it is compiled."""

    graph: Graph
    inputs: list[Node]
    outputs: list[OutputSpec]
    dims: tuple[str, ...] = ()
    run: Runner | None = None
    direct: Emitter | None = None
    bound: Bound | None = None
    recipe: PartRecipe | None = None
    names: dict[Node, str] = field(default_factory=dict)
