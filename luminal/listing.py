"""Listings of a compiled program: what LUMINAL_DEBUG prints and LUMINAL_DUMP writes.

In: settings and a Program. Out: log lines by level, and text files. Lowers kernels again where
their loop IR is asked for; changes nothing.
"""

from __future__ import annotations

from luminal import debug
from luminal.codegen.generate import lower_canonical
from luminal.codegen.loopir_text import function_text
from luminal.config import Config
from luminal.ir.program import Program
from luminal.ir.text import plan_text
from luminal.runtime.cpu import assembly

__all__ = ["show"]


def show(config: Config, program: Program) -> None:
    """Kernels (level 2), plan (4), loop IR (5), LLVM text (6) and assembly (7) of a program."""
    if not config.debug and not config.dump:
        return
    plan = program.plan
    for kernel, call, cost in zip(plan.kernels, program.calls, plan.costs_us, strict=False):
        debug.log(config, 2, f"{kernel.name}: {program.codes[call].name}, about {cost:.1f} us")
    _list(config, 4, "plan.txt", plan_text(plan))
    buffers = {b.name: b for b in plan.buffers}
    for number, code in enumerate(program.codes):
        if config.dump or config.debug >= 5:
            kernel = plan.kernels[program.calls.index(number)]
            loops = function_text(lower_canonical(kernel, program.target, buffers))
            _list(config, 5, f"{code.name}.loops.txt", loops)
        _list(config, 6, f"{code.name}.ll", code.source)
        if config.debug >= 7:
            _list(config, 7, f"{code.name}.s", assembly(code.source, program.target))


def _list(config: Config, level: int, name: str, text: str) -> None:
    debug.log(config, level, f"{name}\n{text}")
    debug.dump(config, name, text)
