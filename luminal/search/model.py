"""The model: how long a kernel should take, and which candidates deserve a measurement.

In: `Facts`, candidates. Out: microseconds, a short list. Compiles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.ir.expr import Var
from luminal.ir.term import Term
from luminal.search.facts import Access, Facts
from luminal.search.schedule import Candidate

__all__ = ["kernel_us", "shortlist"]

EFFICIENCY = 0.7
SLOW = {"exp2": 8, "log2": 10, "sin": 14, "recip": 3, "sqrt": 4, "mod": 6}


def kernel_us(facts: Facts) -> float:
    """Roofline time of a kernel on all cores: launch + max(arithmetic, memory)."""
    target, kernel = facts.target, facts.kernel
    flops = 0.0
    for t in kernel.subterms():
        if t.op not in ("load", "const", "index", "cond"):
            flops += _points(facts, (*t.free, *t.axes)) * SLOW.get(t.op, 1)
    traffic = sum(_bytes(facts, a) for a in _accesses(facts))
    arithmetic = flops / (target.gflops * 1e3 * target.cores * EFFICIENCY)
    memory = traffic / (target.bandwidth_gbs * 1e3 * max(1.0, target.cores / 2))
    return target.launch_us + max(arithmetic, memory)


def _points(facts: Facts, axes: Sequence[Var]) -> float:
    count = 1.0
    for a in axes:
        count *= facts.extent(a)
    return count


def _accesses(facts: Facts) -> list[Access]:
    values: tuple[Term, ...] = tuple(s.value for s in facts.kernel.stores)
    return [*facts.loads(*values), *(facts.store(s) for s in facts.kernel.stores)]


def _bytes(facts: Facts, access: Access) -> float:
    """Bytes that an access touches: no more than the buffer has, nor than the points it is made."""
    buffer = facts.buffers[access.buffer]
    size = 1.0
    for e in buffer.shape:
        size *= facts.number(e) or 1
    axes = {v for e in access.index for v in e.variables()} - set(facts.kernel.dims())
    return min(size, _points(facts, tuple(axes))) * buffer.dtype.bits / 8


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first candidate, the cheapest of each way to walk memory, then the next cheapest."""
    chosen: dict[int, None] = {0: None}
    kinds: dict[tuple[object, ...], int] = {}
    for n, c in enumerate(candidates[:-1]):
        kinds.setdefault(_kind(c), n)
    by_cost = sorted(kinds.values(), key=lambda n: candidates[n].cost)
    chosen.update(dict.fromkeys(by_cost[: max(1, count // 2)]))
    for n in range(len(candidates) - 1):
        if len(chosen) >= count:
            break
        chosen.setdefault(n)
    return [candidates[n] for n in chosen]


def _kind(candidate: Candidate) -> tuple[object, ...]:
    """What distinguishes candidates beyond tile sizes: item kinds, axes in order, lanes."""
    schedule = candidate.schedule
    items = tuple((type(i).__name__, getattr(i, "axis", "")) for i in schedule.items)
    return items, tuple((r.axis, r.role) for r in schedule.regs)
