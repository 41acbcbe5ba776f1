"""Canonical names: kernels that are equal up to names become equal values.

In: a Kernel. Out: the kernel with buffers b0.., axes a0.., dims d0.. numbered in order of use, and
what each stood for. Cache keys and shared machine code rest on this."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from luminal.ir.expr import Var, to_expr
from luminal.ir.plan import Buffer, Buffers, Kernel, Schedule, Store
from luminal.ir.term import Renaming


@dataclass(frozen=True, slots=True)
class Canonical:
    """`kernel` with canonical names; the others map old names to new ones, those of buffers in the
    order of the arguments."""

    kernel: Kernel
    buffers: dict[str, str]
    dims: dict[Var, Var]
    axes: dict[str, str]

    def own(self, buffers: Buffers) -> dict[str, Buffer]:
        """The kernel's buffers by their new names, without contents; an alias is only marked."""
        env = {old: to_expr(new) for old, new in self.dims.items()}
        found: dict[str, Buffer] = {}
        for old, new in self.buffers.items():
            b = buffers[old]
            shape, alias = tuple(e.substitute(env) for e in b.shape), "alias" if b.alias else ""
            found[new] = replace(b, name=new, shape=shape, alias=alias, data=None)
        return found

    def renamed(self, schedule: Schedule) -> Schedule:
        return _schedule(schedule, tuple(self.axes.items()))

    def restored(self, schedule: Schedule) -> Schedule:
        """A schedule of the canonical kernel under the old names."""
        return _schedule(schedule, tuple((new, old) for old, new in self.axes.items()))


def canonical(kernel: Kernel) -> Canonical:
    dims = {v: Var(f"d{n}", v.lo, v.hi) for n, v in enumerate(kernel.dims())}
    dim_env = {old: to_expr(new) for old, new in dims.items()}
    axes: dict[Var, Var] = {}
    for n, a in enumerate(kernel.all_axes()):
        limit = a.bound.substitute(dim_env) if a.bound is not None else None
        axes[a] = Var(f"a{n}", a.lo, a.hi, limit)
    buffers = {old: f"b{n}" for n, old in enumerate(kernel.arguments())}
    new = Renaming({**dims, **axes}, buffers)
    names = {old.name: var.name for old, var in axes.items()}
    stores = tuple(
        Store(buffers[s.buffer], tuple(map(new.expr, s.index)), new.term(s.value))
        for s in kernel.stores
    )
    made = Kernel("k", tuple(axes[a] for a in kernel.axes), stores,
                  kernel.schedule and _schedule(kernel.schedule, tuple(names.items())),
                  tuple(names[a] for a in kernel.ordered),
                  tuple(dims[v] for v in kernel.sizes))  # fmt: skip
    return Canonical(made, buffers, dims, names)


@lru_cache(maxsize=1024)
def _schedule(schedule: Schedule, axes: tuple[tuple[str, str], ...]) -> Schedule:
    """The schedule with other names of axes; layers that repeat share them."""
    return _renamed(schedule, dict(axes))


def _renamed(part: Any, axes: Mapping[str, str]) -> Any:
    """A part of a schedule with other names of axes."""
    if isinstance(part, tuple):
        return tuple(_renamed(p, axes) for p in part)
    if is_dataclass(part) and not isinstance(part, type):
        values = ((f.name, getattr(part, f.name)) for f in fields(part))
        return type(part)(*(axes[v] if n == "axis" else _renamed(v, axes) for n, v in values))
    return part
