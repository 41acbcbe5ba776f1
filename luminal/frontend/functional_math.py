"""Unary maths and activations, from the primitives and polynomials.

In and out: float tensors (integers become f32). Each polynomial is a Chebyshev fit, one for f32
and one for f64; no formula relies on rounding, so that reassociation cannot spoil it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, pi
from math import sqrt as real_sqrt

from luminal.errors import ArgumentError
from luminal.frontend.functional_core import (
    abs,
    add,
    clamp,
    div,
    eq,
    floating,
    floor,
    in_f32,
    isinf,
    isnan,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    reciprocal,
    remainder,
    signbit,
    sub,
    where,
)
from luminal.frontend.tensor import (
    Tensor,
    TensorLike,
    apply,
    broadcast,
    cast,
    common,
    fail,
    half_up,
    scalar,
)
from luminal.ir.dtype import f32, f64

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "celu", "cos", "cosh", "deg2rad",
    "elu", "erf", "erfc", "exp", "exp2", "expm1", "frac", "gelu", "glu", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "hypot", "leaky_relu", "lerp", "log", "log10", "log1p",
    "log2", "logaddexp", "logit", "logsigmoid", "mish", "pow", "prelu", "rad2deg", "relu", "relu6",
    "rsqrt", "selu", "sigmoid", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign",
    "sqrt", "tan", "tanh", "tanhshrink", "threshold", "xlogy",
]  # fmt: skip

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
_ERF = {
    f32: (1.1283791658483509, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412,
          0.005189087423433974, -0.000801686428716587, 7.875875062685488e-05),
    f64: (1.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.02686617064512984,
          0.0052239776254232985, -0.000854832702193483, 0.00012055332902888736,
          -1.4925647567519332e-05, 1.6462045441468418e-06, -1.6364642158167616e-07,
          1.4792401209404813e-08, -1.216456005728345e-09, 8.709045129053106e-11,
          -4.230945824295338e-12),
}  # fmt: skip
_ERFC_F32 = (0.0004618615766698807, -1.630582171493444, -0.911532311288859, -0.1588119897709087,
             0.03811764189002414, -0.006866645968928733, 0.000861008516515442,
             -6.644770978074627e-05, 2.361910227018601e-06)  # fmt: skip
_ERFC_F64 = (-2.1750803944464625, 1.054796245893922, -0.13435976132572355, 0.04067402206535475,
             -0.015975764975379805, 0.005736672040162798, -0.00209759607232193,
             0.0008197346057570458, -0.0003294971278831085, 0.00013312709318635872,
             -5.428821420525226e-05, 2.249307889395098e-05, -9.381457386507275e-06,
             3.7892850263201416e-06, -1.597248369735518e-06, 8.696057733680039e-07,
             -3.7213777575903467e-07, 6.715780162186675e-09, -2.1455113775438476e-09,
             6.867957395517755e-08, -2.9805055887420936e-08)  # fmt: skip
_TANH = {
    f32: (0.9999999974801559, -0.3333328283432542, 0.13331679634558233, -0.05376798350832733,
          0.02075134910595479, -0.005849643909793126),
    f64: (1.0, -0.3333333333333302, 0.13333333333291716, -0.05396825394657268,
          0.0218694879511371, -0.008863226186930539, 0.0035920330379836597, -0.001455194487606216,
          0.000587123062112877, -0.00023026853568108052, 7.917054678395182e-05,
          -1.7109073768599853e-05),
}  # fmt: skip
_ATAN = {
    f32: (0.9999999993712282, -0.33333306893048514, 0.19998183041083206, -0.14239532669648974,
          0.10569828806414448, -0.060263052276584586),
    f64: (1.0, -0.3333333333332844, 0.1999999999885511, -0.14285714180976467, 0.11111106180455946,
          -0.09090773074808414, 0.07689953496306857, -0.06640233930429408, 0.056883492268090106,
          -0.04348052215716462, 0.021135373157693243),
}  # fmt: skip
_ASIN = {
    f32: (1.0000000002307783, 0.16666657639575913, 0.07500571381024686, 0.04450870949865153,
          0.03185718889411276, 0.014295256037820107, 0.0376771383418486),
    f64: (1.0, 0.16666666666664942, 0.07500000000385201, 0.044642856805998936, 0.03038195969768514,
          0.022371749733164054, 0.01735977964134998, 0.01388484282640208, 0.012170138592391726,
          0.0065293020047365695, 0.019513468251252167, -0.016187392271599134,
          0.03187962140081284),
}  # fmt: skip
_SINH = {
    f32: (1.0000000000497202, 0.1666666641809776, 0.008333353205516371, 0.00019835713875553468,
          2.819018792792959e-06),
    f64: (1.0, 0.16666666666666669, 0.0083333333333331, 0.00019841269841456446,
          2.7557319150704892e-06, 2.5052124008953335e-08, 1.6057199454179518e-10,
          7.760406418336239e-13),
}  # fmt: skip


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c0 + c1 x + c2 x² + ... by Horner."""
    *rest, top = coefficients
    return reduce(
        lambda acc, c: add(mul(acc, x), c), reversed(rest[:-1]), add(mul(x, top), rest[-1])
    )


def _odd(x: Tensor, table: dict[object, Sequence[float]]) -> Tensor:
    """x times an even polynomial."""
    return mul(x, polynomial(mul(x, x), table[x.dtype]))


def _primitive(op: str, text: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return apply(op, x)

    function.__name__, function.__doc__ = op.lower(), text
    return in_f32(function)


exp2 = _primitive("Exp2", "2 to the power x.")
log2 = _primitive("Log2", "The base-2 logarithm.")
sin = _primitive("Sin", "The sine.")
sqrt = _primitive("Sqrt", "The square root.")


@in_f32
def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return exp2(mul(x, LOG2_E))


@in_f32
def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return mul(log2(x), LN_2)


@in_f32
def log10(x: Tensor) -> Tensor:
    """The base-10 logarithm."""
    return mul(log2(x), 0.30102999566398120)


@in_f32
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


@in_f32
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, accurate near 0: 2 sinh(x/2) exp(x/2) there."""
    half = mul(x, 0.5)
    near = mul(mul(_odd(half, _SINH), 2.0), exp(half))
    return where(lt(abs(x), 0.5), near, sub(exp(x), 1.0))


@in_f32
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), accurate near 0: 2 atanh(x / (2 + x)) there."""
    s = div(x, add(x, 2.0))
    terms = 8 if x.dtype == f32 else 17
    near = mul(s, polynomial(mul(s, s), [2.0 / (2 * k + 1) for k in range(terms)]))
    return where(lt(abs(x), 0.5), near, log(add(x, 1.0)))


@in_f32
def cos(x: Tensor) -> Tensor:
    """The cosine, as 1 - 2 sin²(x/2): no argument is rounded."""
    s = sin(mul(x, 0.5))
    return add(mul(mul(s, s), -2.0), 1.0)


@in_f32
def tan(x: Tensor) -> Tensor:
    """The tangent (f32 through f64, for the digits near its poles)."""
    wide = cast(x, f64)
    return cast(div(sin(wide), cos(wide)), x.dtype)


@in_f32
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    half = exp(sub(abs(x), LN_2))
    far = sub(half, div(0.25, half))
    return where(lt(abs(x), 1.0), _odd(x, _SINH), where(lt(x, 0.0), neg(far), far))


@in_f32
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    half = exp(sub(abs(x), LN_2))
    return add(half, div(0.25, half))


@in_f32
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    size = abs(x)
    far = sub(1.0, div(2.0, add(exp(mul(size, 2.0)), 1.0)))
    return where(lt(size, 0.6), _odd(x, _TANH), where(lt(x, 0.0), neg(far), far))


@in_f32
def atan(x: Tensor) -> Tensor:
    """The arc tangent: reduced to |r| <= tan(pi/8) by r = -1/x or (x - 1)/(x + 1)."""
    size = abs(x)
    far, middle = lt(2.414213562373095, size), lt(0.4142135623730951, size)
    r = where(far, neg(reciprocal(size)), where(middle, div(sub(size, 1.0), add(size, 1.0)), size))
    offset = where(far, pi / 2, where(middle, pi / 4, scalar(0.0, x.dtype)))
    out = add(_odd(r, _ATAN), offset)
    return where(lt(x, 0.0), neg(out), out)


def atan2(y: TensorLike, x: TensorLike) -> Tensor:
    """The angle of the point (x, y)."""
    dtype = floating(y, x)
    a, b = (half_up(v) for v in common("atan2", y, x, dtype=dtype))
    up, right = abs(a), abs(b)
    both = logical_and(eq(up, inf), eq(right, inf))
    high, low = maximum(up, right), minimum(up, right)
    ratio = where(both, 1.0, where(eq(high, 0.0), scalar(0.0, a.dtype), div(low, high)))
    angle = atan(ratio)
    angle = where(lt(right, up), sub(pi / 2, angle), angle)
    angle = where(signbit(b), sub(pi, angle), angle)
    return cast(where(signbit(a), neg(angle), angle), dtype)


@in_f32
def asin(x: Tensor) -> Tensor:
    """The arc sine; NaN outside [-1, 1]."""
    size = abs(x)
    large = lt(0.5, size)
    r = where(large, sqrt(mul(sub(1.0, size), 0.5)), size)
    core = _odd(r, _ASIN)
    out = where(large, sub(pi / 2, mul(core, 2.0)), core)
    return where(lt(x, 0.0), neg(out), out)


@in_f32
def acos(x: Tensor) -> Tensor:
    """The arc cosine; NaN outside [-1, 1]."""
    large = lt(0.5, abs(x))
    core = _odd(where(large, sqrt(mul(sub(1.0, abs(x)), 0.5)), x), _ASIN)
    twice = mul(core, 2.0)
    return where(large, where(lt(x, 0.0), sub(pi, twice), twice), sub(pi / 2, core))


@in_f32
def asinh(x: Tensor) -> Tensor:
    """The inverse hyperbolic sine."""
    size = abs(x)
    big = lt(1e4 if x.dtype == f32 else 1e8, size)
    square = mul(size, size)
    near = log1p(add(size, div(square, add(sqrt(add(square, 1.0)), 1.0))))
    out = where(big, add(log(size), LN_2), near)
    return where(lt(x, 0.0), neg(out), out)


@in_f32
def acosh(x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    t = sub(x, 1.0)
    near = log1p(add(t, sqrt(mul(t, add(t, 2.0)))))
    return where(lt(1e4 if x.dtype == f32 else 1e8, x), add(log(x), LN_2), near)


@in_f32
def atanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent."""
    size = abs(x)
    out = mul(log1p(div(mul(size, 2.0), sub(1.0, size))), 0.5)
    return where(lt(x, 0.0), neg(out), out)


def _erfc_tail(size: Tensor) -> Tensor:
    """erfc for size >= 1."""
    if size.dtype == f32:
        return exp2(polynomial(minimum(size, 4.0), _ERFC_F32))
    t = minimum(size, 6.0)
    v = sub(div(9.6, add(t, 2.0)), 2.2)
    return exp2(sub(polynomial(v, _ERFC_F64), mul(mul(t, t), LOG2_E)))


@in_f32
def erf(x: Tensor) -> Tensor:
    """The error function."""
    size = abs(x)
    far = sub(1.0, _erfc_tail(size))
    return where(lt(size, 1.0), _odd(x, _ERF), where(lt(x, 0.0), neg(far), far))


@in_f32
def erfc(x: Tensor) -> Tensor:
    """1 - erf(x); its relative accuracy ends at x = 4 (f32) or 6 (f64)."""
    tail = _erfc_tail(abs(x))
    near = sub(1.0, _odd(x, _ERF))
    return where(lt(abs(x), 1.0), near, where(lt(x, 0.0), sub(2.0, tail), tail))


def _power_by_squares(x: Tensor, n: int) -> Tensor:
    out: Tensor | None = None
    while n:
        if n & 1:
            out = x if out is None else mul(out, x)
        n >>= 1
        x = mul(x, x) if n else x
    return out if out is not None else _one(x)


def _one(x: Tensor) -> Tensor:
    return broadcast(scalar(1, x.dtype), x.dims)


def _integer_power(a: Tensor, b: Tensor) -> Tensor:
    """By squaring over the low 16 bits of the exponent; negative exponents give 0, 1 or -1."""
    out, base, left = _one(a), a, abs(b)
    for _ in range(16):
        odd = ne(remainder(left, 2), 0)
        out = where(odd, mul(out, base), out)
        base, left = mul(base, base), _half(left)
    unit = logical_or(eq(a, 1), eq(a, -1)) if a.dtype.kind == "i" else eq(a, 1)
    return where(lt(b, 0), where(unit, out, 0), out)


def _half(x: Tensor) -> Tensor:
    from_zero = sub(x, remainder(x, 2))
    return cast(mul(cast(from_zero, f64), 0.5), x.dtype)


def _float_power(a: Tensor, b: Tensor) -> Tensor:
    """exp2(b log2 |a|), in f64 for the digits, with the sign rules of C's pow."""
    x, y = cast(a, f64), cast(b, f64)
    size = exp2(mul(y, log2(abs(x))))
    size = where(logical_or(eq(y, 0.0), eq(x, 1.0)), 1.0, size)
    whole = eq(floor(y), y)
    odd = eq(remainder(y, 2.0), 1.0)
    real = logical_or(whole, logical_or(eq(x, -inf), eq(x, 0.0)))
    signed = where(odd, neg(size), where(real, size, float("nan")))
    return cast(where(signbit(x), signed, size), a.dtype)


def pow(a: TensorLike, b: TensorLike) -> Tensor:
    """a to the power b; integers stay integers."""
    if isinstance(a, Tensor) and isinstance(b, int | float) and not isinstance(b, bool):
        dtype = common("pow", a, b)[0].dtype
        base = half_up(cast(a, dtype))
        if b == int(b) if abs_float(b) < 64 else False:
            n = int(b)
            if n >= 0:
                return cast(_power_by_squares(base, n), dtype)
            if dtype.is_float:
                return cast(reciprocal(_power_by_squares(base, -n)), dtype)
        if dtype.is_float and b in (0.5, -0.5):
            return cast(sqrt(base) if b > 0 else rsqrt(base), dtype)
    x, y = common("pow", a, b)
    return _float_power(x, y) if x.dtype.is_float else _integer_power(x, y)


def abs_float(value: float) -> float:
    """|value| of a Python number."""
    return -value if value < 0 else value


@in_f32
def frac(x: Tensor) -> Tensor:
    """The fractional part, with x's sign."""
    return apply("Mod", *common("frac", x, 1.0))


def deg2rad(x: Tensor) -> Tensor:
    """Degrees as radians."""
    return mul(x, pi / 180)


def rad2deg(x: Tensor) -> Tensor:
    """Radians as degrees."""
    return mul(x, 180 / pi)


@in_f32
def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""
    a = mul(x, pi)
    return where(eq(x, 0.0), 1.0, div(sin(a), a))


def hypot(a: TensorLike, b: TensorLike) -> Tensor:
    """sqrt(a² + b²) without overflow."""
    x, y = common("hypot", a, b, dtype=floating(a, b))
    high = maximum(abs(x), abs(y))
    low = minimum(abs(x), abs(y))
    r = where(logical_or(eq(high, 0.0), eq(high, inf)), scalar(0.0, x.dtype), div(low, high))
    size = mul(high, sqrt(add(mul(r, r), 1.0)))
    return where(logical_or(isinf(x), isinf(y)), inf, size)


def lerp(start: Tensor, end: TensorLike, weight: TensorLike) -> Tensor:
    """start + weight (end - start)."""
    return add(start, mul(sub(end, start), weight))


def xlogy(a: TensorLike, b: TensorLike) -> Tensor:
    """a log(b), 0 where a is 0."""
    x, y = common("xlogy", a, b, dtype=floating(a, b))
    return where(isnan(y), y, where(eq(x, 0.0), scalar(0.0, x.dtype), mul(x, log(y))))


def logaddexp(a: TensorLike, b: TensorLike) -> Tensor:
    """log(exp(a) + exp(b))."""
    x, y = common("logaddexp", a, b, dtype=floating(a, b))
    high = maximum(x, y)
    gap = where(eq(x, y), scalar(0.0, x.dtype), neg(abs(sub(x, y))))
    return add(high, log1p(exp(gap)))


@in_f32
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return reciprocal(add(exp2(mul(x, -LOG2_E)), 1.0))


@in_f32
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x first clamped to [eps, 1 - eps] if eps is given."""
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return log(div(x, sub(1.0, x)))


@in_f32
def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x))."""
    return sub(minimum(x, 0.0), log1p(exp(neg(abs(x)))))


@in_f32
def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return div(x, add(exp2(mul(x, -LOG2_E)), 1.0))


@in_f32
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function at x ('tanh': its usual approximation)."""
    if approximate == "tanh":  # (1 + tanh u) / 2 is sigmoid(2u)
        slope = real_sqrt(8 / pi)
        inner = mul(x, add(mul(mul(x, x), 0.044715 * slope), slope))
        return div(x, add(exp2(mul(inner, -LOG2_E)), 1.0))
    if approximate != "none":
        raise fail(ArgumentError, "gelu", f"Got approximate={approximate!r}; try 'tanh'.")
    return mul(mul(x, 0.5), add(erf(mul(x, real_sqrt(0.5))), 1.0))


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return maximum(x, 0)


def relu6(x: Tensor) -> Tensor:
    """x limited to [0, 6]."""
    return clamp(x, 0, 6)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x, times a slope below 0."""
    return where(lt(0, x), x, mul(x, negative_slope))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x, times a learnt slope per channel below 0."""
    if weight.ndim == 1 and x.ndim > 1:
        order = [1] * (x.ndim - 2)
        weight = weight.reshape(-1, *order)
    return where(lt(0, x), x, mul(x, weight))


@in_f32
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha (exp(x) - 1) below 0."""
    return where(lt(0.0, x), x, mul(expm1(x), alpha))


@in_f32
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha (exp(x / alpha) - 1) below 0."""
    return where(lt(0.0, x), x, mul(expm1(mul(x, 1.0 / alpha)), alpha))


@in_f32
def selu(x: Tensor) -> Tensor:
    """The self-normalising ELU."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return mul(where(lt(0.0, x), x, mul(expm1(x), alpha)), scale)


@in_f32
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, x itself above the threshold."""
    scaled = mul(x, beta)
    soft = add(maximum(scaled, 0.0), log1p(exp(neg(abs(scaled)))))
    return where(lt(threshold, scaled), x, mul(soft, 1.0 / beta))


@in_f32
def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x))."""
    return mul(x, tanh(softplus(x)))


@in_f32
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(x, add(abs(x), 1.0))


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return sub(x, tanh(x))


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x limited to a range."""
    return clamp(x, min_val, max_val)


@in_f32
def hardsigmoid(x: Tensor) -> Tensor:
    """clamp(x + 3, 0, 6) / 6."""
    return mul(clamp(add(x, 3.0), 0.0, 6.0), 1.0 / 6.0)


@in_f32
def hardswish(x: Tensor) -> Tensor:
    """x hardsigmoid(x)."""
    return mul(x, hardsigmoid(x))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, 0 within [-lambd, lambd]."""
    inside = logical_and(logical_not(lt(lambd, x)), logical_not(lt(x, -lambd)))
    return where(logical_and(inside, logical_not(isnan(x))), scalar(0, x.dtype), x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd."""
    return where(lt(lambd, x), sub(x, lambd), where(lt(x, -lambd), add(x, lambd), mul(x, 0.0)))


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x where it exceeds the threshold, else a value."""
    return where(lt(threshold, x), x, cast(scalar(value, f32), x.dtype))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """First half of an axis times the sigmoid of the second half."""
    a, b = x.chunk(2, dim)
    return mul(a, sigmoid(b))
