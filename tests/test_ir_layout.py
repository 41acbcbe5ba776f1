"""Layouts: packing and flat offsets agree, for every element."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from luminal.ir.expr import axis_var, const, to_expr
from luminal.ir.layout import Layout, flatten, is_valid, pack, size, unpack

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
    assert (unpack(flat, shape, layout) == array).all()
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
