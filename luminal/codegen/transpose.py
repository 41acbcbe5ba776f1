"""Strided lanes by whole rows: vector loads along a replicated axis, transposed in registers.

In: a load whose lanes are far apart while the steps of a register axis are neighbours in memory.
Out: the vectors of all replicas of that axis at once. Also the operands of 4-element dot products.
"""

from __future__ import annotations

from luminal.codegen.arith import Arithmetic
from luminal.codegen.loopir import Operand, Value
from luminal.codegen.memory import Address, Memory, Place, address_of, loaded_dtype
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.tile import Replica, Tile
from luminal.ir.dtype import boolean
from luminal.ir.expr import Expr, const, to_expr

__all__ = ["dot_operand", "row_register", "transposed"]


def row_register(tile: Tile, steps: Replica, u: Replica) -> int | None:
    """The register axis whose steps are neighbours in memory and fill whole vectors."""
    for p, (register, step) in enumerate(zip(tile.registers, steps)):
        whole = u[p] // tile.lanes * tile.lanes + tile.lanes <= register.count
        if step == 1 and whole and register.role == "unroll" and register.tile == 1:
            return p
    return None


def transposed(memory: Memory, place: Place, base: Expr, extra: int, tile: Tile) -> list[Operand]:
    """Element i of the result holds lanes 0.. at offset i: rows are loaded and transposed."""
    lane, lanes = tile.lane, tile.lanes
    rows: list[Operand] = []
    for n in range(lanes):
        row = base.substitute({lane: const(n)}) if lane is not None else base
        address = address_of(row, None).moved(extra)
        rows.append(
            memory.load(place, Address(address.base, address.constant, 1), lanes, None, None)
        )
    return _exchange(memory.arith, rows)


def _exchange(arith: Arithmetic, rows: list[Operand]) -> list[Operand]:
    """The transpose of a square of vectors by log2(n) rounds of pairwise exchanges."""
    size = len(rows)
    span = size // 2
    while span:
        low = tuple(c if not c & span else size + c - span for c in range(size))
        high = tuple(c + span if not c & span else size + c for c in range(size))
        for n in (n for n in range(size) if not n & span):
            a, b = rows[n], rows[n + span]
            rows[n] = arith.emit.let("shuffle", (a, b), a.dtype, size, low)
            rows[n + span] = arith.emit.let("shuffle", (a, b), a.dtype, size, high)
        span //= 2
    return rows


def dot_operand(
    memory: Memory, place: Place, base: Expr, extra: int, tile: Tile, mask: Operand | None
) -> Operand:
    """Four neighbours of the dot axis for every lane, as bytes."""
    emit, lanes = memory.emit, tile.lanes
    stride = base.coefficient(tile.lane) if tile.lane is not None else const(0)
    if stride is None or stride.value not in (0, 4):
        raise IllegalSchedule("[schedule] a dot operand needs groups of 4 in its layout.")
    if stride.value and tile.lane is not None:
        base = base - to_expr(tile.lane) * 4
    width = 4 * lanes if stride.value else 4
    if mask is not None and stride.value:
        mask = emit.let(
            "shuffle", (mask, mask), boolean, width, tuple(n // 4 for n in range(width))
        )
    offset = memory.integers.operand(base + extra)
    floor = emit.depth if place.written and not place.local else place.write_level
    value: Value = emit.load(place.name, place.dtype, offset, loaded_dtype(place.dtype), width,
                             mask if stride.value else None, floor, place.version)  # fmt: skip
    if stride.value or lanes == 1:
        return value
    repeated = tuple(range(4)) * lanes
    return emit.let("shuffle", (value, value), value.dtype, 4 * lanes, repeated)
