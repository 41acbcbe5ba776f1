"""Places in memory: argument buffers and local arrays, their addresses, loads and stores.

In: addresses as expressions (perhaps over the lane variable). Out: scalar, vector or gathered
accesses. A buffer that the kernel writes is never read from further out than its last store."""

from __future__ import annotations

from dataclasses import dataclass

from luminal.codegen.emitter import Emitter, key_of
from luminal.codegen.loopir import Literal, Load, Operand, Store, Value
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.ir import ONE, ZERO, DType, Expr, Var, accumulator, f32, i8, i64, to_expr
from luminal.ir.layout import Layout, flatten


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


@dataclass(frozen=True, slots=True)
class Address:
    """base + constant + stride * lane, in elements; `stride` 0, 1 or None (then in the base)."""

    base: Expr
    constant: int
    stride: int | None

    def moved(self, by: int) -> Address:
        return Address(self.base, self.constant + by, self.stride) if by else self


def address_of(e: Expr, lane: Var | None) -> Address:
    """An expression as an address, its lanes taken apart."""
    stride = e.coefficient(lane) if lane is not None else ZERO
    if stride == ONE and lane is not None:
        e = e - to_expr(lane)
    step = stride.value if stride is not None and stride.value in (0, 1) else None
    constant = e.terms[-1][1] if e.terms and not e.terms[-1][0] else 0
    return Address(e - constant if constant else e, constant, step)


class Memory:
    """Emits loads and stores."""

    def __init__(self, emit: Emitter) -> None:
        self.emit = emit

    def load(
        self, place: Place, address: Address, lanes: int, mask: Operand | None,
        data_mask: Operand | None,
    ) -> Operand:  # fmt: skip
        """The element(s) at an address, in the dtype that registers hold."""
        offset, width = self._offset(address, lanes, data_mask), 1 if address.stride == 0 else lanes
        if mask is not None:
            if mask.lanes > width:
                width = mask.lanes
                offset = self.emit.splat(offset, width)
            mask = self.emit.splat(mask, width)
        value = self.read(place, offset, width, mask)
        return self.emit.convert(value, accumulator(value.dtype))

    def read(
        self, place: Place, offset: Operand, lanes: int, mask: Operand | None,
        storage: DType | None = None,
    ) -> Value:  # fmt: skip
        """What lies at an offset, loaded as far out as stores and branches allow; a storage format
        is decoded. With `storage` all is in units of that type."""
        storage = storage or place.dtype
        emit, dtype = self.emit, loaded_dtype(storage)
        floor = emit.depth if place.written and not place.local else place.write_level
        levels = [emit.level(a) for a in (offset, mask) if a is not None]
        level = max(min(floor, emit.depth), emit.branch_level, *levels)
        at = (key_of(offset), mask and key_of(mask))
        key = ("load", place.name, storage.name, place.version, lanes, *at)
        return emit.once(
            level, key, dtype, lanes, lambda v: Load(v, place.name, storage, offset, mask)
        )  # fmt: skip

    def _offset(self, address: Address, lanes: int, mask: Operand | None) -> Operand:
        offset = self.emit.index(address.base, mask)
        if offset.lanes > 1 and address.stride == 1:
            offset = self.emit.apply("add", offset, self.emit.let("lanes", (), i64, lanes))
        return self.emit.apply("add", offset, Literal(address.constant, i64))

    def store(
        self, place: Place, address: Address, lanes: int, value: Operand, mask: Operand | None,
        data_mask: Operand | None,
    ) -> None:  # fmt: skip
        """Writes a value; the dtype is converted to that of the place."""
        place.version += 1
        value = self.emit.convert(value, place.dtype)
        if address.stride == 0 and value.lanes > 1:
            raise IllegalSchedule("[schedule] lanes run over an axis that a store lacks.")
        width = 1 if address.stride == 0 else lanes
        value = self.emit.splat(value, width)
        offset = self._offset(address, lanes, data_mask)
        mask = mask and self.emit.splat(mask, width)
        self.emit.effect(Store(place.name, place.dtype, offset, value, mask))
