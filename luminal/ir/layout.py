"""Layouts: where the element of a buffer lies in memory.

In: a shape and a layout as in `plan.Buffer`: (dimension, tile) pairs from the outermost level in,
() for row-major. Out: flat offsets as expressions, sizes with padding, and packed NumPy arrays."""

import numpy as np

from luminal.ir.expr import ZERO, Expr, ceil_div, const
from luminal.ir.view import Shape

Layout = tuple[tuple[int, int], ...]


def levels(shape: Shape, layout: Layout) -> list[tuple[int, int, int, Expr]]:
    """(dimension, tile, enclosing tile or 0, extent) of every level, from the outermost in."""
    found: list[tuple[int, int, int, Expr]] = []
    last: dict[int, int] = {}
    for dimension, tile in layout or ((d, 1) for d in range(len(shape))):
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


def pack(array: np.ndarray, layout: Layout, out: np.ndarray | None = None) -> np.ndarray:
    """The elements of `array` in the order of `layout`, padded with zeros, flat (in `out`)."""
    found = levels(tuple(map(const, array.shape)), layout)
    extents = [extent.evaluate({}) for *_, extent in found]
    padded = {
        d: n * tile for (d, tile, outer, _), n in zip(found, extents, strict=True) if not outer
    }
    missing = [padded[d] - n for d, n in enumerate(array.shape)]
    if any(missing):
        array = np.pad(array, [(0, n) for n in missing])
    by_dimension = sorted(range(len(found)), key=lambda n: found[n][0])
    split = array.reshape([extents[n] for n in by_dimension])
    moved = split.transpose(np.argsort(by_dimension))
    if out is None:
        return np.ascontiguousarray(moved).reshape(-1)
    out.reshape(moved.shape)[...] = moved
    return out
