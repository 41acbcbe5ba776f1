"""Register tiles: which blocks of accumulators fit the register file, best first.

In: extents of the row and vector axes, counts of operands, a Target. Out: `Tile`s with an
estimated cost. The rule: accumulators and live operands together must not exceed the registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Tile", "register_tiles", "waste"]

MAX_ROWS = 16
FMA_PIPES = 2
FMA_LATENCY = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x `vectors` accumulators per reduction; `cost` is relative time per useful element."""

    rows: int
    vectors: int
    cost: float


def waste(extent: int, tile: int) -> float:
    """Work done over work needed when `extent` is covered by whole tiles."""
    return -(-extent // tile) * tile / extent


@lru_cache(maxsize=4096)
def register_tiles(
    rows: int, columns: int, lanes: int, registers: int, accumulators: int = 1,
    streams: int = 1, window: tuple[int, int] = (1, 1), row_loads: int = 1,
) -> tuple[Tile, ...]:  # fmt: skip
    """Legal tiles for `rows` x `columns` results of `accumulators` reductions, best first.

    `streams` vector operands are loaded per step. `window` (step, size): a window of `size`
    unrolled taps slides over the rows by `step`, so distinct row operands stay alive together.
    `row_loads` scalar operands are broadcast for each row.
    """
    found: list[Tile] = []
    for vectors in range(1, min(12, -(-columns // lanes)) + 1):
        for count in range(1, min(MAX_ROWS, rows) + 1):
            step, size = window
            live_rows = (count - 1) * step + size if size > 1 else 1
            sums = count * vectors * accumulators
            if sums + vectors * streams + live_rows * row_loads > registers:
                continue
            found.append(Tile(count, vectors, _cost(rows, columns, lanes, count, vectors,
                                                    accumulators, streams, row_loads)))  # fmt: skip
    found.sort(key=lambda t: (t.cost, -t.rows * t.vectors, t.vectors))
    return tuple(found) or (Tile(1, 1, 9.0),)


def _cost(rows: int, columns: int, lanes: int, count: int, vectors: int, accumulators: int,
          streams: int, row_loads: int) -> float:  # fmt: skip
    sums = count * vectors * accumulators
    fma = sums / FMA_PIPES
    loads = (vectors * streams + count * row_loads) / 2
    latency = FMA_LATENCY * 1.0
    memory = 0.2 * vectors * streams + 0.15 * count * row_loads
    cycles = max(fma, loads, latency, (sums + 2 * loads + 1) / 4) + memory
    padding = waste(rows, count) * waste(columns, vectors * lanes)
    return cycles * FMA_PIPES / sums * padding
