"""A zoo of kernels for the tests of search: built from terms, named after what they compute."""

from __future__ import annotations

from dataclasses import dataclass

from luminal.ir.dtype import DType, boolean, f32, i8, i32, i64, u4
from luminal.ir.expr import Expr, ExprLike, Var, axis_var, dim, to_expr
from luminal.ir.plan import Buffer, Kernel, Store
from luminal.ir.target import Target
from luminal.ir.term import (
    Term,
    binary,
    cast,
    cond,
    constant,
    data,
    load,
    reduction,
    select,
    unary,
)  # fmt: skip

AVX512 = Target(
    vector_bits=512, vector_registers=32, fma=True, int8_dot="vnni", cores=2, l1_bytes=48 << 10,
    l2_bytes=1280 << 10, gflops=150.0, bandwidth_gbs=12.0,
)  # fmt: skip
AVX2 = Target(vector_bits=256, vector_registers=16, fma=True, cores=2, gflops=90.0)
SSE = Target()
LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and its buffers."""

    kernel: Kernel
    buffers: dict[str, Buffer]


def sizes(*values: ExprLike) -> tuple[Expr, ...]:
    return tuple(to_expr(v) for v in values)


def buffer(name: str, shape: tuple[ExprLike, ...], kind: str, dtype: DType = f32) -> Buffer:
    return Buffer(name, sizes(*shape), dtype, kind)


def read(b: Buffer, *index: ExprLike) -> Term:
    return load(b.name, sizes(*index), b.dtype)


def case(axes: tuple[Var, ...], out: Buffer, index: tuple[ExprLike, ...], value: Term,
         *buffers: Buffer, ordered: tuple[str, ...] = ()) -> Case:  # fmt: skip
    kernel = Kernel("k", axes, (Store(out.name, sizes(*index), value),), None, ordered)
    return Case(kernel, {b.name: b for b in (*buffers, out)})


def number(x: float) -> Term:
    return constant(x, f32)


def silu(x: Term) -> Term:
    e = unary("exp2", binary("mul", x, number(-LOG2E)))
    return binary("mul", x, unary("recip", binary("add", e, number(1.0))))


def batched(b: ExprLike, m: ExprLike, n: ExprLike, k: ExprLike) -> Case:
    """C[b, m, n] of two inputs, the first one under a function, the second one transposed."""
    g, i, j, q = axis_var("b", b), axis_var("m", m), axis_var("n", n), axis_var("k", k)
    x, w = buffer("A", (b, m, k), "input"), buffer("W", (b, n, k), "input")
    c = buffer("C", (b, m, n), "output")
    product = binary("mul", silu(read(x, g, i, q)), read(w, g, j, q))
    return case((g, i, j), c, (g, i, j), reduction("sum", (q,), product), x, w)


def matmul(
    m: ExprLike, n: int, k: int, weights: str = "constant", transposed: bool = False
) -> Case:
    """C[m, n] = relu-less x·w + bias; weights [k, n], or [n, k] if transposed."""
    i, j, q = axis_var("m", m), axis_var("n", n), axis_var("k", k)
    a, bias, c = (
        buffer("A", (m, k), "temp"),
        buffer("b", (n,), "constant"),
        buffer("C", (m, n), "output"),
    )
    w = buffer("W", (n, k) if transposed else (k, n), weights)
    product = binary("mul", read(a, i, q), read(w, j, q) if transposed else read(w, q, j))
    return case((i, j), c, (i, j), binary("add", reduction("sum", (q,), product), read(bias, j)),
                a, w, bias)  # fmt: skip


def gate(m: int, n: int, k: int) -> Case:
    i, j, q = axis_var("m", m), axis_var("n", n), axis_var("k", k)
    a, c = buffer("A", (m, k), "temp"), buffer("C", (m, n), "output")
    ws = [buffer(f"W{x}", (n, k), "constant") for x in "12"]
    s = [reduction("sum", (q,), binary("mul", read(a, i, q), read(w, j, q))) for w in ws]
    return case((i, j), c, (i, j), binary("mul", silu(s[0]), s[1]), a, *ws)


def rms_matmul(m: int, n: int, k: int) -> Case:
    """RMS norm of the rows inside the product."""
    i, j, q, p = axis_var("m", m), axis_var("n", n), axis_var("k", k), axis_var("p", k)
    a, g, w, c = (buffer("A", (m, k), "temp"), buffer("g", (k,), "constant"),
                  buffer("W", (n, k), "constant"), buffer("C", (m, n), "output"))  # fmt: skip
    x = read(a, i, p)
    mean = binary("mul", reduction("sum", (p,), binary("mul", x, x)), number(1 / k))
    scale = unary("recip", unary("sqrt", binary("add", mean, number(1e-5))))
    normal = binary("mul", binary("mul", read(a, i, q), scale), read(g, q))
    return case((i, j), c, (i, j), reduction("sum", (q,), binary("mul", normal, read(w, j, q))),
                a, g, w)  # fmt: skip


def softmax(n: ExprLike, k: ExprLike, online: bool = False) -> Case:
    i, j, p, q = axis_var("i", n), axis_var("j", k), axis_var("p", k), axis_var("q", k)
    x, y = buffer("X", (n, k), "input"), buffer("Y", (n, k), "output")

    def scaled(a: Var) -> Term:
        return binary("mul", read(x, i, a), number(LOG2E))

    top = reduction("rmax", (p,), scaled(p))
    if online:
        total = reduction("rsum", (q,), scaled(q), number(1.0))
    else:
        shifted = binary("add", scaled(q), binary("mul", top, number(-1.0)))
        total = reduction("sum", (q,), unary("exp2", shifted))
    mine = unary("exp2", binary("add", scaled(j), binary("mul", top, number(-1.0))))
    return case((i, j), y, (i, j), binary("mul", mine, unary("recip", total)), x)


def layernorm(n: ExprLike, k: int) -> Case:
    i, j, p, q = axis_var("i", n), axis_var("j", k), axis_var("p", k), axis_var("q", k)
    x, y = buffer("X", (n, k), "input"), buffer("Y", (n, k), "output")
    g, b = buffer("G", (k,), "constant"), buffer("B", (k,), "constant")
    mean = binary("mul", reduction("sum", (p,), read(x, i, p)), number(1 / k))
    minus = binary("mul", mean, number(-1.0))
    var = binary("mul", reduction("wsum", (q,), read(x, i, q)), number(1 / k))
    scale = unary("recip", unary("sqrt", binary("add", var, number(1e-5))))
    normal = binary("mul", binary("add", read(x, i, j), minus), scale)
    return case((i, j), y, (i, j), binary("add", binary("mul", normal, read(g, j)), read(b, j)),
                x, g, b)  # fmt: skip


def column_softmax(n: int, k: int, m: int) -> Case:
    """Over the middle axis of three: the rows are not contiguous, the columns are."""
    i, j, c, p, q = (axis_var(a, e) for a, e in zip("ijcpq", (n, k, m, k, k)))
    x, y = buffer("X", (n, k, m), "input"), buffer("Y", (n, k, m), "output")
    minus = binary("mul", reduction("rmax", (p,), read(x, i, p, c)), number(-1.0))
    total = reduction("sum", (q,), unary("exp2", binary("add", read(x, i, q, c), minus)))
    mine = unary("exp2", binary("add", read(x, i, j, c), minus))
    return case((i, j, c), y, (i, j, c), binary("mul", mine, unary("recip", total)), x)


def log_sum(n: int, k: int) -> Case:
    """A maximum inside a sum, both per row."""
    i, p, q = axis_var("i", n), axis_var("p", k), axis_var("q", k)
    x, y = buffer("X", (n, k), "input"), buffer("Y", (n,), "output")
    top = reduction("rmax", (p,), read(x, i, p))
    shifted = binary("add", read(x, i, q), binary("mul", top, number(-1.0)))
    return case((i,), y, (i,), reduction("sum", (q,), unary("exp2", shifted)), x)


def grouped(groups: int, size: int, kernel: int) -> Case:
    """A convolution without padding, 16 channels in and out of each group, in one axis."""
    o, y, x = (axis_var(a, e) for a, e in zip("oyx", (16 * groups, size, size)))
    c, ky, kx = axis_var("c", 16), axis_var("ky", kernel), axis_var("kx", kernel)
    whole = size + kernel - 1
    image = buffer("X", (16 * groups, whole, whole), "temp")
    weights = buffer("W", (16 * groups, 16, kernel, kernel), "constant")
    result = buffer("Y", (16 * groups, size, size), "temp")
    place = to_expr(o) // 16 * 16 + c
    value = read(image, place, to_expr(y) + ky, to_expr(x) + kx)
    total = reduction("sum", (c, ky, kx), binary("mul", value, read(weights, o, c, ky, kx)))
    return case((o, y, x), result, (o, y, x), total, image, weights)


def elementwise(*shape: ExprLike) -> Case:
    axes = tuple(axis_var(f"i{d}", n) for d, n in enumerate(shape))
    x, y = buffer("X", shape, "input"), buffer("Y", shape, "output")
    return case(axes, y, axes, silu(read(x, *axes)), x)


def transpose(n: int, k: int) -> Case:
    i, j = axis_var("i", n), axis_var("j", k)
    x, y = buffer("X", (k, n), "input"), buffer("Y", (n, k), "output")
    return case((i, j), y, (i, j), read(x, j, i), x)


def reduce(n: int, k: int, axis: int, op: str = "sum") -> Case:
    i, p = axis_var("i", k if axis == 0 else n), axis_var("p", n if axis == 0 else k)
    x, y = buffer("X", (n, k), "input"), buffer("Y", (i.hi + 1,), "output")
    body = read(x, p, i) if axis == 0 else read(x, i, p)
    return case((i,), y, (i,), reduction(op, (p,), body), x)


def reduce_all(n: int, k: int) -> Case:
    i, p, q = axis_var("i", 1), axis_var("p", n), axis_var("q", k)
    x, y = buffer("X", (n, k), "input"), buffer("Y", (1,), "output")
    return case((i,), y, (i,), reduction("sum", (p, q), read(x, p, q)), x)


def convolution(channels: int, filters: int, size: int, kernel: int, stride: int = 1,
                depthwise: bool = False, kind: str = "temp") -> Case:  # fmt: skip
    """NCHW with zero padding kernel // 2, batch 1, bias and relu."""
    pad, out = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
    b, o, y, x = (axis_var(n, e) for n, e in zip("boyx", (1, filters, out, out)))
    c, ky, kx = axis_var("c", channels), axis_var("ky", kernel), axis_var("kx", kernel)
    image = buffer("X", (1, channels, size, size), kind)
    weights = buffer("W", (filters, 1 if depthwise else channels, kernel, kernel), "constant")
    bias, result = buffer("bias", (filters,), "constant"), buffer("Y", (1, filters, out, out), kind)
    row, column = to_expr(y) * stride + ky - pad, to_expr(x) * stride + kx - pad
    value = read(image, b, o if depthwise else c, row, column)
    for e in (row, size - 1 - row, column, size - 1 - column) if pad else ():
        value = select(cond(e), value, number(0.0))
    product = binary("mul", value, read(weights, o, 0 if depthwise else c, ky, kx))
    total = reduction("sum", (ky, kx) if depthwise else (c, ky, kx), product)
    value = binary("max", binary("add", total, read(bias, o)), number(0.0))
    return case((b, o, y, x), result, (b, o, y, x), value, image, weights, bias)


def max_pool(channels: int, size: int) -> Case:
    out = size // 2
    c, y, x = (axis_var(n, e) for n, e in zip("cyx", (channels, out, out)))
    ky, kx = axis_var("ky", 3), axis_var("kx", 3)
    image, result = (
        buffer("X", (channels, size + 2, size + 2), "temp"),
        buffer("Y", (channels, out, out), "output"),
    )
    body = read(image, c, to_expr(y) * 2 + ky, to_expr(x) * 2 + kx)
    return case((c, y, x), result, (c, y, x), reduction("rmax", (ky, kx), body), image)


def attention(heads: int, queries: ExprLike, keys: ExprLike, width: int, causal: bool = False,
              group: int = 1) -> Case:  # fmt: skip
    b, h, q, e = (axis_var(n, x) for n, x in zip("bhqe", (1, heads, queries, width)))
    j, d = axis_var("j", keys), axis_var("d", width)
    a = buffer("Q", (1, heads, queries, width), "input")
    o = buffer("O", (1, heads, queries, width), "output")
    k, v = (buffer(n, (1, heads // group, keys, width), "input") for n in "KV")
    hk = to_expr(h) // group
    x = reduction("sum", (d,), binary("mul", read(a, b, h, q, d), read(k, b, hk, j, d)))
    x = binary("mul", x, number(LOG2E / width**0.5))
    if causal:
        x = select(cond(to_expr(q) - j), x, number(float("-inf")))
    top = reduction("rsum", (j,), x, read(v, b, hk, j, e))
    total = unary("recip", reduction("rsum", (j,), x, number(1.0)))
    return case((b, h, q, e), o, (b, h, q, e), binary("mul", top, total), a, k, v)


def gather(tokens: ExprLike, vocabulary: int, width: int) -> Case:
    t, d = axis_var("t", tokens), axis_var("d", width)
    ids, table = (
        buffer("ids", (tokens,), "input", i64),
        buffer("E", (vocabulary, width), "constant"),
    )
    y = buffer("Y", (tokens, width), "output")
    row = data(read(ids, t), to_expr(vocabulary))
    return case((t, d), y, (t, d), read(table, row, d), ids, table)


def scatter(tokens: int, rows: int, width: int) -> Case:
    t, d = axis_var("t", tokens), axis_var("d", width)
    ids, x = buffer("ids", (tokens,), "input", i64), buffer("X", (tokens, width), "input")
    y = buffer("Y", (rows, width), "output")
    row = data(read(ids, t), to_expr(rows))
    return case((t, d), y, (row, d), read(x, t, d), ids, x, ordered=("t",))


def quantised(m: int, n: int, k: int, nested: bool = True) -> Case:
    """Blocks of 32 signed bytes with a scale each."""
    i, j = axis_var("m", m), axis_var("n", n)
    kb, ki, q = axis_var("kb", k // 32), axis_var("ki", 32), axis_var("k", k)
    weights = buffer("Q", (n, k), "constant", i8)
    scales = buffer("S", (n, k // 32), "constant")
    x, y = buffer("X", (m, k), "temp"), buffer("Y", (m, n), "output")
    if nested:
        place = to_expr(kb) * 32 + ki
        inner = binary("mul", cast(read(weights, j, place), f32), read(x, i, place))
        body = binary("mul", read(scales, j, kb), reduction("sum", (ki,), inner))
        total = reduction("sum", (kb,), body)
    else:
        w = binary("mul", cast(read(weights, j, q), f32), read(scales, j, to_expr(q) // 32))
        total = reduction("sum", (q,), binary("mul", w, read(x, i, q)))
    return case((i, j), y, (i, j), total, weights, scales, x)


def byte_dots(m: ExprLike, n: int, k: int, weights: DType = i8) -> Case:
    """Blocks of 32 on both sides, their products summed as integers."""
    i, j = axis_var("m", m), axis_var("n", n)
    kb, ki = axis_var("kb", k // 32), axis_var("ki", 32)
    w, x = buffer("Q", (n, k), "constant", weights), buffer("X", (m, k), "temp", i8)
    s, d = buffer("S", (n, k // 32), "constant"), buffer("D", (m, k // 32), "temp")
    y, place = buffer("Y", (m, n), "output"), to_expr(kb) * 32 + ki
    raw = load(w.name, sizes(j, place), w.dtype)
    inner = reduction("sum", (ki,), binary("mul", cast(raw, i32), cast(read(x, i, place), i32)))
    scale = binary("mul", read(s, j, kb), read(d, i, kb))
    total = reduction("sum", (kb,), binary("mul", scale, cast(inner, f32)))
    return case((i, j), y, (i, j), total, w, s, x, d)


def compare(n: int, k: int) -> Case:
    i, j = axis_var("i", n), axis_var("j", k)
    x, y = buffer("X", (n, k), "input"), buffer("Y", (n, k), "output", boolean)
    return case((i, j), y, (i, j), binary("lt", read(x, i, j), number(0.0)), x)


SEQUENCE = dim("s", 1, 4096)
ZOO: dict[str, Case] = {
    "matmul": matmul(256, 1024, 1024),
    "matmul 1": matmul(1, 1024, 1024),
    "matmul 4": matmul(4, 1024, 1024),
    "matmul big": matmul(1024, 4096, 4096),
    "matmul narrow": matmul(4096, 10, 64),
    "linear": matmul(256, 1024, 1024, transposed=True),
    "linear input": matmul(256, 1024, 1024, "input", transposed=True),
    "linear input 1": matmul(1, 1024, 1024, "input", transposed=True),
    "matmul input": matmul(256, 1024, 1024, "input"),
    "matmul symbolic": matmul(SEQUENCE, 1024, 1024),
    "odd": matmul(13, 70, 67),
    "batched": batched(8, 96, 80, 64),
    "batch of one": batched(1, 130, 80, 64),
    "unbounded": batched(2, dim("u"), 40, dim("v")),
    "gate": gate(64, 4096, 1024),
    "rms matmul": rms_matmul(64, 1024, 1024),
    "softmax": softmax(2048, 2048),
    "softmax rsum": softmax(128, 1000, online=True),
    "softmax symbolic": softmax(SEQUENCE, SEQUENCE),
    "softmax of columns": column_softmax(4, 50, 40),
    "maximum in a sum": log_sum(40, 100),
    "layernorm": layernorm(2048, 2048),
    "layernorm symbolic": layernorm(SEQUENCE, 384),
    "elementwise": elementwise(2048, 2048),
    "elementwise 1d": elementwise(1 << 20),
    "elementwise small": elementwise(3, 5, 7),
    "elementwise symbolic": elementwise(SEQUENCE, 64),
    "transpose": transpose(2048, 2048),
    "column sum": reduce(2048, 2048, 0),
    "row sum": reduce(2048, 2048, 1),
    "row max": reduce(2048, 1000, 1, "rmax"),
    "sum all": reduce_all(2048, 2048),
    "conv 3x3": convolution(64, 64, 56, 3),
    "conv 7": convolution(512, 512, 7, 3),
    "conv stem": convolution(3, 64, 224, 7, 2, kind="input"),
    "conv 1x1": convolution(64, 256, 56, 1),
    "depthwise": convolution(32, 32, 112, 3, depthwise=True),
    "grouped": grouped(4, 28, 3),
    "max pool": max_pool(64, 112),
    "attention": attention(8, 1024, 1024, 64),
    "attention causal": attention(8, 1000, 1000, 64, causal=True),
    "attention symbolic": attention(8, SEQUENCE, SEQUENCE, 64, causal=True),
    "attention decode": attention(8, 1, SEQUENCE, 64, group=4),
    "gather": gather(512, 32000, 1024),
    "scatter": scatter(64, 512, 256),
    "quantised 1": quantised(1, 4096, 4096),
    "quantised 64": quantised(64, 4096, 4096, nested=False),
    "compare": compare(64, 100),
    "byte dots 1": byte_dots(1, 4096, 4096),
    "byte dots 64": byte_dots(64, 1024, 1024, u4),
    "byte dots symbolic": byte_dots(SEQUENCE, 256, 256),
}  # fmt: skip
