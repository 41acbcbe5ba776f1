"""Program: what code generation hands to the runtime.

In: a Plan and generated source. Out: a frozen value that names every native symbol. The native
side follows one calling convention, stated at `KernelCode`."""

from dataclasses import dataclass

from luminal.ir.launch import Launch
from luminal.ir.plan import Plan
from luminal.ir.target import Target


@dataclass(frozen=True, slots=True)
class KernelCode:
    """Machine-independent code of one distinct kernel and its native symbols.

    `name`(args: ptr, lo: i64, hi: i64, scratch: ptr) runs grid chunks lo..hi-1; `name`_grid(args)
    -> i64 is their number (0: nothing to do); `name`_cost(args) -> i64 estimates the time of all
    of them on one thread, ns. `args` is an array of 64-bit words: the address of each buffer of
    `Kernel.arguments()`, the value of each of `Kernel.dims()`, and last the address of a 32-bit
    error word, which is set to 1 when an index is out of range (no wild access happens).
    `scratch` is private to a thread: `scratch_bytes`, 64-byte aligned. On a GPU `launch` says how
    it is run; its arguments are the same, one by one."""

    name: str
    source: str
    scratch_bytes: int
    launch: Launch | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A plan and its code. Kernel i of the plan runs `codes[calls[i]]` with its own arguments:
    kernels that are equal up to names share one code."""

    plan: Plan
    target: Target
    codes: tuple[KernelCode, ...]
    calls: tuple[int, ...]
