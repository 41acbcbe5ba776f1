"""A program in a header: what the runtime needs of it, as JSON, and back.

In: a Program. Out: JSON values with buffers, sizes and the arguments of every kernel; or a Program
whose kernels only say what they read and write. Terms and schedules are not needed to run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from luminal.ir.dtype import by_name
from luminal.ir.expr import Expr, Var, const, to_expr
from luminal.ir.graph import ConstantData
from luminal.ir.layout import Layout, levels
from luminal.ir.plan import Buffer, Kernel, Plan
from luminal.ir.program import KernelCode, Program
from luminal.ir.target import Target
from luminal.ir.text import Reader

__all__ = ["StoredKernel", "program_json", "restored", "unpacked"]

Arrays = Callable[[dict[str, Any]], np.ndarray]


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """A kernel as the runtime sees it: which buffers it reads and writes, and its dims."""

    name: str
    read: tuple[str, ...]
    written: tuple[str, ...]
    sizes: tuple[Var, ...]

    def writes(self) -> tuple[str, ...]:
        """Buffers that the kernel stores to."""
        return self.written

    def arguments(self) -> tuple[str, ...]:
        """The buffers of the native argument block."""
        return tuple(dict.fromkeys((*self.read, *self.written)))

    def dims(self) -> tuple[Var, ...]:
        """The symbolic dimensions of the argument block."""
        return self.sizes


def _size(e: Expr) -> int | str:
    return repr(e) if e.value is None else e.value


def program_json(program: Program, places: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The program as JSON; `places` says for each constant buffer where its bytes are."""
    plan = program.plan
    buffers = []
    for b in plan.buffers:
        row: dict[str, Any] = {"name": b.name, "shape": [_size(e) for e in b.shape],
                               "dtype": b.dtype.name, "kind": b.kind}  # fmt: skip
        row |= {"alias": b.alias} if b.alias else {}
        row |= {"layout": [list(level) for level in b.layout]} if b.layout else {}
        row |= {"data": places[b.name]} if b.data is not None else {}
        buffers.append(row)
    kernels = [[k.name, list(k.reads()), list(k.writes()), [v.name for v in k.dims()], call]
               for k, call in zip(plan.kernels, program.calls, strict=True)]  # fmt: skip
    return {
        "dims": [[v.name, v.lo, v.hi] for v in plan.dims], "inputs": list(plan.inputs),
        "outputs": list(plan.outputs), "buffers": buffers, "kernels": kernels,
        "codes": [[c.name, c.scratch_bytes] for c in program.codes],
    }  # fmt: skip


def restored(stored: Mapping[str, Any], target: Target, array: Arrays) -> Program:
    """The program that was stored; `array` finds a constant by its place.

    Constants that were stored packed are plain vectors: their layout is behind them.
    """
    dims = tuple(Var(name, lo, hi) for name, lo, hi in stored["dims"])
    reader = Reader({})
    reader.names = {v.name: to_expr(v) for v in dims}

    def size(value: int | str) -> Expr:
        if isinstance(value, int):
            return const(value)
        return to_expr(reader.value(ast.parse(value, mode="eval").body))

    buffers = []
    for row in stored["buffers"]:
        shape, layout, data = tuple(map(size, row["shape"])), row.get("layout", ()), None
        if "data" in row:
            values = array(row["data"])
            if layout and "offset" in row["data"]:
                shape, layout = (const(values.size),), ()
            data = ConstantData(row["name"], values)
        layout = tuple((d, t) for d, t in layout)
        buffers.append(Buffer(row["name"], shape, by_name(row["dtype"]), row["kind"], layout,
                              row.get("alias", ""), data))  # fmt: skip
    by_dim = {v.name: v for v in dims}
    kernels = [StoredKernel(name, tuple(read), tuple(written), tuple(by_dim[d] for d in sizes))
               for name, read, written, sizes, _ in stored["kernels"]]  # fmt: skip
    plan = Plan(cast("tuple[Kernel, ...]", tuple(kernels)), tuple(buffers),
                tuple(stored["inputs"]), tuple(stored["outputs"]), dims)  # fmt: skip
    codes = tuple(KernelCode(name, "", scratch) for name, scratch in stored["codes"])
    return Program(plan, target, codes, tuple(row[-1] for row in stored["kernels"]))


def unpacked(flat: np.ndarray, shape: Sequence[int], layout: Layout) -> np.ndarray:
    """The array of a shape whose elements lie in `flat` in the order of a layout.

    >>> from luminal.ir.layout import pack
    >>> a, by_pairs = np.arange(15).reshape(3, 5), ((0, 2), (1, 1), (0, 1))
    >>> bool((unpacked(pack(a, by_pairs), (3, 5), by_pairs) == a).all())
    True
    """
    found = levels(tuple(map(const, shape)), layout)
    extents = [extent.evaluate({}) for *_, extent in found]
    order = sorted(range(len(found)), key=lambda n: found[n][0])
    split = flat.reshape(extents).transpose(order)
    sizes = [1] * len(shape)
    for level, extent in zip(found, extents, strict=True):
        sizes[level[0]] *= extent
    return np.ascontiguousarray(split.reshape(sizes)[tuple(slice(n) for n in shape)])
