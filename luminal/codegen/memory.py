"""Places in memory: argument buffers and local arrays, their addresses, loads and stores.

In: addresses as expressions (perhaps over the lane variable). Out: scalar, vector or gathered
accesses. A buffer that the kernel writes is never read from further out than its last store.
"""

from __future__ import annotations

from dataclasses import dataclass

from luminal.codegen.arith import Arithmetic
from luminal.codegen.integers import Integers
from luminal.codegen.loopir import Operand, Store
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.ir.dtype import DType, accumulator, f32, i8
from luminal.ir.expr import ONE, Expr, Var, to_expr
from luminal.ir.layout import Layout, flatten

__all__ = ["Memory", "Place"]


@dataclass(slots=True, eq=False)
class Place:
    """A buffer (or local array, then with the axis values where it starts)."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    layout: Layout = ()
    local: bool = False
    origin: tuple[Expr, ...] = ()
    written: bool = False
    write_level: int = 0
    version: int = 0

    def address(self, index: tuple[Expr, ...]) -> Expr:
        """The offset in elements of the element at these axis values."""
        if self.origin:
            index = tuple(i - o for i, o in zip(index, self.origin, strict=True))
        return flatten(index, self.shape, self.layout)


def loaded_dtype(dtype: DType) -> DType:
    """What a load of this storage yields."""
    if dtype.storage:
        return f32 if dtype.is_float else i8
    return dtype


class Memory:
    """Emits loads and stores."""

    def __init__(self, arith: Arithmetic, integers: Integers):
        self.arith, self.emit, self.integers = arith, arith.emit, integers

    def load(
        self, place: Place, address: Expr, extra: int, lane: Var | None, lanes: int,
        mask: Operand | None, data_mask: Operand | None,
    ) -> Operand:  # fmt: skip
        """The element(s) at address + extra, in the dtype that registers hold."""
        floor = self.emit.depth if place.written and not place.local else place.write_level
        stride = address.coefficient(lane) if lane is not None else to_expr(0)
        width = 1 if stride == 0 else lanes
        if lane is not None and stride == ONE:
            address = address - to_expr(lane)
        if mask is not None and mask.lanes > width:
            width = mask.lanes
            offset = self.arith.splat(self._offset(address, extra, data_mask), width)
        else:
            offset = self._offset(address, extra, data_mask)
        if offset.lanes > 1 and lane is not None and stride == ONE:
            offset = self.arith.add(offset, self.integers.operand(to_expr(lane)))
        if mask is not None:
            mask = self.arith.splat(mask, width)
        value = self.emit.load(place.name, place.dtype, offset, loaded_dtype(place.dtype), width,
                               mask, min(floor, self.emit.depth), place.version)  # fmt: skip
        return self.arith.convert(value, accumulator(value.dtype))

    def _offset(self, address: Expr, extra: int, mask: Operand | None) -> Operand:
        if extra:
            address = address + extra
        return self.integers.operand(address, mask)

    def store(
        self, place: Place, address: Expr, lane: Var | None, lanes: int, value: Operand,
        mask: Operand | None, data_mask: Operand | None,
    ) -> None:  # fmt: skip
        """Writes a value; the dtype is converted to that of the place."""
        place.version += 1
        value = self.arith.convert(value, place.dtype)
        stride = address.coefficient(lane) if lane is not None else to_expr(0)
        if stride == 0:
            if value.lanes > 1:
                raise IllegalSchedule("[schedule] lanes run over an axis that a store lacks.")
            width = 1
        else:
            width = lanes
            value = self.arith.splat(value, lanes)
        if lane is not None and stride == ONE:
            address = address - to_expr(lane)
        offset = self.integers.operand(address, data_mask)
        if offset.lanes > 1 and lane is not None and stride == ONE:
            offset = self.arith.add(offset, self.integers.operand(to_expr(lane)))
        if mask is not None:
            mask = self.arith.splat(mask, width)
        self.emit.effect(Store(place.name, place.dtype, offset, value, mask))
