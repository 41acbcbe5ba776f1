"""Online reductions: one tile loop that carries rsum (or wsum) states in local memory.

In: a walk state whose outputs hold rsums over the loop's axis that share x. Out: per tile the
values x, the new maximum and the factor for the old states, the weights, the new states; then the
rest of the walk with the reductions replaced by loads of their states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from luminal.ir.term import Term, binary, constant, load, reduction, unary

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
        nodes = list(dict.fromkeys(found))
        if not nodes or any(
            r.args[0] is not nodes[0].args[0] or r.op != nodes[0].op for r in nodes
        ):
            raise IllegalSchedule(
                f"[schedule] an online loop over {axis} needs reductions that share their x."
            )
        if nodes[0].op == "wsum":
            raise IllegalSchedule("[schedule] wsum has no online loop yet.")
        mapping = _Softmax(self, item, axis, nodes, state).run()
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


class _Softmax:
    """The states and the tile of rsums that share x."""

    def __init__(
        self, owner: OnlineLowering, item: Online, axis: Var, nodes: Sequence[Term], state: State
    ) -> None:
        self.walker, self.stager = owner.walker, owner.stager
        self.item, self.axis, self.nodes, self.state = item, axis, tuple(nodes), state
        self.x = nodes[0].args[0]
        self.over = self.stager.open_axes(self.x.free - {axis}, state)
        self.top = self._place(self.over, self.x)
        self.new_top = self._place(self.over, self.x)
        self.factor = self._place(self.over, self.x)
        self.sums = {r: self._place(self.stager.open_axes(r.free, state), r) for r in nodes}

    def _place(self, axes: tuple[Var, ...], term: Term) -> tuple[Place, tuple[Var, ...]]:
        return self.stager.allocate(axes, self.state, term), axes

    def _read(self, place: tuple[Place, tuple[Var, ...]]) -> Term:
        return load(place[0].name, tuple(to_expr(a) for a in place[1]), place[0].dtype)

    def _out(self, place: tuple[Place, tuple[Var, ...]], value: Term) -> Out:
        return Out(place[0], tuple(to_expr(a) for a in place[1]), value)

    def _nest(self, state: State, schedule: Schedule, *outs: Out) -> None:
        self.walker.run(replace(state, outs=outs, outer=()), schedule)

    def run(self) -> dict[Term, Term]:
        """Emits the loop; what the reductions are read from afterwards."""
        plain = without(self.item.weights, self.axis)
        wide = constant(most_negative(self.x.dtype), self.top[0].dtype)
        self._nest(self.state, plain, self._out(self.top, wide))
        for r, place in self.sums.items():
            schedule = plain if _is_unit(r) else without(self.item.values, self.axis)
            self._nest(self.state, schedule, self._out(place, constant(0.0, place[0].dtype)))
        whole, tile, loops = self.state.left[self.axis], self.item.tile, self.walker.loops
        count = floor_div(whole.expr, tile)
        values = (self.x, *(r.args[1] for r in self.nodes))
        cuts = [Piece(to_expr(0), count, {})]
        if self.item.split:
            cuts = pieces(values, self.axis, tile, count, self.state.env, self.state.left)
        for piece in cuts:
            facts = piece.facts
            if _is_dead(fold(self.x, facts)):
                continue

            def full(v: Expr, _: list[Operand], facts: Facts = facts) -> list[Operand]:
                self._tile(v * tile, extent_of(tile), facts)
                return []

            loops.run(piece.lo, piece.hi, [], full, self.axis.name)

        def tail(offset: Expr, extent: Extent, _: list[Operand]) -> list[Operand]:
            env = {**self.state.env, self.axis: self.state.env[self.axis] + offset}
            facts = settled(values, env, {**self.state.left, self.axis: extent})
            if not _is_dead(fold(self.x, facts)):
                self._tile(offset, extent, facts)
            return []

        loops.tail(whole, tile, [], tail, True, self.axis.name)
        return {r: self._read(place) for r, place in self.sums.items()}

    def _tile(self, offset: Expr, extent: Extent, facts: Facts) -> None:
        """One step of the loop."""
        depth = self.walker.emit.depth
        for place, _ in (self.top, self.new_top, self.factor, *self.sums.values()):
            place.write_level = depth
        state = self.state.enter(self.axis, offset, extent, self.item.tile)
        used = self.stager.offset
        axes = self.stager.open_axes(self.x.free, state)
        layout = _lanes_innermost(axes, self.item.logits)
        tile = (self.stager.allocate(axes, state, self.x, layout), axes)
        item, minus = self.item, constant(-1.0, self.top[0].dtype)
        self._nest(state, item.logits, self._out(tile, fold(self.x, facts)))
        x = self._read(tile)
        largest = reduction("rmax", (self.axis,), x) if self.axis in axes else x
        plain = without(item.weights, self.axis)
        raised = self._out(self.new_top, binary("max", self._read(self.top), largest))
        self._nest(state, item.weights, raised)
        new = binary("mul", self._read(self.new_top), minus)
        self._nest(
            state, plain,
            self._out(self.factor, unary("exp2", binary("add", self._read(self.top), new))),
            self._out(self.top, self._read(self.new_top)),
        )  # fmt: skip
        self._nest(state, item.weights, self._out(tile, unary("exp2", binary("add", x, new))))
        for r, place in self.sums.items():
            value = fold(r.args[1], facts)
            body = x if _is_unit(r) else binary("mul", x, value)
            total = reduction("sum", (self.axis,), body) if self.axis in axes else body
            old = binary("mul", self._read(place), self._read(self.factor))
            schedule = item.weights if _is_unit(r) else item.values
            self._nest(state, schedule, self._out(place, binary("add", total, old)))
        self.stager.offset = used


def _is_unit(r: Term) -> bool:
    return r.args[1].op == "const" and r.args[1].value == 1


def _is_dead(x: Term) -> bool:
    """A tile of logits that are all -inf changes nothing."""
    return x.op == "const" and x.value == float("-inf")
