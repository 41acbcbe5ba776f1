"""Counters: integers and truth values that are made of positions alone.

In: prepared nodes. Out: the numbers of those whose element is a short term without loads, found by
lowering them. They are free to repeat, so that what is known of positions stays known everywhere.
"""

from __future__ import annotations

from luminal.ir.term import postorder
from luminal.rewrite.cuts import is_leaf
from luminal.rewrite.lower import Lowering
from luminal.rewrite.prepare import Prepared

__all__ = ["counters"]

_LONGEST = 16


def counters(prepared: Prepared) -> frozenset[int]:
    """Nodes that cost nothing to compute in place, outputs excepted."""
    lowering = Lowering(prepared.nodes, {}, {}, widen=False)
    wanted = {o.node for o in prepared.outputs}
    pure: set[int] = set()
    found: set[int] = set()
    for n, node in enumerate(prepared.nodes):
        if (
            is_leaf(node)
            or node.op == "Scatter"
            or not pure.issuperset(e.node for e in node.inputs)
        ):
            continue
        if not node.inputs:
            pure.add(n)
        elif not node.dtype.is_float and n not in wanted:
            term = lowering.at(n, lowering.axes.of_shape(node.shape)[1])
            parts = list(postorder(term))
            if len(parts) <= _LONGEST and not any(t.axes or t.op == "load" for t in parts):
                pure.add(n)
                found.add(n)
    return frozenset(found)
