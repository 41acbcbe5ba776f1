"""Unary maths and activations, from the primitives and polynomials.

In and out: float tensors (integers become f32). Each polynomial is a Chebyshev fit, one for f32
and one for f64; no formula relies on rounding, so that reassociation cannot spoil it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import pi

from luminal.frontend.functional_core import (
    abs,
    add,
    eq,
    in_f32,
    lt,
    minimum,
    mul,
    neg,
    reciprocal,
    sub,
    where,
)
from luminal.frontend.functional_integer import div
from luminal.frontend.tensor import Tensor, apply, cast, common, scalar
from luminal.ir.dtype import f32, f64

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "deg2rad",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "frac",
    "log",
    "log10",
    "log1p",
    "log2",
    "rad2deg",
    "rsqrt",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

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
