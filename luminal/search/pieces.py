"""Pieces: a kernel that stores different things in different ranges of an axis, as one kernel each.

In: a kernel whose value selects by ranges of one of its axes (parts laid end to end). Out: kernels
that store the parts, each over its own range, so that no part pays for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from luminal.ir.expr import Expr, Var, axis_var, is_nonnegative, to_expr
from luminal.ir.plan import Kernel, Store
from luminal.ir.term import Term, cast, substitute

__all__ = ["pieces"]

_FEWEST = 3
"""Fewer parts than this stay one kernel."""


def pieces(kernel: Kernel) -> list[Kernel]:
    """The kernels that together do what `kernel` does; itself if it has few parts."""
    store = kernel.stores[0]
    if kernel.ordered or len(kernel.stores) != 1 or _parts(_bare(store.value)) < _FEWEST:
        return [kernel]
    for axis in kernel.axes:
        ranges = list(_ranges(_bare(store.value), axis, to_expr(0), axis.extent))
        if len(ranges) >= _FEWEST:
            return [_piece(kernel, axis, *r) for r in ranges]
    return [kernel]


def _bare(value: Term) -> Term:
    return value.args[0] if value.op == "cast" else value


def _parts(value: Term) -> int:
    return 1 if value.op != "select" else _parts(value.args[1]) + _parts(value.args[2])


def _ranges(value: Term, axis: Var, low: Expr, high: Expr) -> Iterator[tuple[Expr, Expr, Term]]:
    """(low, high, value) for the ranges of `axis` in which a selection is decided."""
    found = _interval(value.args[0], axis, low, high) if value.op == "select" else None
    if found is None:
        yield low, high, value
        return
    start, end = found
    _, inside, outside = value.args
    if start != low:
        yield from _ranges(outside, axis, low, start)
    yield from _ranges(inside, axis, start, end)
    if end != high:
        yield from _ranges(outside, axis, end, high)


def _interval(condition: Term, axis: Var, low: Expr, high: Expr) -> tuple[Expr, Expr] | None:
    """The range of `axis` in which a condition holds, within low..high."""
    start, end = low, high
    for e in _bounds(condition):
        slope = e.coefficient(axis) if e is not None else None
        rest = e - to_expr(axis) * slope if e is not None and slope is not None else None
        if slope is None or rest is None or slope.value not in (1, -1) or _has_axis(rest):
            return None
        if slope.value == 1:
            start = _larger(start, -rest)
        else:
            end = _smaller(end, rest + 1)
        if start is None or end is None:
            return None
    return (start, end) if is_nonnegative(end - start) else None


def _bounds(condition: Term) -> list[Expr | None]:
    if condition.op == "and":
        return _bounds(condition.args[0]) + _bounds(condition.args[1])
    return [condition.expr if condition.op == "cond" else None]


def _has_axis(e: Expr) -> bool:
    return any(v.bound is not None or v.name[0] in "xk" for v in e.variables()) or any(
        not isinstance(a, Var) for a in e.atoms()
    )


def _larger(a: Expr, b: Expr) -> Expr | None:
    return a if is_nonnegative(a - b) else b if is_nonnegative(b - a) else None


def _smaller(a: Expr, b: Expr) -> Expr | None:
    return b if is_nonnegative(a - b) else a if is_nonnegative(b - a) else None


def _piece(kernel: Kernel, axis: Var, low: Expr, high: Expr, value: Term) -> Kernel:
    part = axis_var(axis.name, high - low)
    env = {axis: to_expr(part) + low}
    store = kernel.stores[0]
    index = tuple(e.substitute(env) for e in store.index)
    new = Store(store.buffer, index, cast(substitute(value, env), store.value.dtype))
    return replace(kernel, axes=tuple(part if a == axis else a for a in kernel.axes), stores=(new,))
