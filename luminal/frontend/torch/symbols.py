"""Symbolic sizes: PyTorch's sympy expressions as index expressions and as Python text.

In: ints, SymInts and sympy expressions of one traced graph. Out: `Expr`s over `Var`s that carry
the ranges of the shape environment, and Python source over the symbols' names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.utils._sympy import functions as sym
from torch.utils._sympy.printers import PythonPrinter

from luminal.errors import UnsupportedError
from luminal.ir.expr import UNBOUNDED, Expr, Var, const, maximum, minimum, to_expr

__all__ = ["Symbols", "free_symbols", "sympy_of"]

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Printer(PythonPrinter):
    """Python text whose precedence never depends on where it is pasted."""

    def doprint(self, expr: sympy.Basic) -> str:
        text = super().doprint(expr)
        return text if text.replace("_", "a").isalnum() else f"({text})"


def sympy_of(value: object) -> sympy.Basic:
    """The sympy expression of a number, a SymInt, SymFloat or SymBool."""
    if isinstance(value, SYMBOLIC):
        return value.node.expr
    return sympy.sympify(value)


def free_symbols(value: object) -> frozenset[sympy.Symbol]:
    """The symbols in a number, a tensor's sizes and strides, or a nest of those."""
    if isinstance(value, SYMBOLIC):
        return frozenset(value.node.expr.free_symbols)
    if isinstance(value, torch.Tensor):
        parts = (*value.shape, *_strides(value), value.storage_offset())
        return frozenset().union(*(free_symbols(p) for p in parts if isinstance(p, SYMBOLIC)))
    if isinstance(value, (list, tuple)):
        return frozenset().union(*(free_symbols(v) for v in value))
    return frozenset()


def _strides(tensor: torch.Tensor) -> tuple[int | torch.SymInt, ...]:
    return tensor.stride() if tensor.layout == torch.strided else ()


def device_of(graph: Graph) -> torch.device:
    """Where a graph is compiled for: the first CUDA device that it touches, else the CPU."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return value.device
    return torch.device("cpu")


def _shape_environment(graph: Graph) -> object | None:
    for node in graph.nodes:
        value = node.meta.get("val")
        parts = value.shape if isinstance(value, torch.Tensor) else (value,)
        for part in parts:
            if isinstance(part, SYMBOLIC):
                return part.node.shape_env
    return None


def _bound(value: sympy.Basic, default: int) -> int:
    if not getattr(value, "is_Integer", isinstance(value, int)):
        return default  # infinite, or symbolic
    return max(-UNBOUNDED, min(UNBOUNDED, int(value)))


class Symbols:
    """The symbols of one graph: which are known at entry, and how."""

    def __init__(self, graph: Graph) -> None:
        self._environment: Any = _shape_environment(graph)
        self._ranges: Mapping[sympy.Symbol, object] = getattr(self._environment, "var_to_range", {})
        self._known: dict[sympy.Basic, sympy.Basic] = {}
        _specialise(self._environment)
        self._hints: dict[str, int] | None = None
        self._vars: dict[sympy.Symbol, Var] = {}
        self.sources = _sources(graph)
        self.device = device_of(graph)

    def hints(self) -> dict[str, int]:
        """The sizes that the graph was traced with, by name."""
        if self._hints is None:
            self._hints = self._find_hints()
        return self._hints

    def _find_hints(self) -> dict[str, int]:
        found = {}
        for symbol, (node, dim) in self.sources.items():
            value = node.meta["val"] if dim is None else node.meta["val"].shape[dim]
            hint = getattr(value.node, "hint", None)
            if isinstance(hint, int):
                found[str(symbol)] = hint
        return found

    def known(self, value: object) -> bool:
        """True if every symbol of a value is known when the graph is entered."""
        return free_symbols(value) <= self.sources.keys()

    def var(self, symbol: sympy.Symbol) -> Var:
        """The index variable of a symbol, with its range; UnsupportedError if it may be negative,
        as a number of the program may that is no size."""
        if symbol not in self._vars:
            self._guard_sign(symbol)
            limits = self._ranges.get(symbol)
            low = _bound(getattr(limits, "lower", 0), -UNBOUNDED)
            if low < 0:
                raise UnsupportedError(f"[torch] a number {symbol} that may be negative.")
            high = _bound(getattr(limits, "upper", UNBOUNDED), UNBOUNDED)
            self._vars[symbol] = Var(str(symbol), low, high)
        return self._vars[symbol]

    def _guard_sign(self, symbol: sympy.Symbol) -> None:
        """Makes a graph that was traced with a number from 0 for such numbers only."""
        environment = self._environment
        value = getattr(environment, "backed_var_to_val", {}).get(symbol)
        limits = self._ranges.get(symbol)
        if value is None or limits is None or environment.frozen or limits.lower >= 0:  # type: ignore[attr-defined]
            return
        environment.evaluate_expr(symbol >= 0)

    def symbol(self, var: Var) -> sympy.Symbol:
        """The symbol that a variable stands for."""
        return next(s for s, v in self._vars.items() if v == var)

    def expr(self, value: object) -> Expr:
        """An int, SymInt or sympy expression as an index expression; UnsupportedError if it has
        parts that are no index arithmetic."""
        if isinstance(value, int):
            return const(value)
        return self._expr(self._settled(sympy_of(value)))

    def _settled(self, e: sympy.Basic) -> sympy.Basic:
        """The constant that guards force an expression to be, or the expression."""
        if e.is_Integer:
            return e
        if e not in self._known:
            self._known[e] = self._settle(e)
        return self._known[e]

    def _settle(self, e: sympy.Basic) -> sympy.Basic:
        if not e.is_Symbol:  # a symbol that guards fix may be one of several, or inside a division
            e = e.subs({s: self._settled(s) for s in e.free_symbols})
        hints = self.hints()
        value = e.subs({s: hints[str(s)] for s in e.free_symbols if str(s) in hints})
        if not value.is_Integer:
            return e
        forced = self._environment._maybe_evaluate_static(sympy.Eq(e, value))
        return value if forced is not None and bool(forced) else e

    def exprs(self, values: Iterable[object]) -> tuple[Expr, ...]:
        """`expr` of each."""
        return tuple(self.expr(v) for v in values)

    def _expr(self, e: sympy.Basic) -> Expr:
        if e.is_Integer:
            return const(int(e))
        if e.is_Symbol:
            return to_expr(self.var(e))
        if isinstance(e, (sympy.Pow, sym.PowByNatural)) and e.args[1].is_Integer:
            out = const(1)
            for _ in range(int(e.args[1])):
                out = out * self._expr(e.args[0])
            if int(e.args[1]) >= 0:
                return out
        args = [self._expr(a) for a in e.args if int not in (type(a),)]
        out = _combine(e, args)
        if out is None:
            raise UnsupportedError(f"[torch] size {e} is no index arithmetic.")
        return out

    def python(self, value: object) -> str:
        """Python source of a number over the names of the symbols."""
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        return _Printer().doprint(sympy_of(value))


def _combine(e: sympy.Basic, args: list[Expr]) -> Expr | None:
    if isinstance(e, (sym.FloorDiv, sym.CleanDiv)) and args[1].lo > 0:
        return args[0] // args[1]
    if isinstance(e, (sym.Mod, sym.PythonMod)) and args[1].lo > 0:
        return args[0] % args[1]
    if isinstance(e, sym.ModularIndexing) and args[1].lo > 0 and args[2].lo > 0:
        return args[0] // args[1] % args[2]
    if isinstance(e, sym.Identity):
        return args[0]
    fold = {sympy.Add: Expr.__add__, sympy.Mul: Expr.__mul__, sym.Max: maximum, sym.Min: minimum}
    for kind, function in fold.items():
        if isinstance(e, kind):
            out = args[0]
            for arg in args[1:]:
                out = function(out, arg)
            return out
    return None


def _sources(graph: Graph) -> dict[sympy.Symbol, tuple[Node, int | None]]:
    """Where each symbol is found at entry: (SymInt placeholder, None) or (tensor, dimension)."""
    found: dict[sympy.Symbol, tuple[Node, int | None]] = {}
    sized: dict[sympy.Symbol, tuple[Node, int | None]] = {}
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC) and value.node.expr.is_Symbol:
            found.setdefault(value.node.expr, (node, None))
        elif isinstance(value, torch.Tensor):
            for d, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    sized.setdefault(size.node.expr, (node, d))
    return sized | found


def _specialise(environment: Any) -> None:
    """Fixes the sizes that occur in guards like floor(s/16)**2 == 4: such a graph is for few sizes
    anyhow, and with a fixed one its shapes are plain. Another size compiles again."""
    if environment is None or environment.frozen:
        return
    for guard in list(environment.guards):
        e = guard.expr
        if not isinstance(e, sympy.Eq) or e.lhs.is_Symbol:
            continue
        if len(e.free_symbols) > 1 and not (e.rhs.is_Integer and e.rhs != 0):
            continue
        if not _restricts(e, environment):
            continue
        for symbol in sorted(e.free_symbols, key=str):
            value = environment.backed_var_to_val.get(symbol)
            if value is not None and symbol not in environment.replacements:
                environment.evaluate_expr(sympy.Eq(symbol, value))


def _restricts(equation: sympy.Eq, environment: Any) -> bool:
    """False if an equation holds at several multiples of the sizes that were traced, all those that
    the other guards admit: it says nothing that they do not, as n // (n // m) == m if m divides n.
    """
    symbols = sorted(equation.free_symbols, key=str)
    values = [environment.backed_var_to_val.get(s) for s in symbols]
    if len(symbols) not in (2, 3) or None in values:
        return True
    others = [g.expr for g in environment.guards if g.expr != equation]
    admitted = 0
    for factors in itertools.product((1, 2, 3), repeat=len(symbols)):
        sizes = {s: v * f for s, v, f in zip(symbols, values, factors, strict=True)}
        if not any(g.subs(sizes) == sympy.false for g in others):
            admitted += len(set(factors)) > 1
            if equation.subs(sizes) == sympy.false:
                return True
    return not admitted
