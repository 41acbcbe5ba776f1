"""Facts about nodes of an ATen graph.

In: `torch.fx` nodes with `meta['val']`. Out: names, tensor metadata, which nodes are views, which
have effects. Decides nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Set

import torch
from torch.fx import Node

from luminal.frontend.torch.symbols import SYMBOLIC

__all__ = [
    "has_effect", "is_epilogue_copy", "is_scalar_math", "name_of", "root_of", "tensors_of",
    "value_of", "view_base",
]  # fmt: skip

_aten = torch.ops.aten
_VIEWS = {
    _aten.view.default, _aten._unsafe_view.default, _aten.permute.default, _aten.t.default,
    _aten.transpose.int, _aten.expand.default, _aten.slice.Tensor, _aten.select.int,
    _aten.unsqueeze.default, _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims,
    _aten.diagonal.default, _aten.unfold.default, _aten.as_strided.default, _aten.alias.default,
    _aten.detach.default, _aten.split.Tensor, _aten.split_with_sizes.default,
    _aten.unbind.int,
}  # fmt: skip
_HIGHER_EFFECTS = ("with_effects", "auto_functionalized", "auto_functionalized_v2")


def name_of(target: object) -> str:
    """A readable name of what a node calls."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__name__', target)}"


def value_of(node: Node) -> object:
    """What tracing found for the node: a fake tensor, a SymInt, a nest of those, or None."""
    return node.meta.get("val")


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """All tensors of a nested value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def is_scalar_math(node: Node) -> bool:
    """True for arithmetic on sizes, which needs no tensor data."""
    return node.op == "call_function" and isinstance(value_of(node), (*SYMBOLIC, int, float, bool))


def view_base(node: Node, refused: Set[Node] = frozenset()) -> Node | None:
    """The node that this one is a plain strided view of, or None. Refused nodes are no views, nor
    are those whose size or place depends on data."""
    if node.op != "call_function" or node in refused or "unbacked_bindings" in node.meta:
        return None
    if not node.args or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    if node.target is operator.getitem:
        return source if source.target in _VIEWS and source not in refused else None
    return source if node.target in _VIEWS else None


def root_of(node: Node, refused: Set[Node]) -> Node:
    """The end of the chain of views that starts at `node`."""
    while (base := view_base(node, refused)) is not None:
        node = base
    return node


def is_epilogue_copy(node: Node) -> bool:
    """True for `copy_` into an input that only outputs see: it may run last of all."""
    return (
        node.op == "call_function"
        and node.target is _aten.copy_.default
        and isinstance(node.args[0], Node)
        and node.args[0].op == "placeholder"
        and _only_returned(node)
    )


def _only_returned(node: Node) -> bool:
    return all(
        u.op == "output" or (view_base(u) is not None and _only_returned(u)) for u in node.users
    )


def has_effect(node: Node) -> bool:
    """True if the node must keep its place among others with effects: random numbers, writes."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in _HIGHER_EFFECTS
    if isinstance(target, torch._ops.OpOverload):
        seeded = torch.Tag.nondeterministic_seeded in target.tags
        return seeded or target._schema.is_mutable or node.is_impure()
    return node.op == "call_function" and node.is_impure()
