"""Tasks: the distinct kernels of a plan, each searched once, and the layouts they agree on.

In: a Plan without schedules, a Target, hints. Out: `Task`s in canonical names and how to put a
winner back into the plan. Layouts of constants and temporaries are settled here: first wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from luminal.ir import Buffer, Canonical, Kernel, Layout, Plan, Schedule, Target, Var, canonical
from luminal.search.schedule import Candidate, candidates


@dataclass(slots=True, eq=False)
class Task:
    """One distinct kernel under canonical names, and typical sizes of its dims.

    `default` is the model's choice, `winner` the schedule chosen so far, `time_us` its measured
    time (or the roofline's guess), `uses` how often the plan launches it, `tried` what was
    measured."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    hints: tuple[tuple[str, int], ...]
    default: Schedule
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
        costs_us, tried = tuple(t.time_us for t in self.calls), tuple(t.tried for t in self.calls)
        return replace(self.plan_of({}), costs_us=costs_us, tried=tried,
                       notes=(*self.plan.notes, *notes))  # fmt: skip

    def plan_of(self, picks: Mapping[Task, Schedule]) -> Plan:
        """The plan with schedules for some tasks, and the winners of the others."""
        calls = zip(self.plan.kernels, self.forms, self.calls, strict=True)
        kernels = (replace(k, schedule=f.restored(picks.get(t, t.winner))) for k, f, t in calls)
        return replace(self.plan, kernels=tuple(kernels))


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
            known[key] = Task(form.kernel, own, sizes, winner, winner, guess_us)
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
    uncut = _free_buffers(plan)
    constant = {b.name for b in plan.buffers if b.kind == "constant" and b.name in uncut}
    buffers = {b.name: b for b in plan.buffers}
    settled: set[str] = set()
    memo: dict[object, dict[str, Layout]] = {}
    by_cost = sorted(range(len(forms)), key=lambda n: -plan.costs_us[n])
    written = [(uncut.keys() & k.writes()) - constant for k in plan.kernels]
    for position, wanted in [*enumerate(written), *((n, constant) for n in by_cost)]:
        form = forms[position]
        if not (wanted := wanted.intersection(form.buffers) - settled):
            continue
        still = (wanted | constant).intersection(form.buffers) - settled
        names = frozenset(form.buffers[name] for name in still)
        named, sizes = form.own(buffers), _hints(form, hints)
        key = (form.kernel, tuple(named.values()), names, sizes)
        if key not in memo:  # the layouts that the default schedule asks for
            memo[key] = candidates(form.kernel, named, target, dict(sizes), names, 1)[0].layouts
        for name in wanted:
            layout = memo[key].get(form.buffers[name], ())
            if layout and all(tile == 1 or d not in uncut[name] for d, tile in layout):
                settled.add(name)
                buffers[name] = replace(buffers[name], layout=layout)
    return buffers


def _free_buffers(plan: Plan) -> dict[str, set[int]]:
    """Constants, and temporaries that no caller sees or aliases; and dimensions of the latter that
    are indexed by division or by data, which no layout may cut into tiles."""
    fixed = {*plan.inputs, *plan.outputs}
    fixed |= {name for b in plan.buffers if b.alias for name in (b.alias, b.name)}
    kinds = {b.name: b.kind for b in plan.buffers if b.name not in fixed}
    free = {name: set[int]() for name, kind in kinds.items() if kind in ("constant", "temp")}
    for kernel in plan.kernels:
        loads = ((t.buffer, t.indices) for t in kernel.subterms() if t.op == "load")
        stores = ((s.buffer, s.index) for s in kernel.stores)
        for name, indices in ((n, i) for n, i in (*loads, *stores) if kinds.get(n) == "temp"):
            plain = [all(isinstance(a, Var) for a in e.atoms()) for e in indices]
            free[name] |= {d for d, p in enumerate(plain) if kernel.ordered or not p}
    return free
