"""Rules about dtypes: where values may be computed wider or narrower than the graph says.

In: dtypes, or an e-graph and a node. Out: the dtype to compute in, or classes equal to the node.
"""

from __future__ import annotations

from collections.abc import Iterator

from luminal.ir.dtype import DType, f32, i32, i64
from luminal.ir.expr import prod
from luminal.rewrite.egraph import EGraph, ENode

__all__ = ["computed_in", "integer_sum_narrows", "cast_of_wider_integer"]

_LIMIT = 1 << 31


def computed_in(dtype: DType, widen: bool) -> DType:
    """x: f16 or bf16 = its f32 value before rounding, if `widen` (numerics 'relaxed', or halves
    are what the graph reads).

    Reason: one pass over an axis must not round between its steps. More precise than the graph,
    but not bit-equal; values are still rounded where they are stored.
    """
    return f32 if widen and dtype.is_float and dtype.bits == 16 else dtype


def integer_sum_narrows(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """Σ_K (x: i32 -> i64) = (Σ_K x): i32 -> i64.

    Reason: twice the lanes, and byte products may use dot-product instructions. Exact. Condition:
    |x|·|K| < 2^31, from the dtypes that x is made of.
    """
    if node[2] != i64:
        return
    count = prod(tuple(a.extent for a in node[3])).hi  # type: ignore[attr-defined]
    for op, args, _, _ in graph.nodes(node[1][0]):
        if op == "cast" and graph.dtype(args[0]) == i32:
            if _magnitude(graph, args[0], 0) * count < _LIMIT:
                total = graph.make("sum", (args[0],), i32, node[3])
                yield graph.make("cast", (total,), i64)


def cast_of_wider_integer(graph: EGraph, c: int, node: ENode) -> Iterator[int]:
    """(x: i32 -> i64) -> t = x: i32 -> t.

    Reason: the wider integer need not exist. Exact: the value is the same.
    """
    for op, args, dtype, _ in graph.nodes(node[1][0]):
        if op == "cast" and dtype == i64 and graph.dtype(args[0]) == i32 and node[2] != i64:
            inner = args[0]
            same = node[2] == i32
            yield inner if same else graph.make("cast", (inner,), node[2])


def _magnitude(graph: EGraph, c: int, depth: int) -> int:
    """A bound of |x| for integers x of a class."""
    dtype = graph.dtype(c)
    bound = 1 if dtype.kind == "b" else 1 << (dtype.bits - (dtype.kind == "i"))
    for op, args, _, _ in graph.nodes(c) if depth < 6 else ():
        value = graph.constant(c)
        if value is not None:
            return abs(int(value))
        if op == "cast" and not graph.dtype(args[0]).is_float:
            bound = min(bound, _magnitude(graph, args[0], depth + 1))
        if op in ("mul", "add") and dtype.is_int:
            a, b = (_magnitude(graph, x, depth + 1) for x in args)
            bound = min(bound, a * b if op == "mul" else a + b)
        if op == "select":
            bound = min(bound, max(_magnitude(graph, x, depth + 1) for x in args[1:]))
    return bound
