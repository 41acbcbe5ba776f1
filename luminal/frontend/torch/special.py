"""Special functions as decompositions: series and asymptotic series, in double precision.

In: f32, half or integer tensors (f64 stays with eager, whose digits these series do not reach).
Out: the same results as ATen's, from elementary operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["table"]

_INF, _NAN = float("inf"), float("nan")
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_EULER = 0.5772156649015329


def _horner(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    out = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


def _is_pole(x: Tensor) -> Tensor:
    return (x <= 0) & (x == x.floor())


def _lgamma(x: Tensor) -> Tensor:
    mirrored = x < 0.5
    z = torch.where(mirrored, 1 - x, x) - 1
    total = torch.full_like(z, _LANCZOS[0])
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (z + k)
    t = z + 7.5
    right = (z + 0.5) * t.log() - t + (total * math.sqrt(2 * math.pi)).log()
    sine = torch.sin(math.pi * (x - x.floor()))
    left = math.log(math.pi) - sine.abs().log() - right
    out = torch.where(mirrored, left, right)
    return torch.where(_is_pole(x) | x.isinf(), _INF, out)


def _digamma(x: Tensor) -> Tensor:
    mirrored = x < 0
    z, total = torch.where(mirrored, 1 - x, x), torch.zeros_like(x)
    for _ in range(10):
        low = z < 10
        total = total - torch.where(low, 1 / z, 0.0)
        z = torch.where(low, z + 1, z)
    series = _horner(1 / (z * z), (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132)) / (z * z)
    right = total + z.log() - 0.5 / z + series
    out = torch.where(mirrored, right - math.pi / torch.tan(math.pi * (x - x.ceil())), right)
    out = torch.where(x == 0, torch.copysign(torch.full_like(x, _INF), -x), out)
    return torch.where((x < 0) & (x == x.floor()), _NAN, out)


def _erfinv(y: Tensor) -> Tensor:
    w = torch.log1p(-y * y)
    a = 0.147
    b = 2 / (math.pi * a) + w / 2
    x = torch.sqrt(torch.sqrt(b * b - w / a) - b)
    size = y.abs()
    for _ in range(3):
        off = torch.erfc(x) - (1 - size)
        x = x + off * (math.sqrt(math.pi) / 2) * torch.exp(x * x)
    x = torch.copysign(x, y)
    return torch.where(size == 1, torch.copysign(torch.full_like(y, _INF), y), x)


def _erfcx(x: Tensor) -> Tensor:
    w = 1 / (2 * x * x)
    factors = [1.0]
    for k in range(1, 13):
        factors.append(-factors[-1] * (2 * k - 1))
    far = _horner(w, factors) / (x * math.sqrt(math.pi))
    near = x.clamp(max=6.0)
    return torch.where(x > 6, far, torch.exp(near * near) * torch.erfc(near))


def _powers(order: int, sign: int, terms: int) -> list[float]:
    """Coefficients of (x/2)^(2k) in J (sign -1) or I (sign 1), without the factor (x/2)^order."""
    return [sign**k / (math.factorial(k) * math.factorial(k + order)) for k in range(terms)]


def _hankel(order: int, count: int) -> list[float]:
    """The coefficients a_k of the asymptotic series in 1/x."""
    out = [1.0]
    for k in range(1, count):
        out.append(out[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return out


def _bessel_i(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        size = x.abs()
        low, high = size.clamp(max=16.0), size.clamp(min=16.0)
        near = _horner(low * low / 4, _powers(order, 1, 40)) * (low / 2) ** order
        signed = [a * (-1) ** k for k, a in enumerate(_hankel(order, 16))]
        far = _horner(1 / high, signed) / torch.sqrt(2 * math.pi * high)
        if scaled:
            near = near * torch.exp(-low)
        else:
            far = far * torch.exp(high / 2) * torch.exp(high / 2)
        out = torch.where(size < 16, near, far)
        return torch.copysign(out, x) if order else out

    return function


def _bessel_j(order: int, second: bool) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        size = x.abs()
        low, high = size.clamp(max=14.0), size.clamp(min=14.0)
        near = _horner(low * low / 4, _powers(order, -1, 45)) * (low / 2) ** order
        if second:
            near = _second(low, near, order, -1)
        a, w = _hankel(order, 16), 1 / (high * high)
        p = _horner(w, [v * (-1) ** k for k, v in enumerate(a[0::2])])
        q = _horner(w, [v * (-1) ** k for k, v in enumerate(a[1::2])]) / high
        angle = high - (2 * order + 1) * math.pi / 4
        c, s = torch.cos(angle), torch.sin(angle)
        far = (p * s + q * c if second else p * c - q * s) * torch.sqrt(2 / (math.pi * high))
        out = torch.where(size < 14, near, far)
        if second:
            return torch.where(x == 0, -_INF, torch.where(x < 0, _NAN, out))
        return torch.copysign(torch.ones_like(x), x) * out if order else out

    return function


def _second(x: Tensor, first: Tensor, order: int, sign: int) -> Tensor:
    """Y (sign -1) or K (sign 1) of order 0 or 1 from J or I, by the series with harmonic sums."""
    harmonic = [sum(1 / j for j in range(1, k + 1)) for k in range(46)]
    w, terms = x * x / 4, _powers(order, sign, 45)
    log = torch.log(x / 2) + _EULER
    if order == 0:
        sums = _horner(w, [t * harmonic[k] for k, t in enumerate(terms)])
        return (log * first - sums) * (2 / math.pi) if sign < 0 else sums - log * first
    sums = _horner(w, [t * (harmonic[k] + harmonic[k + 1]) / 2 for k, t in enumerate(terms)])
    rest = log * first - sums * x / 2
    return rest * (2 / math.pi) - 2 / (math.pi * x) if sign < 0 else 1 / x + rest


def _bessel_k(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        low, high = x.clamp(max=8.0), x.clamp(min=8.0)
        first = _horner(low * low / 4, _powers(order, 1, 45)) * (low / 2) ** order
        near = _second(low, first, order, 1)
        far = _horner(1 / high, _hankel(order, 17)) * torch.sqrt(math.pi / (2 * high))
        near, far = (near * torch.exp(low), far) if scaled else (near, far * torch.exp(-high))
        out = torch.where(x < 8, near, far)
        return torch.where(x == 0, _INF, torch.where(x < 0, _NAN, out))

    return function


def _decomposed(function: Callable[[Tensor], Tensor]) -> Callable[..., object]:
    def decomposition(x: Tensor) -> object:
        if x.dtype == torch.float64 or x.is_complex():
            return NotImplemented
        want = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return function(x.double()).to(want)

    return decomposition


def _zeta(s: int, q: Tensor) -> Tensor:
    """Hurwitz's zeta function for q > 0, by Euler and Maclaurin's sum."""
    total = torch.zeros_like(q)
    for k in range(10):
        total = total + (q + k) ** -s
    a, rise = q + 10, float(s)
    total = total + a ** (1 - s) / (s - 1) + a**-s / 2
    for j, number in enumerate(_BERNOULLI, 1):
        total = total + number / math.factorial(2 * j) * rise * a ** (1 - s - 2 * j)
        rise *= (s + 2 * j - 1) * (s + 2 * j)
    return total


def _cotangents(n: int, c: Tensor) -> Tensor:
    """The n-th derivative of the cotangent as a polynomial in the cotangent c."""
    p = np.polynomial.Polynomial([0, 1])
    for _ in range(n):
        p = -p.deriv() * np.polynomial.Polynomial([1, 0, 1])
    return _horner(c, [float(v) for v in p.coef])


def _polygamma_of(n: int) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        mirrored = x < 0.5
        right = (-1) ** (n + 1) * math.factorial(n) * _zeta(n + 1, torch.where(mirrored, 1 - x, x))
        c = 1 / torch.tan(math.pi * (x - x.floor()))
        left = (-1) ** n * right - math.pi ** (n + 1) * _cotangents(n, c)
        out = torch.where(mirrored, left, right)
        out = torch.where(x == _INF, _NAN, out)  # as eager has it
        return torch.where(_is_pole(x), _INF * (-1) ** (n + 1), out)

    return function


def _trigamma(x: Tensor) -> Tensor:
    """What eager computes, step by step: next to the poles, values hang on the rounding."""
    mirrored = x < 0.5
    sine = torch.sin(math.pi * x)
    total = torch.where(mirrored, -(math.pi**2) / (sine * sine), 0.0)
    z = torch.where(mirrored, 1 - x, x)
    for _ in range(6):
        total = total + 1 / (z * z)
        z = z + 1
    w = 1 / (z * z)
    total = total + (1 + 1 / (2 * z) + w * (1 / 6 - w * (1 / 30 - w * (1 / 42)))) / z
    return torch.where(mirrored, -total, total)


def _polygamma(n: int, x: Tensor) -> object:
    if n == 1 and x.dtype != torch.float64:
        want = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return _trigamma(x.float()).to(want)
    return _decomposed(_polygamma_of(n) if n else _digamma)(x) if n < 20 else NotImplemented


def _normal_quantile(p: Tensor) -> Tensor:
    m = torch.where(p < 0.5, p, 1 - p)
    t = torch.sqrt(-2 * torch.log(m))
    x = _horner(t, (2.515517, 0.802853, 0.010328)) / _horner(t, (1, 1.432788, 0.189269, 0.001308))
    x = t - x
    for _ in range(4):
        off = _erfcx(x / math.sqrt(2)) / 2 - m * torch.exp(x * x / 2)
        x = x + off * math.sqrt(2 * math.pi)
    out = torch.where(p < 0.5, -x, x)
    out = torch.where(p == 0.5, 0.0, torch.where(p == 0, -_INF, torch.where(p == 1, _INF, out)))
    return torch.where((p >= 0) & (p <= 1), out, _NAN)


def _spherical_bessel_j0(x: Tensor) -> Tensor:
    near = _horner(x * x, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)])
    far = torch.where(x.isinf(), 0.0, torch.sin(x) / x)
    return torch.where(x.abs() < 0.5, near, far)


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload."""
    aten = torch.ops.aten
    functions = {
        aten.lgamma: _lgamma, aten.digamma: _digamma, aten.erfinv: _erfinv,
        aten.special_erfcx: _erfcx, aten.i0: _bessel_i(0, False),
        aten.special_i0e: _bessel_i(0, True), aten.special_i1: _bessel_i(1, False),
        aten.special_i1e: _bessel_i(1, True), aten.special_bessel_j0: _bessel_j(0, False),
        aten.special_bessel_j1: _bessel_j(1, False), aten.special_bessel_y0: _bessel_j(0, True),
        aten.special_bessel_y1: _bessel_j(1, True),
        aten.special_modified_bessel_i0: _bessel_i(0, False),
        aten.special_modified_bessel_i1: _bessel_i(1, False),
        aten.special_modified_bessel_k0: _bessel_k(0, False),
        aten.special_modified_bessel_k1: _bessel_k(1, False),
        aten.special_ndtri: _normal_quantile,
        aten.special_spherical_bessel_j0: _spherical_bessel_j0,
        aten.special_scaled_modified_bessel_k0: _bessel_k(0, True),
        aten.special_scaled_modified_bessel_k1: _bessel_k(1, True),
    }  # fmt: skip
    found: dict[torch._ops.OperatorBase, Callable[..., object]] = {
        packet.default: _decomposed(f) for packet, f in functions.items()
    }
    return found | {aten.polygamma.default: _polygamma}
