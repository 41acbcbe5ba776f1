"""Index expressions as operands: partial sums by level, constants last, lanes as vectors.

In: `Expr`s over loop variables. Out: i64 operands (vectors where the lane variable occurs).
Data atoms are evaluated by whoever owns terms, through a callback.
"""

from __future__ import annotations

from collections.abc import Callable

from luminal.codegen.arith import Arithmetic
from luminal.codegen.loopir import Literal, Operand
from luminal.errors import InternalError
from luminal.ir.dtype import i64
from luminal.ir.expr import Atom, Binary, Expr, Var, maximum
from luminal.ir.term import Data

__all__ = ["Integers"]

DataValue = Callable[[Data, "Operand | None"], Operand]


class Integers:
    """Emits index expressions; `variables` maps loop variables to their values."""

    def __init__(self, arith: Arithmetic) -> None:
        self.arith, self.emit = arith, arith.emit
        self.variables: dict[Var, Operand] = {}
        self.data_value: DataValue | None = None
        self._cache: dict[tuple[Expr, Operand | None], Operand] = {}

    def operand(self, e: Expr, mask: Operand | None = None) -> Operand:
        """The value of `e`; `mask` says where data atoms may be read."""
        if e.value is not None:
            return Literal(e.value, i64)
        key = (e, mask)
        found = self._cache.get(key)
        if found is None or not self.emit.alive(found):
            found = self._cache[key] = self._sum(e, mask)
        return found

    def _sum(self, e: Expr, mask: Operand | None) -> Operand:
        constant = 0
        parts: list[tuple[tuple[int, int], Operand]] = []
        for monomial, coef in e.terms:
            if not monomial:
                constant = coef
                continue
            atoms = [self._atom(a, mask) for a in monomial]
            atoms.sort(key=lambda x: (x.lanes > 1, self.emit.level(x)))
            piece: Operand = atoms[0]
            for other in atoms[1:]:
                piece = self.arith.mul(piece, other)
            piece = self.arith.mul(piece, Literal(coef, i64))
            parts.append(((int(piece.lanes > 1), self.emit.level(piece)), piece))
        parts.sort(key=lambda p: p[0])
        total = self._by_level(parts)
        return self.arith.add(total, Literal(constant, i64)) if constant else total

    def _by_level(self, parts: list[tuple[tuple[int, int], Operand]]) -> Operand:
        total: Operand = parts[0][1]
        position = 1
        while position < len(parts):
            rank, group = parts[position]
            position += 1
            while position < len(parts) and parts[position][0] == rank:
                group = self.arith.add(group, parts[position][1])
                position += 1
            total = self.arith.add(total, group)
        return total

    def _atom(self, atom: Atom, mask: Operand | None) -> Operand:
        match atom:
            case Var():
                if atom not in self.variables:
                    raise InternalError(f"[codegen] no value for index variable {atom!r}.")
                return self.variables[atom]
            case Data():
                if self.data_value is None:
                    raise InternalError("[codegen] index data where none is possible.")
                return self.data_value(atom, mask)
            case Binary(op="div" | "mod"):
                divisor = atom.b if atom.b.lo >= 1 else maximum(atom.b, 1)
                exact = {"div": "udiv", "mod": "urem"}[atom.op] if atom.a.lo >= 0 else None
                args = (self.operand(atom.a, mask), self.operand(divisor, mask))
                return self.arith.apply(exact or f"floor{atom.op}", *args)
            case Binary():
                args = (self.operand(atom.a, mask), self.operand(atom.b, mask))
                return self.arith.apply(atom.op, *args)
        raise InternalError(f"[codegen] unknown atom {atom!r}.")
