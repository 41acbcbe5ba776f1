"""Chebyshev's polynomials as decompositions, by their closed forms.

In: x and degrees n of f32, half or integer dtype (f64 stays with eager). Out: the same results as
ATen's recurrences, from elementary functions in double precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["table"]

_LARGEST = float(torch.finfo(torch.float32).max)
Form = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Number = Tensor | float


def _first(n: Tensor, t: Tensor, wave: Tensor, size: Tensor) -> Tensor:
    return torch.where(size < 1, torch.cos(n * wave), torch.cosh(n * t))


def _second(n: Tensor, t: Tensor, wave: Tensor, size: Tensor) -> Tensor:
    near, far = torch.sin((n + 1) * wave) / torch.sin(wave), torch.sinh((n + 1) * t) / torch.sinh(t)
    return torch.where(size < 1, near, torch.where(size == 1, n + 1, far))


def _third(n: Tensor, t: Tensor, wave: Tensor, size: Tensor) -> Tensor:
    near = torch.cos((n + 0.5) * wave) / torch.cos(wave / 2)
    return torch.where(size < 1, near, torch.cosh((n + 0.5) * t) / torch.cosh(t / 2))


def _fourth(n: Tensor, t: Tensor, wave: Tensor, size: Tensor) -> Tensor:
    near = torch.sin((n + 0.5) * wave) / torch.sin(wave / 2)
    far = torch.sinh((n + 0.5) * t) / torch.sinh(t / 2)
    return torch.where(size < 1, near, torch.where(size == 1, 2 * n + 1, far))


def _value(x: Tensor, n: Tensor, positive: Form, negative: Form) -> Tensor:
    """The polynomial at |x|, with the form and the sign that hold for x."""
    size = x.abs()
    wave, t = torch.acos(size.clamp(max=1.0)), torch.acosh(size.clamp(min=1.0))
    parity = 1 - 2 * torch.remainder(n, 2)
    out = positive(n, t, wave, size)
    mirrored = out if negative is positive else negative(n, t, wave, size)
    return torch.where(x < 0, parity * mirrored, out)


def _polynomial(positive: Form, negative: Form, shifted: bool) -> Callable[..., object]:
    def decomposition(x: Number, n: Number) -> object:
        both = [v for v in (x, n) if isinstance(v, Tensor)]
        want = torch.result_type(x, n)
        want = want if want.is_floating_point else torch.get_default_dtype()
        if want == torch.float64 or any(v.is_complex() for v in both):
            return NotImplemented
        wide = [torch.as_tensor(v, dtype=torch.float64) for v in (x, n)]
        place, degree = torch.broadcast_tensors(wide[0], wide[1].trunc())
        place = 2 * place - 1 if shifted else place
        out = _value(place, degree, positive, negative)
        before = _value(place, (degree - 2).clamp(min=0), positive, negative)
        lost = torch.where(place.isinf(), degree > 2, before.abs() > _LARGEST)
        limit = torch.where(place.isinf(), torch.where(degree % 2 == 1, place, torch.inf), out)
        out = torch.where(lost & (degree > 2), torch.nan, limit)
        return torch.where(degree < 0, 0.0, torch.where(degree == 0, 1.0, out)).to(want)

    return decomposition


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload."""
    forms = {"t": (_first, _first), "u": (_second, _second), "v": (_third, _fourth),
             "w": (_fourth, _third)}  # fmt: skip
    found: dict[torch._ops.OperatorBase, Callable[..., object]] = {}
    for shifted in (False, True):
        for letter, pair in forms.items():
            name = f"special_{'shifted_' * shifted}chebyshev_polynomial_{letter}"
            packet = getattr(torch.ops.aten, name)
            function = _polynomial(*pair, shifted)
            found |= {getattr(packet, o): function for o in ("default", "x_scalar", "n_scalar")}
    return found
