"""Accuracy of the polynomial functions of the LLVM printer, against NumPy in higher precision."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from luminal.codegen.loopir import Function, Let, Load, Store, Value
from luminal.ir import dtype as dt
from tests.llvm_kernels import build, for_range, function, i64, runnable

VARIANTS = [*runnable()]
REAL = {"exp2": np.exp2, "log2": np.log2, "sin": np.sin}


def stream(op: str, dtype: dt.DType, lanes: int) -> Function:
    """out[i] = op(a[i]) for i < lanes * n."""
    i = Value("i", dt.i64)
    at, x, y = Value("at", dt.i64), Value("x", dtype, lanes), Value("y", dtype, lanes)
    body = [
        Let(at, "mul", (i, i64(lanes))),
        Load(x, "a", dtype, at),
        Let(y, op, (x,)),
        Store("out", dtype, at, y),
    ]
    return function([for_range(i, Value("n", dt.i64), body)], ("a", "out"), ("n",))


def run(op: str, x: np.ndarray, target: str, lanes: int = 16) -> np.ndarray:
    """op of every element (the length is a multiple of lanes)."""
    dtype = dt.f32 if x.dtype == np.float32 else dt.f64
    out = np.empty_like(x)
    build(stream(op, dtype, lanes), target)(x, out, dims=(len(x) // lanes,))
    return out


def max_ulp(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest error in units of the last place of the right result."""
    with np.errstate(all="ignore"):
        spacing = np.spacing(np.abs(exact).astype(got.dtype)).astype(exact.dtype)
        return float(np.max(np.abs(got.astype(exact.dtype) - exact) / spacing))


def random(lo: float, hi: float, dtype: type, count: int = 1 << 16) -> np.ndarray:
    """Uniform arguments."""
    return np.random.default_rng(7).uniform(lo, hi, count).astype(dtype)


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize(
    ("op", "lo", "hi", "limit"),
    [
        ("exp2", -126, 128, 2.5), ("exp2", -0.01, 0.01, 1.5), ("exp2", -150, -120, 2.5),
        ("log2", 1e-38, 1e38, 2.0), ("log2", 0.5, 2, 3.0), ("log2", 0.99, 1.01, 3.0),
        ("sin", -4, 4, 2.5), ("sin", -2.4e4, 2.4e4, 2.5), ("sin", -1e8, 1e8, 1.0),
    ],
)  # fmt: skip
def test_f32_accuracy(op: str, lo: float, hi: float, limit: float, target: str) -> None:
    x = random(lo, hi, np.float32)
    error = max_ulp(run(op, x, target), REAL[op](x.astype(np.float64)))
    print(f"{target} f32 {op} [{lo}, {hi}]: {error:.2f} ulp")
    assert error <= limit


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize(
    ("op", "lo", "hi"),
    [
        ("exp2", -1022, 1024), ("exp2", -1, 1), ("log2", 0.5, 2), ("log2", 1e-300, 1e300),
        ("sin", -4, 4), ("sin", -1e5, 1e5), ("sin", -1e8, 1e8),
    ],
)  # fmt: skip
def test_f64_accuracy(op: str, lo: float, hi: float, target: str) -> None:
    x = random(lo, hi, np.float64, 1 << 12)
    error = max_ulp(run(op, x, target), REAL[op](x.astype(np.longdouble)))
    print(f"{target} f64 {op} [{lo}, {hi}]: {error:.2f} ulp")
    assert error <= 4.0


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", ["exp2", "log2", "sin"])
@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_special_arguments(op: str, dtype: type, lanes: int, target: str) -> None:
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    edge = 128 if dtype == np.float32 else 1024
    least = -149 if dtype == np.float32 else -1074
    special = [
        0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, huge, -huge, edge, -edge,
        edge - 0.25, least, least - 0.9, least - 1.5, least - 10, 1e6, -1e30, 2.0**-126, 8.0,
    ]  # fmt: skip
    special += [np.finfo(dtype).tiny, np.finfo(dtype).tiny * 0.75, 0.5]
    special += [1.0] * (-len(special) % 48)
    x = np.array(special, dtype)
    got = run(op, x, target, lanes)
    with np.errstate(all="ignore"):
        exact = REAL[op](x.astype(np.float64 if dtype == np.float32 else np.longdouble))
        wanted = exact.astype(dtype)
    np.testing.assert_allclose(got, wanted, rtol=4 * np.finfo(dtype).eps, atol=float(tiny))


def test_sine_of_large_arguments_against_mpmath() -> None:
    x = np.array([1e5, 1.2e8, 1.4e8, -3e9, 1e15, 1e20, -2.5e37, 355.0] * 2, np.float32)
    for target in VARIANTS:
        got = run("sin", x, target)
        with mpmath.workdps(80):
            exact = [float(mpmath.sin(mpmath.mpf(float(v)))) for v in x]
        assert np.max(np.abs(got - exact)) < 1e-7


def test_exp2_and_log2_are_exact_at_integers() -> None:
    n = np.arange(-160, 160, dtype=np.float32)
    whole = n[16:-32]
    power = np.ldexp(np.float32(1), whole.astype(int))
    for target in VARIANTS:
        with np.errstate(over="ignore"):
            assert np.array_equal(run("exp2", n, target), np.ldexp(np.float32(1), n.astype(int)))
            assert np.array_equal(run("log2", power, target), whole)
