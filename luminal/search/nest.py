"""Nests: from a list of steps to a schedule.

In: `Facts`, the free axes and values of a `Nest`, and a `Point`: in which steps its axes are cut
and what is kept in local memory, from the outermost in. Out: `Schedule`s. Every loop nest that
search makes, that of a kernel or inside a stage, comes from here; nothing here decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from luminal.ir import UNBOUNDED, Item, Layout, Loop, Online, Reg, Schedule, Stage, Term, Var
from luminal.search.facts import Access, Facts

__all__ = ["GROUP", "Candidate", "Keep", "Nest", "Point", "Step", "local"]

GROUP = 4
"""Bytes that a dot product instruction sums per lane."""
CHUNK_US = 12.0
CHUNKS_PER_CORE, ONLINE_CHUNKS = (4, 24), (4, 64)
"""At least and at most; parts of online loops share nothing and may be uneven, hence more."""

Step = tuple[Var, int]
"""An axis, and how much of it is left inside."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule, the layouts of buffers that it wants changed, and a relative cost."""

    schedule: Schedule
    layouts: dict[str, Layout] = field(default_factory=dict)
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class Nest:
    """`values` for every point of the `free` axes; `stores` is empty for a local result.

    `parallel` permits grid loops; `ordered` axes keep their order and are never vector lanes.
    `rows`, if any, are the outermost steps, which alone are handed to threads."""

    free: tuple[Var, ...]
    values: tuple[Term, ...]
    stores: tuple[Access, ...] = ()
    parallel: bool = True
    ordered: tuple[str, ...] = ()
    rows: tuple[Step, ...] = ()


def _registers(
    steps: Sequence[object],
    lane: Var | None,
    lanes: int,
    own: tuple[Var, ...],
    dots: tuple[Var, ...],
) -> tuple[Reg, ...]:
    """Whatever the innermost steps leave of an axis is in registers, the lanes last; what is
    summed over an axis of `own` has one accumulator a register."""
    left: dict[Var, int] = {}
    role = dict.fromkeys(own, "acc")
    for step in reversed(steps):
        if isinstance(step, tuple):
            left.setdefault(*step)
    regs: list[Reg] = []
    for axis, size in left.items():
        if axis in dots:
            regs += [Reg(axis.name, GROUP, "unroll"), Reg(axis.name, 1, "dot")]
        elif axis != lane and size > 1:
            regs.append(Reg(axis.name, 1, role.get(axis, "unroll")))
    if lane is not None:
        regs += [Reg(lane.name, lanes, role.get(lane, "unroll"))] if left[lane] > lanes else []
        regs.append(Reg(lane.name, 1, "vector"))
    return tuple(regs)


def local(
    steps: Sequence[Step], lane: Var | None = None, lanes: int = 1, own: tuple[Var, ...] = ()
) -> Schedule:
    """The schedule of a nest inside a stage or an online loop: exactly these steps."""
    loops = tuple(Loop(axis.name, size) for axis, size in steps)
    return Schedule(loops, _registers(steps, lane, lanes, own, ()))


@dataclass(frozen=True, slots=True)
class Keep:
    """A term to hold in local memory, computed in `steps`; `levels` are the inner ones of its
    layout."""

    term: Term
    steps: tuple[Step, ...]
    lane: Var | None = None
    lanes: int = 1
    levels: tuple[Step, ...] = ()

    def stage(self, facts: Facts, around: Sequence[Item]) -> Stage:
        """The stage inside the items `around`."""
        nest = local(self.steps, self.lane, self.lanes)
        subterms = facts.kernel.subterms()
        layout: Layout = ()
        if self.levels:  # over the axes without a loop of tile 1: free ones first, then bound ones
            closed = {i.axis for i in around if isinstance(i, Loop) and i.tile == 1}
            known = dict.fromkeys((*facts.kernel.axes, *(a for t in subterms for a in t.axes)))
            place = [a for a in known if a in self.term.free and a.name not in closed]
            rest = (n for n, a in enumerate(place) if a not in dict(self.levels))
            layout = (*((n, 1) for n in rest), *((place.index(a), t) for a, t in self.levels))
        return Stage(subterms.index(self.term), nest.items, nest.regs, layout)


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run a nest: `steps` from the outermost in, and what grid loops may cut.

    `lane` carries `lanes` neighbours per register; sums over `own` axes have one accumulator a
    register; `dots` are summed
    by dot product instructions; loops over `masked` axes are split; `ahead` says how many steps
    before its turn an axis has what it needs prefetched."""

    steps: tuple[Step | Keep | Online, ...]
    grid: tuple[Step, ...]
    lane: Var | None = None
    lanes: int = 1
    own: tuple[Var, ...] = ()
    dots: tuple[Var, ...] = ()
    masked: frozenset[Var] = frozenset()
    ahead: tuple[Step, ...] = ()

    def schedule(self, facts: Facts, nest: Nest) -> Schedule:
        """Loops for the steps that leave less of an axis. The lanes always get theirs, so that
        their number never hangs on an extent."""
        online = any(isinstance(s, Online) for s in self.steps)
        grid = _grid(facts, nest, self.grid, ONLINE_CHUNKS if online else CHUNKS_PER_CORE)
        items, left = list[Item](grid), {i.axis: i.tile for i in grid}
        last = dict(s for s in self.steps if isinstance(s, tuple))
        for step in self.steps:
            if isinstance(step, Keep):
                items.append(step.stage(facts, items))
            elif isinstance(step, Online):
                items.append(step)
            else:
                axis, size = step
                whole = facts.extent(axis) if facts.is_static(axis) else UNBOUNDED
                now = left.get(axis.name, whole)
                if now > size or (now < size and axis in {self.lane, *self.masked}):
                    split = axis in self.masked and (axis in nest.free or size == 1)
                    ahead = dict(self.ahead).get(axis, 0) if last[axis] == size else 0
                    items.append(Loop(axis.name, size, split, ahead=ahead))
                    left[axis.name] = size
        regs = _registers(self.steps, self.lane, self.lanes, self.own, self.dots)
        return Schedule(tuple(items), regs)


def _work_us(facts: Facts, nest: Nest) -> float:
    """Rough time of a nest on one core, microseconds."""
    facts = replace(facts, staged=frozenset()) if nest.rows else facts
    bound = facts.bound(*nest.values)
    points = prod(map(facts.extent, (*nest.free, *bound)))
    if bound:
        return points * 2 / (facts.target.gflops * 1e3 * 0.6)
    streams = len(nest.stores) + len(facts.loads(*nest.values))
    return points * 4 * streams / (facts.target.bandwidth_gbs * 1e3)


def _grid(facts: Facts, nest: Nest, steps: Sequence[Step], chunks: tuple[int, int]) -> list[Loop]:
    """Grid loops over (axis, smallest step) pairs: enough chunks for every core to balance, none
    too small to be worth handing out."""
    loops: list[Loop] = []
    low, high = (facts.target.cores * c for c in chunks)
    wanted = max(1.0, min(high, max(low, _work_us(facts, nest) / CHUNK_US)))
    count = 1
    for axis, step in steps if nest.parallel else ():
        blocks = -(-facts.extent(axis) // step)
        each = max(1, blocks // max(1, round(wanted / count)))
        if count < wanted and not (facts.is_static(axis) and each >= blocks):
            loops.append(Loop(axis.name, step * each, grid=True))
            count *= -(-blocks // each)
    return loops
