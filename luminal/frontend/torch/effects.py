"""Effects that tracing wraps with tokens: those that we compile are called without.

In: an ATen graph. Out: the same graph, changed in place. A token is only ever handed on.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from luminal.frontend.torch.aten import lookup

__all__ = ["unwrap_effects"]


def unwrap_effects(gm: GraphModule) -> None:
    """Replaces `with_effects(token, op, ...)` by `op(...)` where the table has `op`."""
    for node in list(gm.graph.nodes):
        if _is_wrapped(node) and lookup(node.args[1]) is not None and _only_token_read(node):
            _unwrap(gm, node)
    gm.graph.lint()


def _is_wrapped(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() == "with_effects"


def _only_token_read(node: Node) -> bool:
    return all(u.target is operator.getitem and u.args[1] == 0 for u in node.users)


def _unwrap(gm: GraphModule, node: Node) -> None:
    token, op, *rest = node.args
    with gm.graph.inserting_before(node):
        plain = gm.graph.call_function(op, tuple(rest), node.kwargs)  # type: ignore[arg-type]
    plain.meta = {k: v for k, v in node.meta.items() if k != "val"}
    for user in list(node.users):
        user.replace_all_uses_with(token)  # type: ignore[arg-type]
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
