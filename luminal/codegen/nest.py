"""The walk down a loop list: scopes for free axes, stages, and the leaf with its stores.

In: outputs (place, index, term) and a schedule. Out: loop IR through the emitter. Range splits,
stages and online loops live in their own files and call back into this walk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from luminal.codegen.emitter import Emitter
from luminal.codegen.evaluate import Evaluator
from luminal.codegen.loopir import Literal, Operand
from luminal.codegen.loops import LoopBuilder, TileBody
from luminal.codegen.memory import Place
from luminal.codegen.reductions import Nest, Reductions, identity
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.segments import pieces, settled
from luminal.codegen.terms import Facts, fold, outer_reductions
from luminal.codegen.tile import Extent, Replica, Tile, extend, inner_extent, steps
from luminal.ir.dtype import boolean
from luminal.ir.expr import ONE, ZERO, Expr, Var, const, floor_div, is_nonnegative, maximum
from luminal.ir.plan import Item, Loop, Online, Reg, Schedule, Stage
from luminal.ir.term import Term, data_atoms, index, postorder

__all__ = ["Out", "OuterStep", "State", "Walker"]


@dataclass(frozen=True, slots=True)
class Out:
    """One output of a nest: place[index] = value."""

    place: Place
    index: tuple[Expr, ...]
    value: Term

    def axes(self) -> frozenset[Var]:
        """The free axes of the value and of the index."""
        return self.value.free.union(*(e.variables() for e in self.index))


@dataclass(frozen=True, slots=True)
class OuterStep:
    """A reduction loop around free loops: partial results go through memory."""

    axis: Var
    step: Expr
    last: Expr


@dataclass(frozen=True, slots=True)
class State:
    """Where the walk is: what to compute, the values of axes, what is left of them."""

    outs: tuple[Out, ...]
    env: Mapping[Var, Expr]
    left: Mapping[Var, Extent]
    closed: frozenset[Var] = frozenset()
    outer: tuple[OuterStep, ...] = ()
    nest: Nest = field(default=Nest((), (), 1, {}))
    replaced: tuple[Mapping[Term, Term], ...] = ()

    def enter(self, axis: Var, offset: Expr, extent: Extent, tile: int) -> State:
        """The state inside a loop over `axis` in steps of `tile`."""
        closed = self.closed | {axis} if tile == 1 else self.closed
        return replace(self, env={**self.env, axis: self.env[axis] + offset},
                       left={**self.left, axis: extent}, closed=closed)  # fmt: skip

    def folded(self, facts: Facts) -> State:
        """The state where these conditions are known."""
        outs = tuple(replace(o, value=fold(o.value, facts)) for o in self.outs)
        return replace(self, outs=outs) if facts else self


class Walker:
    """Lowers nests. `axes` maps names to variables, in the kernel's order of axes."""

    def __init__(self, evaluator: Evaluator, loops: LoopBuilder, axes: Mapping[str, Var]) -> None:
        self.eval, self.loops, self.axes = evaluator, loops, axes
        self.emit: Emitter = evaluator.emit
        self.reductions = Reductions(evaluator, loops)
        self.grid: dict[int, Expr] = {}
        self.on_stage: Callable[[Stage, State, tuple[Item, ...]], None] = _missing
        self.on_online: Callable[[Online, State, tuple[Item, ...]], None] = _missing
        self.before_loop: Callable[[Loop, State], State] = lambda loop, state: state

    def run(self, state: State, schedule: Schedule) -> None:
        """Lowers the outputs of a state by a loop list and a register list."""
        bound = {a for o in state.outs for t in postorder(o.value) for a in t.axes}
        items = list(schedule.items)
        cut = len(items)
        while cut and isinstance(items[cut - 1], Loop) and self.axes[items[cut - 1].axis] in bound:  # type: ignore[union-attr]
            cut -= 1
        inner = tuple(i for i in items[cut:] if isinstance(i, Loop))
        outer = items[:cut] + self._missing_loops(state, items, schedule.regs, bound)
        width = self._width(schedule)
        nest = Nest(inner, schedule.regs, width, self.axes)
        self.walk(replace(state, nest=nest, outer=()), tuple(outer))

    def _missing_loops(
        self, state: State, items: Sequence[Item], regs: Sequence[Reg], bound: set[Var]
    ) -> list[Item]:
        """Loops over free axes that the schedule leaves open."""
        free = frozenset[Var]().union(*(o.axes() for o in state.outs)) - bound
        found: list[Item] = []
        for axis in self.axes.values():
            if axis not in free or state.left[axis].value == 1:
                continue
            tiles = [r.tile for r in regs if r.axis == axis.name]
            if tiles and min(tiles) > 1:
                raise IllegalSchedule(f"[schedule] registers of axis {axis} do not end in tile 1.")
            looped = any(isinstance(i, Loop) and i.axis == axis.name and i.tile == 1 for i in items)
            if not tiles and not looped:
                found.append(Loop(axis.name, 1))
        return found

    def _width(self, schedule: Schedule) -> int:
        """The lane count: the tile around the vector entry."""
        lanes = [r for r in schedule.regs if r.role == "vector"]
        if not lanes:
            return 1
        if len(lanes) > 1 or lanes[0].tile != 1:
            raise IllegalSchedule("[schedule] one vector entry with tile 1 is allowed per nest.")
        axis, position = lanes[0].axis, schedule.regs.index(lanes[0])
        before = [r.tile for r in schedule.regs[:position] if r.axis == axis]
        loops = [i.tile for i in schedule.items if isinstance(i, Loop) and i.axis == axis]
        before = before or loops
        width = before[-1] if before else self.axes[axis].hi + 1
        if width > 64 or width & (width - 1):
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
                self.on_stage(item, state, rest)
            case Online():
                self.on_online(item, state, rest)
            case Loop():
                self._loop(item, self.before_loop(item, state), rest)

    def _loop(self, loop: Loop, state: State, rest: tuple[Item, ...]) -> None:
        axis = self.axes[loop.axis]
        whole = state.left[axis]
        last = not any(
            isinstance(i, Loop | Online) and i.axis == loop.axis for i in (*rest, *state.nest.inner)
        )
        bound = {a for o in state.outs for r in outer_reductions(o.value) for a in r.axes}

        def body(offset: Expr, extent: Extent, _: list[Operand]) -> list[Operand]:
            inside = state.enter(axis, offset, extent, loop.tile)
            if loop.split:
                values = [o.value for o in state.outs]
                inside = inside.folded(settled(values, inside.env, inside.left))
            if axis in bound:
                count = maximum(steps(whole, loop.tile), 1)
                step = OuterStep(axis, offset, (count - ONE) * loop.tile)
                inside = replace(inside, outer=(*state.outer, step))
            self.walk(inside, rest)
            return []

        if loop.grid and id(loop) in self.grid:
            self._grid_step(loop, state, rest, last, body)
        elif not last:
            self.loops.outer_tiles(whole, loop.tile, [], body, loop.axis, int(axis in bound))
        else:
            if loop.split and axis not in bound:
                self._pieces(loop, state, rest)
            else:
                self.loops.full_tiles(whole, loop.tile, [], body, loop.axis)
            self.loops.tail(whole, loop.tile, [], body, True, loop.axis)

    def _pieces(self, loop: Loop, state: State, rest: tuple[Item, ...]) -> None:
        """The full tiles of a loop, cut where masks change their truth."""
        axis = self.axes[loop.axis]
        count = floor_div(state.left[axis].expr, loop.tile)
        values = [o.value for o in state.outs]
        for piece in pieces(values, axis, loop.tile, count, state.env, state.left):
            known = state.folded(piece.facts)

            def body(v: Expr, _: list[Operand], known: State = known) -> list[Operand]:
                self.walk(
                    known.enter(axis, v * loop.tile, extent_exactly(loop.tile), loop.tile), rest
                )
                return []

            self.loops.run(piece.lo, piece.hi, [], body, loop.axis)

    def _grid_step(
        self, loop: Loop, state: State, rest: tuple[Item, ...], last: bool, body: TileBody
    ) -> None:
        """One iteration whose number comes from the chunk."""
        number, tile, whole = self.grid[id(loop)], loop.tile, state.left[self.axes[loop.axis]]
        if not last:
            body(number * tile, inner_extent(whole, tile, number * tile), [])
            return
        full = floor_div(whole.expr, tile)

        def main() -> list[Operand]:
            if loop.split:
                return self._grid_pieces(loop, number, state, rest)
            return list(body(number * tile, extent_exactly(tile), []))

        if whole.value is not None and whole.value % tile == 0:
            main()
            return
        tail = self.loops.tail
        self.loops.when(
            full - 1 - number, main, lambda: tail(whole, tile, [], body, True, loop.axis)
        )

    def _grid_pieces(
        self, loop: Loop, number: Expr, state: State, rest: tuple[Item, ...]
    ) -> list[Operand]:
        """The piece of a split range that holds this iteration."""
        axis = self.axes[loop.axis]
        count = floor_div(state.left[axis].expr, loop.tile)
        values = [o.value for o in state.outs]
        cuts = pieces(values, axis, loop.tile, count, state.env, state.left)

        def choose(n: int) -> list[Operand]:
            piece = cuts[n]

            def inside() -> list[Operand]:
                v = piece.lo if (piece.hi - piece.lo).value == 1 else number
                known = state.folded(piece.facts)
                self.walk(
                    known.enter(axis, v * loop.tile, extent_exactly(loop.tile), loop.tile), rest
                )
                return []

            if n == len(cuts) - 1:
                return inside()
            return self.loops.when(piece.hi - 1 - number, inside, lambda: choose(n + 1))

        return choose(0) if cuts else []

    # ---- the register level

    def leaf(self, state: State) -> None:
        """Computes and stores one register tile."""
        nest = state.nest
        bound = {a.name for o in state.outs for t in postorder(o.value) for a in t.axes}
        free_regs = tuple(r for r in nest.regs if r.axis not in bound)
        base = Tile(dict(state.env), dict(state.left))
        tile = extend(base, free_regs, self.axes, self.loops.unique("f"), nest.width)
        self.eval.register(tile)
        values = [o.value for o in state.outs]
        indices = [
            index(e) for o in state.outs for e in o.index if any(True for _ in data_atoms(e))
        ]
        if state.outer:
            self._accumulate(state, tile)
            return
        self.reductions.compute([*values, *indices], tile, nest)
        for out in state.outs:
            self._store_all(out, out.value, tile)

    def _store_all(self, out: Out, value: Term, tile: Tile) -> None:
        positions = tile.registers_of(out.axes())
        for u in tile.replicas(positions):
            self._guarded(tile, u, lambda u=u: self._store(out, value, tile, u))

    def _guarded(self, tile: Tile, u: Replica, store: Callable[[], None]) -> None:
        """Stores of a replica that may lie outside a run-time extent run under a condition."""
        memo = tile.memo
        axes = dict.fromkeys(r.axis for r in tile.registers if r.axis != tile.lane_axis)
        checks: list[Expr] = []
        for axis in axes:
            offset = tile.offset(axis, u)
            if offset and tile.is_dynamic(axis):
                checks.append(tile.left[axis].expr - 1 - offset)

        def descend(rest: Sequence[Expr]) -> Sequence[Operand]:
            if not rest:
                store()
            else:
                self.loops.when(rest[0], lambda: descend(rest[1:]))
            return []

        if checks:
            tile.memo = dict(memo)
        descend(checks)
        tile.memo = memo

    def _store(self, out: Out, value: Term, tile: Tile, u: Replica) -> None:
        operand = self.eval.value(value, tile, u)
        address = self.eval.address((out.place, out.index), out.place, out.index, tile, u)
        lanes = self.eval.lane_mask(tile, u)
        mask = lanes if address.stride != 0 else None
        inside = self._scatter_mask(out, tile, u)
        if inside is not None:
            mask = inside if mask is None else self.eval.arith.both(mask, inside)
        branching = mask is not None and mask.lanes == 1

        def write() -> list[Operand]:
            kept = None if branching else mask
            self.eval.memory.store(out.place, address, tile.lanes, operand, kept, lanes)
            return []

        if branching and mask is not None:
            self.emit.branch(mask, write)
        else:
            write()

    def _scatter_mask(self, out: Out, tile: Tile, u: Replica) -> Operand | None:
        """Where the data in a scatter's index are in range; other elements are not written."""
        found: Operand | None = None
        for e in out.index:
            if not any(True for _ in data_atoms(e)):
                continue
            for atom in data_atoms(self.eval.expression(e, tile, u)):
                if atom.extent is None:
                    continue
                inside = self.eval.checked(atom, self.eval.lane_mask(tile, u))
                found = inside if found is None else self.eval.arith.both(found, inside)
        return found

    def _accumulate(self, state: State, tile: Tile) -> None:
        """Partial results pass through the output: loaded unless first, finished when last."""
        (out, *others), nodes = state.outs, outer_reductions(state.outs[0].value)
        if others or len(nodes) != 1:
            raise IllegalSchedule(
                "[schedule] a reduction loop around free loops needs one output, one reduction."
            )
        r = nodes[0]
        positions = tile.positions(r)
        inside = any(
            g.role == "vector" and self.axes[g.axis] != tile.lane_axis for g in state.nest.regs
        )
        if (
            inside
            or out.place.dtype != r.dtype
            or r.dtype == boolean
            or r.op not in ("sum", "rmax")
            or not out.axes() <= r.free
            or set(positions) != set(tile.registers_of(out.axes()))
        ):
            raise IllegalSchedule("[schedule] partial results do not fit the output.")
        first = self._all_equal([(s.step, ZERO) for s in state.outer])
        last = self._all_equal([(s.step, s.last) for s in state.outer])
        lanes = tile.lanes if tile.varies(r.free) else 1
        us = list(tile.replicas(positions))
        zero = identity(r, lanes)

        def partial() -> list[Operand]:
            return [self._load_partial(out, tile, u) for u in us]

        starts = self._if(first, lambda: [zero] * len(us), partial)
        initial = {(r, u): v for u, v in zip(us, starts, strict=True)}
        self.reductions.compute([out.value], tile, state.nest, initial)
        memo = tile.memo

        def raw() -> list[Operand]:
            tile.memo = dict(memo)
            self._store_all(out, r, tile)
            return []

        def final() -> list[Operand]:
            tile.memo = dict(memo)
            self._store_all(out, out.value, tile)
            return []

        if out.value is r:
            raw()
        else:
            self._if(last, final, raw)

    def _load_partial(self, out: Out, tile: Tile, u: Replica) -> Operand:
        place = out.place
        address = self.eval.address((place, out.index), place, out.index, tile, u)
        mask = self.eval.lane_mask(tile, u) if address.stride != 0 else None
        place.write_level = self.emit.depth
        return self.eval.memory.load(place, address, tile.lanes, mask, mask)

    def _all_equal(self, pairs: Sequence[tuple[Expr, Expr]]) -> Operand:
        """Whether all pairs are equal; a literal if that can be proved."""
        found: Operand = Literal(True, boolean)
        for a, b in pairs:
            if a == b:
                continue
            if is_nonnegative(a - b - 1) or is_nonnegative(b - a - 1):
                return Literal(False, boolean)
            operands = (self.eval.integers.operand(a), self.eval.integers.operand(b))
            found = self.eval.arith.both(found, self.emit.let("eq", operands, boolean))
        return found

    def _if(
        self, condition: Operand, then: Callable[[], list[Operand]],
        orelse: Callable[[], list[Operand]],
    ) -> list[Operand]:  # fmt: skip
        if isinstance(condition, Literal):
            return then() if condition.value else orelse()
        return self.emit.branch(condition, then, orelse)


def extent_exactly(value: int) -> Extent:
    """A static extent."""
    return Extent(const(value), frozenset((value,)))


def _missing(*_: object) -> None:
    raise IllegalSchedule("[schedule] this item is not allowed here.")
