"""Naming: bound axes renamed apart, so that no axis of a kernel is bound inside its own scope.

In: a term whose axis names are canonical (equal loops, equal names, shadowing allowed) and the
kernel's axes. Out: the same term where nested loops have different names and loops beside each
other keep a common one, so that they can still run as one loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from luminal.ir.expr import Var, to_expr
from luminal.ir.term import REDUCTIONS, Term, rebuild, reduction, substitute

__all__ = ["rename_apart"]


def rename_apart(term: Term, axes: Iterable[Var]) -> Term:
    """The term with fresh names k0, k1, ... for its bound axes."""
    names = _Names(tuple(axes))
    return names.visit(term)[0]


class _Names:
    def __init__(self, axes: tuple[Var, ...]) -> None:
        self.made: list[Var] = []
        self.memo: dict[Term, tuple[Term, frozenset[Var]]] = {}
        self.kernel = frozenset(axes)

    def fresh(self, axis: Var, used: frozenset[Var] | set[Var]) -> Var:
        """The first name of the same extent that is not used; a new one if all are."""
        for v in self.made:
            if v not in used and (v.lo, v.hi, v.bound) == (axis.lo, axis.hi, axis.bound):
                return v
        v = Var(f"k{len(self.made)}", axis.lo, axis.hi, axis.bound)
        self.made.append(v)
        return v

    def visit(self, t: Term) -> tuple[Term, frozenset[Var]]:
        """The renamed term and the new names bound inside it."""
        if t not in self.memo:
            pairs = [self.visit(a) for a in t.args]
            inside: frozenset[Var] = (
                frozenset().union(*(b for _, b in pairs)) if pairs else frozenset()
            )
            args = tuple(a for a, _ in pairs)
            if t.op not in REDUCTIONS:
                self.memo[t] = (rebuild(t, args), inside)
            else:
                self.memo[t] = self._reduction(t, args, inside)
        return self.memo[t]

    def _reduction(
        self, t: Term, args: tuple[Term, ...], inside: frozenset[Var]
    ) -> tuple[Term, frozenset[Var]]:
        used = set(inside)
        new: list[Var] = []
        for axis in t.axes:
            new.append(self.fresh(axis, used))
            used.add(new[-1])
        env = {old: to_expr(v) for old, v in zip(t.axes, new, strict=True)}
        made = reduction(t.op, tuple(new), *(substitute(a, env) for a in args))
        return made, inside | set(new)
