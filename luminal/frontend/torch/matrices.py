"""Factorisations of small matrices as decompositions: LU, Cholesky, and what rests on them.

In: batches of f32 or f64 matrices of at most `LARGEST` rows. Out: ATen's results, by unrolled steps
in double precision. Larger matrices stay with eager, whose LAPACK is faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["table"]

LARGEST = 6
Decomposition = Callable[..., object]


def _small(a: Tensor) -> bool:
    """True if the steps may be unrolled."""
    plain = a.dtype in (torch.float32, torch.float64)
    return plain and all(isinstance(n, int) for n in a.shape) and min(a.shape[-2:]) <= LARGEST


def _places(count: int) -> Tensor:
    return torch.arange(count)


def _column_major(x: Tensor) -> Tensor:
    """x laid out as LAPACK writes matrices."""
    return x.mT.contiguous().mT


def _eliminated(a: Tensor, rows: int, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(packed LU of the first `rows` columns, pivots, permuted row numbers, sign) of a wide a."""
    m = a.shape[-2]
    place = _places(m)
    order = place.expand(a.shape[:-1])
    sign = a.new_ones(a.shape[:-2])
    pivots = []
    for k in range(min(m, rows)):
        column = a[..., k]
        best = torch.where(place >= k, column.abs(), -1.0).argmax(-1, keepdim=True)
        best = best if pivot else torch.full_like(best, k)
        pivots.append(best[..., 0] + 1)
        swap = torch.where(place == k, best, torch.where(place == best, k, place))
        a = a.gather(-2, swap.unsqueeze(-1).expand(a.shape))
        order = order.gather(-1, swap)
        sign = torch.where(best[..., 0] == k, sign, -sign)
        head = a[..., k, k].unsqueeze(-1)
        factor = torch.where(place > k, a[..., k] / torch.where(head == 0, 1.0, head), 0.0)
        rest = torch.where(_places(a.shape[-1]) > k, a[..., k, :], 0.0)
        left = torch.where((_places(a.shape[-1]) == k) & (place > k).unsqueeze(-1),
                           factor.unsqueeze(-1), a)  # fmt: skip
        a = left - factor.unsqueeze(-1) * rest.unsqueeze(-2)
    found = torch.stack(pivots, -1) if pivots else torch.zeros(*a.shape[:-2], 0)
    return a, found.to(torch.int32), order, sign


def _first(bad: Tensor) -> Tensor:
    """The number, from 1, of the first true element along the last axis; 0 if there is none."""
    count = bad.shape[-1]
    if not count:
        return torch.zeros(bad.shape[:-1], dtype=torch.int32)
    place = torch.where(bad, _places(count), count).amin(-1)
    return torch.where(place == count, 0, place + 1).to(torch.int32)


def _substituted(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """x with a x = b for a triangular a."""
    n = a.shape[-1]
    if not n:
        return b
    rows: list[Tensor] = [b[..., 0, :]] * n
    for k in reversed(range(n)) if upper else range(n):
        row = b[..., k, :]
        for j in range(k + 1, n) if upper else range(k):
            row = row - a[..., k, j].unsqueeze(-1) * rows[j]
        rows[k] = row if unit else row / a[..., k, k].unsqueeze(-1)
    return torch.stack(rows, -2)


def _solved(lu: Tensor, b: Tensor) -> Tensor:
    return _substituted(lu, _substituted(lu, b, False, True), True, False)


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> object:
    if not _small(a) or check_errors:
        return NotImplemented
    lu, pivots, _, _ = _eliminated(a.double(), a.shape[-1], pivot)
    info = _first(lu.diagonal(0, -2, -1) == 0)
    return _column_major(lu.to(a.dtype)), pivots, info


def _as_factored(a: Tensor) -> Tensor:
    """The matrix whose factors eager keeps for the gradients of determinants."""
    return (a.mT if a.is_contiguous() else a).double()


def _det(a: Tensor) -> object:
    if not _small(a):
        return NotImplemented
    lu, pivots, _, sign = _eliminated(_as_factored(a), a.shape[-1])
    found = lu.diagonal(0, -2, -1).prod(-1) * sign
    return found.to(a.dtype), _column_major(lu.to(a.dtype)), pivots


def _slogdet(a: Tensor) -> object:
    if not _small(a):
        return NotImplemented
    lu, pivots, _, sign = _eliminated(_as_factored(a), a.shape[-1])
    heads = lu.diagonal(0, -2, -1)
    signs, size = heads.sign().prod(-1) * sign, heads.abs().log().sum(-1)
    return signs.to(a.dtype), size.to(a.dtype), _column_major(lu.to(a.dtype)), pivots


def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> object:
    if not _small(a) or b.dtype != a.dtype or check_errors:
        return NotImplemented
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    wide, given = a.double(), (b.unsqueeze(-1) if vector else b).double()
    given = given if left or vector else given.mT
    system, given = _broadcast(wide if left else wide.mT, given)
    n = a.shape[-1]
    whole, _, _, _ = _eliminated(torch.cat([system, given], -1), n)
    x = _substituted(whole[..., :n], whole[..., n:], True, False)
    x = (x if left or vector else x.mT).to(a.dtype)
    lu, pivots, _, _ = _eliminated(wide, n)
    info = _first(lu.diagonal(0, -2, -1) == 0)
    x = x.squeeze(-1) if vector else x
    result = (_column_major(x) if x.ndim > 1 else x) if left else x.contiguous()
    return result, _column_major(lu.to(a.dtype)), pivots, info


def _inv_ex(a: Tensor, *, check_errors: bool = False) -> object:
    if not _small(a) or check_errors:
        return NotImplemented
    wide, n = a.double(), a.shape[-1]
    unit = torch.eye(n, dtype=torch.float64).expand(a.shape)
    whole, _, _, _ = _eliminated(torch.cat([wide, unit], -1), n)
    x = _substituted(whole[..., :n], whole[..., n:], True, False)
    info = _first(whole[..., :n].diagonal(0, -2, -1) == 0)
    return _column_major(x.to(a.dtype)), info


def _cholesky_of(a: Tensor) -> tuple[Tensor, Tensor]:
    """(lower factor, number of the first pivot that is not positive): what comes after that pivot
    stays as it was given."""
    n = a.shape[-1]
    place, columns, bad, given = _places(n), [], [], a.tril()
    stopped = torch.zeros(a.shape[:-2], dtype=torch.bool).unsqueeze(-1)
    for k in range(n):
        head = a[..., k, k].unsqueeze(-1)
        bad.append(~(head > 0))
        stopped = stopped | bad[k]
        first = bad[k] & ~torch.stack([*bad[:k], torch.zeros_like(bad[k])]).any(0)
        column = torch.where(place >= k, a[..., k] / head.sqrt(), 0.0)
        kept = torch.where(first & (place == k), head, given[..., k])
        columns.append(torch.where(stopped, kept, column))
        used = torch.where(stopped, 0.0, column)
        a = a - used.unsqueeze(-1) * used.unsqueeze(-2)
    return torch.stack(columns, -1), _first(torch.cat(bad, -1))


def _cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> object:
    if not _small(a) or check_errors:
        return NotImplemented
    if not a.numel():
        return _column_major(a), torch.zeros(a.shape[:-2], dtype=torch.int32)
    given = (a.mT if upper else a).double()
    low, info = _cholesky_of(given.tril() + given.tril(-1).mT)
    low = low.to(a.dtype)
    return (low.contiguous().mT if upper else _column_major(low)), info


def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> object:
    if not _small(a) or a.dtype != b.dtype:
        return NotImplemented
    system, given = _broadcast(a.double(), b.double())
    if left:
        x = _substituted(system, given, upper, unitriangular).to(b.dtype)
        return _column_major(x)
    x = _substituted(system.mT, given.mT, not upper, unitriangular).mT
    return _column_major(x.to(b.dtype))


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> object:
    if not _small(a) or a.dtype != b.dtype:
        return NotImplemented
    system, given = _broadcast(a.double(), b.double())
    used = system.mT if transpose else system
    x = _substituted(used, given, upper != transpose, unitriangular)
    kept = a.expand(system.shape)
    return _column_major(x.to(b.dtype)), _column_major(kept.clone())


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> object:
    if not _small(factor) or factor.dtype != b.dtype:
        return NotImplemented
    low, given = _broadcast((factor.mT if upper else factor).double(), b.double())
    x = _substituted(low.mT, _substituted(low, given, False, False), True, False)
    return _column_major(x.to(b.dtype))


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> object:
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape)
    return _cholesky_solve(unit, factor, upper)


def _unpacked(lu: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(P, L, U) of a packed LU and the row numbers after all exchanges."""
    m, n = lu.shape[-2:]
    k = min(m, n)
    low = lu[..., :, :k].tril(-1) + torch.eye(m, k, dtype=lu.dtype)
    moves = (_places(m).unsqueeze(-1) == order.unsqueeze(-2)).to(lu.dtype)
    return moves, low, lu[..., :k, :].triu()


def _lu(a: Tensor, *, pivot: bool = True) -> object:
    if not _small(a) or not pivot:
        return NotImplemented
    lu, _, order, _ = _eliminated(a.double(), a.shape[-1])
    return _unpacked(lu.to(a.dtype), order)


def _order_of(pivots: Tensor, m: int) -> Tensor:
    """The row numbers after the exchanges that pivots (from 1) stand for."""
    place = _places(m)
    order = place.expand(*pivots.shape[:-1], m)
    for k in range(pivots.shape[-1]):
        best = pivots[..., k].to(torch.int64).unsqueeze(-1) - 1
        swap = torch.where(place == k, best, torch.where(place == best, k, place))
        order = order.gather(-1, swap)
    return order


def _lu_unpack(lu: Tensor, pivots: Tensor, data: bool = True, moves: bool = True) -> object:
    if not _small(lu) or not data or not moves:
        return NotImplemented
    return _unpacked(lu, _order_of(pivots, lu.shape[-2]))


def _lu_solve(
    lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> object:
    if not _small(lu) or lu.dtype != b.dtype or not left or adjoint:
        return NotImplemented
    order = _order_of(pivots, lu.shape[-1])
    factors, given = _broadcast(lu.double(), b.double())
    rows = order.unsqueeze(-1).expand(given.shape)
    return _column_major(_solved(factors, given.gather(-2, rows)).to(b.dtype))


def table() -> dict[torch._ops.OperatorBase, Decomposition]:
    """The decompositions, by overload."""
    aten = torch.ops.aten
    found = {
        "_linalg_det": _det, "_linalg_slogdet": _slogdet, "_linalg_solve_ex": _solve_ex,
        "linalg_inv_ex": _inv_ex, "linalg_lu_factor_ex": _lu_factor_ex, "linalg_lu": _lu,
        "linalg_cholesky_ex": _cholesky_ex, "linalg_solve_triangular": _solve_triangular,
        "triangular_solve": _triangular_solve, "cholesky_solve": _cholesky_solve,
        "cholesky_inverse": _cholesky_inverse, "lu_unpack": _lu_unpack,
        "linalg_lu_solve": _lu_solve,
    }  # fmt: skip
    return {getattr(aten, n).default: f for n, f in found.items()}
