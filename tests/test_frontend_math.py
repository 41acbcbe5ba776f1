"""Elementwise operations against PyTorch: values, dtypes, NaN, infinities, signed zeros."""

import math

import pytest
import torch

import luminal.frontend.functional as F
from luminal.errors import DTypeError, ShapeError
from tests.frontend_harness import check, evaluate

INF, NAN = math.inf, math.nan
torch.manual_seed(0)
WIDE = torch.cat(
    [torch.randn(40) * 3, torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-6, -1e-6, 12.0])]
)
ROUNDING = torch.tensor(
    [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388607.5, 8388608.0, -8388609.0, 3e9, -1e20, 4.2, -4.2]
    + [INF, -INF, NAN, 0.0, -0.0]
)
POSITIVE = torch.cat([torch.rand(30) * 5, torch.tensor([0.0, 1.0, INF, NAN, 1e-30, 1e30])])
UNIT = torch.cat([torch.rand(40) * 2 - 1, torch.tensor([1.0, -1.0, 0.0, 1.5, NAN, 0.5, -0.5])])
INTS = torch.tensor([-7, -3, -1, 0, 1, 2, 5, 7, 100])
TF = torch.nn.functional

UNARY = {
    "abs": WIDE,
    "neg": WIDE,
    "sign": WIDE,
    "exp": WIDE,
    "exp2": WIDE,
    "expm1": WIDE,
    "tanh": WIDE,
    "sinh": WIDE,
    "cosh": WIDE,
    "sigmoid": WIDE,
    "erf": WIDE,
    "erfc": WIDE,
    "atan": WIDE,
    "asinh": WIDE,
    "square": WIDE,
    "isnan": WIDE,
    "isinf": WIDE,
    "isfinite": WIDE,
    "isposinf": WIDE,
    "isneginf": WIDE,
    "signbit": WIDE,
    "logical_not": WIDE,
    "nan_to_num": WIDE,
    "sin": WIDE,
    "cos": WIDE,
    "reciprocal": WIDE,
    "frac": ROUNDING[:13],
    "deg2rad": WIDE,
    "floor": ROUNDING,
    "trunc": ROUNDING,
    "round": ROUNDING,
    "log": POSITIVE,
    "log2": POSITIVE,
    "log10": POSITIVE,
    "sqrt": POSITIVE,
    "rsqrt": POSITIVE,
    "log1p": torch.cat([POSITIVE, UNIT]),
    "acosh": POSITIVE + 1,
    "asin": UNIT,
    "acos": UNIT,
    "atanh": UNIT,
    "logit": UNIT.abs(),
    "sinc": WIDE[:42],
    "tan": WIDE[:42],
}
ACTIVATIONS = [
    "relu",
    "relu6",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "softsign",
    "tanhshrink",
    "hardtanh",
    "hardsigmoid",
    "hardswish",
    "hardshrink",
    "softshrink",
    "logsigmoid",
    "elu",
    "celu",
    "selu",
    "leaky_relu",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "fmod",
    "remainder",
    "floor_divide",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "atan2",
    "hypot",
    "copysign",
    "logaddexp",
    "xlogy",
    "pow",
    "logical_and",
    "logical_or",
    "logical_xor",
]
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, INF, -INF, NAN, 3.0, -3.0, 0.5, 1e10])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unary(name, dtype):
    x = UNARY[name].to(dtype)
    check(
        getattr(F, name),
        getattr(torch, name),
        x,
        rtol=2e-6 if dtype == torch.float32 else 1e-12,
        atol=1e-6 if dtype == torch.float32 else 1e-13,
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_activation(name, dtype):
    x = WIDE[torch.isfinite(WIDE)].to(dtype)
    check(getattr(F, name), getattr(TF, name), x)
    if name not in ("softshrink", "gelu") and dtype == torch.float32:
        x = torch.tensor([INF, NAN])
        check(getattr(F, name), getattr(TF, name), x)


def test_tanh_gelu():
    check(
        lambda x: F.gelu(x, approximate="tanh"), lambda x: TF.gelu(x, approximate="tanh"), WIDE[:40]
    )


def test_erf_is_accurate():
    x = torch.linspace(-5, 5, 4001)
    got = evaluate(F.erf, x)
    want = torch.erf(x.double())
    assert (got.double() - want).abs().max() < 2e-7
    got = evaluate(F.erf, x.double())
    assert (got - want).abs().max() < 1e-14


def test_gelu_is_accurate():
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-50.0, -1e4, -1e30, 1e30])])
    want = TF.gelu(x.double())
    assert ((evaluate(F.gelu, x).double() - want).abs() <= 2e-7 * x.abs().clamp(0, 4)).all()


def test_cos_of_large_arguments():
    x = torch.arange(0, 5000, 3.7)
    assert (evaluate(F.cos, x).double() - torch.cos(x.double())).abs().max() < 1e-6


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_special_values(name, dtype):
    x = SPECIAL.to(dtype)
    if name == "pow":
        x = x[x != -1.0]
    check(getattr(F, name), getattr(torch, name), x[:, None], x[None, :])


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integer_division(name, dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    near = torch.tensor(
        [low, low + 1, low + 2, high, high - 1, high // 2, high // 3, 1, 2, 3, 7, -1]
    )
    rows = torch.cat([near, torch.tensor([0, -2, -3, -7, 10, 97, -high])]).to(dtype)
    more = torch.randint(low, high, (40,), dtype=torch.int64).to(dtype)
    a = torch.cat([rows, more])
    b = torch.cat([rows[rows != 0], more[more != 0][:20], (more // 1000)[more // 1000 != 0]])
    a, b = a[:, None].expand(-1, len(b)), b[None, :].expand(len(a), -1)
    ok = ~((a == low) & (b == -1)) if low < 0 else torch.ones_like(a, dtype=torch.bool)
    a, b = a[ok], b[ok]
    if name in ("floor", "trunc"):
        check(
            lambda x, y: F.div(x, y, rounding_mode=name),
            lambda x, y: torch.div(x, y, rounding_mode=name),
            a,
            b,
        )
    else:
        check(getattr(F, name), getattr(torch, name), a, b)


def test_division_by_zero_does_not_trap():
    x = torch.tensor([1, -1, 0, 5])
    evaluate(F.floor_divide, x, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name, dtype):
    if dtype == torch.bool:
        a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    else:
        info = torch.iinfo(dtype)
        a = torch.cat(
            [torch.randint(info.min, info.max, (20,)), torch.tensor([info.min, info.max, 0, 1])]
        )
        a, b = a.to(dtype), a.flip(0).to(dtype)
    check(getattr(F, name), getattr(torch, name), a, b)
    check(F.bitwise_not, torch.bitwise_not, a)


def test_bit_masks_and_shifts():
    x = torch.tensor([0, 1, -1, 77, -78, 2**62, -(2**63), 2**63 - 1])
    for n in (0, 1, 5, 31, 62, 63):
        check(lambda x, n=n: x >> n, lambda x, n=n: x >> n, x)
        check(lambda x, n=n: x << n, lambda x, n=n: x << n, x)
        y = torch.full_like(x, n)
        check(F.bitwise_right_shift, torch.bitwise_right_shift, x, y)
        check(F.bitwise_left_shift, torch.bitwise_left_shift, x, y)
    check(lambda x: x & 15, lambda x: x & 15, x)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("a", DTYPES)
def test_promotion(a):
    for b in DTYPES:
        for x, y in (
            (torch.ones(2), torch.ones(2)),
            (torch.ones(2), torch.ones(())),
            (torch.ones(()), torch.ones(3)),
        ):
            check(F.mul, torch.mul, x.to(a), y.to(b))
    for value in (2, 2.5, True):
        check(lambda x, v=value: x * v, lambda x, v=value: x * v, torch.ones(2).to(a))
        check(lambda x, v=value: x / v, lambda x, v=value: x / v, torch.ones(()).to(a))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, -1, -2, 0.5, -0.5, 1.7, 2.0, -1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_pow_constant(exponent, dtype):
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, INF, NAN, 7.0, 40.0])
    if dtype == torch.int64:
        x = INTS
        if exponent < 0:
            return
    check(lambda x: x**exponent, lambda x: x**exponent, x.to(dtype))


def test_pow_more():
    check(lambda x: 2**x, lambda x: 2**x, torch.tensor([1.5, -2.0, 0.0, 10.0]))
    check(F.pow, torch.pow, INTS[:, None], torch.tensor([0, 1, 2, 3, 10, 25, 63]))
    base = torch.tensor([10000.0])
    check(F.pow, torch.pow, base, torch.arange(0, 64, 2) / 64, rtol=3e-7, atol=0.0)


def test_whole_powers_in_double_precision_are_exact():
    """So that they can be cut to integers; signs, zeros and infinities are those of C's pow."""
    base, exponent = torch.arange(1, 30, dtype=torch.float64)[:, None], torch.arange(12.0).double()
    fits = base**exponent < 2**53
    check(lambda x, y, m: F.where(m, x**y, 0.0), lambda x, y, m: torch.where(m, x**y, 0.0),
          base, exponent, fits, rtol=0.0, atol=0.0)  # fmt: skip
    check(lambda x: 10.0**x, lambda x: 10.0**x, torch.arange(23.0).double(), rtol=0.0, atol=0.0)
    odd = torch.tensor([0.0, -0.0, INF, -INF, NAN, -2.0, -1.0, 1.0, 1e200, 1e-200]).double()
    whole = torch.tensor([0.0, -0.0, 1, -1, 2, -3, 31, -31, 32, 33, 0.5, INF, -INF, NAN]).double()
    check(F.pow, torch.pow, odd[:, None], whole, rtol=1e-13, atol=0.0)


def test_where_and_clamp():
    c = torch.tensor([[True], [False]])
    check(F.where, torch.where, c, torch.randn(3), torch.randn(2, 3), symbolic=True)
    check(F.where, torch.where, c, torch.arange(3), torch.randn(2, 3))
    check(
        lambda c, x: F.where(c, x, 0.0), lambda c, x: torch.where(c, x, 0.0), c, torch.randn(2, 3)
    )
    check(F.where, torch.where, c, c, ~c)
    check(lambda x: x.clamp(-1, 2), lambda x: x.clamp(-1, 2), WIDE)
    check(lambda x: x.clamp(min=2), lambda x: x.clamp(min=2), INTS)
    check(lambda x: x.clamp(max=2.5), lambda x: x.clamp(max=2.5), INTS)
    check(F.minimum, torch.minimum, INTS, INTS.flip(0))
    check(
        lambda x, m: x.masked_fill(m, -INF),
        lambda x, m: x.masked_fill(m, -INF),
        torch.randn(2, 3),
        c,
    )
    check(
        lambda x, m: x.masked_fill(m, 7),
        lambda x, m: x.masked_fill(m, 7),
        torch.ones(2, 3).short(),
        c,
    )


def test_operators_and_reflected():
    x = torch.tensor([1.5, -2.0, 4.0])
    for f in (
        lambda t: 1 - t,
        lambda t: 2 / t,
        lambda t: 7 // t,
        lambda t: 7 % t,
        lambda t: -t,
        lambda t: abs(t),
        lambda t: (t > 1) & (t < 5),
        lambda t: ~(t > 1),
        lambda t: t == 4,
        lambda t: (t != 4) | (t < 0),
        lambda t: t - 2 * t,
        lambda t: t.float() + t.double(),
    ):
        check(f, f, x)


def test_zero_size_and_scalars():
    check(F.add, torch.add, torch.ones(0, 3), torch.ones(3))
    check(F.where, torch.where, torch.ones(0).bool(), torch.ones(0), torch.zeros(0))
    check(F.maximum, torch.maximum, torch.ones(()), torch.tensor(NAN))
    check(F.gelu, TF.gelu, torch.ones(2, 0))


def test_casts():
    x = torch.tensor([1.9, -1.9, 0.0, 127.0])
    for name, dtype in (
        ("i64", torch.int64),
        ("i8", torch.int8),
        ("f16", torch.float16),
        ("bf16", torch.bfloat16),
        ("bool", torch.bool),
        ("f64", torch.float64),
    ):
        check(lambda t, n=name: t.to(n), lambda t, d=dtype: t.to(d), x)


def test_half_precision_rounds_once():
    x = torch.randn(64).to(torch.bfloat16)
    check(lambda t: t * 0.1, lambda t: t * 0.1, x, rtol=0, atol=0)
    check(lambda t: t + 0.3, lambda t: t + 0.3, x, rtol=0, atol=0)
    check(lambda t: t / 3, lambda t: t / 3, x, rtol=0.008, atol=0)


def test_errors_quote_the_shapes():
    with pytest.raises(ShapeError, match=r"\[add\] .*\[2, 3\] and \[4\].*frontend_harness"):
        evaluate(F.add, torch.ones(2, 3), torch.ones(4))
    with pytest.raises(DTypeError, match=r"\[sub\]"):
        evaluate(F.sub, torch.ones(2).bool(), torch.ones(2).bool())
    with pytest.raises(DTypeError, match=r"\[add\] not a tensor"):
        evaluate(lambda x: F.add(x, "a"), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_the_least_integer_over_minus_one_wraps(dtype: torch.dtype, mode: str) -> None:
    """The processor traps there, and eager with it for some dtypes: the value is pinned here."""
    low = torch.iinfo(dtype).min
    found = evaluate(
        lambda a, b: F.div(a, b, rounding_mode=mode),
        torch.tensor([low, low, 6], dtype=dtype), torch.tensor([-1, 1, -1], dtype=dtype),
    )  # fmt: skip
    assert [int(v) for v in found] == [low, low, -6]
