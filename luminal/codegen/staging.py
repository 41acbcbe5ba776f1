"""Stages: a subterm computed at a place of the loop list into local memory, by hand or by rule.

In: a walk state and a `Stage`. Out: the subterm's nest, then the rest of the walk with the subterm
replaced by a load. A reduction that a coming loop would repeat is staged without being asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from luminal.codegen.memory import Place
from luminal.codegen.nest import Out, State, Walker
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import outer_reductions
from luminal.codegen.terms import replace as replace_terms
from luminal.ir.dtype import accumulator, boolean, f32, i8
from luminal.ir.expr import Expr, Var, const, is_nonnegative, to_expr
from luminal.ir.layout import Layout, size
from luminal.ir.plan import Item, Loop, Schedule, Stage
from luminal.ir.term import Term, cond, constant, data_atoms, load, postorder, select

__all__ = ["Stager"]

AUTOMATIC_LIMIT = 1 << 14
ALIGN = 64


class Stager:
    """Allocates local memory and lowers stages through a walker."""

    def __init__(self, walker: Walker, subterms: Sequence[Term]) -> None:
        self.walker, self.subterms = walker, subterms
        self.offset = self.total = 0
        self.scratch: list[tuple[str, int]] = []
        walker.on_stage = self.stage
        walker.before_loop = self.before_loop

    def open_axes(self, free: frozenset[Var], state: State) -> tuple[Var, ...]:
        """Axes of a local array: those not yet fixed to one value by a loop of tile 1."""
        return tuple(a for a in self.walker.axes.values() if a in free and a not in state.closed)

    def allocate(
        self, axes: tuple[Var, ...], state: State, term: Term, layout: Layout = ()
    ) -> Place:
        """A local array for the values of `term` over `axes`, which start where the walk is."""
        shape: list[Expr] = []
        for axis in axes:
            most = state.left[axis].most
            if most is None:
                raise IllegalSchedule(f"[schedule] axis {axis} of a stage has no static bound.")
            shape.append(const(most))
        dtype = accumulator(term.dtype)
        if dtype.storage:
            dtype = f32 if dtype.is_float else i8
        name = self.walker.loops.unique("local")
        elements = size(tuple(shape), layout).value or 0
        self.scratch.append((name, self.offset))
        self.offset += -(-(elements * dtype.itemsize + ALIGN) // ALIGN) * ALIGN
        self.total = max(self.total, self.offset)
        place = Place(name, dtype, tuple(shape), layout, True, tuple(state.env[a] for a in axes),
                      write_level=self.walker.emit.depth)  # fmt: skip
        self.walker.eval.places[name] = place
        return place

    def stage(self, item: Stage, state: State, rest: tuple[Item, ...]) -> None:
        """Lowers one stage and then the rest of the list."""
        term = self.current(item.term, state)
        names = {term, *(self.current(n, state) for n in item.same)}
        schedule = Schedule(item.items, item.regs)
        self.walker.walk(self.compute(term, state, schedule, item.layout, names), rest)

    def current(self, number: int, state: State) -> Term:
        """Subterm `number` of the kernel as it looks after the stages around."""
        term = self.subterms[number]
        for mapping in state.replaced:
            term = replace_terms(term, mapping)
        return term

    def compute(
        self, term: Term, state: State, schedule: Schedule, layout: Layout = (),
        names: set[Term] | None = None,
    ) -> State:  # fmt: skip
        """Computes `term` here; the state with it (and `names`) replaced by a load."""
        for cut in (a for t in postorder(term) for a in t.axes if state.env[a].terms):
            raise IllegalSchedule(f"[schedule] a stage reduces over {cut}, which a loop has cut.")
        axes = self.open_axes(term.free, state)
        place = self.allocate(axes, state, term, layout)
        index = tuple(to_expr(a) for a in axes)
        inner = replace(state, outs=(Out(place, index, self._guarded(term, state)),), outer=())
        self.walker.run(inner, schedule)
        place.write_level = self.walker.emit.depth
        mapping: dict[Term, Term] = {}
        for other in names or {term}:
            own = self.open_axes(other.free, state)
            mapping[other] = load(place.name, tuple(to_expr(a) for a in own), term.dtype)
        return self.substituted(state, mapping)

    def _guarded(self, term: Term, state: State) -> Term:
        """The term, its loads kept in range if all its uses stand under masks, which a stage does
        not see."""
        if any(_unmasked(o.value, lambda t: t == term) for o in state.outs):
            return term
        places = self.walker.eval.places
        loads = _unmasked(term, lambda t: t.op == "load" and not self.walker.eval.is_safe(t))
        return replace_terms(term, {t: _checked(t, places[t.buffer].shape) for t in loads})

    def substituted(self, state: State, mapping: dict[Term, Term]) -> State:
        """The state with terms replaced, here and in stages to come."""
        outs = tuple(replace(o, value=replace_terms(o.value, mapping)) for o in state.outs)
        return replace(state, outs=outs, replaced=(*state.replaced, mapping))

    def before_loop(self, loop: Loop, state: State) -> State:
        """Stages the reductions that iterations of this loop would repeat."""
        axis = self.walker.axes[loop.axis]
        if loop.grid or state.left[axis].value == 1:
            return state
        for _ in range(16):
            repeated = self._repeated(axis, state)
            if repeated is None:
                break
            state = self.compute(repeated, state, Schedule())
        return state

    def _repeated(self, axis: Var, state: State) -> Term | None:
        """A reduction that does not depend on `axis` and fits local memory."""
        for out in state.outs:
            for r in outer_reductions(out.value):
                if axis in r.free or axis in r.axes or axis not in out.axes() | set(_bound(out)):
                    continue
                sizes = [state.left[a].most for a in self.open_axes(r.free, state)]
                if (
                    all(n is not None for n in sizes)
                    and prod(n or 0 for n in sizes) <= AUTOMATIC_LIMIT
                ):
                    return r
        return None


def _unmasked(root: Term, wanted: Callable[[Term], bool]) -> list[Term]:
    """Subterms that are needed whatever the masks in `root` say."""
    found: list[Term] = []
    seen: set[Term] = set()
    stack = [root]
    while stack:
        t = stack.pop()
        if t not in seen:
            seen.add(t)
            if wanted(t):
                found.append(t)
            stack += t.args[:1] if t.op == "select" else t.args
    return found


def _checked(t: Term, shape: tuple[Expr, ...]) -> Term:
    """A load where its indices are in range, else 0."""
    zero = 0.0 if t.dtype.is_float else False if t.dtype == boolean else 0
    ends = [e for i, n in zip(t.indices, shape, strict=True) for e in (i, n - 1 - i)]
    for e in ends:
        if not is_nonnegative(e) and not any(True for _ in data_atoms(e)):
            t = select(cond(e), t, constant(zero, t.dtype))
    return t


def _bound(out: Out) -> set[Var]:
    return {a for r in outer_reductions(out.value) for a in r.axes}
