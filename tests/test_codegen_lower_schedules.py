"""Stages, online loops, range splits and packed layouts against the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luminal.codegen.loopir import Block, For, If, Let, Load, Value
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.ir.dtype import f16, f32, i8, i32, u4, u8
from luminal.ir.expr import const, dim, to_expr
from luminal.ir.plan import Kernel, Online, Schedule, Stage
from luminal.ir.term import Term, binary, cast, cond, constant, reduction, select, unary
from tests.codegen_case import Case, parse

SIZES = [(12, 32, 16), (13, 37, 19), (1, 8, 4)]


def number(kernel: Kernel, term: Term) -> int:
    """The number of a subterm."""
    return kernel.subterms().index(term)


def scheduled(kernel: Kernel, *items, regs: str = "") -> Kernel:
    """The kernel with a loop list of texts and items."""
    flat = [i for item in items for i in (parse(item).items if isinstance(item, str) else (item,))]
    return replace(kernel, schedule=Schedule(tuple(flat), parse("/ " + regs).regs))


def matmul(sizes, layout=(), epilogue=False, symbolic=False):
    c = Case()
    m, n, k = sizes
    if symbolic:
        c.dims = {"M": m, "N": n, "K": k}
        m, n, k = (dim(name, 1, 4096) for name in "MNK")
    c.buffer("A", (m, k))
    c.buffer("B", (k, n), layout=layout)
    c.buffer("b", (n,))
    c.buffer("C", (m, n))
    i, j, r = c.axis("m", m), c.axis("n", n), c.axis("k", k)
    a = c.load("A", i, r)
    value = reduction("sum", (r,), binary("mul", a, c.load("B", r, j)))
    if epilogue:
        value = binary("max", binary("add", value, c.load("b", j)), constant(0.0, f32))
    return c, c.kernel((i, j), "C", (i, j), value), a


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_packed_operands(sizes, symbolic):
    epilogue = sizes[0] == 13
    c, kernel, a = matmul(sizes, ((1, 16), (0, 1), (1, 1)), epilogue, symbolic)
    copy = parse("m:4 k:8 / k:1u m:1u")
    pack = Stage(number(kernel, a), copy.items, copy.regs, ((0, 4), (1, 1), (0, 1)))
    regs = "k:1u m:1u n:8u n:1v"
    for items in (("k:8 m:8", pack, "n:16 m:4 k:2"), ("m:8 k:8", pack, "n:16 m:4 k:4"),
                  ("n:16 k:8 m:8", pack, "m:4 k:2")):  # fmt: skip
        c.check(scheduled(kernel, *items, regs=regs), native=True)


@pytest.mark.parametrize("symbolic", [False, True])
def test_row_statistics_are_staged_by_themselves(symbolic):
    c = Case()
    rows, columns = 7, 21
    if symbolic:
        c.dims = {"R": rows, "S": columns}
        rows, columns = dim("R", 0, 999), dim("S", 0, 999)
    c.buffer("x", (rows, columns))
    c.buffer("y", (rows, columns))
    i, j, k = c.axis("i", rows), c.axis("j", columns), c.axis("k", columns)
    top = reduction("rmax", (k,), c.load("x", i, k))
    minus = constant(-1.0, f32)
    total = reduction("rsum", (k,), c.load("x", i, k), constant(1.0, f32))
    mine = unary("exp2", binary("add", c.load("x", i, j), binary("mul", top, minus)))
    value = binary("mul", mine, unary("recip", total))
    for text in ("", "g:i:1 j:8 / j:1v", "i:4 j:8 i:1 / j:1v", "i:4 j:8 / i:1u j:1v"):
        function = c.check(c.kernel((i, j), "y", (i, j), value, parse(text) if text else None))
        assert function.scratch_bytes > 0


def attention(c: Case, heads=2, rows=10, keys=13, depth=8, causal=False, symbolic=False):
    if symbolic:
        c.dims = {"S": rows, "T": keys}
        rows, keys = dim("S", 1, 4096), dim("T", 1, 4096)
    for name, extent in (("Q", rows), ("K", keys), ("V", keys), ("O", rows)):
        c.buffer(name, (heads, extent, depth))
    h, q, j = c.axis("h", heads), c.axis("q", rows), c.axis("j", keys)
    d, e = c.axis("d", depth), c.axis("e", depth)
    query = c.load("Q", h, q, d)
    x = reduction("sum", (d,), binary("mul", query, c.load("K", h, j, d)))
    x = binary("mul", x, constant(0.5, f32))
    if causal:
        x = select(cond(to_expr(q) - j), x, constant(float("-inf"), f32))
    ones = reduction("rsum", (j,), x, constant(1.0, f32))
    top = reduction("rsum", (j,), x, c.load("V", h, j, e))
    value = binary("mul", top, unary("recip", ones))
    return c.kernel((h, q, e), "O", (h, q, e), value), query


def flash(kernel: Kernel, query: Term, block_q=4, block_k=4, split=False) -> Kernel:
    copy = parse("q:4 d:4 / d:1u q:1v")
    stage = Stage(number(kernel, query), copy.items, copy.regs, ((1, 1), (0, 1)))
    online = Online(
        "j", block_k, parse("q:4 j:2 d:2 / d:1u j:1u q:1v"), parse("q:4 j:2 / j:1u q:1v"),
        parse("e:8 q:2 j:2 / j:1u q:1u e:1v"), split,
    )  # fmt: skip
    return scheduled(kernel, f"g:h:1 g:q:{block_q}", stage, online, "q:1 e:8", regs="e:1v")


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("causal,split", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("sizes", [(10, 13), (8, 8), (1, 5), (9, 9)])
def test_attention(sizes, causal, split, symbolic):
    c = Case()
    kernel, query = attention(c, 2, *sizes, causal=causal, symbolic=symbolic)
    c.check(flash(kernel, query, split=split), native=sizes != (9, 9) or symbolic)


def convolution(size=11, stride=1, window=3, channels=3, outputs=6):
    c = Case()
    pad = window // 2
    out = (size + 2 * pad - window) // stride + 1
    c.buffer("x", (channels, size, size))
    c.buffer("w", (outputs, channels, window, window))
    c.buffer("z", (outputs, out, out))
    o, y, x = c.axis("o", outputs), c.axis("y", out), c.axis("x", out)
    ch, ky, kx = c.axis("c", channels), c.axis("ky", window), c.axis("kx", window)
    row, column = to_expr(y) * stride + ky - pad, to_expr(x) * stride + kx - pad
    inside = binary(
        "mul", binary("mul", cond(row), cond(const(size - 1) - row)),
        binary("mul", cond(column), cond(const(size - 1) - column)),
    )  # fmt: skip
    image = select(inside, c.load("x", ch, row, column), constant(0.0, f32))
    body = binary("mul", image, c.load("w", o, ch, ky, kx))
    return c, c.kernel((o, y, x), "z", (o, y, x), reduction("sum", (ch, ky, kx), body))


@pytest.mark.parametrize("stride,window,size", [(1, 3, 11), (2, 3, 11), (1, 7, 9), (1, 3, 4)])
@pytest.mark.parametrize(
    "text",
    ["", "o:2 y:1 x:4s c:2 ky:1s / c:1u kx:1u o:1u x:1v", 
     "g:o:2 g:y:1s x:4s / c:1u ky:1u kx:1u o:1u x:1u",
     "o:4 g:y:2 x:2s c:1 ky:1s kx:1s / y:1u x:1u o:1v"],
)  # fmt: skip
def test_convolution_with_split_ranges(stride, window, size, text):
    c, kernel = convolution(size, stride, window)
    if text.startswith("o:4 g"):
        text = text.replace("g:", "")
    c.check(replace(kernel, schedule=parse(text) if text else None), native=True)


def blocks(block: Block):
    """The block and all inside."""
    yield block
    for s in block.body:
        inner = (s.body,) if isinstance(s, For) else ()
        for b in (s.then, s.orelse) if isinstance(s, If) else inner:
            yield from blocks(b)


def statements(block: Block):
    """All statements of a block and what is inside."""
    return (s for b in blocks(block) for s in b.body)


def test_interior_of_a_split_convolution_has_no_masks():
    c, kernel = convolution(18, 1, 3, 1, 2)
    function = c.check(replace(kernel, schedule=parse("o:2 y:1 x:8s c:1 ky:1s / kx:1u o:1u x:1v")))

    inner = [b.body for b in blocks(function.body) if sum(isinstance(s, Load) for s in b.body) > 6]
    plain = [b for b in inner if all(s.mask is None for s in b if isinstance(s, Load))]
    assert plain and all(not isinstance(s, Let) or s.op != "select" for b in plain for s in b)


def test_illegal_schedules_are_refused():
    c, kernel, _ = matmul((8, 16, 8))
    for text in ("g:k:4 m:1 n:1", "m:1 g:n:1", "m:1 n:16 / m:1v n:1v", "m:1 n:8 / n:2v"):
        with pytest.raises(IllegalSchedule):
            c.lowered(replace(kernel, schedule=parse(text)))


def test_axes_that_registers_leave_open_are_looped_over():
    c, kernel, _ = matmul((8, 16, 8))
    c.check(replace(kernel, schedule=parse("m:4 n:8 / m:2u n:1v")))


def test_partial_sums_need_an_output_that_holds_them():
    c = Case()
    for name in "xz":
        c.buffer(name, (6, 8), f16 if name == "x" else f32)
    c.buffer("half", (6,), f16)
    c.buffer("wide", (6,))
    i, k = c.axis("i", 6), c.axis("k", 8)
    half = reduction("sum", (k,), c.load("x", i, k))
    total = reduction("sum", (k,), c.load("z", i, k))
    reread = binary("add", total, c.load("wide", i))
    for out, value in (("half", half), ("wide", reread)):
        with pytest.raises(IllegalSchedule):
            c.lowered(c.kernel((i,), out, (i,), value, parse("k:4 i:2 k:2 / k:1u i:1u")))
    for op, text in (("sum", "k:4 i:2 k:2 / k:1u i:1u"), ("rmax", "k:3 i:4 / i:1v")):
        value = binary("add", reduction(op, (k,), c.load("z", i, k)), constant(1.0, f32))
        c.check(c.kernel((i,), "wide", (i,), value, parse(text)))


@pytest.mark.parametrize("rows,columns", [(16, 32), (21, 37), (40, 8)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_transposing_loads(rows, columns, symbolic):
    c = Case()
    if symbolic:
        c.dims = {"R": rows, "S": columns}
        rows, columns = dim("R", 1, 999), dim("S", 1, 999)
    c.buffer("x", (columns, rows))
    c.buffer("z", (rows, columns))
    i, j = c.axis("i", rows), c.axis("j", columns)
    kernel = c.kernel((i, j), "z", (i, j), unary("exp2", c.load("x", j, i)))
    for text in ("j:8 i:8 / i:1u j:1v", "j:16 i:16 / i:1u j:8u j:1v", "j:4 i:9 / i:1u j:1v"):
        c.check(replace(kernel, schedule=parse(text)))
        c.check(replace(kernel, schedule=parse(text)), native=True)


@pytest.mark.parametrize("rows,columns", [(16, 32), (21, 38)])
@pytest.mark.parametrize("kind", [i8, u8, u4], ids=lambda d: d.name)
def test_dot_products_of_bytes(kind, rows, columns):
    c = Case()
    bits = c.rng.integers(0, 255, (rows, columns))
    if kind == u4:
        rows, columns = 16, 32
        bits = c.rng.integers(0, 255, (rows, columns // 2))
    layout = ((0, 16), (1, 4), (0, 1), (1, 1)) if kind != u4 else ()
    c.buffer("w", (rows, columns), kind, bits.astype(kind.np), layout)
    c.dims, many = {"M": 3}, dim("M", 1, 99)
    c.buffer("x", (many, columns), i8)
    c.buffer("z", (many, rows), i32)
    m, n, k = c.axis("m", many), c.axis("n", rows), c.axis("k", columns)
    body = binary("mul", cast(c.load("w", n, k), i32), cast(c.load("x", m, k), i32))
    kernel = c.kernel((m, n), "z", (m, n), reduction("sum", (k,), body))
    text = "n:16 m:2 k:8 / m:1u k:4u k:1d n:8u n:1v"
    if kind == u4:
        with pytest.raises(IllegalSchedule, match="layout"):
            c.check(replace(kernel, schedule=parse(text)))
        return
    c.check(replace(kernel, schedule=parse(text)))
    c.check(replace(kernel, schedule=parse(text)), native=True)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("kind", [f32, f16], ids=lambda d: d.name)
@pytest.mark.parametrize("columns", [5, 16, 39])
def test_variance(columns, kind, symbolic):
    c = Case()
    size = columns
    if symbolic:
        c.dims, size = {"S": columns}, dim("S", 1, 4096)
    c.buffer("x", (6, size), kind, c.rng.standard_normal((6, columns)) + 50)
    c.buffer("z", (6,), kind)
    i, k = c.axis("i", 6), c.axis("k", size)
    kernel = c.kernel((i,), "z", (i,), reduction("wsum", (k,), c.load("x", i, k)))
    for text in ("i:4 k:2 / k:1u i:1v", "i:1 k:8 / k:1v"):
        c.check(scheduled(kernel, text.split("/")[0], regs=text.split("/")[1]),
                rtol=3e-3 if kind == f16 else 2e-5, native=True)  # fmt: skip


def test_attention_reads_whole_vectors():
    c = Case()
    kernel, query = attention(c, 2, 16, 16)
    loads = [s for s in statements(c.lowered(flash(kernel, query)).body) if isinstance(s, Load)]
    strided = [s for s in loads if isinstance(s.offset, Value) and s.offset.lanes > 1]
    assert len(loads) > 20 and not strided


@pytest.mark.parametrize("rows", [5, 12, 16])
def test_strided_lanes_of_a_local_array_stay_inside(rows):
    c = Case()
    c.buffer("x", (rows, 9))
    c.buffer("z", (rows, 9))
    i, j = c.axis("i", rows), c.axis("j", 9)
    twice = binary("mul", c.load("x", i, j), constant(2.0, f32))
    kernel = c.kernel((i, j), "z", (i, j), binary("add", twice, constant(1.0, f32)))
    stage = Stage(number(kernel, twice), (), ())
    for text in ("i:8 j:1", "j:8 i:8"):
        regs = "i:1v" if text[0] == "i" else "j:1u i:1v"
        c.check(scheduled(kernel, stage, text, regs=regs), native=False)
        c.check(scheduled(kernel, stage, text, regs=regs), native=True)


@pytest.mark.parametrize("rows", [2, 5])
def test_partial_sums_of_a_stage(rows):
    c = Case()
    c.buffer("x", (rows, 12))
    c.buffer("z", (rows, 9))
    i, j, k = c.axis("i", rows), c.axis("j", 9), c.axis("k", 12)
    total = reduction("sum", (k,), c.load("x", i, k))
    kernel = c.kernel((i, j), "z", (i, j), binary("add", total, cast(c.load("x", i, 0), f32)))
    inner = parse("k:4 i:2 k:2 / k:1u i:1u")
    c.check(scheduled(kernel, Stage(number(kernel, total), inner.items, inner.regs)))
