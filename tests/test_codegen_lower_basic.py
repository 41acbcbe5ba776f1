"""Lowering without and with simple schedules: every term, dtype and edge size."""

import pytest

from luminal.ir.dtype import f32
from luminal.ir.term import binary, constant, reduction, unary
from tests.codegen_case import Case, parse


def gemm(m: int, n: int, k: int, schedule: str = "", layout=()):
    c = Case()
    c.buffer("A", (m, k))
    c.buffer("B", (k, n), layout=layout)
    c.buffer("C", (m, n))
    i, j, r = c.axis("m", m), c.axis("n", n), c.axis("k", k)
    value = reduction("sum", (r,), binary("mul", c.load("A", i, r), c.load("B", r, j)))
    return c, c.kernel((i, j), "C", (i, j), value, parse(schedule) if schedule else None)


@pytest.mark.parametrize(
    "schedule",
    ["", "n:1 m:1 k:1", "n:16 m:3 k:2 / k:1u m:1u n:8u n:1v", 
     "g:n:16 g:m:3 k:2 / k:1u m:1u n:8u n:1v",
     "k:8 n:16 m:4 k:2 / k:1u m:1u n:8u n:1v", "m:2 n:3 k:16 / m:1u n:1u k:8a k:1v"],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [(6, 32, 16), (7, 21, 13), (1, 5, 1), (4, 16, 0)])
def test_gemm(schedule, sizes):
    c, kernel = gemm(*sizes, schedule)
    c.check(kernel)


def test_softmax_rows_without_schedule():
    c = Case()
    c.buffer("x", (5, 7))
    c.buffer("y", (5, 7))
    i, j, k = c.axis("i", 5), c.axis("j", 7), c.axis("k", 7)
    top = reduction("rmax", (k,), c.load("x", i, k))
    minus = constant(-1.0, f32)
    e = unary("exp2", binary("add", c.load("x", i, k), binary("mul", top, minus)))
    total = reduction("sum", (k,), e)
    mine = unary("exp2", binary("add", c.load("x", i, j), binary("mul", top, minus)))
    value = binary("mul", mine, unary("recip", total))
    c.check(c.kernel((i, j), "y", (i, j), value))
