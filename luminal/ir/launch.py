"""Launch: how a GPU runs a kernel.

In: fields. Out: a hashable value that stands in a KernelCode."""

from dataclasses import dataclass

from luminal.ir.expr import Expr, Var


@dataclass(frozen=True, slots=True)
class Launch:
    """How a GPU runs a kernel: `blocks` (over `dims`, in the order of its arguments) of `threads`
    that share `shared_bytes`."""

    blocks: Expr
    dims: tuple[Var, ...]
    threads: int
    shared_bytes: int
