"""A workbench with a broken compiler: every schedule but one gives a fast kernel that is wrong.

In: as `luminal.workbench.run_trial`; the digest of the right schedule in the environment. Out: as
there. Meant to run in a worker process.
"""

import os
from dataclasses import replace

from luminal import workbench
from luminal.codegen.generate import generate
from luminal.ir.plan import Kernel, Plan
from luminal.ir.program import Program
from luminal.ir.target import Target
from luminal.ir.term import constant
from luminal.search.cache import digest
from luminal.search.strategy import Outcome, Trial

RIGHT = "LUMINAL_TEST_RIGHT"


def spoiled(kernel: Kernel) -> Kernel:
    """The kernel that stores zeros."""
    stores = tuple(replace(s, value=constant(0.0, s.value.dtype)) for s in kernel.stores)
    return replace(kernel, stores=stores, schedule=None)


def _broken(plan: Plan, target: Target, **options: object) -> Program:
    kernels = [k if digest(k.schedule) == os.environ[RIGHT] else spoiled(k) for k in plan.kernels]
    return generate(replace(plan, kernels=tuple(kernels)), target, **options)


def run_trial(request: tuple[Trial, Target, int, int]) -> Outcome:
    """One trial by the broken compiler."""
    workbench.generate = _broken
    return workbench.run_trial(request)
