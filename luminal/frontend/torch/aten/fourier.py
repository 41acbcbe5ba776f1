"""Fourier transforms of ATen, on pairs of reals: products with constant matrices.

In: pairs or real tensors of static lengths. Out: pairs or real tensors. A length is split into two
factors as long as it is long, as Cooley and Tukey do. Computed in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast, tensor
from luminal.frontend.torch.aten.table import Call, Pair, op
from luminal.ir.dtype import f64
from luminal.ir.expr import Expr

__all__: list[str] = []

SHORTEST_SPLIT, LONGEST = 64, 4096


def _length(extent: Expr) -> int:
    n = extent.value
    if n is None or not 0 < n <= LONGEST:
        raise UnsupportedError("[torch] a Fourier transform of a long or unknown length.")
    return n


def _waves(angles: np.ndarray) -> Pair:
    whole = angles.astype(np.float64)
    return Pair(tensor(np.cos(whole)), tensor(np.sin(whole)))


def _times(x: Pair, y: Pair, product: object) -> Pair:
    mul = product  # matmul, or an elementwise product
    return Pair(F.sub(mul(x.re, y.re), mul(x.im, y.im)),  # type: ignore[operator]
                F.add(mul(x.re, y.im), mul(x.im, y.re)))  # type: ignore[operator]  # fmt: skip


def _transformed(x: Pair, n: int, sign: int) -> Pair:
    """The transform along the last axis, of length n."""
    a = max((k for k in range(2, math.isqrt(n) + 1) if n % k == 0), default=1)
    if n <= SHORTEST_SPLIT or a == 1:
        if n > 8 * SHORTEST_SPLIT:
            raise UnsupportedError("[torch] a Fourier transform of a length with a large factor.")
        turns = np.outer(np.arange(n), np.arange(n)) % n
        return _times(x, _waves(sign * 2 * math.pi / n * turns), F.matmul)
    b = n // a
    rows = _each(x, lambda t: F.transpose(F.reshape(t, *t.dims[:-1], a, b), -1, -2))
    inner = _transformed(rows, a, sign)  # [.., n2, k1]
    turns = np.outer(np.arange(b), np.arange(a))
    turned = _times(inner, _waves(sign * 2 * math.pi / n * turns), F.mul)
    outer = _transformed(_each(turned, lambda t: F.transpose(t, -1, -2)), b, sign)  # [.., k1, k2]
    return _each(outer, lambda t: F.reshape(F.transpose(t, -1, -2), *t.dims[:-2], n))


def _each(x: Pair, function: object) -> Pair:
    return Pair(function(x.re), function(x.im))  # type: ignore[operator]


def _along(x: Pair, d: int, sign: int) -> Pair:
    last = _each(x, lambda t: F.movedim(t, d, -1))
    done = _transformed(last, _length(last.re.dims[-1]), sign)
    return _each(done, lambda t: F.movedim(t, -1, d))


def _scaled(x: Tensor, lengths: Sequence[int], mode: int) -> Tensor:
    """Divided by nothing (0), the root (1) or the number (2) of elements."""
    count = math.prod(lengths)
    return x if mode == 0 else F.mul(x, 1 / (math.sqrt(count) if mode == 1 else count))


def _wide(x: Pair | Tensor) -> Pair:
    if isinstance(x, Pair):
        return Pair(cast(x.re, f64), cast(x.im, f64))
    return Pair(cast(x, f64), F.zeros_like(cast(x, f64)))


@op("_fft_c2c", pairs=True)
def _c2c(call: Call, x: Pair, dim: Sequence[int], mode: int, forward: bool) -> Pair:
    out, lengths = _wide(x), [_length(x.re.dims[d]) for d in dim]
    for d in dim:
        out = _along(out, d % x.re.ndim, -1 if forward else 1)
    return _each(out, lambda t: _scaled(t, lengths, mode))


@op("_fft_r2c", pairs=True)
def _r2c(call: Call, x: Tensor, dim: Sequence[int], mode: int, onesided: bool) -> Pair:
    out, lengths = _wide(x), [_length(x.dims[d]) for d in dim]
    for d in reversed(dim):
        out = _along(out, d % x.ndim, -1)
        if onesided and d == dim[-1]:
            kept = lengths[-1] // 2 + 1
            out = _each(out, lambda t, d=d, n=kept: F.narrow(t, d % x.ndim, 0, n))
    return _each(out, lambda t: _scaled(t, lengths, mode))


@op("_fft_c2r", pairs=True)
def _c2r(call: Call, x: Pair, dim: Sequence[int], mode: int, size: int) -> Tensor:
    out, axis = _wide(x), dim[-1] % x.re.ndim
    lengths = [*(_length(x.re.dims[d]) for d in dim[:-1]), size]
    for d in dim[:-1]:
        out = _along(out, d % x.re.ndim, 1)
    kept = size // 2 + 1
    if not isinstance(size, int) or size > 8 * SHORTEST_SPLIT or _length(x.re.dims[axis]) < kept:
        raise UnsupportedError("[torch] a real Fourier transform of a long length.")
    half = _each(out, lambda t: F.movedim(F.narrow(t, axis, 0, kept), axis, -1))
    turns = np.outer(np.arange(kept), np.arange(size)) % size
    twice = np.where((np.arange(kept) == 0) | (2 * np.arange(kept) == size), 1.0, 2.0)[:, None]
    wave = 2 * math.pi / size * turns
    even, odd = tensor(np.cos(wave) * twice), tensor(np.sin(wave) * twice)
    done = F.sub(F.matmul(half.re, even), F.matmul(half.im, odd))
    return _scaled(F.movedim(done, -1, axis), lengths, mode)
