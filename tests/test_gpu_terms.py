"""Every term and dtype as CUDA and MSL text, run by the emulator and compared with the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from luminal.errors import DTypeError
from luminal.ir import dtype as dt
from luminal.ir.expr import const, dim, to_expr
from luminal.ir.plan import Kernel, Store
from luminal.ir.term import binary, cast, cond, constant, index, reduction, select, unary
from tests.codegen_case import Case, parse
from tests.gpu_case import EMULATED, check, code_of, needs_compiler

pytestmark = needs_compiler
COMPUTING = [dt.f64, dt.f32, dt.f16, dt.bf16, dt.i64, dt.i32, dt.i16, dt.i8, dt.u8, dt.boolean]
STORAGE = [dt.f8e4m3, dt.f8e5m2, dt.u4, dt.i4, dt.f4e2m1, dt.e8m0]
ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38, 70000.0, 127.5,
                -128.5, 255.0, 256.0, -0.9, 2147483648.0, -2147483648.0, 9.3e18, -9.3e18,
                0.3])  # fmt: skip
EXTREMES = (-128, -1, 0, 1, 127)
kinds = pytest.mark.parametrize("kind", EMULATED)
N = 45


def with_metal(kind: str, *dtypes) -> bool:
    return kind != "metal" or dt.f64 not in dtypes


def values(dtype: dt.DType) -> np.ndarray | None:
    """Contents with every special value that the dtype has."""
    if dtype.storage or dtype == dt.boolean:
        return None
    if dtype.is_float:
        wide = np.concatenate([ODD, np.linspace(-9, 9, N - ODD.size)])
        with np.errstate(over="ignore"):
            if dtype == dt.bf16:
                return (wide.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            return wide.astype(dtype.np)
    info = np.iinfo(dtype.np)
    special = [info.min, info.max, info.min + 1, 0, 1, *(c for c in EXTREMES if c >= info.min)]
    return np.resize(np.array(special, dtype.np), N)


def many(case: Case, inputs: tuple[str, ...], made: dict[str, object], text: str) -> Kernel:
    """One kernel that stores a value into a buffer for each of `made`."""
    i = case.axis("i", N)
    stores = []
    for name, value in made.items():
        term = value(*(case.load(n, i) for n in inputs), i)
        case.buffer(name, (N,), term.dtype, np.zeros(N))
        stores.append(Store(name, (to_expr(i),), term))
    return Kernel("k", (i,), tuple(stores), parse(text))


@kinds
@pytest.mark.parametrize("dtype", COMPUTING, ids=lambda d: d.name)
def test_operations(dtype, kind):
    case = Case()
    first = values(dtype)
    case.buffer("x", (N,), dtype, first)
    case.buffer("y", (N,), dtype, None if first is None else np.roll(first, 7))
    made = {f"{op}_": lambda x, y, i, op=op: binary(op, x, y) for op in ("add", "mul", "max", "lt")}
    if dtype != dt.boolean:
        made["mod_"] = lambda x, y, i: binary("mod", x, y)
    if dtype.is_float:
        made |= {f"{op}_": lambda x, y, i, op=op: unary(op, x)
                 for op in ("exp2", "log2", "sqrt", "recip")}  # fmt: skip
    made["select_"] = lambda x, y, i: select(cond(to_expr(i) - 20), x, y)
    kernel = many(case, ("x", "y"), made, "i:1l32")
    if with_metal(kind, dtype):
        check(case, kernel, kind, rtol=1e-2 if dtype in (dt.f16, dt.bf16) else 3e-6, atol=0)
    else:
        with pytest.raises(DTypeError, match=r"\[metal\].*64-bit floats. Got f64; expected f32"):
            code_of(case, kernel, kind)


@kinds
@pytest.mark.parametrize("dtype", [dt.f64, dt.f32, dt.f16], ids=lambda d: d.name)
def test_sine(dtype, kind):
    if with_metal(kind, dtype):
        case = Case()
        case.buffer("x", (N,), dtype, np.linspace(-300, 300, N))
        kernel = many(case, ("x",), {"sin_": lambda x, i: unary("sin", x)}, "i:1l32")
        check(case, kernel, kind, rtol=1e-3 if dtype == dt.f16 else 1e-5, atol=1e-6)


@kinds
@pytest.mark.parametrize("source", [*COMPUTING, *STORAGE], ids=lambda d: d.name)
def test_casts(source, kind):
    case = Case()
    data = values(source)
    if source.storage:
        data = np.arange(256 if source.bits == 8 else 128).astype(np.uint8)
        data = np.resize(data, N if source.bits == 8 else (N + 1) // 2)
    case.buffer("x", (N,) if source.bits > 4 else (N + 1,), source, data)
    targets = [d for d in COMPUTING if d != source and with_metal(kind, d)]
    if source.storage:
        targets = [dt.f32] if source.is_float else [dt.i8, dt.f32]
    made = {f"to_{d.name}": lambda x, i, d=d: cast(x, d) for d in targets}
    kernel = many(case, ("x",), made, "i:1l32")
    if with_metal(kind, source):
        check(case, kernel, kind, rtol=0, atol=0)


@kinds
@pytest.mark.parametrize("dtype", COMPUTING, ids=lambda d: d.name)
def test_reductions_over_lanes(dtype, kind):
    """A thread, part of a warp, a warp or a block for each row."""
    if not with_metal(kind, dtype):
        return
    every = ("i:1l32", "i:1l8 k:1l8", "i:1l2 k:2l32 / k:1u", "k:1l128")
    for text in every if dtype == dt.f32 else every[-1:]:
        case = Case()
        i, k = case.axis("i", 11), case.axis("k", 150)
        case.buffer("x", (11, 150), dtype)
        stores = []
        for op in ("sum", "rmax"):
            case.buffer(op, (11,), dtype)
            stores.append(Store(op, (to_expr(i),), reduction(op, (k,), case.load("x", i, k))))
        kernel = Kernel("k", (i,), tuple(stores), parse(text))
        check(case, kernel, kind, rtol=2e-2 if dtype in (dt.f16, dt.bf16) else 2e-5)


@kinds
def test_maximum_of_lanes_keeps_nan(kind):
    case = Case()
    i, k = case.axis("i", 3), case.axis("k", 40)
    data = np.ones((3, 40), np.float32)
    data[1, 17] = np.nan
    case.buffer("x", (3, 40), dt.f32, data)
    case.buffer("z", (3,), dt.f32)
    value = reduction("rmax", (k,), case.load("x", i, k))
    check(case, case.kernel((i,), "z", (i,), value, parse("i:1 k:1l32")), kind)


@kinds
@pytest.mark.parametrize("text", ["", "g:i:1 j:1l32", "g:i:4 g:j:32 i:1l4 j:2l16 / j:1v",
                                  "g:j:64 i:2 j:1l64 / i:1u"])  # fmt: skip
def test_sizes_that_divide_nothing(text, kind):
    for n, m in ((5, 37), (1, 1), (0, 3), (9, 64)):
        case = Case()
        case.dims = {"n": n, "m": m}
        i, j = case.axis("i", dim("n", 0, 100)), case.axis("j", dim("m", 0, 1000))
        case.buffer("x", (dim("n", 0, 100), dim("m", 0, 1000)))
        case.buffer("z", (dim("n", 0, 100), dim("m", 0, 1000)))
        value = binary("add", case.load("x", i, j), cast(index(to_expr(i) * 1000 + j), dt.f32))
        check(case, case.kernel((i, j), "z", (i, j), value, parse(text) if text else None), kind)


@kinds
def test_an_empty_sum_is_zero(kind):
    case = Case()
    i, k = case.axis("i", 5), case.axis("k", const(0))
    case.buffer("x", (5, 0))
    case.buffer("z", (5,))
    value = binary("add", reduction("sum", (k,), case.load("x", i, k)), constant(2.0, dt.f32))
    check(case, case.kernel((i,), "z", (i,), value, parse("i:1l32")), kind)
