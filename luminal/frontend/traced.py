"""What a frontend takes and finds: sizes and inputs of examples, a traced graph with its results.

Data only: every way in (functions of tensors, PyTorch models, files ahead of time) shares it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from luminal.ir import DType, ExprLike, Graph

__all__ = ["Dim", "InputSpec", "Leaf", "Traced"]


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension that may differ from call to call: lo <= size <= hi."""

    name: str
    lo: int = 1
    hi: int = 1 << 20


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input without an array: its shape (ints or expressions) and dtype."""

    shape: tuple[ExprLike, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Leaf:
    """A result that is no tensor: None, a number or a text."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Traced:
    """What a frontend found: the graph, the structure of its results (their numbers in place of the
    tensors), the sizes of the examples by dim, the names of the inputs that a call takes, the
    inputs that are weights, by their names in the model, and checks: the last results of the graph
    are truth values, and each that is true means an error of this kind and text."""

    graph: Graph
    structure: object
    hints: dict[str, int]
    names: tuple[str, ...]
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    checks: tuple[tuple[str, str], ...] = ()
