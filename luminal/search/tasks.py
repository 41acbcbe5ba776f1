"""Tasks: the distinct kernels of a plan, each searched once, and the layouts they agree on.

In: a Plan without schedules, a Target, hints. Out: `Task`s in canonical names and how to put a
winner back into the plan. Layouts of constants and temporaries are settled here: first wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from luminal.ir.canonical import Canonical, canonical
from luminal.ir.expr import Expr, Var
from luminal.ir.layout import Layout
from luminal.ir.plan import Buffer, Kernel, Plan, Schedule
from luminal.ir.target import Target
from luminal.search.schedule import Candidate, candidates


@dataclass(slots=True, eq=False)
class Task:
    """One distinct kernel under canonical names, and typical sizes of its dims.

    `winner` is the schedule chosen so far, `time_us` its measured time (or the roofline's guess),
    `uses` how often the plan launches it, `tried` what was measured."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    hints: tuple[tuple[str, int], ...]
    winner: Schedule
    time_us: float
    measured: bool = False
    uses: int = 0
    tried: tuple[tuple[Schedule, float, str], ...] = ()

    @property
    def weight(self) -> float:
        """Estimated share of the plan's time, µs."""
        return self.time_us * self.uses

    def candidates(self, target: Target) -> list[Candidate]:
        """The schedules to choose from, best guess first."""
        return candidates(self.kernel, {b.name: b for b in self.buffers}, target, dict(self.hints))


@dataclass(slots=True)
class Scheduled:
    """A plan with settled layouts, its kernels in canonical form, and the task of each."""

    plan: Plan
    forms: list[Canonical]
    calls: list[Task]

    @property
    def tasks(self) -> list[Task]:
        """The distinct tasks, in order of first use."""
        return list(dict.fromkeys(self.calls))

    @property
    def total_us(self) -> float:
        """Time of the whole plan by its tasks."""
        return sum(t.time_us for t in self.calls)

    def finish(self, notes: tuple[str, ...] = ()) -> Plan:
        """The plan with every kernel scheduled by its task's winner, and further notes."""
        calls = zip(self.plan.kernels, self.forms, self.calls, strict=True)
        kernels = tuple(replace(k, schedule=f.restored(task.winner)) for k, f, task in calls)
        costs_us, tried = tuple(t.time_us for t in self.calls), tuple(t.tried for t in self.calls)
        return replace(self.plan, kernels=kernels, costs_us=costs_us, tried=tried,
                       notes=(*self.plan.notes, *notes))  # fmt: skip


def prepare(
    plan: Plan, target: Target, hints: Mapping[str, int], known: dict[object, Task]
) -> Scheduled:
    """Settle layouts and find the distinct kernels; `known` carries tasks from plan to plan."""
    found = Scheduled(plan, [canonical(k) for k in plan.kernels], [])
    buffers = _settle(plan, found.forms, target, hints)
    found.plan = replace(plan, buffers=tuple(buffers.values()))
    for form, guess_us in zip(found.forms, plan.costs_us, strict=True):
        named, sizes = form.own(buffers), _hints(form, hints)
        key = (form.kernel, own := tuple(named.values()), sizes)
        if key not in known:
            winner = candidates(form.kernel, named, target, dict(sizes), limit=1)[0].schedule
            known[key] = Task(form.kernel, own, sizes, winner, guess_us)
        found.calls.append(known[key])
    for task in found.tasks:
        task.uses = found.calls.count(task)
    return found


def _hints(form: Canonical, hints: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The hints for the dims of a canonical kernel."""
    return tuple((d.name, hints[old.name]) for old, d in form.dims.items() if old.name in hints)


def _settle(
    plan: Plan, forms: list[Canonical], target: Target, hints: Mapping[str, int]
) -> dict[str, Buffer]:
    """The buffers with a layout where it is free: a temporary's as its producer wishes, in the
    order of the plan; then a constant's as its costliest reader wishes."""
    free = _free_buffers(plan)
    constant = {b.name for b in plan.buffers if b.kind == "constant"} & free
    buffers = {b.name: b for b in plan.buffers}
    settled: set[str] = set()
    memo: dict[object, dict[str, Layout]] = {}
    order = range(len(plan.kernels))
    by_cost = sorted(order, key=lambda n: -plan.costs_us[n])
    written = [free.intersection(k.writes()) - constant for k in plan.kernels]
    for position, wanted in [*zip(order, written), *((n, constant) for n in by_cost)]:
        form = forms[position]
        wanted = wanted.intersection(form.buffers) - settled
        if not wanted:
            continue
        still = (wanted | constant).intersection(form.buffers) - settled
        names = frozenset(form.buffers[name] for name in still)
        named, sizes = form.own(buffers), _hints(form, hints)
        key = (form.kernel, tuple(named.values()), names, sizes)
        if key not in memo:  # the layouts that the default schedule asks for
            best = candidates(form.kernel, named, target, dict(sizes), names, 1)[0]
            memo[key] = best.layouts
        for name in wanted:
            if form.buffers[name] in memo[key]:
                settled.add(name)
                layout = memo[key][form.buffers[name]]
                buffers[name] = replace(buffers[name], layout=layout)
    return buffers


def _free_buffers(plan: Plan) -> set[str]:
    """Constants, and temporaries that no caller sees, alias or indexes by division."""
    temporary = {b.name for b in plan.buffers if b.kind == "temp"}
    fixed = {*plan.inputs, *plan.outputs}
    fixed |= {name for b in plan.buffers if b.alias for name in (b.alias, b.name)}
    for kernel in plan.kernels:
        loads = [t for t in kernel.subterms() if t.op == "load" and t.buffer in temporary]
        fixed |= {t.buffer for t in loads if any(map(_divides, t.indices))}
        fixed |= {s.buffer for s in kernel.stores if kernel.ordered or any(map(_divides, s.index))}
    return {b.name for b in plan.buffers if b.kind in ("constant", "temp")} - fixed


def _divides(e: Expr) -> bool:
    return any(not isinstance(a, Var) for a in e.atoms())
