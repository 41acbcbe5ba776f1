"""Tasks: the distinct kernels of a plan, each searched once, and the layouts they agree on.

In: a Plan without schedules, a Target, hints. Out: `Task`s in canonical names and how to put a
winner back into the plan. Layouts of constants and temporaries are settled here: first wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from luminal.ir.canonical import Canonical, canonical, rename_schedule
from luminal.ir.expr import Div, Expr, Mod, Var, to_expr
from luminal.ir.layout import Layout
from luminal.ir.plan import Buffer, Kernel, Plan, Schedule
from luminal.ir.target import Target
from luminal.ir.term import Data
from luminal.search.facts import Facts
from luminal.search.model import kernel_us
from luminal.search.schedule import Candidate, candidates, default

__all__ = ["Scheduled", "Task", "prepare"]


@dataclass(slots=True, eq=False)
class Task:
    """One distinct kernel under canonical names, and typical sizes of its dims.

    `winner` is the schedule chosen so far, `time_us` its measured time (or the model's guess),
    `uses` how often the plan launches it.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    hints: tuple[tuple[str, int], ...]
    winner: Schedule
    time_us: float
    measured: bool = False
    uses: int = 0

    @property
    def weight(self) -> float:
        """Estimated share of the plan's time, µs."""
        return self.time_us * self.uses

    def candidates(self, target: Target) -> list[Candidate]:
        """The schedules to choose from, best guess first."""
        return candidates(self.kernel, {b.name: b for b in self.buffers}, target, dict(self.hints))


@dataclass(slots=True)
class Scheduled:
    """A plan with settled layouts, and the task of each of its kernels."""

    plan: Plan
    tasks: list[Task]
    forms: list[Canonical]
    calls: list[Task] = field(default_factory=list)

    def finish(self) -> Plan:
        """The plan with every kernel scheduled by its task's winner."""
        kernels: list[Kernel] = []
        for kernel, form, task in zip(self.plan.kernels, self.forms, self.calls, strict=True):
            axes = {new: old for old, new in form.axes}
            buffers = {f"b{n}": name for n, name in enumerate(form.buffers)}
            kernels.append(replace(kernel, schedule=rename_schedule(task.winner, axes, buffers)))
        return replace(
            self.plan, kernels=tuple(kernels), costs_us=tuple(t.time_us for t in self.calls)
        )

    @property
    def total_us(self) -> float:
        """Time of the whole plan by its tasks."""
        return sum(t.time_us for t in self.calls)


def prepare(
    plan: Plan, target: Target, hints: Mapping[str, int], known: dict[object, Task]
) -> Scheduled:
    """Settle layouts and find the distinct kernels; `known` carries tasks from plan to plan."""
    forms = [canonical(k) for k in plan.kernels]
    layouts = _settle(plan, forms, target, hints)
    buffers = tuple(replace(b, layout=layouts.get(b.name, b.layout)) for b in plan.buffers)
    plan = replace(plan, buffers=buffers)
    by_name = {b.name: b for b in buffers}
    found = Scheduled(plan, [], forms)
    for kernel, form in zip(plan.kernels, forms, strict=True):
        own = canonical_buffers(kernel, form, by_name)
        sizes = tuple((f"d{n}", hints[d]) for n, d in enumerate(form.dims) if d in hints)
        key = (form.kernel, own, sizes)
        if key not in known:
            known[key] = _task(form.kernel, own, sizes, target)
        task = known[key]
        if task not in found.tasks:
            task.uses = 0
            found.tasks.append(task)
        task.uses += 1
        found.calls.append(task)
    return found


def _task(
    kernel: Kernel, own: tuple[Buffer, ...], sizes: tuple[tuple[str, int], ...], target: Target
) -> Task:
    by_name = {b.name: b for b in own}
    best = default(kernel, by_name, target, dict(sizes))
    guess = kernel_us(Facts(kernel, by_name, target, dict(sizes)))
    return Task(kernel, own, sizes, best.schedule, guess)


def canonical_buffers(
    kernel: Kernel, form: Canonical, buffers: Mapping[str, Buffer]
) -> tuple[Buffer, ...]:
    """The buffers of a canonical kernel under their new names, without contents."""
    env = {old: to_expr(Var(f"d{n}", old.lo, old.hi)) for n, old in enumerate(kernel.dims())}
    found: list[Buffer] = []
    for n, name in enumerate(form.buffers):
        b = buffers[name]
        shape = tuple(e.substitute(env) for e in b.shape)
        alias = "alias" if b.alias else ""
        found.append(replace(b, name=f"b{n}", shape=shape, data=None, alias=alias))
    return tuple(found)


def _settle(
    plan: Plan, forms: list[Canonical], target: Target, hints: Mapping[str, int]
) -> dict[str, Layout]:
    """The layout of every buffer whose layout is free: a temporary as its producer wishes, in
    the order of the plan; then a constant as its costliest reader wishes."""
    free = _free_buffers(plan)
    constant = {b.name for b in plan.buffers if b.kind == "constant"}
    layouts: dict[str, Layout] = {}
    memo: dict[object, dict[str, Layout]] = {}
    order = range(len(plan.kernels))
    costs = plan.costs_us or (0.0,) * len(plan.kernels)
    by_cost = sorted(order, key=lambda n: (-costs[n], n))
    for position, wanted in [
        *((n, free.intersection(plan.kernels[n].writes()) - constant) for n in order),
        *((n, free & constant) for n in by_cost),
    ]:
        kernel, form = plan.kernels[position], forms[position]
        if any(name in wanted and name not in layouts for name in form.buffers):
            still = {n for n in form.buffers if n in free & constant | wanted and n not in layouts}
            wishes = _wishes(plan, kernel, form, layouts, still, target, hints, memo)
            layouts.update({n: x for n, x in wishes.items() if n in wanted})
    return layouts


def _wishes(
    plan: Plan, kernel: Kernel, form: Canonical, layouts: Mapping[str, Layout], free: set[str],
    target: Target, hints: Mapping[str, int], memo: dict[object, dict[str, Layout]],
) -> dict[str, Layout]:  # fmt: skip
    """The layouts that the default schedule of a kernel asks for, by buffer."""
    now = {n: plan.buffer(n) for n in form.buffers}
    now = {n: replace(b, layout=layouts.get(n, b.layout)) for n, b in now.items()}
    own = canonical_buffers(kernel, form, now)
    sizes = {f"d{n}": hints[d] for n, d in enumerate(form.dims) if d in hints}
    names = frozenset(f"b{n}" for n, b in enumerate(form.buffers) if b in free)
    key = (form.kernel, own, names, tuple(sizes.items()))
    if key not in memo:
        memo[key] = default(form.kernel, {b.name: b for b in own}, target, sizes, names).layouts
    return {form.buffers[int(n[1:])]: x for n, x in memo[key].items()}


def _free_buffers(plan: Plan) -> set[str]:
    """Constants, and temporaries that no caller sees, alias or indexes by division."""
    shown = {*plan.inputs, *plan.outputs}
    aliased = {b.alias for b in plan.buffers} | {b.name for b in plan.buffers if b.alias}
    free = {b.name for b in plan.buffers if b.kind in ("constant", "temp")} - shown - aliased
    temporary = {b.name for b in plan.buffers if b.kind == "temp"}
    for kernel in plan.kernels:
        for t in kernel.subterms():
            if t.op == "load" and t.buffer in temporary and any(map(_divides, t.indices)):
                free.discard(t.buffer)
        if kernel.ordered:
            free -= set(kernel.writes())
        for store in kernel.stores:
            if any(_divides(e) for e in store.index):
                free.discard(store.buffer)
    return free


def _divides(e: Expr) -> bool:
    return any(isinstance(a, (Div, Mod, Data)) for a in e.atoms())
