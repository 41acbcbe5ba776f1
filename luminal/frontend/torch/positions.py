"""Indexing at positions that are symbols: `x[:, p]` for all p, where PyTorch makes one graph each.

In: Dynamo's `getitem` and `setitem` on tensors. Out: the same nodes, that call functions which
select at the positions first, as PyTorch's own indexing does, but keep the symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

__all__ = ["at", "keep_positions", "put"]


def at(x: Tensor, index: object) -> Tensor:
    """x[index], where integers in the index may be symbols."""
    view, rest = _selected(x, index)
    return view[rest] if rest else view


def put(x: Tensor, index: object, value: object) -> None:
    """x[index] = value, where integers in the index may be symbols."""
    view, rest = _selected(x, index)
    view[rest or ...] = value  # type: ignore[index]


def keep_positions(node: Node) -> None:
    """Changes what the node calls if it is indexing with a position that is a symbol."""
    ours = {operator.getitem: at, operator.setitem: put}.get(node.target)  # type: ignore[arg-type]
    if node.op != "call_function" or ours is None or not isinstance(node.args[0], Node):
        return
    indexed = node.args[0].meta.get("example_value")
    if isinstance(indexed, Tensor) and any(map(_is_symbol, _parts(node.args[1]))):
        node.target = ours


def _parts(index: object) -> Sequence[object]:
    return index if isinstance(index, tuple) else (index,)


def _is_symbol(part: object) -> bool:
    known = part.meta.get("example_value") if isinstance(part, Node) else part
    return isinstance(known, torch.SymInt)


def _selected(x: Tensor, index: object) -> tuple[Tensor, tuple[object, ...]]:
    """x at the integers of the index, and the index without them."""
    parts, dim = _parts(index), 0
    rest: list[object] = []
    for place, part in enumerate(parts):
        if type(part) is int or isinstance(part, torch.SymInt):
            x = x.select(dim, part)  # type: ignore[arg-type]
            continue
        if part is None:
            x, part = x.unsqueeze(dim), slice(None)
        rest.append(part)
        dim += (
            x.dim() - dim - sum(map(_extent, parts[place + 1 :])) if part is ... else _extent(part)
        )
    return x, tuple(rest)


def _extent(part: object) -> int:
    """How many dimensions of the tensor a part of an index stands for."""
    if part is None or part is ... or isinstance(part, bool):
        return 0
    mask = isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
    return part.dim() if mask else 1  # type: ignore[union-attr]
