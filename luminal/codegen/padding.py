"""Padding: a kernel whose axes fill whole tiles of its schedule.

In: a kernel's axes and terms, and how far the outermost loop over each axis steps. Out: longer
axes, terms that read nothing beyond the old ends, and where those are. Then every tile is complete:
a GPU has no code for remainders, and all threads of a block run it alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from luminal.codegen.terms import in_range
from luminal.ir import Expr, Item, Kernel, Loop, Online, Schedule, Stage, Term, Var, axis_var
from luminal.ir import term as tm
from luminal.ir.expr import ceil_div, to_expr
from luminal.ir.numeric import lowest
from luminal.ir.term import Data, constant, select

Shapes = Mapping[str, tuple[Expr, ...]]


def steps(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """For each axis: the step of its outermost loops, and what the loops leave to registers."""
    found: dict[str, tuple[int, int]] = {}
    left = {i.axis: i.tile for i in schedule.items if isinstance(i, Loop)}
    for items in _lists(schedule.items):
        for item in items:
            if isinstance(item, Loop):
                old, _ = found.get(item.axis, (1, 1))
                step = item.tile * (item.lanes or 1)
                found[item.axis] = (max(old, step), left.get(item.axis, 1))
    return found


def _lists(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    yield items
    for item in items:
        if isinstance(item, Stage):
            yield from _lists(item.items)
        elif isinstance(item, Online):
            yield (Loop(item.axis, item.tile),)
            for part in (item.logits, item.weights, item.values):
                yield from _lists(part.items)


class Padding:
    """`axes` maps old axes to longer ones of the same name; `conditions` holds, for a longer one,
    what is true up to the old end."""

    def __init__(self, kernel: Kernel, schedule: Schedule, shapes: Shapes) -> None:
        self.shapes = shapes
        self.axes: dict[Var, Expr] = {}
        self.conditions: dict[Var, Term] = {}
        self.known: dict[Var, Var] = {}
        self._memo: dict[Term, Term] = {}
        for a in kernel.all_axes():
            step, tile = steps(schedule).get(a.name, (1, 1))
            self.known[a] = a
            if a.extent % step != 0:
                new = self.known[a] = axis_var(a.name, ceil_div(a.extent, step) * step)
                self.axes[a] = to_expr(new)
                size = tile if tile > 1 and a.extent % tile == 0 else 1  # such tiles end with it
                start = to_expr(new) // size * size
                self.conditions[new] = tm.cond(a.extent - size - start)

    def term(self, t: Term) -> Term:
        """The term over the longer axes."""
        if t not in self._memo:
            self._memo[t] = self._changed(t) if self.axes else t
        return self._memo[t]

    def expr(self, e: Expr) -> Expr:
        """An index expression over the longer axes."""
        return e.map(self._leaf)

    def _leaf(self, atom: object) -> Expr | None:
        if isinstance(atom, Data):
            return atom.with_term(self.term(atom.term), self.expr)
        return self.axes.get(atom) if isinstance(atom, Var) else None

    def _changed(self, t: Term) -> Term:
        args = [self.term(a) for a in t.args]
        if t.axes:
            new_axes = (self.known[a] for a in t.axes)
            if t.op == "sum":
                new_axes = (a for a in new_axes if not self._vanishes(args[0], a))
            mask = self._inside(new_axes)
            x, *scales = args
            least = 0 if t.op in ("sum", "wsum") else lowest(x.dtype)
            value = [scales.pop()] if t.op == "rsum" else []  # whose weight there is 0
            value = [v if v.op == "const" else select(mask, v, constant(0, v.dtype)) for v in value]
            args = [select(mask, x, constant(least, x.dtype)), *scales, *value]
            return tm.reduction(t.op, tuple(self.known[a] for a in t.axes), *args)
        new = tm.rebuild(t, tuple(args), self.expr)
        source = new.args[0] if new.op == "cast" and new.args[0].dtype.storage else new
        if source.op != "load" or new.dtype.storage or in_range(source, self.shapes[source.buffer]):
            return new  # a storage format is masked where it is decoded
        mask = self._inside(a for a in self.conditions if a in new.free)
        return select(mask, new, constant(0, new.dtype))

    def _vanishes(self, t: Term, axis: Var) -> bool:
        """Whether a value is seen to be 0 beyond the old end of an axis."""
        if t.op == "select":
            return t.args[2].value == 0 and self.conditions.get(axis) in _parts(t.args[0])
        return t.op in ("mul", "add", "cast") and all(self._vanishes(a, axis) for a in t.args)

    def _inside(self, axes: Iterable[Var]) -> Term:
        mask = constant(True, tm.boolean)
        for a in axes:
            if a in self.conditions:
                mask = tm.binary("mul", mask, self.conditions[a])
        return mask


def _parts(mask: Term) -> list[Term]:
    return [p for a in mask.args for p in _parts(a)] if mask.op == "and" else [mask]
