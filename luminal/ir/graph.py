"""Graph: the hand-over from a frontend to rewriting. Nodes of the 15 primitives, views on edges.

In: nodes of a frontend. Out: an immutable `Graph` in topological order. Checks nothing that
`verify.py` checks; knows no frontend."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from luminal.ir.dtype import DType
from luminal.ir.expr import Var
from luminal.ir.view import Shape, View

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True, eq=False, slots=True)
class ConstantData:
    """A constant tensor: a name and its data (bits as `dtype.numpy`). Compared by identity.

    4-bit dtypes are packed two to a byte along the last dimension, low nibble first."""

    name: str
    array: np.ndarray


@dataclass(frozen=True, slots=True)
class Edge:
    """The value of node number `node` seen through `view`."""

    node: int
    view: View


@dataclass(frozen=True, slots=True)
class Node:
    """One primitive or leaf.

    `op` is a key of `ops.PRIMITIVES`, or 'Input' or 'Constant'. Attributes by op: `axis` for
    reductions (removed from the shape), Iota (counts along it), Gather and Scatter; `name` for
    inputs; `value` for constants (a Python scalar of shape () or `ConstantData`). Gather(src,
    index): index has the output's shape, src has it too except along `axis`. Scatter(dest, index,
    src): index and src have one shape, dest has it too except along `axis`."""

    op: str
    inputs: tuple[Edge, ...]
    shape: Shape
    dtype: DType
    axis: int = 0
    name: str = ""
    value: float | int | bool | ConstantData | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the graph. `updates` names the input whose memory it overwrites, or is ''."""

    name: str
    edge: Edge
    updates: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order, outputs, and the symbolic dimensions (as range variables)."""

    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    dims: tuple[Var, ...] = ()


def depth_first(roots: Iterable[_T], below: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """All that `roots` reach, once each, after what is below it (cycles aside); no recursion."""
    seen: set[_T] = set()
    stack = [(root, False) for root in reversed([*roots])]
    while stack:
        item, ready = stack.pop()
        if ready:
            yield item
        elif item not in seen:
            seen.add(item)
            stack.append((item, True))
            stack += [(b, False) for b in reversed([*below(item)]) if b not in seen]
