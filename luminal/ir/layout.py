"""Layouts: where the element of a buffer lies in memory.

In: a shape and a layout as in `plan.Buffer`: (dimension, tile) pairs from the outermost level in,
() for row-major. Out: flat offsets as expressions, sizes with padding, and packed NumPy arrays.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from luminal.ir.expr import ZERO, Expr, ceil_div, const
from luminal.ir.view import Shape

__all__ = ["Layout", "flatten", "is_valid", "levels", "pack", "row_major", "size", "unpack"]

Layout = tuple[tuple[int, int], ...]


def row_major(rank: int) -> Layout:
    """The layout that () stands for."""
    return tuple((d, 1) for d in range(rank))


def is_valid(layout: Layout, rank: int) -> bool:
    """True if every dimension occurs, with falling tiles that divide one another and end in 1."""
    tiles: dict[int, list[int]] = {d: [] for d in range(rank)}
    for dimension, tile in layout or row_major(rank):
        if dimension not in tiles or tile < 1:
            return False
        tiles[dimension].append(tile)
    falling = all(a > b and a % b == 0 for t in tiles.values() for a, b in pairwise(t))
    return falling and all(t and t[-1] == 1 for t in tiles.values())


def levels(shape: Shape, layout: Layout) -> list[tuple[int, int, int, Expr]]:
    """(dimension, tile, enclosing tile or 0, extent) of every level, from the outermost in."""
    found: list[tuple[int, int, int, Expr]] = []
    last: dict[int, int] = {}
    for dimension, tile in layout or row_major(len(shape)):
        outer = last.get(dimension, 0)
        extent = const(outer // tile) if outer else ceil_div(shape[dimension], tile)
        found.append((dimension, tile, outer, extent))
        last[dimension] = tile
    return found


def size(shape: Shape, layout: Layout = ()) -> Expr:
    """Elements in memory, padding included."""
    total = const(1)
    for *_, extent in levels(shape, layout):
        total = total * extent
    return total


def flatten(index: tuple[Expr, ...], shape: Shape, layout: Layout = ()) -> Expr:
    """The offset of the element at `index`, in elements.

    >>> from luminal.ir.expr import axis_var, to_expr
    >>> i, j = axis_var("i", 32), axis_var("j", 5)
    >>> flatten((to_expr(i), to_expr(j)), (const(32), const(5)), ((0, 16), (1, 1), (0, 1)))
    80*div(i,16) + 16*j + mod(i,16)
    """
    flat = ZERO
    for dimension, tile, outer, extent in levels(shape, layout):
        place = index[dimension] % outer if outer else index[dimension]
        flat = flat * extent + place // tile
    return flat


def pack(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The elements of `array` in the order of `layout`, padded with zeros, as a flat array."""
    tops = {d: max(t for e, t in layout if e == d) for d, _ in layout}
    if any(-n % tops.get(d, 1) for d, n in enumerate(array.shape)):
        array = np.pad(array, [(0, -n % tops.get(d, 1)) for d, n in enumerate(array.shape)])
    order, split = _split(array.shape, layout)
    return np.ascontiguousarray(array.reshape(split).transpose(order)).reshape(-1)


def unpack(flat: np.ndarray, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The inverse of `pack`: an array of `shape`."""
    tops = {d: max(t for e, t in layout if e == d) for d, _ in layout}
    padded = tuple(-(-n // tops.get(d, 1)) * tops.get(d, 1) for d, n in enumerate(shape))
    order, split = _split(padded, layout)
    there = flat.reshape([split[p] for p in order])
    whole = there.transpose(np.argsort(order)).reshape(padded)
    return np.ascontiguousarray(whole[tuple(slice(n) for n in shape)])


def _split(shape: tuple[int, ...], layout: Layout) -> tuple[list[int], list[int]]:
    """Axis order and extents that turn a padded array into one axis per level."""
    layout = layout or row_major(len(shape))
    names = [(d, p) for d in range(len(shape)) for p, (e, _) in enumerate(layout) if e == d]
    extents: list[int] = []
    for d, p in names:
        outer = [t for e, t in layout[:p] if e == d]
        extents.append((outer[-1] if outer else shape[d]) // layout[p][1])
    return [names.index((d, p)) for p, (d, _) in enumerate(layout)], extents
