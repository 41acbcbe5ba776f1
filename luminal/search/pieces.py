"""Pieces: a kernel that stores different things in different ranges of an axis, as one kernel each.

In: a kernel whose value selects by ranges of one of its axes (parts laid end to end). Out: kernels
that store the parts, each over its own range, so that no part pays for the others."""

from collections.abc import Iterator
from dataclasses import replace

from luminal.ir import Expr, Kernel, Store, Var, axis_var, is_nonnegative, to_expr
from luminal.ir.term import Term, cast, substitute

_FEWEST = 3
"""Fewer different parts than this stay one kernel."""

_Range = tuple[Expr, Expr]


def pieces(kernel: Kernel) -> list[Kernel]:
    """The kernels that together do what `kernel` does; itself if it has few parts."""
    value = kernel.stores[0].value
    value = value.args[0] if value.op == "cast" else value
    for axis in kernel.axes if len(kernel.stores) == 1 and not kernel.ordered else ():
        whole = (to_expr(0), axis.extent)
        ranges = list(_ranges(value, axis, whole, frozenset(kernel.dims())))
        if len({part for _, part in ranges}) >= _FEWEST:
            return [_piece(kernel, axis, *r) for r in ranges]
    return [kernel]


def _ranges(
    value: Term, axis: Var, whole: _Range, dims: frozenset[Var]
) -> Iterator[tuple[_Range, Term]]:
    """The ranges of `axis` in which a selection is decided, and its value there."""
    inside = _interval(value.args[0], axis, whole, dims) if value.op == "select" else None
    if inside is None:
        yield whole, value
        return
    for part, r in ((2, (whole[0], inside[0])), (1, inside), (2, (inside[1], whole[1]))):
        if part == 1 or r[0] != r[1]:
            yield from _ranges(value.args[part], axis, r, dims)


def _interval(condition: Term, axis: Var, whole: _Range, dims: frozenset[Var]) -> _Range | None:
    """The range of `axis` in which a condition holds, if its bounds are known to be in order."""
    low, high = whole
    if condition.op == "and":
        first = _interval(condition.args[0], axis, whole, dims)
        return _interval(condition.args[1], axis, first, dims) if first is not None else None
    slope = condition.expr.coefficient(axis) if condition.op == "cond" else None
    if slope is None or slope.value not in (1, -1):
        return None
    rest = condition.expr - to_expr(axis) * slope
    edge = -rest if slope.value == 1 else rest + 1
    old = low if slope.value == 1 else high
    if not dims.issuperset(rest.atoms()) or not _comparable(edge, old):
        return None
    if is_nonnegative((edge - old) * slope):
        low, high = (edge, high) if slope.value == 1 else (low, edge)
    return (low, high) if is_nonnegative(high - low) else None


def _comparable(a: Expr, b: Expr) -> bool:
    return is_nonnegative(a - b) or is_nonnegative(b - a)


def _piece(kernel: Kernel, axis: Var, between: _Range, value: Term) -> Kernel:
    low, high = between
    part = axis_var(axis.name, high - low)
    env = {axis: to_expr(part) + low}
    store = kernel.stores[0]
    index = tuple(e.substitute(env) for e in store.index)
    new = Store(store.buffer, index, cast(substitute(value, env), store.value.dtype))
    return replace(kernel, axes=tuple(part if a == axis else a for a in kernel.axes), stores=(new,))
