"""Lowering of every term and dtype, scalar and in lanes, with tails, masks and index data."""

from __future__ import annotations

import numpy as np
import pytest

from luminal.ir import dtype as dt
from luminal.ir.expr import const, dim, to_expr
from luminal.ir.plan import Kernel, Store
from luminal.ir.term import (
    binary,
    cast,
    cond,
    constant,
    data,
    index,
    reduction,
    select,
    unary,
)  # fmt: skip
from tests.codegen_case import TARGET, Case, parse
from tests.loopir_interp import Interpreter

SCHEDULES = ["", "i:1 j:16 / j:8u j:1v", "i:2 j:4 / i:1u j:1v", "j:8 i:3 / i:1u j:1v"]
COMPUTING = [dt.f64, dt.f32, dt.f16, dt.bf16, dt.i64, dt.i32, dt.i16, dt.i8, dt.u8, dt.boolean]


def schedule(text: str):
    return parse(text) if text else None


def plane(c: Case, rows=3, columns=21):
    return c.axis("i", rows), c.axis("j", columns)


@pytest.mark.parametrize("text", SCHEDULES)
@pytest.mark.parametrize("kind", COMPUTING, ids=lambda d: d.name)
def test_binary_ops(kind, text):
    c = Case()
    i, j = plane(c)
    for name in "xyz":
        c.buffer(name, (3, 21), kind)
    x, y = c.load("x", i, j), c.load("y", i, j)
    value = binary("add", binary("mul", x, y), binary("max", x, y))
    if kind != dt.boolean:
        value = select(binary("lt", x, y), value, binary("mod", x, y))
    c.check(c.kernel((i, j), "z", (i, j), value, schedule(text)))


@pytest.mark.parametrize("text", SCHEDULES[:2])
@pytest.mark.parametrize("kind", [dt.f64, dt.f32, dt.f16, dt.bf16], ids=lambda d: d.name)
@pytest.mark.parametrize("op", ["log2", "exp2", "sin", "sqrt", "recip"])
def test_unary_ops(op, kind, text):
    c = Case()
    i, j = plane(c)
    c.buffer("x", (3, 21), kind)
    c.buffer("z", (3, 21), kind)
    c.check(c.kernel((i, j), "z", (i, j), unary(op, c.load("x", i, j)), schedule(text)))


@pytest.mark.parametrize("source", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("target", COMPUTING, ids=lambda d: d.name)
def test_casts(source, target):
    c = Case()
    i, j = plane(c, 3, 22)
    c.buffer("x", (3, 22), source)
    c.buffer("z", (3, 22), target)
    c.check(c.kernel((i, j), "z", (i, j), cast(c.load("x", i, j), target), parse("i:1 j:8 / j:1v")))


@pytest.mark.parametrize("text", ["", "i:1 k:16 / k:8a k:1v", "i:4 k:2 / k:1u i:1v", "i:2 / i:1u"])
@pytest.mark.parametrize("kind", COMPUTING, ids=lambda d: d.name)
@pytest.mark.parametrize("columns", [21, 0])
@pytest.mark.parametrize("op", ["sum", "rmax"])
def test_reductions(op, kind, text, columns):
    c = Case()
    i, k = c.axis("i", 5), c.axis("k", columns)
    c.buffer("x", (5, columns), kind)
    c.buffer("z", (5,), kind)
    value = reduction(op, (k,), c.load("x", i, k))
    c.check(
        c.kernel((i,), "z", (i,), value, schedule(text)), atol=2e-2 if kind.bits == 16 else 1e-5
    )


def test_infinities_and_nan_in_a_maximum():
    c = Case()
    i, k = c.axis("i", 3), c.axis("k", 4)
    rows = [[1, np.nan, 2, 3], [-np.inf] * 4, [np.inf, -1, 0, 2]]
    c.buffer("x", (3, 4), data=np.array(rows, np.float32))
    c.buffer("z", (3,))
    c.check(c.kernel((i,), "z", (i,), reduction("rmax", (k,), c.load("x", i, k))))


@pytest.mark.parametrize("text", ["", "i:4 / i:1v", "i:2 / i:1u"])
def test_rsum_of_masked_rows(text):
    c = Case()
    i, k = c.axis("i", 6), c.axis("k", 9)
    x = c.rng.standard_normal((6, 9)).astype(np.float32)
    x[1] = -np.inf
    x[2, 3:] = -np.inf
    c.buffer("x", (6, 9), data=x)
    c.buffer("v", (9,))
    c.buffer("z", (6,))
    value = reduction("rsum", (k,), c.load("x", i, k), c.load("v", k))
    c.check(c.kernel((i,), "z", (i,), value, schedule(text)))


@pytest.mark.parametrize("kind", [dt.f32, dt.f16], ids=lambda d: d.name)
def test_wsum(kind):
    c = Case()
    i, k = c.axis("i", 6), c.axis("k", 9)
    c.buffer("x", (6, 9), kind)
    c.buffer("z", (6,), kind)
    value = reduction("wsum", (k,), c.load("x", i, k))
    c.check(c.kernel((i,), "z", (i,), value), rtol=1e-3)


def test_reduction_over_several_axes_and_nested():
    c = Case()
    n, kb, ki = c.axis("n", 10), c.axis("kb", 3), c.axis("ki", 4)
    c.buffer("q", (10, 12), dt.i8)
    c.buffer("s", (10, 3), dt.f16)
    c.buffer("x", (12,))
    c.buffer("y", (10,))
    k = to_expr(kb) * 4 + ki
    inner = reduction("sum", (ki,), binary("mul", cast(c.load("q", n, k), dt.f32), c.load("x", k)))
    value = reduction("sum", (kb,), binary("mul", cast(c.load("s", n, kb), dt.f32), inner))
    for text in ("", "n:8 kb:1 ki:2 / ki:1u n:1v", "n:4 kb:2 ki:4 / kb:1u ki:1u n:4u n:1v"):
        c.check(c.kernel((n,), "y", (n,), value, schedule(text)))
    flat = reduction(
        "sum", (kb, ki), binary("mul", cast(c.load("q", n, k), dt.f32), c.load("x", k))
    )
    for text in ("", "n:8 kb:1 ki:2 / ki:1u n:1v"):
        c.check(c.kernel((n,), "y", (n,), flat, schedule(text)))


@pytest.mark.parametrize("text", SCHEDULES)
def test_padding_reads_nothing_outside(text):
    c = Case()
    i, j = plane(c, 5, 21)
    c.buffer("x", (3, 17))
    c.buffer("z", (5, 21))
    inside = binary(
        "mul",
        binary("mul", cond(to_expr(i) - 1), cond(const(3) - i)),
        binary("mul", cond(to_expr(j) - 2), cond(const(18) - j)),
    )
    value = select(inside, c.load("x", to_expr(i) - 1, to_expr(j) - 2), constant(-0.0, dt.f32))
    c.check(c.kernel((i, j), "z", (i, j), value, schedule(text)))


@pytest.mark.parametrize("text", ["", "i:2 j:8 / i:1u j:1v", "i:1 j:4 k:1 / j:1v"])
def test_padding_around_a_reduction(text):
    c = Case()
    i, j, k = c.axis("i", 6), c.axis("j", 9), c.axis("k", 5)
    c.buffer("x", (4, 5))
    c.buffer("w", (5, 9))
    c.buffer("z", (6, 9))
    total = reduction("sum", (k,), binary("mul", c.load("x", to_expr(i) - 1, k), c.load("w", k, j)))
    inside = binary("mul", cond(to_expr(i) - 1), cond(const(4) - i))
    value = select(inside, total, constant(7.0, dt.f32))
    c.check(c.kernel((i, j), "z", (i, j), value, schedule(text)))


@pytest.mark.parametrize("text", ["", "i:2 j:8 / i:1u j:1v", "i:1 j:4 k:1 / j:1v"])
def test_padding_around_and_inside_a_reduction(text):
    c = Case()
    i, j, k = c.axis("i", 6), c.axis("j", 9), c.axis("k", 3)
    c.buffer("x", (4, 9))
    c.buffer("z", (6, 9))
    row, column = to_expr(i) - 1, to_expr(j) + k - 1
    columns = binary("mul", cond(column), cond(const(8) - column))
    total = reduction("sum", (k,), select(columns, c.load("x", row, column), constant(0.0, dt.f32)))
    inside = binary("mul", cond(row), cond(const(3) - row))
    value = select(inside, total, constant(7.0, dt.f32))
    c.check(c.kernel((i, j), "z", (i, j), value, schedule(text)))


@pytest.mark.parametrize("text", ["", "i:2 j:8 / i:1u j:1v", "j:4 i:4 / i:1v"])
def test_strided_flipped_and_transposed_loads(text):
    c = Case()
    i, j = c.axis("i", 6), c.axis("j", 9)
    c.buffer("x", (9, 12))
    c.buffer("z", (6, 9))
    value = binary("add", c.load("x", j, to_expr(i) * 2), c.load("x", const(8) - j, const(5) - i))
    folded = binary("add", value, c.load("x", (to_expr(j) * 5) // 7, (to_expr(j) + i) % 12))
    c.check(c.kernel((i, j), "z", (i, j), folded, schedule(text)))


@pytest.mark.parametrize("text", ["", "i:2 j:8 / i:1u j:1v", "j:4 i:4 / i:1v"])
def test_gather(text):
    c = Case()
    i, j = c.axis("i", 6), c.axis("j", 9)
    c.buffer("x", (7, 9))
    c.buffer("n", (6,), dt.i64, [0, 6, 3, 3, 1, 5])
    c.buffer("m", (9,), dt.i32, [0, 6, 3, 3, 1, 5, 2, 2, 0])
    c.buffer("z", (6, 9))
    row = data(c.load("n", i), const(7))
    sum_ = binary("add", c.load("m", j), index(to_expr(i), dt.i32))
    computed = data(binary("mod", sum_, constant(7, dt.i32)), const(9))
    value = binary("add", c.load("x", row, j), c.load("x", row, computed))
    c.check(c.kernel((i, j), "z", (i, j), value, schedule(text)))


@pytest.mark.parametrize("text", ["", "i:4 / i:1v"])
@pytest.mark.parametrize("bad", [-1, 7])
def test_gather_out_of_range_fails_without_a_wild_read(text, bad):
    c = Case()
    i = c.axis("i", 6)
    c.buffer("x", (7,))
    c.buffer("n", (6,), dt.i64, [0, 6, 3, bad, 1, 5])
    c.buffer("z", (6,))
    kernel = c.kernel((i,), "z", (i,), c.load("x", data(c.load("n", i), const(7))), schedule(text))
    assert Interpreter(c.lowered(kernel), c.bits, {}).run()


@pytest.mark.parametrize("text", ["", "i:4 / i:1v"])
def test_gather_under_a_mask_may_be_out_of_range(text):
    c = Case()
    i = c.axis("i", 6)
    c.buffer("x", (7,))
    c.buffer("n", (6,), dt.i64, [0, 99, 3, -4, 1, 5])
    c.buffer("ok", (6,), dt.boolean, [1, 0, 1, 0, 1, 1])
    c.buffer("z", (6,))
    read = c.load("x", data(c.load("n", i), const(7)))
    value = select(c.load("ok", i), read, constant(5.0, dt.f32))
    c.check(c.kernel((i,), "z", (i,), value, schedule(text)))


@pytest.mark.parametrize("text", ["", "i:1 j:8 / j:1v"])
def test_scatter_last_duplicate_wins(text):
    c = Case()
    i, j = c.axis("i", 5), c.axis("j", 11)
    c.buffer("x", (5, 11))
    c.buffer("n", (5,), dt.i64, [2, 0, 2, 3, 0])
    c.buffer("z", (4, 11))
    row = data(c.load("n", i), const(4))
    c.check(c.kernel((i, j), "z", (row, j), c.load("x", i, j), schedule(text), ("i",)))


def test_scatter_out_of_range_writes_nothing():
    c = Case()
    i = c.axis("i", 3)
    c.buffer("x", (3,))
    c.buffer("n", (3,), dt.i64, [1, 4, -1])
    c.buffer("z", (4,))
    before = c.bits["z"].copy()
    kernel = c.kernel((i,), "z", (data(c.load("n", i), const(4)),), c.load("x", i), None, ("i",))
    assert Interpreter(c.lowered(kernel), c.bits, {}).run()
    np.testing.assert_array_equal(c.bits["z"][[0, 2, 3]], before[[0, 2, 3]])


def test_scalars_and_two_stores():
    c = Case()
    for name in "xyz":
        c.buffer(name, (), data=np.float32(3))
    c.buffer("w", (), dt.i32, 0)
    total = binary("add", c.load("x"), c.load("y"))
    stores = (Store("z", (), total), Store("w", (), cast(total, dt.i32)))
    c.check(Kernel("k", (), stores))


@pytest.mark.parametrize("rows,columns", [(0, 4), (4, 0), (1, 1)])
def test_zero_and_one_sizes(rows, columns):
    c = Case()
    i, j = plane(c, rows, columns)
    c.buffer("x", (rows, columns))
    c.buffer("z", (rows, columns))
    for text in ("", "g:i:2 j:8 / i:1u j:1v"):
        c.check(c.kernel((i, j), "z", (i, j), unary("sqrt", c.load("x", i, j)), schedule(text)))


@pytest.mark.parametrize("rows,columns", [(1, 1), (5, 7), (8, 24), (13, 9), (0, 5), (5, 0)])
@pytest.mark.parametrize(
    "text",
    ["", "g:m:6 g:n:16 k:4 / k:1u m:1u n:8u n:1v", "m:8 n:32 m:4 n:8 k:2 / k:1u m:2u m:1u n:1v",
     "m:1 n:2 k:8 / n:1u k:1v", "k:8 g:m:1 n:8 k:4 / n:1v"],
)  # fmt: skip
def test_symbolic_sizes(rows, columns, text):
    if text.startswith("k:8"):
        text = "k:8 m:1 n:8 k:4 / n:1v"
    c = Case()
    c.dims = {"r": rows, "s": columns}
    r, s = dim("r", 0, 4096), dim("s", 0, 4096)
    c.buffer("x", (r, s + 3))
    c.buffer("w", (s + 3, s))
    c.buffer("z", (r, s))
    m, n, k = c.axis("m", r), c.axis("n", s), c.axis("k", s + 3)
    value = reduction("sum", (k,), binary("mul", c.load("x", m, k), c.load("w", k, n)))
    c.check(c.kernel((m, n), "z", (m, n), value, schedule(text)))


def test_lane_count_comes_from_the_schedule():
    c = Case()
    i, j = plane(c)
    c.buffer("x", (3, 21), dt.u4, np.zeros((3, 11)))
    assert TARGET.lanes(dt.f32) == 8
    with pytest.raises(Exception, match="lanes"):
        c.buffer("z", (3, 21))
        c.lowered(c.kernel((i, j), "z", (i, j), constant(1.0, dt.f32), parse("j:6 / j:1v")))


@pytest.mark.parametrize("text", ["", "i:4 / i:1v"])
def test_gather_from_an_empty_dimension_reads_nothing(text):
    c = Case()
    i = c.axis("i", 6)
    c.dims = {"n": 0}
    c.buffer("x", (dim("n", 0, 9),))
    c.buffer("n", (6,), dt.i64, [0] * 6)
    c.buffer("z", (6,))
    read = c.load("x", data(c.load("n", i), dim("n", 0, 9)))
    kernel = c.kernel((i,), "z", (i,), read, schedule(text))
    assert Interpreter(c.lowered(kernel), c.bits, c.dims).run()
