"""Layouts: packing and flat offsets agree, for every element."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest

from luminal.ir.expr import axis_var, const, to_expr
from luminal.ir.layout import Layout, flatten, pack, size


def is_valid(layout: Layout, rank: int) -> bool:
    """True if every dimension occurs, with falling tiles that divide one another and end in 1."""
    tiles: dict[int, list[int]] = {d: [] for d in range(rank)}
    for dimension, tile in layout or [(d, 1) for d in range(rank)]:
        if dimension not in tiles or tile < 1:
            return False
        tiles[dimension].append(tile)
    falling = all(a > b and a % b == 0 for t in tiles.values() for a, b in pairwise(t))
    return falling and all(t and t[-1] == 1 for t in tiles.values())


CASES: list[tuple[tuple[int, ...], Layout]] = [
    ((20, 7), ((0, 16), (1, 1), (0, 1))),
    ((20, 8), ((0, 16), (1, 4), (0, 1), (1, 1))),
    ((3, 20, 5), ((1, 8), (0, 1), (2, 1), (1, 2), (1, 1))),
    ((3, 4), ()),
    ((4, 6), ((1, 1), (0, 1))),
]


@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_pack_puts_elements_where_flatten_says(shape: tuple[int, ...], layout: Layout) -> None:
    array = np.arange(1, np.prod(shape) + 1).reshape(shape)
    flat, dims = pack(array, layout), tuple(const(n) for n in shape)
    assert is_valid(layout, len(shape)) and flat.size == size(dims, layout).value
    for index in itertools.product(*map(range, shape)):
        place = flatten(tuple(const(i) for i in index), dims, layout).value
        assert flat[place] == array[index]
    assert np.count_nonzero(flat == 0) == flat.size - array.size


def test_tiles_of_an_axis_fold() -> None:
    outer, unroll, lane = axis_var("o", 4), axis_var("u", 2), axis_var("l", 16)
    row = to_expr(outer) * 32 + to_expr(unroll) * 16 + lane
    k = axis_var("k", 5)
    flat = flatten((row, to_expr(k)), (const(128), const(5)), ((0, 16), (1, 1), (0, 1)))
    assert flat == to_expr(outer) * 160 + to_expr(unroll) * 80 + to_expr(k) * 16 + lane


BAD = [
    ((0, 2),),
    ((0, 1), (0, 2), (1, 1)),
    ((0, 6), (0, 4), (0, 1), (1, 1)),
    ((2, 1), (0, 1), (1, 1)),
    ((0, 1), (1, 2)),
]


@pytest.mark.parametrize("layout", BAD)
def test_bad_layouts_are_recognised(layout: Layout) -> None:
    assert not is_valid(layout, 2)
