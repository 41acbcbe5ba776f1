"""Where the buffers of a plan live: whose memory, which slot of the arena, at what offset.

In: a Plan. Out: a `MemoryPlan` with storage roots, arena slots by lifetime, and a compiled
function from the values of the dims to offsets. Allocates nothing and changes no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from luminal.errors import InternalError
from luminal.ir import layout
from luminal.ir.expr import Expr, Var, ceil_div, maximum, to_expr
from luminal.ir.plan import Buffer, Kernel, Plan

__all__ = ["ALIGNMENT", "MemoryPlan", "compile_exprs", "memory_plan", "storage_bytes"]

ALIGNMENT = 64
_TYPICAL = 512  # the value of a dimension at which slots are compared


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`root` maps each buffer to the buffer whose memory it uses; `slot` the temporary roots to
    slots of the arena; `slot_bytes(*dims)` gives the size of every slot."""

    root: dict[str, str]
    slot: dict[str, int]
    slot_bytes: Callable[..., tuple[int, ...]]

    def offsets(self, dims: tuple[int, ...]) -> tuple[list[int], int]:
        """Offset of every slot for the values of the dims, and the total bytes."""
        places: list[int] = []
        total = 0
        for size in self.slot_bytes(*dims):
            places.append(total)
            total += size + -size % ALIGNMENT
        return places, total


def storage_bytes(buffer: Buffer) -> Expr:
    """Bytes of a buffer in memory, padding of its layout included."""
    elements = layout.size(buffer.shape, buffer.layout)
    return ceil_div(elements * buffer.dtype.bits, 8)


def compile_exprs(dims: Sequence[Var], exprs: Iterable[Expr]) -> Callable[..., tuple[int, ...]]:
    """A Python function from the values of `dims`, in order, to the values of `exprs`.

    >>> n = Var("n", 1, 100)
    >>> compile_exprs([n], [to_expr(n) * 4, (to_expr(n) + 3) // 2])(6)
    (24, 4)
    """
    parameters = [f"d{i}" for i in range(len(dims))]
    names = {v: to_expr(Var(p, v.lo, v.hi)) for v, p in zip(dims, parameters, strict=True)}
    body = "".join(f"{e.substitute(names)!r}, " for e in exprs)
    scope: dict[str, Any] = {"div": _div, "mod": _mod, "min": min, "max": max}
    return eval(f"lambda {', '.join(parameters)}: ({body})", scope)


def _div(a: int, b: int) -> int:
    return a // b


def _mod(a: int, b: int) -> int:
    return a % b


def _roots(plan: Plan) -> dict[str, str]:
    """Follows aliases. Storage of an output is found outside the arena, so it wins over a temp."""
    alias = {b.name: b.alias for b in plan.buffers}
    root: dict[str, str] = {}
    for name in alias:
        end = name
        for _ in alias:
            if not alias[end]:
                break
            if alias[end] not in alias:
                raise InternalError(f"[memory] buffer {end} is an alias of unknown {alias[end]}")
            end = alias[end]
        else:
            raise InternalError(f"[memory] aliases of buffer {name} form a cycle")
        root[name] = end
    kinds = {b.name: b.kind for b in plan.buffers}
    leader = {root[b.name]: b.name for b in plan.buffers
              if b.kind == "output" and kinds[root[b.name]] == "temp"}  # fmt: skip
    return {name: leader.get(end, end) for name, end in root.items()}


def _lifetimes(plan: Plan, root: dict[str, str]) -> dict[str, tuple[int, int]]:
    """(first, last) kernel that touches the memory of each root."""
    spans: dict[str, tuple[int, int]] = {}
    for number, kernel in enumerate(plan.kernels):
        for name in kernel.arguments():
            first, _ = spans.get(root[name], (number, number))
            spans[root[name]] = (first, number)
    return spans


def _updates_in_place(kernel: Kernel, source: str, result: str) -> bool:
    """True if each point reads `source` only where it writes `result`, so both may be one.

    Not with reductions: their partial sums may pass through the memory of the result.
    """
    if len(kernel.stores) != 1 or kernel.stores[0].buffer != result:
        return False
    if any(t.axes for t in kernel.subterms()):
        return False
    place = kernel.stores[0].index
    if {to_expr(a) for a in kernel.axes} != set(place) or len(set(place)) != len(place):
        return False
    loads = [t for t in kernel.subterms() if t.op == "load" and t.buffer == source]
    return all(t.indices == place for t in loads)


def _shares(plan: Plan, root: dict[str, str]) -> dict[str, str]:
    """Temps that may take over the memory of another temp that their first kernel uses last."""
    spans = _lifetimes(plan, root)
    shape = {b.name: (b.shape, b.layout, b.dtype.bits) for b in plan.buffers}
    temps = {b.name for b in plan.buffers if b.kind == "temp" and root[b.name] == b.name}
    shared: dict[str, str] = {}
    for number, kernel in enumerate(plan.kernels):
        dying = [n for n in kernel.reads() if n in temps and spans[n][1] == number]
        for result in kernel.writes():
            if result not in temps or spans[result][0] != number or result in dying:
                continue
            for source in dying:
                if shape[source] == shape[result] and _updates_in_place(kernel, source, result):
                    shared[result] = shared.get(source, source)
                    dying.remove(source)
                    break
    return shared


def _assign_slots(
    sizes: dict[str, Expr], spans: dict[str, tuple[int, int]]
) -> tuple[dict[str, int], list[Expr]]:
    """Largest first, each into the first slot that is free during its whole lifetime."""
    at_typical = {
        name: size.evaluate({v.name: max(v.lo, min(v.hi, _TYPICAL)) for v in size.variables()})
        for name, size in sizes.items()
    }
    slot: dict[str, int] = {}
    slot_sizes: list[Expr] = []
    taken: list[list[tuple[int, int]]] = []
    for name in sorted(sizes, key=lambda n: (-at_typical[n], spans[n], n)):
        first, last = spans[name]
        for number, others in enumerate(taken):
            if all(last < begin or end < first for begin, end in others):
                slot_sizes[number] = maximum(slot_sizes[number], sizes[name])
                break
        else:
            number = len(taken)
            taken.append([])
            slot_sizes.append(sizes[name])
        taken[number].append((first, last))
        slot[name] = number
    return slot, slot_sizes


def memory_plan(plan: Plan) -> MemoryPlan:
    """Plans the memory of `plan`; InternalError if its aliases make no sense."""
    root = _roots(plan)
    shared = _shares(plan, root)
    root = {name: shared.get(end, end) for name, end in root.items()}
    spans = _lifetimes(plan, root)
    kinds = {b.name: b.kind for b in plan.buffers}
    sizes: dict[str, Expr] = {}
    for b in plan.buffers:
        owner = root[b.name]
        if owner in spans and kinds[owner] == "temp":
            sizes[owner] = maximum(sizes.get(owner, storage_bytes(b)), storage_bytes(b))
    slot, slot_sizes = _assign_slots(sizes, spans)
    return MemoryPlan(root, slot, compile_exprs(plan.dims, slot_sizes))
