"""Generation: a plan becomes a program; kernels that are equal up to names share their code.

In: a Plan with schedules, a Target. Out: a Program. Schedules that cannot be lowered raise
`IllegalSchedule`; nothing is compiled or run here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import Function
from luminal.codegen.lower import lower
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.errors import InternalError
from luminal.ir.canonical import Canonical, canonical, rename_schedule
from luminal.ir.expr import Expr, Var
from luminal.ir.plan import Buffer, Kernel, Plan, Schedule
from luminal.ir.program import KernelCode, Program
from luminal.ir.target import Target

__all__ = ["generate", "lower_canonical"]

PLACEHOLDER = "luminal.kernel"
_KEPT = object()


Alternatives = Callable[[Kernel], Iterable[Schedule | None]]


def generate(plan: Plan, target: Target, alternatives: Alternatives | None = None) -> Program:
    """Source of every distinct kernel of a plan, and which kernel runs which.

    Where a schedule cannot be lowered, the first of `alternatives(kernel)` that can is taken (and
    stands in the plan of the result); without alternatives IllegalSchedule is raised.
    """
    buffers = {b.name: b for b in plan.buffers}
    known: dict[object, tuple[int, Any]] = {}
    codes: list[KernelCode] = []
    calls: list[int] = []
    kernels: list[Kernel] = []
    for kernel in plan.kernels:
        form = canonical(kernel)
        key = (form.kernel, tuple(canonical_buffers(kernel, form, buffers).values()))
        if key not in known:
            schedule, function = _lower(kernel, target, buffers, alternatives)
            code = _code(function, target)
            if code not in codes:
                codes.append(code)
            known[key] = codes.index(code), _renamed(schedule, form, canonically=True)
        call, schedule = known[key]
        if schedule is not _KEPT:
            schedule = _renamed(schedule, form, canonically=False)
            kernel = replace(kernel, schedule=schedule)
        kernels.append(kernel)
        calls.append(call)
    return Program(replace(plan, kernels=tuple(kernels)), target, tuple(codes), tuple(calls))


def _renamed(schedule: Any, form: Canonical, canonically: bool) -> Any:
    """A schedule under a kernel's canonical names, or from those under its own."""
    if not isinstance(schedule, Schedule):
        return schedule
    axes = dict(form.axes)
    buffers = {name: f"b{n}" for n, name in enumerate(form.buffers)}
    if not canonically:
        axes, buffers = ({new: old for old, new in m.items()} for m in (axes, buffers))
    return rename_schedule(schedule, axes, buffers)


def _lower(
    kernel: Kernel, target: Target, buffers: Mapping[str, Buffer], alternatives: Alternatives | None
) -> tuple[Any, Function]:
    """The kernel lowered by its schedule, or by the first alternative that is legal."""
    try:
        return _KEPT, lower_canonical(kernel, target, buffers)
    except IllegalSchedule:
        if alternatives is None:
            raise
    for schedule in (*alternatives(kernel), None):
        try:
            return schedule, lower_canonical(replace(kernel, schedule=schedule), target, buffers)
        except IllegalSchedule:
            continue
    raise InternalError(f"[codegen] {kernel.name} cannot be lowered even by plain loops.")


def lower_canonical(kernel: Kernel, target: Target, buffers: Mapping[str, Buffer]) -> Function:
    """The loop IR of one kernel under canonical names."""
    form = canonical(kernel)
    return lower(form.kernel, target, canonical_buffers(kernel, form, buffers), PLACEHOLDER)


def _code(function: Function, target: Target) -> KernelCode:
    """Named by what it contains: equal kernels of different plans have equal text."""
    text = print_function(function, target)
    name = f"k{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return KernelCode(name, text.replace(PLACEHOLDER, name), function.scratch_bytes)


def canonical_buffers(
    kernel: Kernel, form: Canonical, buffers: Mapping[str, Buffer]
) -> dict[str, Buffer]:
    """The buffers of a canonical kernel under their new names: shape, dtype and layout only."""
    renamed = {old: Var(f"d{n}", old.lo, old.hi) for n, old in enumerate(kernel.dims())}
    env = {old: Expr((((new,), 1),)) for old, new in renamed.items()}
    found: dict[str, Buffer] = {}
    for n, name in enumerate(form.buffers):
        b = buffers[name]
        shape = tuple(e.substitute(env) for e in b.shape)
        found[f"b{n}"] = replace(b, name=f"b{n}", shape=shape, kind="temp", alias="", data=None)
    return found
