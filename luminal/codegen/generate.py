"""Generation: a plan becomes a program; kernels that are equal up to names share their code.

In: a Plan with schedules, a Target. Out: a Program. Schedules that cannot be lowered raise
`IllegalSchedule`; nothing is compiled or run here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import Function
from luminal.codegen.lower import lower
from luminal.ir.canonical import Canonical, canonical
from luminal.ir.expr import Expr, Var
from luminal.ir.plan import Buffer, Kernel, Plan
from luminal.ir.program import KernelCode, Program
from luminal.ir.target import Target

__all__ = ["generate", "lower_canonical"]

PLACEHOLDER = "luminal.kernel"


def generate(plan: Plan, target: Target) -> Program:
    """Source of every distinct kernel of a plan, and which kernel runs which."""
    buffers = {b.name: b for b in plan.buffers}
    known: dict[object, int] = {}
    codes: list[KernelCode] = []
    calls: list[int] = []
    for kernel in plan.kernels:
        form = canonical(kernel)
        own = canonical_buffers(kernel, form, buffers)
        key = (form.kernel, tuple(own.values()))
        if key not in known:
            code = _code(lower(form.kernel, target, own, PLACEHOLDER), target)
            if code not in codes:
                codes.append(code)
            known[key] = codes.index(code)
        calls.append(known[key])
    return Program(plan, target, tuple(codes), tuple(calls))


def lower_canonical(kernel: Kernel, target: Target, buffers: Mapping[str, Buffer]) -> Function:
    """The loop IR of one kernel under canonical names."""
    form = canonical(kernel)
    return lower(form.kernel, target, canonical_buffers(kernel, form, buffers), "kernel")


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
