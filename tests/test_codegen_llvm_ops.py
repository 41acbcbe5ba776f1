"""Every operation of loop IR against NumPy, on every variant of x86-64 that this CPU runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import OPS, Function, Let, Load, Statement, Store, Value
from luminal.ir import dtype as dt
from luminal.runtime.cpu import compile_object
from tests.llvm_kernels import TARGETS, build, function, i64, runnable

FLOATS = (dt.f32, dt.f64)
INTS = (dt.i64, dt.i32, dt.i16, dt.i8, dt.u8)
COMPUTING = (*FLOATS, *INTS, dt.boolean)
LANES = (1, 3, 4, 16)


@dataclass
class Case:
    """One operation, its inputs and what it must give."""

    op: str
    inputs: list[np.ndarray]
    dtypes: tuple[dt.DType, ...]
    result: dt.DType
    wanted: np.ndarray
    attr: tuple[int, ...] = ()
    exact: bool = True
    out: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.out = np.zeros(self.wanted.shape, self.result.np)


def batch(cases: list[Case], name: str = "kernel") -> Function:
    """All cases in one kernel."""
    body: list[Statement] = []
    names = []
    for number, case in enumerate(cases):
        args = []
        for i, (array, dtype) in enumerate(zip(case.inputs, case.dtypes, strict=True)):
            value = Value(f"x{number}_{i}", dtype, array.size)
            names.append(f"a{number}_{i}")
            body.append(Load(value, names[-1], dtype, i64(0)))
            args.append(value)
        result = Value(f"r{number}", case.result, case.wanted.size)
        names.append(f"out{number}")
        body += [
            Let(result, case.op, tuple(args), case.attr),
            Store(names[-1], case.result, i64(0), result),
        ]
    return function(body, tuple(names), name=name)


def check(cases: list[Case], target: str) -> None:
    """Runs the cases and compares."""
    arrays = [a for case in cases for a in (*case.inputs, case.out)]
    build(batch(cases), target)(*arrays)
    for case in cases:
        text = f"{case.op} {case.dtypes} {case.wanted.size} {target} {case.inputs}"
        if case.exact:
            np.testing.assert_array_equal(case.out, case.wanted, text)
        else:
            np.testing.assert_allclose(case.out, case.wanted, rtol=1e-6, err_msg=text)


def values(dtype: dt.DType, lanes: int, seed: int) -> np.ndarray:
    """Arguments with the awkward ones among them."""
    rng = np.random.default_rng(seed * 100 + lanes)
    if dtype.kind == "b":
        return rng.integers(0, 2, lanes).astype(bool)
    if dtype.is_float:
        pool = [0.0, -0.0, 1.5, -2.25, np.nan, np.inf, -np.inf, 1e30, -3.0, 7.0, 0.1]
        picked = rng.choice(pool, lanes)
        return np.where(rng.random(lanes) < 0.6, rng.normal(0, 10, lanes), picked).astype(dtype.np)
    info = np.iinfo(dtype.np)
    pool = [info.min, info.max, 0, 1, info.min + 1, 2, 3, info.max - 1, 0]
    pool += [] if dtype.kind == "u" else [-1, -1, -2, -7]
    wide = rng.integers(info.min, info.max, lanes, dtype=dtype.np, endpoint=True)
    return np.where(rng.random(lanes) < 0.5, wide, rng.choice(pool, lanes)).astype(dtype.np)


def _int_mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows = [0 if y == 0 else int(np.sign(x)) * (abs(int(x)) % abs(int(y))) for x, y in zip(a, b)]
    return np.array(rows, a.dtype)


def _modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.zeros_like(a) if a.dtype.kind == "b" else _int_mod(a, b)


def binary_cases(lanes: int) -> list[Case]:
    """Arithmetic and comparisons of two operands."""
    cases = []
    for seed in range(3):
        for dtype in COMPUTING:
            a, b = values(dtype, lanes, seed), values(dtype, lanes, seed + 10)
            c = values(dt.boolean, lanes, seed)
            table = {"add": a + b, "mul": a * b, "mod": _modulo(a, b)}
            if dtype.kind == "b":
                table |= {"and": a & b, "or": a | b}
            else:
                table |= {"sub": a - b, "max": np.maximum(a, b)}
            if dtype.is_int:
                table["min"] = np.minimum(a, b)
            if dtype.is_float:
                table["div"] = a / b
            kinds = (dtype, dtype)
            cases += [Case(op, [a, b], kinds, dtype, wanted) for op, wanted in table.items()]
            for op, wanted in {"lt": a < b, "le": a <= b, "eq": a == b}.items():
                cases.append(Case(op, [a, b], kinds, dt.boolean, wanted))
            wanted = np.where(c, a, b)
            cases.append(Case("select", [c, a, b], (dt.boolean, *kinds), dtype, wanted))
    return cases


def division_cases(lanes: int) -> list[Case]:
    """Index arithmetic."""
    cases = []
    rng = np.random.default_rng(lanes)
    for dtype in (dt.i64, dt.i32):
        a = rng.integers(-1000, 1000, lanes).astype(dtype.np)
        b = rng.integers(1, 40, lanes).astype(dtype.np)
        kinds = (dtype, dtype)
        for op, wanted in {"floordiv": a // b, "floormod": a % b}.items():
            cases.append(Case(op, [a, b], kinds, dtype, wanted))
        a = abs(a)
        for op, wanted in {"udiv": a // b, "urem": a % b}.items():
            cases.append(Case(op, [a, b], kinds, dtype, wanted))
    return cases


def unary_cases(lanes: int) -> list[Case]:
    """sqrt, recip, fma, not and the ops on lanes."""
    cases = []
    flags = values(dt.boolean, lanes, 5)
    cases.append(Case("not", [flags], (dt.boolean,), dt.boolean, ~flags))
    for dtype in FLOATS:
        a, b, c = (values(dtype, lanes, s) for s in (1, 2, 3))
        b, c = np.nan_to_num(b, posinf=2, neginf=3), np.ones_like(c)
        cases.append(Case("sqrt", [a], (dtype,), dtype, np.sqrt(a)))
        cases.append(Case("recip", [a], (dtype,), dtype, 1 / a))
        cases.append(Case("fma", [a, b, c], (dtype,) * 3, dtype, a * b + c, exact=False))
    for dtype in COMPUTING:
        a = values(dtype, lanes, 4)
        one = a[:1]
        count = np.arange(lanes).astype(dtype.np)
        cases.append(Case("splat", [one], (dtype,), dtype, np.repeat(one, lanes)))
        order = tuple(int(i) for i in np.random.default_rng(3).integers(0, 2 * lanes, 2 * lanes))
        both = np.concatenate([a, a[::-1]])
        cases.append(
            Case("shuffle", [a, a[::-1].copy()], (dtype,) * 2, dtype, both[list(order)], order)
        )
        if dtype.kind != "b":
            cases.append(Case("lanes", [], (), dtype, count))
        total = np.any(a) if dtype.kind == "b" else np.sum(a, dtype=a.dtype)
        cases.append(
            Case("reduce_add", [a], (dtype,), dtype, np.array([total], a.dtype),
                 exact=not dtype.is_float)
        )  # fmt: skip
        cases.append(Case("reduce_max", [a], (dtype,), dtype, np.max(a, keepdims=True)))
    return cases


def dot_cases(lanes: int) -> list[Case]:
    """All of -128, -127, 127, 0 and 255 meet."""
    cases = []
    rng = np.random.default_rng(lanes)
    for dtype in (dt.i8, dt.u8):
        for extreme in (False, True):
            info = np.iinfo(dtype.np)
            a = rng.integers(info.min, info.max, 4 * lanes, dtype=dtype.np, endpoint=True)
            b = rng.integers(-128, 127, 4 * lanes, dtype=np.int8, endpoint=True)
            if extreme:
                a, b = np.full_like(a, info.max if dtype is dt.u8 else -128), np.full_like(b, -128)
            c = rng.integers(-1000, 1000, lanes).astype(np.int32)
            sums = (a.astype(np.int32) * b).reshape(lanes, 4).sum(1).astype(np.int32)
            cases.append(Case("dot4", [a, b, c], (dtype, dt.i8, dt.i32), dt.i32, c + sums))
    return cases


def field_cases(lanes: int) -> list[Case]:
    """Bits from the first to the last, of words with all kinds of neighbours."""
    cases = []
    a = np.random.default_rng(lanes).integers(-(1 << 31), (1 << 31) - 1, lanes).astype(np.int32)
    for at, count in ((0, 4), (4, 4), (12, 4), (28, 4), (0, 8), (24, 8), (6, 2)):
        for signed in (0, 1):
            bits = a.astype(np.int64) >> at & (1 << count) - 1
            bits = np.where(signed and bits >> count - 1, bits - (1 << count), bits)
            for dtype in (dt.f32, dt.i32, dt.f64):
                wanted, attr = bits.astype(dtype.np), (at, count, signed)
                cases.append(Case("field", [a], (dt.i32,), dtype, wanted, attr))
    return cases


GROUPS = (binary_cases, division_cases, unary_cases, dot_cases, field_cases)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operations(group, lanes: int, target: str) -> None:
    check(group(lanes), target)


@pytest.mark.parametrize("target", ["aarch64", "apple"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operation_compiles_for_arm(target: str) -> None:
    cases = [case for lanes in (1, 16) for group in GROUPS for case in group(lanes)[:80]]
    numbers = values(dt.f32, 16, 1)
    cases += [
        Case(op, [x], (dtype,), dtype, x)
        for op in ("exp2", "log2", "sin")
        for dtype, x in ((dt.f32, numbers), (dt.f64, numbers.astype(np.float64)))
    ]
    cases += [
        Case("cast", [numbers.astype(a.np)], (a,), b, numbers.astype(b.np))
        for a in (*COMPUTING, dt.f16, dt.bf16) for b in (*COMPUTING, dt.f16, dt.bf16)
    ]  # fmt: skip
    of_gpu_threads = {"lane_add", "lane_max", "mma"}
    assert {case.op for case in cases} == set(OPS) - of_gpu_threads
    for start in range(0, len(cases), 25):
        kernel = batch(cases[start : start + 25])
        assert compile_object(print_function(kernel, TARGETS[target]), TARGETS[target])


@pytest.mark.parametrize("target", [*runnable(), "aarch64"])
@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_dot_products_with_nibbles(lanes: int, target: str) -> None:
    rng = np.random.default_rng(lanes)
    packed = rng.integers(0, 256, 2 * lanes).astype(np.uint8)
    packed[0] = 255
    other = rng.integers(-128, 127, 4 * lanes, dtype=np.int8, endpoint=True)
    other[:4] = -128
    a, b = Value("a", dt.i8, 4 * lanes), Value("b", dt.i8, 4 * lanes)
    c, out = Value("c", dt.i32, lanes), np.zeros(lanes, np.int32)
    body: list[Statement] = [
        Load(a, "q", dt.u4, i64(0)), Load(b, "x", dt.i8, i64(0)), Load(c, "out", dt.i32, i64(0)),
        Let(Value("r", dt.i32, lanes), "dot4", (a, b, c), (1,)),
        Store("out", dt.i32, i64(0), Value("r", dt.i32, lanes)),
    ]  # fmt: skip
    kernel = function(body, ("q", "x", "out"))
    if target not in runnable():
        assert compile_object(print_function(kernel, TARGETS[target]), TARGETS[target])
        return
    build(kernel, target)(packed, other, out)
    nibbles = np.stack([packed & 15, packed >> 4], 1).reshape(-1).astype(np.int32)
    np.testing.assert_array_equal(out, (nibbles * other).reshape(lanes, 4).sum(1))
