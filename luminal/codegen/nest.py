"""The walk down a loop list: loops over free axes, stages, partial sums, the leaf with its stores.

In: outputs (place, index, term) and a schedule. Out: loop IR through the emitter. A reduction that
a coming loop would repeat is staged without being asked. Online loops live in their own file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from luminal.codegen.evaluate import Evaluator
from luminal.codegen.loopir import Operand
from luminal.codegen.loops import LoopBuilder, conditions, pieces, settled
from luminal.codegen.memory import Place, loaded_dtype
from luminal.codegen.reductions import Reductions, identity
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import Facts, checked, fold, outer_reductions
from luminal.codegen.terms import replace as replace_terms
from luminal.codegen.tile import Ahead, Extent, Nest, Replica, Tile
from luminal.ir import Layout, Term, binary, constant, data_atoms, index, load, postorder, size
from luminal.ir.dtype import DType, accumulator, boolean
from luminal.ir.expr import Expr, Var, const, floor_div, to_expr
from luminal.ir.plan import Item, Loop, Online, Schedule, Stage
from luminal.ir.term import cond, select

AUTOMATIC_LIMIT = 1 << 14
ALIGN = 64
MOST_LANES = 64


@dataclass(frozen=True, slots=True)
class Out:
    """One output of a nest: place[index] = value."""

    place: Place
    index: tuple[Expr, ...]
    value: Term

    def axes(self) -> frozenset[Var]:
        """The free axes of the value and of the index."""
        return self.value.free.union(*(e.variables() for e in self.index))

    @property
    def read(self) -> Term:
        """A load of what is stored here."""
        return load(self.place.name, self.index, self.place.dtype)

    def of(self, value: Term) -> Out:
        """A store of another value at the same place."""
        return replace(self, value=value)

    def summed(self) -> frozenset[Var]:
        """The axes of its outermost reductions."""
        return frozenset(a for r in outer_reductions(self.value) for a in r.axes)


@dataclass(frozen=True, slots=True)
class State:
    """Where the walk is: what to compute, the values of axes, what is left of them; `closed` axes
    have one value; `partial`: what is computed is added to the output."""

    outs: tuple[Out, ...]
    env: Mapping[Var, Expr]
    left: Mapping[Var, Extent]
    closed: frozenset[Var] = frozenset()
    partial: bool = False
    nest: Nest = field(default=Nest((), (), 1, {}))
    ahead: tuple[Ahead, ...] = ()
    replaced: tuple[Mapping[Term, Term], ...] = ()

    def enter(self, axis: Var, offset: Expr, extent: Extent, tile: int) -> State:
        """The state inside a loop over `axis` in steps of `tile`."""
        closed = self.closed | {axis} if tile == 1 else self.closed
        return replace(self, env={**self.env, axis: self.env[axis] + offset},
                       left={**self.left, axis: extent}, closed=closed)  # fmt: skip

    def changed(self, change: Callable[[Term], Term]) -> State:
        """The state with other values."""
        return replace(self, outs=tuple(o.of(change(o.value)) for o in self.outs))

    def bound(self) -> frozenset[Var]:
        """The axes that its values reduce over."""
        return frozenset(a for t in postorder(*(o.value for o in self.outs)) for a in t.axes)

    def masks(self) -> list[Term]:
        """The conditions of its values."""
        return conditions(*(o.value for o in self.outs))

    def open_axes(self, free: frozenset[Var]) -> tuple[Var, ...]:
        """Axes of a local array: those not yet fixed to one value by a loop of tile 1."""
        return tuple(a for a in self.env if a in free and a not in self.closed)

    def substituted(self, mapping: Mapping[Term, Term]) -> State:
        """The state with terms replaced, here and in stages to come."""
        new = self.changed(lambda t: replace_terms(t, mapping))
        return replace(new, replaced=(*self.replaced, mapping))


class Walker:
    """Lowers nests. `axes` are those of the kernel in order, `subterms` what stages count in."""

    def __init__(
        self, evaluator: Evaluator, loops: LoopBuilder, axes: Iterable[Var],
        subterms: Sequence[Term], online: Callable[[Walker, Online, State, tuple[Item, ...]], None],
    ) -> None:  # fmt: skip
        self.eval, self.loops, self.emit = evaluator, loops, evaluator.emit
        self.axes = {a.name: a for a in axes}
        self.subterms, self.online = subterms, online
        self.reductions = Reductions(evaluator, loops)
        self.grid: dict[int, Expr] = {}
        self.offset = self.total = 0
        self.scratch: list[tuple[str, int]] = []

    def run(self, state: State, schedule: Schedule) -> None:
        """Lowers the outputs of a state by a loop list and a register list."""
        bound = state.bound()
        items = list(schedule.items)
        cut = len(items)
        while cut and isinstance(last := items[cut - 1], Loop) and self.axes[last.axis] in bound:
            cut -= 1
        inner = tuple(i for i in items[cut:] if isinstance(i, Loop))
        nest = Nest(inner, schedule.regs, self._width(schedule), self.axes)
        free = frozenset[Var]().union(*(o.axes() for o in state.outs)) - bound
        added = [loop for a in self.axes.values() if a in free and state.left[a].value != 1
                 for loop in nest.missing(a, state.left[a], items)]  # fmt: skip
        self.walk(replace(state, nest=nest, partial=False), (*items[:cut], *added))

    def _width(self, schedule: Schedule) -> int:
        """The lane count: the tile around the vector entry."""
        lanes = [n for n, r in enumerate(schedule.regs) if r.role == "vector"]
        if not lanes:
            return 1
        axis = schedule.regs[lanes[0]].axis
        if len(lanes) > 1 or schedule.regs[lanes[0]].tile != 1:
            raise IllegalSchedule("[schedule] one vector entry with tile 1 is allowed per nest.")
        loops = [i.tile for i in schedule.items if isinstance(i, Loop) and i.axis == axis]
        around = [r.tile for r in schedule.regs[: lanes[0]] if r.axis == axis] or loops
        width = around[-1] if around else self.axes[axis].hi + 1
        if width > MOST_LANES or width & (width - 1):
            raise IllegalSchedule(f"[schedule] {width} lanes are not a power of two up to 64.")
        return width

    # ---- loops

    def walk(self, state: State, items: tuple[Item, ...]) -> None:
        """Lowers the rest of a loop list."""
        if not items:
            self.leaf(state)
            return
        item, rest = items[0], items[1:]
        match item:
            case Stage():
                term, *same = (self.current(n, state) for n in (item.term, *item.same))
                schedule = Schedule(item.items, item.regs)
                self.walk(self.stage(term, state, schedule, item.layout, same), rest)
            case Online():
                self.online(self, item, state, rest)
            case Loop():
                state, axis = self.without_repeats(item, state), self.axes[item.axis]
                through = not state.partial and any(axis in o.summed() for o in state.outs)
                (self._partial if through else self._loop)(item, state, rest)

    def _loop(self, loop: Loop, state: State, rest: tuple[Item, ...]) -> None:
        axis, tile, cuts = self.axes[loop.axis], loop.tile, None
        around = (*rest, *state.nest.inner)
        again = any(isinstance(i, Loop | Online) and i.axis == loop.axis for i in around)
        if loop.split and not again and not loop.grid:
            count = floor_div(state.left[axis].expr, tile)
            cuts = pieces(state.masks(), axis, tile, count, state.env, state.left)

        def body(offset: Expr, extent: Extent, facts: Facts, _: list[Operand]) -> list[Operand]:
            inside = state.enter(axis, offset, extent, tile).changed(lambda t: fold(t, facts))
            if loop.ahead:
                step = Ahead(axis, tile * loop.ahead, inside.env, inside.left)
                inside = replace(inside, ahead=(*state.ahead, step))
            if state.partial:  # what a step adds to is not read before the step
                state.outs[0].place.write_level = self.emit.depth
            if loop.split:
                known = settled(inside.masks(), inside.env, inside.left)
                inside = inside.changed(lambda t: fold(t, known))
            self.walk(inside, rest)
            return []

        lanes = any(r.role == "vector" and r.axis == loop.axis for r in state.nest.regs)
        self.loops.tiles(state.left[axis], tile, [], body, loop.axis, again=again, ragged=lanes,
                         cuts=cuts, step=self.grid.get(id(loop)))  # fmt: skip

    def _partial(self, loop: Loop, state: State, rest: tuple[Item, ...]) -> None:
        """A reduction loop around free loops: partial results wait in the output."""
        out, *others = state.outs
        nodes = outer_reductions(out.value)
        reads = {t.buffer for t in postorder(out.value) if t.op == "load"}
        r = nodes[0]
        if (
            others or len(nodes) > 1 or r.op not in ("sum", "rmax") or not out.axes() <= r.free
            or any(data_atoms(*out.index)) or out.place.name in reads
            or not out.place.dtype == r.dtype == accumulator(r.dtype) != boolean
        ):  # fmt: skip
            raise IllegalSchedule("[schedule] partial results do not fit the output.")
        bound = {a.name for a in state.bound()}
        loops = tuple(i for i in rest if isinstance(i, Loop) and i.axis not in bound)
        plain = Schedule(loops, tuple(g for g in state.nest.regs if g.axis not in bound))
        if self.axes[loop.axis].extent.lo < 1:  # there may be no step
            self.run(state.changed(lambda _: constant(identity(r), r.dtype)), plain)
        later = cond(to_expr(self.axes[loop.axis]) - 1)  # the first step finds nothing to add to
        before = select(later, out.read, constant(identity(r), r.dtype))
        joined = binary("add" if r.op == "sum" else "max", before, r)
        self._loop(loop, replace(state, outs=(out.of(joined),), partial=True), rest)
        out.place.write_level = self.emit.depth
        if out.value is not r:
            self.run(state.changed(lambda t: replace_terms(t, {r: out.read})), plain)

    # ---- stages

    def allocate(
        self, term: Term, free: frozenset[Var], state: State, layout: Layout = ()
    ) -> Out:  # fmt: skip
        """A local array for `term` over the axes of `free` that are open, from where the walk is
        on; `layout` orders them."""
        axes = state.open_axes(free)
        sizes = [state.left[a].most for a in axes]
        if None in sizes:
            raise IllegalSchedule("[schedule] an axis of a stage has no static bound.")
        shape, dtype = tuple(const(n or 0) for n in sizes), loaded_dtype(accumulator(term.dtype))
        name = self.loops.unique("local")
        place = Place(name, dtype, shape, layout, True, tuple(state.env[a] for a in axes),
                      write_level=self.emit.depth)  # fmt: skip
        self.eval.places[name] = place
        self.reserve(name, dtype, size(shape, layout).hi)
        return Out(place, tuple(map(to_expr, axes)), term)

    def reserve(self, name: str, dtype: DType, elements: int) -> None:
        """Room for a local array; whole vectors are read at its end."""
        self.scratch.append((name, self.offset))
        self.offset += -(-(elements + MOST_LANES) * dtype.itemsize // ALIGN) * ALIGN
        self.total = max(self.total, self.offset)

    def current(self, number: int, state: State) -> Term:
        """Subterm `number` of the kernel as it looks after the stages around."""
        term = self.subterms[number]
        for mapping in state.replaced:
            term = replace_terms(term, mapping)
        return term

    def stage(
        self, term: Term, state: State, schedule: Schedule, layout: Layout = (),
        same: Sequence[Term] = (),
    ) -> State:  # fmt: skip
        """Computes `term` here; the state with it (and the `same`) replaced by a load."""
        for cut in (a for t in postorder(term) for a in t.axes if state.env[a].terms):
            raise IllegalSchedule(f"[schedule] a stage reduces over {cut}, which a loop has cut.")
        out = self.allocate(term, term.free, state, layout)
        shapes = {name: p.shape for name, p in self.eval.places.items() if not p.local}
        self.run(replace(state, outs=(out.of(checked(term, shapes)),)), schedule)
        out.place.write_level = self.emit.depth
        return state.substituted({
            t: load(out.place.name, tuple(map(to_expr, state.open_axes(t.free))), term.dtype)
            for t in (term, *same)
        })  # fmt: skip

    def without_repeats(self, loop: Loop, state: State) -> State:
        """Stages the reductions that iterations of this loop would repeat."""
        axis = self.axes[loop.axis]
        if loop.grid or state.left[axis].value == 1:
            return state
        for _ in range(16):
            repeated = next((r for o in state.outs if axis in o.axes() | o.summed()
                             for r in outer_reductions(o.value)
                             if self._repeats(r, axis, state)), None)  # fmt: skip
            if repeated is None:
                break
            state = self.stage(repeated, state, Schedule())
        return state

    def _repeats(self, r: Term, axis: Var, state: State) -> bool:
        """Whether a reduction does not depend on `axis` and fits local memory."""
        sizes = [state.left[a].most for a in state.open_axes(r.free)]
        fits = None not in sizes and prod(n or 0 for n in sizes) <= AUTOMATIC_LIMIT
        return fits and axis not in r.free and axis not in r.axes

    # ---- the register level

    def leaf(self, state: State) -> None:
        """Computes and stores one register tile."""
        loads = (t for t in postorder(*(o.value for o in state.outs)) if t.op == "load")
        reads = tuple(dict.fromkeys((*loads, *(o.read for o in state.outs))))
        nest, bound = replace(state.nest, ahead=state.ahead, reads=reads), state.bound()
        free_regs = [r for r in nest.regs if self.axes[r.axis] not in bound]
        base = Tile(dict(state.env), dict(state.left), dict(state.env))
        tile = self.eval.extend(base, free_regs, self.loops.unique("f"), nest)
        if not nest.inner:
            self.eval.prefetch(nest, state.env, state.left)
        indices = [index(e) for o in state.outs for e in o.index if any(data_atoms(e))]
        self.reductions.compute([*(o.value for o in state.outs), *indices], tile, nest)
        for out in state.outs:
            for u in tile.replicas(tile.registers_of(out.axes())):
                self._store(out, tile, u)

    def guard(self, out: Out, tile: Tile, u: Replica) -> Operand | None:
        """Where a replica is stored at all; None: everywhere."""
        return None

    def _store(self, out: Out, tile: Tile, u: Replica) -> None:
        operand = self.eval.value(out.value, tile, u)
        address = self.eval.address((out.place, out.index), out.place, out.index, tile, u)
        guard, lanes = self.guard(out, tile, u), self.eval.lane_mask(tile, u)
        mask = self.eval.both(guard, lanes if address.stride != 0 else None)
        lanes = self.eval.both(guard, lanes)
        for e in out.index:
            if any(data_atoms(e)):  # a scatter does not write what is out of range
                for atom in data_atoms(self.eval.expression(e, tile, u)):
                    mask = self.eval.both(mask, self.eval.checked(atom, lanes))
        branching = mask is not None and mask.lanes == 1

        def write() -> list[Operand]:
            kept = None if branching else mask
            self.eval.memory.store(out.place, address, tile.lanes, operand, kept, lanes)
            return []

        if branching and mask is not None:
            self.emit.branch(mask, write)
        else:
            write()
