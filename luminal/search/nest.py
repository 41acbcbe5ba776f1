"""Nests: one loop nest of a kernel, and how its free axes become grid, serial and register loops.

In: `Facts` and the free axes, values and stores of a nest. Out: loop lists with the grid marked.
Shared by the generators of contraction, streaming and online schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luminal.ir.expr import UNBOUNDED, Var
from luminal.ir.layout import Layout
from luminal.ir.plan import Item, Loop, Reg, Schedule
from luminal.ir.term import Term
from luminal.search.facts import Access, Facts

__all__ = ["Nest", "Option", "assign_grid", "serial_loops", "vector_regs"]

CHUNK_US = 12.0
CHUNKS_PER_CORE = (4, 24)


@dataclass(frozen=True, slots=True)
class Nest:
    """`values` for every point of the `free` axes; `stores` is empty for a local result.

    `parallel` permits grid loops; `ordered` axes keep their order and are never vector lanes.
    """

    free: tuple[Var, ...]
    values: tuple[Term, ...]
    stores: tuple[Access, ...] = ()
    parallel: bool = True
    ordered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a nest: loops, registers, layouts it needs, and a relative cost."""

    items: tuple[Item, ...]
    regs: tuple[Reg, ...]
    cost: float
    layouts: dict[str, Layout] = field(default_factory=dict)
    prefetch: tuple[tuple[str, int], ...] = ()

    def schedule(self) -> Schedule:
        """The schedule of this option."""
        return Schedule(self.items, self.regs, self.prefetch)


def work_us(facts: Facts, nest: Nest) -> float:
    """Rough time of a nest on one core, microseconds."""
    points = 1.0
    bound = facts.bound(*nest.values)
    for a in (*nest.free, *bound):
        points *= facts.extent(a)
    if bound:
        return points * 2 / (facts.target.gflops * 1e3 * 0.6)
    streams = len(nest.stores) + len(facts.loads(*nest.values))
    return points * 4 * streams / (facts.target.bandwidth_gbs * 1e3)


def assign_grid(
    facts: Facts, nest: Nest, steps: list[tuple[Var, int]]
) -> tuple[list[Loop], dict[Var, int]]:
    """Grid loops over (axis, smallest step) pairs, and the tile that each leaves inside.

    Enough chunks for every core to balance, none too small to be worth handing out.
    """
    left = {a: facts.extent(a) if facts.is_static(a) else UNBOUNDED for a in nest.free}
    loops: list[Loop] = []
    if not nest.parallel:
        return loops, left
    low, high = (facts.target.cores * c for c in CHUNKS_PER_CORE)
    wanted = max(1.0, min(high, max(low, work_us(facts, nest) / CHUNK_US)))
    count = 1
    for axis, step in steps:
        blocks = -(-facts.extent(axis) // step)
        if blocks <= 1 and facts.is_static(axis):
            continue
        share = max(1, round(wanted / count))
        each = max(1, blocks // share)
        if facts.is_static(axis) and each >= blocks:
            break
        loops.append(Loop(axis.name, step * each, grid=True))
        left[axis] = step * each
        count *= -(-blocks // each)
        if count >= wanted:
            break
    return loops, left


def serial_loops(
    facts: Facts,
    steps: list[tuple[Var, int]],
    left: dict[Var, int],
    masked: frozenset[Var],
    vector: Var | None,
) -> list[Item]:
    """Loops inside the grid that bring every axis down to its step; masked axes are split.

    The vector axis always gets its loop, so that the number of lanes never hangs on its extent.
    """
    loops: list[Item] = []
    for axis, step in steps:
        whole = facts.is_static(axis) and facts.extent(axis) <= step
        if left[axis] != step and (not whole or axis is vector or axis in masked):
            loops.append(Loop(axis.name, step, split=axis in masked))
    return loops


def vector_regs(axis: Var, lanes: int, vectors: int, role: str = "unroll") -> list[Reg]:
    """`vectors` registers of `lanes` neighbours along an axis."""
    outer = [Reg(axis.name, lanes, role)] if vectors > 1 else []
    return [*outer, Reg(axis.name, 1, "vector")]
