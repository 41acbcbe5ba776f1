"""Small integers in the words of a lane: the layout is asked for, read whole and taken apart."""

from dataclasses import replace

import numpy as np
import pytest

from luminal.codegen.loopir import For, If, Let, Load
from luminal.ir.dtype import f32, i4, i32, u4
from luminal.ir.expr import to_expr
from luminal.ir.term import binary, cast, reduction
from luminal.search.schedule import candidates
from tests.codegen_case import HOST, TARGET, Case


def product(kind, rows: int, columns: int, scaled: bool = True):
    """x [rows, 3 * 16] times a matrix of small integers with a scale per 16."""
    c, blocks, size = Case(), 3, 16
    c.buffer("w", (columns, blocks * size), kind)
    c.buffer("s", (columns, blocks))
    c.buffer("x", (rows, blocks * size))
    c.buffer("z", (rows, columns))
    m, n, b, k = c.axis("m", rows), c.axis("n", columns), c.axis("b", blocks), c.axis("k", size)
    column = to_expr(b) * size + k
    value = binary("mul", c.load("x", m, column), cast(c.load("w", n, column), f32))
    value = reduction("sum", (k,), value) if scaled else value
    value = reduction("sum", (b,) if scaled else (b, k), binary("mul", value, c.load("s", n, b)))
    return c, c.kernel((m, n), "z", (m, n), value)


def statements(block):
    for s in block.body:
        yield s
        names = {For: ("body",), If: ("then", "orelse")}.get(type(s), ())
        for name in names:
            yield from statements(getattr(s, name))


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("columns", [96, 41])
@pytest.mark.parametrize("kind", [u4, i4], ids=lambda d: d.name)
@pytest.mark.parametrize("native", [False, True])
def test_words_of_small_integers(kind, rows, columns, scaled, native):
    c, kernel = product(kind, rows, columns, scaled)
    target = HOST if native else TARGET
    best = candidates(kernel, c.buffers, target, {}, frozenset("ws"))[0]
    lanes = target.vector_bits // 32
    assert best.layouts["w"] == ((0, lanes), (1, 8), (0, 1), (1, 1))
    c.buffers |= {name: replace(c.buffers[name], layout=x) for name, x in best.layouts.items()}
    best = candidates(kernel, c.buffers, target, {})[0]  # of layouts that are settled
    function = c.check(replace(kernel, schedule=best.schedule), atol=1e-4, native=native)
    found = list(statements(function.body))
    loads = {s.dtype for s in found if isinstance(s, Load)}
    assert i32 in loads and kind not in loads  # never one by one
    fields = [s for s in found if isinstance(s, Let) and s.op == "field"]
    assert {s.attr[0] for s in fields} == {*range(0, 32, 4)}


def test_an_odd_row_length_has_no_words():
    c = Case()
    c.buffer("w", (32, 36), u4, np.arange(32 * 18).reshape(32, 18) % 251)
    c.buffer("x", (36,))
    c.buffer("z", (32,))
    n, k = c.axis("n", 32), c.axis("k", 36)
    value = binary("mul", c.load("x", k), cast(c.load("w", n, k), f32))
    kernel = c.kernel((n,), "z", (n,), reduction("sum", (k,), value))
    best = candidates(kernel, c.buffers, TARGET, {}, frozenset("w"))[0]
    c.buffers["w"] = replace(c.buffers["w"], layout=best.layouts.get("w", ()))
    c.check(replace(kernel, schedule=best.schedule))
