"""Integer sums get dot-product schedules, and these compute the right values."""

from dataclasses import replace

import numpy as np
import pytest

from luminal.ir.dtype import f32, i8, i32, u8
from luminal.ir.expr import to_expr
from luminal.ir.plan import Reg
from luminal.ir.term import binary, cast, constant, reduction
from luminal.search.schedule import candidates
from tests.codegen_case import HOST, Case


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("kind", [i8, u8], ids=lambda d: d.name)
def test_blocks_of_bytes(kind, computed, rows):
    c = Case()
    columns, blocks, size = 96, 3, 32
    c.buffer("w", (columns, blocks * size), kind)
    c.buffer("s", (columns, blocks))
    given = c.rng.integers(-99, 99, (rows, blocks, size))
    c.buffer("x", (rows, blocks, size), f32 if computed else i8, given)
    c.buffer("z", (rows, columns))
    m, n, b, k = c.axis("m", rows), c.axis("n", columns), c.axis("b", blocks), c.axis("k", size)
    x = c.load("x", m, b, k)
    x = cast(binary("mul", x, constant(0.5, f32)), i8) if computed else x
    product = binary("mul", cast(x, i32), cast(c.load("w", n, to_expr(b) * size + k), i32))
    dot = cast(reduction("sum", (k,), product), f32)
    value = reduction("sum", (b,), binary("mul", dot, c.load("s", n, b)))
    kernel = c.kernel((m, n), "z", (m, n), value)
    best = candidates(kernel, c.buffers, HOST, {}, frozenset("ws"))[0]
    assert any(isinstance(r, Reg) and r.role == "dot" for r in best.schedule.regs)
    c.buffers |= {name: replace(c.buffers[name], layout=x) for name, x in best.layouts.items()}
    c.check(replace(kernel, schedule=best.schedule), native=True)
    assert np.abs(c.bits["x"]).max() > 50
