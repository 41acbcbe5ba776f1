"""Online reductions: one tile loop that carries rsum or wsum states in local memory.

In: a walk state whose outputs hold rsums (or wsums) over the loop's axis that share x. Out: per
tile the values x and the update of the states (rescaled sums; means and squares by Chan's merge);
then the rest of the walk with the reductions replaced by loads of their states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.codegen.loopir import Operand
from luminal.codegen.memory import Place
from luminal.codegen.nest import Out, State, Walker
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.segments import Piece, pieces, settled
from luminal.codegen.staging import Stager
from luminal.codegen.terms import Facts, fold, most_negative, outer_reductions
from luminal.codegen.tile import Extent, extent_of
from luminal.ir.expr import Expr, Var, floor_div, to_expr
from luminal.ir.layout import Layout
from luminal.ir.plan import Item, Loop, Online, Schedule
from luminal.ir.term import Term, binary, cast, constant, index, load, reduction, unary

__all__ = ["OnlineLowering"]


class OnlineLowering:
    """Lowers `Online` items through a walker and a stager."""

    def __init__(self, walker: Walker, stager: Stager) -> None:
        self.walker, self.stager = walker, stager
        walker.on_online = self.lower

    def lower(self, item: Online, state: State, rest: tuple[Item, ...]) -> None:
        """One online loop, then what follows it."""
        axis = self.walker.axes[item.axis]
        found = [
            r for o in state.outs for r in outer_reductions(o.value)
            if r.op in ("rsum", "wsum") and r.axes == (axis,)
        ]  # fmt: skip
        nodes = tuple(dict.fromkeys(found))
        if not nodes or any(
            r.args[0] is not nodes[0].args[0] or r.op != nodes[0].op for r in nodes
        ):
            raise IllegalSchedule(
                f"[schedule] an online loop over {axis} needs reductions that share their x."
            )
        kind = _Rescaled if nodes[0].op == "rsum" else _Moments
        mapping = kind(self, item, axis, nodes, state).run()
        self.walker.walk(self.stager.substituted(state, mapping), rest)


def without(schedule: Schedule, axis: Var) -> Schedule:
    """The schedule of the same nest without one axis."""
    return Schedule(
        tuple(i for i in schedule.items if not (isinstance(i, Loop) and i.axis == axis.name)),
        tuple(r for r in schedule.regs if r.axis != axis.name),
    )


def _lanes_innermost(axes: tuple[Var, ...], schedule: Schedule) -> Layout:
    """The layout of a local array whose vectors along the schedule's lanes are contiguous."""
    lanes = [r.axis for r in schedule.regs if r.role == "vector"]
    last = [n for n, a in enumerate(axes) if a.name in lanes]
    return tuple((n, 1) for n in (*(n for n in range(len(axes)) if n not in last), *last))


@dataclass(frozen=True, slots=True)
class _Array:
    """A local array and its axes."""

    place: Place
    axes: tuple[Var, ...]

    @property
    def read(self) -> Term:
        """A load of its element."""
        return load(self.place.name, tuple(to_expr(a) for a in self.axes), self.place.dtype)

    def out(self, value: Term) -> Out:
        """A store to its element."""
        return Out(self.place, tuple(to_expr(a) for a in self.axes), value)


class _Carried:
    """What both kinds share: the tile loop, its arrays and nests."""

    def __init__(
        self, owner: OnlineLowering, item: Online, axis: Var, nodes: tuple[Term, ...], state: State
    ) -> None:
        self.walker, self.stager = owner.walker, owner.stager
        self.item, self.axis, self.nodes, self.state = item, axis, nodes, state
        self.x = nodes[0].args[0]
        self.plain = without(item.weights, axis)
        self.over = self.stager.open_axes(self.x.free - {axis}, state)
        self.arrays: list[_Array] = []

    def array(self, axes: tuple[Var, ...], term: Term, schedule: Schedule) -> _Array:
        """A state that lives as long as the loop, contiguous along the schedule's lanes."""
        layout = _lanes_innermost(axes, schedule)
        found = _Array(self.stager.allocate(axes, self.state, term, layout), axes)
        self.arrays.append(found)
        return found

    def nest(self, state: State, schedule: Schedule, *outs: Out) -> None:
        """One nest inside the loop."""
        self.walker.run(replace(state, outs=outs, outer=()), schedule)

    def values(self) -> tuple[Term, ...]:
        """The terms whose masks cut the loop."""
        return (self.x,)

    def start(self) -> None:
        """The states before the first tile."""
        raise NotImplementedError

    def advance(self, state: State, tile: _Array, offset: Expr, facts: Facts) -> None:
        """The states after a tile whose x is in `tile`."""
        raise NotImplementedError

    def results(self) -> dict[Term, Term]:
        """What the reductions are read from after the loop."""
        raise NotImplementedError

    def is_dead(self, facts: Facts) -> bool:
        """Whether a tile where these facts hold changes nothing."""
        return False

    def run(self) -> dict[Term, Term]:
        """Emits the loop."""
        self.start()
        whole, tile, loops = self.state.left[self.axis], self.item.tile, self.walker.loops
        count, values = floor_div(whole.expr, tile), self.values()
        cuts = [Piece(to_expr(0), count, {})]
        if self.item.split:
            cuts = pieces(values, self.axis, tile, count, self.state.env, self.state.left)
        for piece in (p for p in cuts if not self.is_dead(p.facts)):

            def full(v: Expr, _: list[Operand], facts: Facts = piece.facts) -> list[Operand]:
                self._tile(v * tile, extent_of(tile), facts)
                return []

            loops.run(piece.lo, piece.hi, [], full, self.axis.name)

        def tail(offset: Expr, extent: Extent, _: list[Operand]) -> list[Operand]:
            env = {**self.state.env, self.axis: self.state.env[self.axis] + offset}
            facts = settled(values, env, {**self.state.left, self.axis: extent})
            if not self.is_dead(facts):
                self._tile(offset, extent, facts)
            return []

        loops.tail(whole, tile, [], tail, True, self.axis.name)
        return self.results()

    def _tile(self, offset: Expr, extent: Extent, facts: Facts) -> None:
        """One step of the loop."""
        for array in self.arrays:
            array.place.write_level = self.walker.emit.depth
        state = self.state.enter(self.axis, offset, extent, self.item.tile)
        used = self.stager.offset
        axes = self.stager.open_axes(self.x.free, state)
        layout = _lanes_innermost(axes, self.item.logits)
        tile = _Array(self.stager.allocate(axes, state, self.x, layout), axes)
        self.nest(state, self.item.logits, tile.out(fold(self.x, facts)))
        self.advance(state, tile, offset, facts)
        self.stager.offset = used

    def summed(self, op: str, body: Term) -> Term:
        """The reduction of a tile's values; the value itself where the axis is one step."""
        return reduction(op, (self.axis,), body) if self.axis in body.free else body


class _Rescaled(_Carried):
    """Rsums: a running maximum, sums that are rescaled when it rises."""

    def start(self) -> None:
        """The maximum starts at the lowest finite number, the sums at 0."""
        self.top, self.raised, self.factor = (
            self.array(self.over, self.x, self.plain) for _ in range(3)
        )
        self.sums = {
            r: self.array(self.stager.open_axes(r.free, self.state), r, self.item.values)
            for r in self.nodes
        }
        lowest = constant(most_negative(self.x.dtype), self.top.place.dtype)
        self.nest(self.state, self.plain, self.top.out(lowest))
        for r, total in self.sums.items():
            schedule = self.plain if _is_unit(r) else without(self.item.values, self.axis)
            self.nest(self.state, schedule, total.out(constant(0.0, total.place.dtype)))

    def values(self) -> tuple[Term, ...]:
        """x and what it weighs."""
        return (self.x, *(r.args[1] for r in self.nodes))

    def is_dead(self, facts: Facts) -> bool:
        """Logits that are all -inf change nothing."""
        x = fold(self.x, facts)
        return x.op == "const" and x.value == float("-inf")

    def advance(self, state: State, tile: _Array, offset: Expr, facts: Facts) -> None:
        """Raise the maximum, rescale, add the tile's weights."""
        x, weights = tile.read, self.item.weights
        higher = binary("max", self.top.read, self.summed("rmax", x))
        self.nest(state, weights, self.raised.out(higher))
        minus = binary("mul", self.raised.read, constant(-1.0, self.raised.place.dtype))
        fall = unary("exp2", binary("add", self.top.read, minus))
        self.nest(state, self.plain, self.factor.out(fall), self.top.out(self.raised.read))
        self.nest(state, weights, tile.out(unary("exp2", binary("add", x, minus))))
        for r, total in self.sums.items():
            value = fold(r.args[1], facts)
            body = x if _is_unit(r) else binary("mul", x, value)
            old = binary("mul", total.read, self.factor.read)
            schedule = weights if _is_unit(r) else self.item.values
            self.nest(state, schedule, total.out(binary("add", self.summed("sum", body), old)))

    def results(self) -> dict[Term, Term]:
        """The sums."""
        return {r: cast(total.read, r.dtype) for r, total in self.sums.items()}


class _Moments(_Carried):
    """Wsums: a mean and squares around it, merged tile by tile (Chan, Golub, LeVeque 1979)."""

    def start(self) -> None:
        """Nothing seen yet."""
        self.mean, self.squares, self.own, self.spread = (
            self.array(self.over, self.x, self.plain) for _ in range(4)
        )
        zero = constant(0.0, self.mean.place.dtype)
        self.nest(self.state, self.plain, self.mean.out(zero), self.squares.out(zero))

    def advance(self, state: State, tile: _Array, offset: Expr, facts: Facts) -> None:
        """The tile's own mean and squares, then the merge."""
        x, dtype, weights = tile.read, self.mean.place.dtype, self.item.weights
        many = cast(index(state.left[self.axis].expr), dtype)
        before = cast(index(offset), dtype)
        share = binary("mul", many, unary("recip", binary("add", before, many)))
        part = binary("mul", self.summed("sum", x), unary("recip", many))
        self.nest(state, weights, self.own.out(part))
        delta = _minus(x, self.own.read)
        self.nest(state, weights, self.spread.out(self.summed("sum", binary("mul", delta, delta))))
        moved = _minus(self.own.read, self.mean.read)
        between = binary("mul", binary("mul", moved, moved), binary("mul", before, share))
        total = binary("add", binary("add", self.squares.read, self.spread.read), between)
        mean = binary("add", self.mean.read, binary("mul", moved, share))
        self.nest(state, self.plain, self.squares.out(total), self.mean.out(mean))

    def results(self) -> dict[Term, Term]:
        """The squares."""
        return {r: cast(self.squares.read, r.dtype) for r in self.nodes}


def _minus(a: Term, b: Term) -> Term:
    return binary("add", a, binary("mul", b, constant(-1.0, b.dtype)))


def _is_unit(r: Term) -> bool:
    return r.args[1].op == "const" and r.args[1].value == 1
