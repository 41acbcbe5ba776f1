"""Online reductions: one tile loop that carries rsum states in local memory.

In: a walk state whose outputs hold rsums over the loop's axis that share x. Out: per tile the
values x, a running maximum, and sums that are rescaled when it rises; then the rest of the walk
with the reductions replaced by loads of the sums."""

from collections.abc import Sequence
from dataclasses import replace

from luminal.codegen.loopir import Operand
from luminal.codegen.loops import conditions, pieces, settled
from luminal.codegen.nest import Out, State, Walker
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import Facts, fold, most_negative, outer_reductions, power_below
from luminal.codegen.tile import Extent
from luminal.ir import Expr, Item, Loop, Online, Schedule, Var, floor_div
from luminal.ir.term import Term, binary, cast, constant, reduction


def lower_online(walker: Walker, item: Online, state: State, rest: tuple[Item, ...]) -> None:
    """One online loop, then what follows it."""
    axis = walker.axes[item.axis]
    found = (r for o in state.outs for r in outer_reductions(o.value))
    nodes = list(dict.fromkeys(r for r in found if r.op == "rsum" and r.axes == (axis,)))
    if not nodes or any(r.args[:-1] != nodes[0].args[:-1] for r in nodes):
        text = f"[schedule] an online loop over {axis} needs rsums that share their x and scale."
        raise IllegalSchedule(text)
    mapping = _Rescaled(walker, item, axis, nodes, state).run()
    walker.walk(state.substituted(mapping), rest)


class _Rescaled:
    """The tile loop, its arrays and nests."""

    def __init__(
        self, walker: Walker, item: Online, axis: Var, nodes: Sequence[Term], state: State
    ) -> None:
        self.walker, self.item, self.axis, self.state = walker, item, axis, state
        self.x, *self.scales = nodes[0].args[:-1]
        self.plain = self.without(item.weights)
        rows = self.x.free - {axis}
        self.top, self.raised, self.factor = (
            self.array(rows, state, self.x, self.plain) for _ in range(3)
        )
        self.sums = {r: self.array(r.free, state, r, item.values) for r in nodes}

    def without(self, schedule: Schedule) -> Schedule:
        """The schedule of the same nest without the axis of the loop."""
        loops = (i for i in schedule.items if isinstance(i, Loop) and i.axis != self.axis.name)
        return Schedule(tuple(loops), tuple(r for r in schedule.regs if r.axis != self.axis.name))

    def array(self, free: frozenset[Var], state: State, term: Term, schedule: Schedule) -> Out:
        """A local array that is contiguous along the schedule's lanes."""
        axes, lanes = state.open_axes(free), [r.axis for r in schedule.regs if r.role == "vector"]
        order = sorted(range(len(axes)), key=lambda n: axes[n].name in lanes)
        return self.walker.allocate(term, free, state, tuple((n, 1) for n in order))

    def nest(self, state: State, schedule: Schedule, *outs: Out) -> None:
        self.walker.run(replace(state, outs=outs), schedule)

    def run(self) -> dict[Term, Term]:
        """Emits the loop; what the reductions are read from after it."""
        lowest = constant(most_negative(self.x.dtype), self.top.place.dtype)
        self.nest(self.state, self.plain, self.top.of(lowest))
        for r, total in self.sums.items():
            schedule = self.plain if _is_unit(r) else self.without(self.item.values)
            self.nest(self.state, schedule, total.of(constant(0.0, total.place.dtype)))
        whole, tile, cuts = self.state.left[self.axis], self.item.tile, None
        masks = conditions(self.x, *(r.args[-1] for r in self.sums))
        if self.item.split:
            count, env, left = floor_div(whole.expr, tile), self.state.env, self.state.left
            found = pieces(masks, self.axis, tile, count, env, left)
            cuts = [p for p in found if not self.is_dead(p.facts)]

        def body(offset: Expr, extent: Extent, facts: Facts, _: list[Operand]) -> list[Operand]:
            state = self.state.enter(self.axis, offset, extent, tile)
            if extent.value != tile:
                facts = settled(masks, state.env, state.left)
            if not self.is_dead(facts):
                self.tile(state, facts)
            return []

        self.walker.loops.tiles(whole, tile, [], body, self.axis.name, cuts=cuts, ragged=True)
        return {r: cast(total.read, r.dtype) for r, total in self.sums.items()}

    def is_dead(self, facts: Facts) -> bool:
        """Whether a tile where these facts hold changes nothing: its logits are all -inf."""
        return fold(self.x, facts).value == float("-inf")

    def tile(self, state: State, facts: Facts) -> None:
        """One step: raise the maximum, rescale, add the tile's weights."""
        for array in (self.top, self.raised, self.factor, *self.sums.values()):
            array.place.write_level = self.walker.emit.depth
        used, weights = self.walker.offset, self.item.weights
        tile = self.array(self.x.free, state, self.x, self.item.logits)
        self.nest(state, self.item.logits, tile.of(fold(self.x, facts)))
        higher = binary("max", self.top.read, self.over("rmax", tile.read))
        self.nest(state, weights, self.raised.of(higher))
        fall = self.weight(self.top.read)
        self.nest(state, self.plain, self.factor.of(fall), self.top.of(self.raised.read))
        self.nest(state, weights, tile.of(self.weight(tile.read)))
        for r, total in self.sums.items():
            value = fold(r.args[-1], facts)
            weighed = tile.read if _is_unit(r) else binary("mul", tile.read, value)
            old = binary("mul", total.read, self.factor.read)
            schedule = weights if _is_unit(r) else self.item.values
            self.nest(state, schedule, total.of(binary("add", self.over("sum", weighed), old)))
        self.walker.offset = used

    def weight(self, x: Term) -> Term:
        """The weight of x below the new maximum."""
        scales = (cast(s, self.raised.place.dtype) for s in self.scales)
        return power_below(x, self.raised.read, scales)

    def over(self, op: str, body: Term) -> Term:
        """The reduction of a tile's values; the value itself where the axis is one step."""
        return reduction(op, (self.axis,), body) if self.axis in body.free else body


def _is_unit(r: Term) -> bool:
    return r.args[-1].value == 1
