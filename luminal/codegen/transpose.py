"""Strided lanes by whole rows: vector loads along a replicated axis, transposed in registers.

In: the address of a load whose lanes are far apart while the steps of a register axis are
neighbours in memory. Out: the vectors of all replicas of that axis at once. Also the operands of
4-element dot products.
"""

from __future__ import annotations

from luminal.codegen.loopir import Operand
from luminal.codegen.memory import Address, Memory, Place, address_of, loaded_dtype
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.tile import Tile
from luminal.ir.dtype import boolean
from luminal.ir.expr import ZERO, const, to_expr


def transposed(memory: Memory, place: Place, address: Address, tile: Tile) -> list[Operand]:
    """Element i of the result holds lanes 0.. at offset i: rows are loaded, then log2(n) rounds of
    pairwise exchanges transpose the square."""
    rows: list[Operand] = []
    size = tile.lanes
    for n in range(size):
        base = address.base.substitute({tile.lane: const(n)} if tile.lane is not None else {})
        row = address_of(base, None).moved(address.constant)
        rows.append(memory.load(place, Address(row.base, row.constant, 1), size, None, None))
    span = size // 2
    while span:
        low = tuple(c if not c & span else size + c - span for c in range(size))
        high = tuple(c + span if not c & span else size + c for c in range(size))
        for n in (n for n in range(size) if not n & span):
            a, b = rows[n], rows[n + span]
            rows[n] = memory.emit.let("shuffle", (a, b), a.dtype, size, low)
            rows[n + span] = memory.emit.let("shuffle", (a, b), a.dtype, size, high)
        span //= 2
    return rows


def dot_operand(
    memory: Memory, place: Place, address: Address, tile: Tile, mask: Operand | None
) -> Operand:
    """Four neighbours of the dot axis for every lane, as bytes."""
    emit, lanes, base = memory.emit, tile.lanes, address.base
    stride = base.coefficient(tile.lane) if tile.lane is not None else ZERO
    if stride is None or stride.value not in (0, 4) or address.stride == 1:
        raise IllegalSchedule("[schedule] a dot operand needs groups of 4 in its layout.")
    width, kept = 4, None
    if stride.value and tile.lane is not None:
        base, width = base - to_expr(tile.lane) * 4, 4 * lanes
        groups = tuple(n // 4 for n in range(width))
        kept = mask and emit.let("shuffle", (mask, mask), boolean, width, groups)
    offset = memory.integers.operand(base + address.constant)
    floor = emit.depth if place.written and not place.local else place.write_level
    value = emit.load(place.name, place.dtype, offset, loaded_dtype(place.dtype), width, kept,
                      floor, place.version)  # fmt: skip
    if width == 4 * lanes:
        return value
    return emit.let("shuffle", (value, value), value.dtype, 4 * lanes, tuple(range(4)) * lanes)
