"""Schedules of nests without reductions: elementwise work, copies, transposes, gathers, scatters.

In: `Facts` and a `Nest`. Out: `Option`s, the best guess first.
"""

from __future__ import annotations

from luminal.ir.expr import Var
from luminal.ir.plan import Reg
from luminal.search.facts import Access, Facts
from luminal.search.nest import Nest, Option, assign_grid, serial_loops, vector_regs
from luminal.search.tiles import waste

__all__ = ["streams"]

UNROLLS = (4, 2, 8, 1)


def streams(facts: Facts, nest: Nest) -> list[Option]:
    """Options for an elementwise nest, best guess first."""
    lanes = _lanes(facts, nest)
    accesses = (*nest.stores, *facts.loads(*nest.values))
    costs: list[tuple[float, Var, Var | None]] = []
    for v in nest.free:
        if v.name not in nest.ordered:
            cost, across = _vector_cost(facts, nest, v, lanes, accesses)
            costs.append((cost * waste(facts.extent(v), lanes), v, across))
    costs.sort(key=lambda c: c[0])
    options: list[Option] = []
    for cost, v, across in costs[:2]:
        if options and cost > 2 * costs[0][0]:
            break
        for penalty, unroll in enumerate(UNROLLS):
            if unroll == 1 or -(-facts.extent(v) // lanes) >= unroll:
                options.append(_build(facts, nest, v, across, lanes, unroll, cost + penalty * 0.1))
    if not options:
        steps = [(a, 1) for a in nest.free]
        grid, left = assign_grid(facts, nest, steps)
        items = (*grid, *serial_loops(facts, steps, left, frozenset(), None))
        options.append(Option(items, (), 16.0))
    return sorted(options, key=lambda o: o.cost)


def _lanes(facts: Facts, nest: Nest) -> int:
    """Lanes of the widest type that is stored or loaded, at least 32 bits of it."""
    types = [t.dtype for t in nest.values] + [t.dtype for t in facts.walk(*nest.values)
                                              if t.op == "load"]  # fmt: skip
    return min(facts.lanes(t) for t in types)


def _vector_cost(
    facts: Facts, nest: Nest, v: Var, lanes: int, accesses: tuple[Access, ...]
) -> tuple[float, Var | None]:
    """Relative cost of lanes along v, and the axis along which strided loads are transposed."""
    total, across = 1.0, None
    for a in accesses:
        step = facts.stride(a, v, lanes)
        if step == 0:
            continue
        if step == 1:
            total += 1
            continue
        dense = [x for x in nest.free if x is not v and x.name not in nest.ordered
                 and facts.stride(a, x, lanes) == 1 and facts.extent(x) >= lanes // 2]  # fmt: skip
        if a.term is not None and step is not None and dense:
            across = across or dense[0]
            total += 2.5
        else:
            total += lanes * (1.0 if a.term is not None else 2.0)
    return total, across


def _build(
    facts: Facts, nest: Nest, v: Var, across: Var | None, lanes: int, unroll: int, cost: float
) -> Option:
    """Outer axes in order of their stride in the result, then the axis of the lanes."""
    result = nest.stores[0] if nest.stores else None

    def key(axis: Var) -> tuple[bool, int]:
        step = facts.stride(result, axis) if result is not None else 0
        return (axis.name not in nest.ordered, -(abs(step) if step is not None else 1 << 40))

    outer = [a for a in sorted(nest.free, key=key) if a is not v and a is not across]
    masked = frozenset(x for e in facts.masks(*nest.values) for x in e.variables())
    inner = [(across, lanes)] if across is not None else []
    inner.insert(0 if across is not None else 1, (v, lanes * (1 if across is not None else unroll)))
    steps = [*((a, 1) for a in outer), *inner]
    coarse = [(a, s) for a, s in steps if a not in masked or s == 1]
    grid, left = assign_grid(facts, nest, coarse)
    items = (*grid, *serial_loops(facts, steps, left, masked, v))
    regs = [Reg(across.name, 1, "unroll")] if across is not None else []
    vectors = 1 if across is not None else unroll
    return Option(items, (*regs, *vector_regs(v, lanes, vectors)), cost)
