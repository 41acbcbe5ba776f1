"""Where the buffers of a plan live: whose memory, which slot of the arena, at what offset; and
constants in the layout that kernels read.

In: a Plan. Out: a `MemoryPlan` with storage roots, arena slots by lifetime, and a compiled
function from the values of the dims to offsets. Allocates no arena and changes no plan."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from luminal.errors import InternalError
from luminal.ir import Buffer, Expr, Plan, Var, ceil_div, layout, maximum, to_expr

ALIGNMENT = 64
_TYPICAL = 512  # the value of a dimension at which slots are compared
_SMALL = 2 << 20  # bytes of a large page
_LOCK, _BLOCK = Lock(), [np.empty(0, np.uint8)]  # what is left of the last block
_PACKED: WeakValueDictionary[tuple[object, ...], np.ndarray] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`root` maps each buffer to the buffer whose memory it uses; `slot` the temporary roots to
    slots of the arena, of these `sizes`; `slot_bytes(*dims)` gives their values."""

    root: dict[str, str]
    slot: dict[str, int]
    sizes: list[Expr]
    slot_bytes: Callable[..., tuple[int, ...]]

    def offsets(self, dims: tuple[int, ...]) -> tuple[list[int], int]:
        """Offset of every slot for the values of the dims, and the total bytes."""
        places: list[int] = []
        total = 0
        for size in self.slot_bytes(*dims):
            places.append(total)
            total += size + -size % ALIGNMENT
        return places, total


def compile_exprs(dims: Sequence[Var], exprs: Iterable[Expr]) -> Callable[..., tuple[int, ...]]:
    """A Python function from the values of `dims`, in order, to the values of `exprs`.

    >>> n = Var("n", 1, 100)
    >>> compile_exprs([n], [to_expr(n) * 4, (to_expr(n) + 3) // 2])(6)
    (24, 4)
    """
    parameters = [f"d{i}" for i in range(len(dims))]
    names = {v: to_expr(Var(p, v.lo, v.hi)) for v, p in zip(dims, parameters, strict=True)}
    body = "".join(f"{e.substitute(names)!r}, " for e in exprs)
    scope: dict[str, Any] = {"div": int.__floordiv__, "mod": int.__mod__, "min": min, "max": max}
    return eval(f"lambda {', '.join(parameters)}: ({body})", scope)


def memory_plan(plan: Plan) -> MemoryPlan:
    """Plans the memory of `plan`; InternalError if its aliases form a cycle.

    Temporaries go into slots, largest first, each into the first slot that is free during its
    whole lifetime."""
    root = _roots(plan)
    spans: dict[str, tuple[int, int]] = {}  # the first and last kernel that touch a root
    for number, kernel in enumerate(plan.kernels):
        for name in kernel.arguments():
            first, _ = spans.get(root[name], (number, number))
            spans[root[name]] = (first, number)
    kinds = {b.name: b.kind for b in plan.buffers}
    sizes: dict[str, Expr] = {}
    for b in plan.buffers:
        owner = root[b.name]
        if owner in spans and kinds[owner] == "temp":
            size = ceil_div(layout.size(b.shape, b.layout) * b.dtype.bits, 8)
            sizes[owner] = maximum(sizes.get(owner, size), size)
    slot: dict[str, int] = {}
    slot_sizes: list[Expr] = []
    taken: list[list[tuple[int, int]]] = []
    for name in sorted(sizes, key=lambda n: (-sizes[n].typical({}, _TYPICAL), spans[n], n)):
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
    return MemoryPlan(root, slot, slot_sizes, compile_exprs(plan.dims, slot_sizes))


def _roots(plan: Plan) -> dict[str, str]:
    """Follows aliases. Storage of an output is found outside the arena, so it wins over a temp."""
    buffers = {b.name: b for b in plan.buffers}
    root: dict[str, Buffer] = {}
    for buffer in plan.buffers:
        end, steps = buffer, 0
        while end.alias:
            end, steps = buffers[end.alias], steps + 1
            if steps > len(buffers):
                raise InternalError(f"[memory] aliases of buffer {buffer.name} form a cycle")
        root[buffer.name] = end
    leader = {root[b.name].name: b.name for b in plan.buffers
              if b.kind == "output" and root[b.name].kind == "temp"}  # fmt: skip
    return {name: leader.get(end.name, end.name) for name, end in root.items()}


def aligned(size_bytes: int) -> np.ndarray:
    room = np.empty(size_bytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size_bytes]


def _beside(size_bytes: int) -> np.ndarray:
    """Aligned bytes, small ones next to one another in blocks that may have large pages."""
    if size_bytes > _SMALL:
        return aligned(size_bytes)
    with _LOCK:
        if size_bytes > _BLOCK[0].size:
            _BLOCK[0] = aligned(8 * _SMALL)
        found, _BLOCK[0] = np.split(_BLOCK[0], [size_bytes + -size_bytes % ALIGNMENT])
    return found[:size_bytes]


def constant_array(buffer: Buffer, array: np.ndarray) -> np.ndarray:
    """The bytes of a constant in the layout of its buffer: the array itself if it is row-major,
    else a packed copy, one for all that are alive. What is no array yet is made one for it."""
    mark: object = array
    if isinstance(array, np.ndarray):
        dense = np.ascontiguousarray(array)
        if not buffer.layout:
            return dense
        mark = (id(array), zlib.crc32(dense.reshape(-1).view(np.uint8)))
    key = (mark, array.shape, buffer.layout)
    if (packed := _PACKED.get(key)) is None:
        packed = _PACKED[key] = _packed(buffer, np.asarray(array))
    return packed


def _packed(buffer: Buffer, array: np.ndarray) -> np.ndarray:
    if not buffer.layout:
        return array
    if buffer.dtype.bits == 4:
        array = np.stack((array & 15, array >> 4), -1).reshape(*array.shape[:-1], -1)
        flat = layout.pack(array[..., : buffer.shape[-1].value], buffer.layout)
        flat = np.concatenate((flat, np.zeros(flat.size % 2, np.uint8)))
        return np.bitwise_or(flat[0::2], flat[1::2] << 4, _beside(flat.size // 2))
    count = layout.size(tuple(map(to_expr, array.shape)), buffer.layout).evaluate({})
    return layout.pack(array, buffer.layout, _beside(count * array.itemsize).view(array.dtype))
