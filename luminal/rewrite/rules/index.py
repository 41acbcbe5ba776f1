"""Rules about indices: splitting an axis where the indices of its summand ask for it.

In: a summand and its axis. Out: block sizes; the split sum is formed by `lower.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from luminal.ir.expr import Div, Expr, MaxOf, MinOf, Mod, Var
from luminal.ir.term import Term, postorder

__all__ = ["Split", "divisors"]

_SMALLEST = 8


@dataclass(frozen=True, slots=True)
class Split:
    """Σ_axis b = Σ_blocks Σ_within b[axis := blocks·size + within], where `parts` is that b.

    Exact in the reals (a reordering); `size` divides the extent of the axis.
    """

    whole: Term
    blocks: Var
    within: Var
    parts: Term


def divisors(body: Term, axis: Var) -> tuple[int, ...]:
    """Block sizes c for which the indices of the summand contain axis // c.

    Reason: a factor that varies by block only can then leave the inner sum. Side condition: c
    divides the extent. The smallest alone: it makes every coarser block visible too.
    """
    found: set[int] = set()
    for t in postorder(body):
        if t.op == "load" and axis in t.free:
            for e in t.indices:
                found |= _by(e, axis)
    extent = axis.hi + 1
    usable = sorted(c for c in found if c >= _SMALLEST and extent % c == 0 and c < extent)
    return tuple(usable[:1])


def _by(e: Expr, axis: Var) -> set[int]:
    found: set[int] = set()
    for atom in e.atoms():
        if isinstance(atom, Div | Mod) and atom.b.value is not None:
            slope = atom.a.coefficient(axis)
            if slope is not None and slope.value == 1:
                found.add(atom.b.value)
        if isinstance(atom, Div | Mod | MinOf | MaxOf):
            found |= _by(atom.a, axis) | _by(atom.b, axis)
    return found
