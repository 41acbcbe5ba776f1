"""Lanes: the walk of a loop list for a GPU, whose blocks of threads run one program together.

In: what `nest.py` takes, and loops with `lanes`. Out: loop IR over the thread's number. Every
thread runs every loop equally often (`padding.py` sees to that), so barriers and exchanges between
lanes are always met by all. Local arrays that are made outside of lanes are shared by the block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod

from luminal.codegen.blocks import Arrival, Local
from luminal.codegen.loopir import Literal, Operand, Value
from luminal.codegen.loops import LoopBuilder
from luminal.codegen.matrix import (
    SIDE,
    LaneEmitter,
    LaneEvaluator,
    Slots,
    Spread,
    multiplied,
    roles,
)
from luminal.codegen.nest import Out, State, Walker
from luminal.codegen.online import lower_online
from luminal.codegen.reductions import Group, Reductions
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import Facts
from luminal.codegen.terms import replace as replace_terms
from luminal.codegen.tile import Extent, Replica, Tile, extent_of
from luminal.ir import DType, Expr, Layout, Loop, Term, Var, accumulator, boolean, i64, size
from luminal.ir.expr import ZERO, ceil_div, to_expr
from luminal.ir.plan import Item, Reg, Schedule, Stage

MOST_THREADS = 1024


def block_threads(schedule: Schedule, bound: Collection[str], warp: int) -> int:
    """Threads of a block: what the most divided path through a schedule needs, in whole warps."""
    kept, staged = parted(schedule.items, bound)
    inside = (_products(s.items, 1) for stages in staged.values() for s in stages)
    most = max(_products(kept, 1)) * (warp if roles(schedule) else 1)
    most = max((most, *chain.from_iterable(inside)))
    if most & (most - 1) or most > MOST_THREADS:
        raise IllegalSchedule(f"[schedule] {most} threads are not a power of two up to 1024.")
    return max(warp, most)


def _products(items: Sequence[Item], around: int) -> Iterator[int]:
    yield 1
    for item in items:
        if isinstance(item, Loop):
            around *= item.lanes or 1
        elif isinstance(item, Stage):
            yield from _products(item.items, around)
    yield around


def parted(
    items: Sequence[Item], bound: Collection[str]
) -> tuple[list[Item], dict[int, list[Stage]]]:  # fmt: skip
    """A loop list without the stages among its last loops, if those are over `bound` axes; and
    these stages, which are for the whole block, by the id of the loop before them."""
    first = len(items)
    while first and (isinstance(i := items[first - 1], Stage) or (
        isinstance(i, Loop) and i.axis in bound
    )):  # fmt: skip
        first -= 1
    while first < len(items) and isinstance(items[first], Stage):
        first += 1
    kept, staged = list(items[:first]), dict[int, list[Stage]]()
    for item in items[first:]:
        if isinstance(item, Stage):
            staged.setdefault(id(kept[-1]), []).append(item)
        else:
            kept.append(item)
    return kept, staged


class Lanes:
    """Which threads do the same here: `stride` of them, neighbours, of all `threads`."""

    def __init__(self, loops: LoopBuilder, threads: int, warp: int) -> None:
        self.loops, self.threads, self.stride, self.warp = loops, threads, threads, warp
        self.number = to_expr(Var("tid", 0, threads - 1))
        emit, value = loops.emit, Value("tid", i64)
        emit.variables[next(iter(self.number.variables()))] = value
        emit.home[value.name] = (0, emit.scopes[0])

    def run(
        self, loop: Loop, left: Extent, values: Sequence[Operand], body: object
    ) -> list[Operand]:  # fmt: skip
        """body(offset, extent, values) for the steps that are the thread's own."""
        step = loop.tile * loop.lanes
        if left.expr % step != 0 or self.stride % loop.lanes:
            raise IllegalSchedule(f"[schedule] {loop.axis} is not dealt to lanes evenly.")
        around, self.stride = self.stride, self.stride // loop.lanes
        lane = self.number // self.stride % loop.lanes

        def inside(v: Expr, carried: list[Operand]) -> Sequence[Operand]:
            return body((v * loop.lanes + lane) * loop.tile, extent_of(loop.tile), carried)  # type: ignore[operator]

        made = self.loops.run(ZERO, left.expr // step, values, inside, loop.axis)
        self.stride = around
        return made

    def first(self, rest: Expr | None = None) -> Operand | None:
        """Whether this thread is the first of those that do the same, whose number among them is
        `rest`; None if it is alone."""
        rest = self.number % self.stride if rest is None else rest
        if rest.value == 0:
            return None
        return self.loops.emit.let("eq", (self.loops.emit.index(rest), Literal(0, i64)), boolean)


class LaneWalker(Walker):
    """Lowers nests for the threads of a block. `conditions` says where padded free axes end."""

    def __init__(
        self, evaluator: LaneEvaluator, loops: LoopBuilder, axes: Iterable[Var],
        subterms: Sequence[Term], lanes: Lanes, conditions: Mapping[Var, Term],
        schedule: Schedule,
    ) -> None:  # fmt: skip
        super().__init__(evaluator, loops, axes, subterms, lower_online)
        self.lanes, self.conditions, self.spread = lanes, conditions, evaluator
        self.roles = roles(schedule)
        self.regs: tuple[Reg, ...] = ()
        self.exact: DType | None = None
        self.slot: tuple[int, Expr, int] | None = None
        self.slots: dict[int, Slots] = {}
        self.arrays: dict[str, Local] = {}
        self.reductions = LaneReductions(evaluator, loops, self)
        self.staged: dict[int, list[Stage]] = {}
        self.around: State | None = None

    def run(self, state: State, schedule: Schedule) -> None:
        """As in `Walker`; stages among the last loops, which reduce, are for the whole block: they
        are remembered for the loop before them."""
        kept, staged = parted(schedule.items, {a.name for a in state.bound()})
        self.staged |= staged
        regs = [(r, replace(r, role="vector")) if r.role == "n" else (r,) for r in schedule.regs]
        super().run(state, Schedule(tuple(kept), tuple(chain.from_iterable(regs))))

    def _width(self, schedule: Schedule) -> int:
        """Columns of results lie in pairs."""
        return 2 if any(r.role == "n" for r in schedule.regs) else super()._width(schedule)

    def leaf(self, state: State) -> None:
        """As in `Walker`; the threads of a warp may share out rows and columns."""
        around, self.regs = self.regs, state.nest.regs
        if any(r.role in ("m", "n", "k") for r in self.regs) and (
            self.lanes.stride != self.lanes.warp or not self.spread.table
        ):
            raise IllegalSchedule("[schedule] matrices need the threads of one warp.")
        super().leaf(state)
        self.regs = around

    def stage(
        self, term: Term, state: State, schedule: Schedule, layout: Layout = (),
        same: Sequence[Term] = (),
    ) -> State:  # fmt: skip
        """As in `Walker`; in its own dtype, which holds it exactly. What takes more threads than
        do the same here is for all of the block."""
        stride, most = self.lanes.stride, max(_products(schedule.items, 1))
        if most > stride:
            self.lanes.stride = self.lanes.threads
            for e in (state.env[a] for a in term.free if a in state.env):
                if any(v.name == "tid" for v in e.variables()):
                    raise IllegalSchedule("[schedule] a stage of a block differs between threads.")
        self.exact = term.dtype if accumulator(term.dtype) != term.dtype else None
        made = super().stage(term, state, schedule, layout, same)
        self.lanes.stride = stride
        return made

    def allocate(
        self, term: Term, free: frozenset[Var], state: State, layout: Layout = ()
    ) -> Out:  # fmt: skip
        """As in `Walker`; what lies in the threads of a warp as results of matrices is spread."""
        out, dtype, self.exact = super().allocate(term, free, state, layout), self.exact, None
        place, axes = out.place, state.open_axes(free)
        along = tuple({"k": "n"}.get(x, x) for x in (self.roles.get(a.name, "") for a in axes))
        array = self.arrays[place.name]
        place.dtype = dtype or place.dtype
        if any(along) and not array.shared and self.lanes.stride == self.lanes.warp:
            parts = {"m": SIDE, "n": SIDE // 2, "": 1}
            place.shape = tuple(ceil_div(n, parts[x]) for n, x in zip(place.shape, along))
            e, level, origin = self.spread, place.write_level, place.origin
            place = Spread(place.name, place.dtype, place.shape, layout, True, origin, False, level,
                           0, along, e.rows, e.columns)  # fmt: skip
            self.eval.places[place.name] = place
        elif array.shared and len(place.shape) > 1:  # rows of 128 bytes would share their banks
            inner = layout[-1][0] if layout else -1
            width, shape = place.shape[inner].hi * place.dtype.itemsize, list(place.shape)
            shape[inner] = shape[inner] + (0 if width % 128 else 16 // place.dtype.itemsize)
            place.shape = tuple(shape)
        elements = size(place.shape, layout).hi
        if self.slot is not None:  # the tile of one step, of several that are kept
            count, number, known = self.slot
            self.slot = None
            if known not in self.slots:
                whole = replace(array, dtype=place.dtype, elements=elements * count)
                self.arrays[place.name] = whole
                self.eval.places[place.name] = self.slots[known] = Slots(
                    place.name, place.dtype, place.shape, layout, True, axes=axes, elements=elements
                )  # fmt: skip
            elif place.name != self.slots[known].name:
                del self.arrays[place.name]
            self.slots[known].origin, self.slots[known].slot = place.origin, number
            return replace(out, place=self.slots[known])
        self.arrays[place.name] = replace(array, dtype=place.dtype, elements=elements)
        return replace(out, place=place)

    def stage_for_block(
        self, item: Stage, env: Mapping[Var, Expr], left: Mapping[Var, Extent], state: State
    ) -> State:  # fmt: skip
        """A stage that all threads of the block compute together, for all of its lanes."""
        stride, self.lanes.stride, around = self.lanes.stride, self.lanes.threads, self.around
        state = replace(state, env={**state.env, **env}, left={**state.left, **left})
        terms = [self.current(n, state) for n in (item.term, *item.same)]
        schedule = Schedule(item.items, item.regs)
        made = self.stage(terms[0], state, schedule, item.layout, terms[1:])
        self.lanes.stride, self.around = stride, around
        return made

    def without_repeats(self, loop: Loop, state: State) -> State:
        """Lanes repeat nothing: they run at once."""
        return state if loop.lanes else super().without_repeats(loop, state)

    def _loop(self, loop: Loop, state: State, rest: tuple[Item, ...]) -> None:
        axis = self.axes[loop.axis]
        number = self.grid.get(id(loop))
        if not loop.lanes and number is None:
            super()._loop(loop, state, rest)
            return
        if loop.lanes and any(not a.shared for o in state.outs for a in self._own(o)):
            raise IllegalSchedule("[schedule] lanes cannot share what is private to a thread.")

        def body(offset: Expr, extent: Extent, _: list[Operand]) -> list[Operand]:
            if state.partial:  # what a step adds to is not read before the step
                state.outs[0].place.write_level = self.emit.depth
            self.walk(state.enter(axis, offset, extent, loop.tile), rest)
            return []

        if loop.lanes and self.lanes.stride == self.lanes.threads:
            self.around = state
        if number is not None:
            body(number * loop.tile, extent_of(loop.tile), [])
        else:
            self.lanes.run(loop, state.left[axis], [], body)

    def _own(self, out: Out) -> list[Local]:
        return [self.arrays[out.place.name]] if out.place.local else []

    def _partial(self, loop: Loop, state: State, rest: tuple[Item, ...]) -> None:
        if loop.lanes:
            raise IllegalSchedule("[schedule] lanes over a reduction have no loops inside.")
        super()._partial(loop, state, rest)

    def reserve(self, name: str, dtype: DType, elements: int) -> None:
        """A local array: of the block outside of lanes, of the thread inside."""
        self.arrays[name] = Local(name, dtype, elements, self.lanes.stride == self.lanes.threads)

    def guard(self, out: Out, tile: Tile, u: Replica) -> Operand | None:
        """One of the threads that do the same stores, and only what is inside the axes."""
        if out.place.local and not self.arrays[out.place.name].shared:
            return None
        found, rest = {r.role for r in self.regs if self.axes[r.axis] in out.axes()}, None
        if found & {"m", "n"}:  # both numbers are 0 where their sum is
            rest = (ZERO if "m" in found else self.spread.rows) + (
                ZERO if "n" in found else self.spread.columns
            )
        mask = self.lanes.first(rest)
        if out.place.local:
            return mask
        for axis, condition in self.conditions.items():
            if axis in tile.env:
                mask = self.eval.both(mask, self.eval.value(condition, tile, u))
        return mask


class LaneReductions(Reductions):
    """Reductions whose innermost loops may be dealt to lanes."""

    def __init__(self, evaluator: LaneEvaluator, loops: LoopBuilder, walker: LaneWalker) -> None:
        super().__init__(evaluator, loops)
        self.walker, self.lanes, self.group = walker, walker.lanes, LaneGroup

    def joined(self, r: Term, value: Operand, own: Sequence[Loop]) -> Operand:
        """The results of all lanes that ran the loops, combined in each of them."""
        count = prod(loop.lanes or 1 for loop in own)
        op, attrs = (
            "lane_max" if r.op == "rmax" else "lane_add",
            [(count, self.lanes.stride // count)],
        )
        if any(x.role == "n" and self.walker.axes[x.axis] in r.axes for x in self.walker.regs):
            attrs = [(b, a) for a, b, _ in self.walker.spread.table[0].columns]
        for attr in attrs if attrs[0][0] > 1 else ():
            value = self.emit.let(op, (value,), value.dtype, value.lanes, attr)
        return value


@dataclass(frozen=True, slots=True)
class LaneGroup(Group):
    """The loops of a group of reductions, some of them dealt to lanes."""

    def descend(
        self, own: tuple[Loop, ...], values: list[Operand], env: Mapping[Var, Expr],
        left: Mapping[Var, Extent], facts: Facts,
    ) -> Sequence[Operand]:  # fmt: skip
        """As in `Group`, with stages behind some loops."""
        owner = self.owner
        assert isinstance(owner, LaneReductions)
        if not own and any(r.role == "k" for r in self.regs):
            return multiplied(self, values, {**env}, {**left}, facts)
        stages = owner.walker.staged.get(id(own[0]), ()) if own else ()
        if not own or not (own[0].lanes or stages):
            return Group.descend(self, own, values, env, left, facts)
        loop, rest, axis = own[0], own[1:], self.nest.axes[own[0].axis]
        start, around = {**self.tile.base, **env}[axis], {**self.tile.left, **left}[axis]

        def body(offset: Expr, extent: Extent, v: list[Operand]) -> Sequence[Operand]:
            here, inside = {**env, axis: start + offset}, {**left, axis: extent}
            group = self.after(stages, owner.walker, here, inside)
            return group.descend(rest, v, here, inside, facts)

        if loop.lanes:
            return owner.lanes.run(loop, around, values, body)
        if loop.ahead and around.expr % loop.tile == 0:
            return self.pipelined(loop, stages, values, (start, around), env, left, facts, rest)
        extent = extent_of(loop.tile)
        if around.expr % loop.tile != 0:
            raise IllegalSchedule(f"[schedule] {loop.axis} is not cut into whole tiles.")

        def step(v: Expr, carried: list[Operand]) -> Sequence[Operand]:
            return body(v * loop.tile, extent, carried)

        return owner.loops.run(ZERO, around.expr // loop.tile, values, step, loop.axis)

    def pipelined(
        self, loop: Loop, stages: Sequence[Stage], values: list[Operand], of: tuple[Expr, Extent],
        env: Mapping[Var, Expr], left: Mapping[Var, Extent], facts: Facts, rest: tuple[Loop, ...],
    ) -> Sequence[Operand]:  # fmt: skip
        """The loop whose tiles are made while the step before them is summed."""
        owner = self.owner
        assert isinstance(owner, LaneReductions) and isinstance(owner.emit, LaneEmitter)
        emit, walker, axis, groups = owner.emit, owner.walker, self.nest.axes[loop.axis], [self]
        inside, count = {**left, axis: extent_of(loop.tile)}, of[1].expr // loop.tile

        def at(step: Expr) -> dict[Var, Expr]:
            return {**env, axis: of[0] + step * loop.tile}

        def fill(step: Expr) -> list[Operand]:
            emit.early = True
            groups.append(self.after(stages, walker, at(step), inside, (2, step % 2)))
            emit.early = False
            return []

        def step(v: Expr, carried: list[Operand]) -> Sequence[Operand]:
            owner.loops.when(count - 2 - v, lambda: fill(v + 1))
            emit.effect(Arrival(1))
            for item in stages:
                place = walker.slots[id(item)]
                known = {**walker.around.env, **at(v)}
                place.origin, place.slot = tuple(known[a] for a in place.axes), v % 2
                place.write_level = emit.depth
            return groups[-1].descend(rest, carried, at(v), inside, facts)

        owner.loops.when(count - 1, lambda: fill(ZERO))
        emit.effect(Arrival(1))
        return owner.loops.run(ZERO, count, values, step, loop.axis)

    def after(
        self, stages: Sequence[Stage], walker: LaneWalker, env: Mapping[Var, Expr],
        left: Mapping[Var, Extent], slot: tuple[int, Expr] | None = None,
    ) -> LaneGroup:  # fmt: skip
        """The group behind stages for the whole block: it reads what they made, in one of so many
        slots."""
        group, state = self, walker.around
        for item in stages:
            if state is None:
                raise IllegalSchedule("[schedule] a stage of a block needs lanes around.")
            walker.slot = (*slot, id(item)) if slot else None
            state = walker.stage_for_block(item, env, left, state)
            change = partial(replace_terms, mapping=state.replaced[-1])
            slots = tuple((change(r), u, n) for r, u, n in group.slots)
            group = replace(group, nodes=[change(r) for r in group.nodes], slots=slots)
        return group
