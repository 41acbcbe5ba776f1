"""Program: what code generation hands to the runtime.

In: a Plan and generated source. Out: a frozen value that names every native symbol. The native
side follows one calling convention, stated at `Program`.
"""

from __future__ import annotations

from dataclasses import dataclass

from luminal.ir.plan import Plan
from luminal.ir.target import Target

__all__ = ["KernelCode", "Program"]


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel's native symbols: `name`(args, lo, hi, scratch) runs grid chunks lo..hi-1,
    `name`_grid(args) -> i64 is their number, `name`_cost(args) -> i64 its time on one thread, ns.
    """

    name: str
    source: str
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """A plan with its kernels' source.

    `args` of every native function is an array of 64-bit words: for each buffer of
    `plan.buffers` its address, then the value of each of `plan.dims`, then the address of a 32-bit
    error word that a kernel sets to 1 + the number of the buffer whose index was out of range.
    `kernels[i]` is the code of `plan.kernels[i]`; equal kernels share a source under one name
    only if they use the same argument words.
    """

    plan: Plan
    target: Target
    kernels: tuple[KernelCode, ...]
