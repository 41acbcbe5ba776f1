"""Generation: a plan becomes a program; kernels that are equal up to names share their code.

In: a Plan with schedules, a Target. Out: a Program. Schedules that cannot be lowered raise
`IllegalSchedule`; nothing is compiled or run here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import Function
from luminal.codegen.lower import lower
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.errors import InternalError
from luminal.ir.canonical import Canonical, canonical, rename_schedule
from luminal.ir.expr import Var, to_expr
from luminal.ir.plan import Buffer, Kernel, Plan, Schedule
from luminal.ir.program import KernelCode, Program
from luminal.ir.target import Target

PLACEHOLDER = "luminal.kernel"
Alternatives = Callable[[Kernel], Iterable[Schedule | None]]


def generate(plan: Plan, target: Target, alternatives: Alternatives | None = None) -> Program:
    """Source of every distinct kernel of a plan, and which kernel runs which.

    Where a schedule cannot be lowered, the first of `alternatives(kernel)` that can is taken (and
    stands in the plan of the result); without alternatives IllegalSchedule is raised.
    """
    buffers = {b.name: b for b in plan.buffers}
    known: dict[object, tuple[int, Schedule | None]] = {}
    codes: list[KernelCode] = []
    calls: list[int] = []
    kernels: list[Kernel] = []
    for kernel in plan.kernels:
        form = canonical(kernel)
        names = dict(form.axes), {name: f"b{n}" for n, name in enumerate(form.buffers)}
        key = (form.kernel, tuple(_buffers(kernel, form, buffers).values()))
        if key not in known:
            schedule, function = _lower(kernel, target, buffers, alternatives)
            code = _code(function, target)
            if code not in codes:
                codes.append(code)
            known[key] = codes.index(code), schedule and rename_schedule(schedule, *names)
        call, schedule = known[key]
        if schedule is not None:
            own = ({new: old for old, new in m.items()} for m in names)
            schedule = rename_schedule(schedule, *own)
        kernels.append(replace(kernel, schedule=schedule))
        calls.append(call)
    return Program(replace(plan, kernels=tuple(kernels)), target, tuple(codes), tuple(calls))


def _lower(
    kernel: Kernel, target: Target, buffers: Mapping[str, Buffer], alternatives: Alternatives | None
) -> tuple[Schedule | None, Function]:
    """The kernel lowered by its schedule, or by the first alternative that is legal."""

    def choices() -> Iterator[Schedule | None]:
        yield kernel.schedule
        if alternatives is not None:
            yield from alternatives(kernel)
            yield None

    refused: Exception = InternalError(f"[codegen] {kernel.name} has no schedule.")
    for schedule in choices():
        try:
            return schedule, lower_canonical(replace(kernel, schedule=schedule), target, buffers)
        except IllegalSchedule as error:
            refused = error
    raise refused


def lower_canonical(kernel: Kernel, target: Target, buffers: Mapping[str, Buffer]) -> Function:
    """The loop IR of one kernel under canonical names."""
    form = canonical(kernel)
    return lower(form.kernel, target, _buffers(kernel, form, buffers), PLACEHOLDER)


def _code(function: Function, target: Target) -> KernelCode:
    """Named by what it contains: equal kernels of different plans have equal text."""
    text = print_function(function, target)
    name = f"k{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return KernelCode(name, text.replace(PLACEHOLDER, name), function.scratch_bytes)


def _buffers(kernel: Kernel, form: Canonical, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The buffers of a canonical kernel under their new names: shape, dtype and layout only."""
    env = {v: to_expr(Var(f"d{n}", v.lo, v.hi)) for n, v in enumerate(kernel.dims())}
    found: dict[str, Buffer] = {}
    for n, b in enumerate(buffers[name] for name in form.buffers):
        shape = tuple(e.substitute(env) for e in b.shape)
        found[f"b{n}"] = replace(b, name=f"b{n}", shape=shape, kind="temp", alias="", data=None)
    return found
