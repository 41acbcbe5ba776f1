"""Symbolic integers: dimensions and index expressions, with ranges and a simplifier.

In: integers and named variables with ranges. Out: canonical polynomials over atoms (variables,
floor divisions, remainders, minima, maxima, data). Division is floor division, as in Python;
divisors are positive. An `Expr` is immutable; equal values built differently compare equal
wherever the simplifier can see it. Knows nothing of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from math import gcd, isqrt
from typing import Any

UNBOUNDED = 1 << 48
Monomial = tuple["Atom", ...]


class Atom:
    """What a polynomial is made of: ordered by `key`, with an inclusive range. `parts` are the
    arguments of the constructor: equal parts, equal atoms."""

    __slots__ = ("_hash", "hi", "key", "lo", "parts")

    def __init__(self, key: str, lo: int, hi: int, parts: tuple[Any, ...]) -> None:
        self.key, self.lo, self.hi, self.parts = key, lo, hi, parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Atom)
            and self._hash == other._hash
            and type(self) is type(other)
            and self.parts == other.parts
        )

    def __reduce__(self) -> tuple[type[Atom], tuple[Any, ...]]:
        return type(self), self.parts

    def __repr__(self) -> str:
        return self.key

    def variables(self) -> frozenset[Var]:
        """The variables that occur in this atom."""
        raise NotImplementedError

    def substitute(self, env: Mapping[Var, Expr]) -> Expr | None:
        """What stands for this leaf where variables are replaced; None: it stays."""
        raise NotImplementedError

    def map(self, leaf: Callable[[Atom], Expr | None]) -> Expr | None:
        """`leaf` of every leaf in this atom; None: it stays."""
        return leaf(self)

    def evaluate(self, env: Mapping[Any, Any]) -> Any:
        """The value where `env` gives those of variables (by name) and of data."""
        return env[self]


class Var(Atom):
    """A named integer in [lo, hi]; `bound`, if given, is an exclusive symbolic upper bound."""

    __slots__ = ("bound", "name")

    def __init__(
        self, name: str, lo: int = 0, hi: int = UNBOUNDED, bound: Expr | None = None
    ) -> None:
        self.name, self.bound = name, bound
        super().__init__(name, lo, max(lo, hi), (name, lo, max(lo, hi), bound))

    @property
    def extent(self) -> Expr:
        """Number of values of a variable that starts at 0: its bound, or hi + 1."""
        return self.bound if self.bound is not None else const(self.hi + 1)

    def variables(self) -> frozenset[Var]:
        return frozenset((self,))

    def substitute(self, env: Mapping[Var, Expr]) -> Expr | None:
        return env.get(self)

    def evaluate(self, env: Mapping[Any, Any]) -> Any:
        return env[self.name]


class Binary(Atom):
    """`op` of two expressions: 'div' a // b, 'mod' a % b (b > 0), 'min' or 'max'."""

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Expr, b: Expr) -> None:
        self.op, self.a, self.b = op, a, b
        lo, hi = _BINARY[op][2](a, b)
        super().__init__(f"{op}({a},{b})", lo, hi, (op, a, b))

    def variables(self) -> frozenset[Var]:
        return self.a.variables() | self.b.variables()

    def map(self, leaf: Callable[[Atom], Expr | None]) -> Expr | None:
        a, b = self.a.map(leaf), self.b.map(leaf)
        return None if a is self.a and b is self.b else _BINARY[self.op][0](a, b)

    def evaluate(self, env: Mapping[Any, Any]) -> Any:
        return _BINARY[self.op][1](self.a.evaluate(env), self.b.evaluate(env))


class Expr:
    """A polynomial with integer coefficients over atoms, in canonical order.

    >>> i, j = axis_var("i", 6), axis_var("j", 4)
    >>> flat = to_expr(i) * 4 + to_expr(j)
    >>> flat // 4, flat % 4, flat.lo, flat.hi
    (i, j, 0, 23)
    """

    __slots__ = ("_hash", "_range", "_vars", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._range: tuple[int, int] | None = None
        self._vars: frozenset[Var] | None = None

    def __reduce__(self) -> tuple[type[Expr], tuple[tuple[tuple[Monomial, int], ...]]]:
        return Expr, (self.terms,)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.value == other
        return self is other or (
            isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms
        )

    @property
    def value(self) -> int | None:
        """The integer, if this is a constant."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def lo(self) -> int:
        """A lower bound by interval arithmetic (inclusive)."""
        return self._bounds()[0]

    @property
    def hi(self) -> int:
        """An upper bound by interval arithmetic (inclusive)."""
        return self._bounds()[1]

    def _bounds(self) -> tuple[int, int]:
        if self._range is None:
            low = high = 0
            for monomial, coef in self.terms:
                a = b = coef
                for atom in monomial:
                    corners = (a * atom.lo, a * atom.hi, b * atom.lo, b * atom.hi)
                    a, b = min(corners), max(corners)
                low, high = low + a, high + b
            self._range = (low, high)
        return self._range

    def variables(self) -> frozenset[Var]:
        """All variables, those inside divisions and data included."""
        if self._vars is None:
            self._vars = frozenset().union(*(atom.variables() for atom in self.atoms()))
        return self._vars

    def atoms(self) -> Iterator[Atom]:
        """The top-level atoms, in canonical order, repeated if they occur repeatedly."""
        return (atom for monomial, _ in self.terms for atom in monomial)

    def all_atoms(self) -> Iterator[Atom]:
        """All atoms, those inside others after them."""
        for atom in self.atoms():
            yield atom
            if isinstance(atom, Binary):
                yield from atom.a.all_atoms()
                yield from atom.b.all_atoms()

    def coefficient(self, var: Var) -> Expr | None:
        """The linear coefficient of `var`; None if it occurs non-linearly or inside an atom."""
        out: dict[Monomial, int] = {}
        for monomial, coef in self.terms:
            rest = tuple(a for a in monomial if a != var)
            inside = any(not isinstance(a, Var) and var in a.variables() for a in rest)
            if inside or len(monomial) > len(rest) + 1:
                return None
            if len(monomial) > len(rest):
                out[rest] = coef
        return _build(out)

    def map(self, leaf: Callable[[Atom], Expr | None]) -> Expr:
        """This expression with variables and data replaced by what `leaf` gives for them (None:
        they stay), simplified again; itself if nothing changes."""
        new = {atom: atom.map(leaf) for atom in self.atoms()}
        if all(e is None for e in new.values()):
            return self
        total = ZERO
        for monomial, coef in self.terms:
            total = total + prod((const(coef), *(new[a] or to_expr(a) for a in monomial)))
        return total

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        """This expression with variables replaced, simplified again."""
        if not env or self.variables().isdisjoint(env):
            return self
        return self.map(lambda atom: atom.substitute(env))

    def evaluate(self, env: Mapping[Any, Any]) -> Any:
        """The value where `env` gives those of variables, by name (integers or arrays of them),
        and of data; KeyError if one is missing."""
        total = 0
        for monomial, coef in self.terms:
            value = coef
            for atom in monomial:
                value = value * atom.evaluate(env)
            total = total + value
        return total

    def typical(self, hints: Mapping[str, int], default: int) -> int:
        """The value where dimensions have those of `hints`, or else the nearest to `default`."""
        near = {v.name: min(max(v.lo, default), v.hi) for v in self.variables()}
        return self.evaluate({**near, **hints})

    def __add__(self, other: ExprLike) -> Expr:
        other = to_expr(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        out = dict(self.terms)
        for monomial, coef in other.terms:
            out[monomial] = out.get(monomial, 0) + coef
        return _build(out)

    def __mul__(self, other: ExprLike) -> Expr:
        other = to_expr(other)
        if self.value is not None:
            return other._scale(self.value)
        if other.value is not None:
            return self._scale(other.value)
        out: dict[Monomial, int] = {}
        for a, x in self.terms:
            for b, y in other.terms:
                monomial = tuple(sorted(a + b, key=_atom_key))
                out[monomial] = out.get(monomial, 0) + x * y
        return _build(out)

    def _scale(self, factor: int) -> Expr:
        if factor == 1:
            return self
        return ZERO if factor == 0 else Expr(tuple((m, c * factor) for m, c in self.terms))

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return self._scale(-1)

    def __sub__(self, other: ExprLike) -> Expr:
        return self + (-to_expr(other))

    def __rsub__(self, other: ExprLike) -> Expr:
        return to_expr(other) - self

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floor_div(self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return remainder(self, other)

    def __repr__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for monomial, coef in self.terms:
            body = "*".join(a.key for a in monomial)
            size = abs(coef)
            part = str(size) if not body else body if size == 1 else f"{size}*{body}"
            text += (" - " if coef < 0 else " + ") + part
        return text[3:] if text.startswith(" + ") else "-" + text[3:]


ExprLike = Expr | Atom | int
ZERO = Expr(())
ONE = Expr((((), 1),))


def _atom_key(atom: Atom) -> str:
    return atom.key


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[str, ...]]:
    return -len(term[0]), tuple(a.key for a in term[0])


def _build(terms: dict[Monomial, int]) -> Expr:
    kept = [(m, c) for m, c in terms.items() if c]
    if any(isinstance(a, Binary) and a.op == "mod" for m, _ in kept for a in m):
        kept = _rejoin(dict(kept))
    kept.sort(key=_term_key)
    return Expr(tuple(kept))


def _rejoin(terms: dict[Monomial, int]) -> list[tuple[Monomial, int]]:
    """c * (x % n) + c * n * (x // n) is c * x."""
    for monomial, coef in list(terms.items()):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Binary) or atom.op != "mod":
                continue
            rest = Expr(((monomial[:position] + monomial[position + 1 :], coef),))
            partner = (rest * atom.b * floor_div(atom.a, atom.b)).terms
            if len(partner) == 1 and terms.get(partner[0][0]) == partner[0][1]:
                left = {m: c for m, c in terms.items() if m not in (monomial, partner[0][0])}
                return list((Expr(tuple(left.items())) + rest * atom.a).terms)
    return list(terms.items())


def const(value: int) -> Expr:
    """The integer `value` as an expression."""
    return Expr((((), value),)) if value else ZERO


def to_expr(value: ExprLike) -> Expr:
    """An expression from an int, an atom or an expression."""
    if isinstance(value, Expr):
        return value
    return Expr((((value,), 1),)) if isinstance(value, Atom) else const(int(value))


def dim(name: str, lo: int = 0, hi: int = UNBOUNDED) -> Expr:
    """A symbolic dimension with lo <= value <= hi."""
    return to_expr(Var(name, lo, hi))


def axis_var(name: str, extent: ExprLike) -> Var:
    """A variable that counts 0 .. extent-1."""
    extent = to_expr(extent)
    if extent.value is not None and extent.value > 0:
        return Var(name, 0, extent.value - 1)
    return Var(name, 0, max(0, extent.hi - 1), extent)


def prod(values: tuple[Expr, ...]) -> Expr:
    return reduce(operator.mul, values, ONE)


def is_nonnegative(e: ExprLike) -> bool:
    """True if e >= 0 can be proved from the ranges and symbolic bounds of its variables."""
    e = to_expr(e)
    return e.lo >= 0 or _lowest(e).lo >= 0


def _lowest(e: Expr) -> Expr:
    """Replace variables that have symbolic bounds by the end at which `e` is smallest."""
    for _ in range(8):
        for var in sorted(e.variables(), key=_atom_key):
            slope = e.coefficient(var) if var.bound is not None else None
            if slope is not None and slope.terms and (slope.lo >= 0 or slope.hi <= 0):
                e = e.substitute({var: const(var.lo) if slope.lo >= 0 else var.extent - 1})
                break
        else:
            return e
    return e


def _split(num: Expr, den: Expr) -> tuple[Expr, Expr]:
    """num == quotient * den + rest, taking out every monomial that `den` divides."""
    divisor = den.value
    if divisor is not None:
        whole, part = {}, {}
        for monomial, coef in num.terms:
            if monomial:
                (whole if coef % divisor == 0 else part)[monomial] = coef
            else:
                whole[monomial], part[monomial] = coef // divisor * divisor, coef % divisor
        quotient = Expr(tuple((m, c // divisor) for m, c in whole.items() if c))
        return quotient, Expr(tuple((m, c) for m, c in part.items() if c))
    lead, lead_coef = den.terms[0]
    quotient, rest = ZERO, num
    for _ in range(8):
        for monomial, coef in rest.terms:
            left = _remove(monomial, lead)
            if left is not None and coef % lead_coef == 0:
                piece = Expr(((left, coef // lead_coef),))
                quotient, rest = quotient + piece, rest - piece * den
                break
        else:
            break
    return quotient, rest


def _remove(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _within(e: Expr, den: Expr) -> bool:
    return is_nonnegative(e) and is_nonnegative(den - 1 - e)


def _common(rest: Expr, den: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """(g, a, d, s) with rest == g*a + s, den == g*d and 0 <= s < g, for the largest g > 1."""
    n, (symbols, size) = den.value, den.terms[0]
    if n is not None:
        small = [k for k in range(2, isqrt(n) + 1) if n % k == 0]
        units = [const(g) for g in (*(n // k for k in small), *reversed(small))]
    else:
        inside = [c for m, c in rest.terms if _remove(m, symbols) is not None]
        alone = bool(inside) and len(den.terms) == 1
        units = [Expr(((symbols, gcd(size, *inside)),))] * alone
        units += [const(gcd(*(c for _, c in den.terms)))]
    for unit in units:
        a, s = _split(rest, unit)
        if unit != 1 and (n is None or a.variables()) and _within(s, unit):
            return unit, a, _split(den, unit)[0], s
    return None


@lru_cache(maxsize=1 << 14)
def _divided(num: Expr, den: Expr) -> tuple[Expr, Expr]:
    """num // den and num % den, simplified by ranges."""
    if den.value == 1 or not num.terms:
        return num, ZERO
    if num.value is not None and den.value is not None:
        return const(num.value // den.value), const(num.value % den.value)
    quotient, rest = _split(num, den)
    if not rest.terms or _within(rest, den):
        return quotient, rest
    sunk = rest.lo < 0 <= num.lo
    if sunk and den.value is None:
        quotient, rest = ZERO, num
    common = _common(rest, den)
    if common:
        inner, left = _divided(common[1], common[2])
        return quotient + inner, left * common[0] + common[3]
    if sunk:
        quotient, rest = ZERO, num
    left = to_expr(Binary("mod", rest, den))
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, Binary) and atom.op == "div":
            return quotient + floor_div(atom.a, atom.b * den), left
    return quotient + Binary("div", rest, den), left


def floor_div(num: ExprLike, den: ExprLike) -> Expr:
    """num // den (floor), den > 0, simplified by ranges."""
    return _divided(to_expr(num), to_expr(den))[0]


def remainder(num: ExprLike, den: ExprLike) -> Expr:
    """num % den in [0, den), den > 0, simplified by ranges."""
    return _divided(to_expr(num), to_expr(den))[1]


def ceil_div(num: ExprLike, den: int) -> Expr:
    """The least integer >= num / den, den > 0."""
    return floor_div(to_expr(num) + (den - 1), den)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """min(a, b), one of them if that can be proved."""
    return _extreme("min", to_expr(a), to_expr(b))


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """max(a, b), one of them if that can be proved."""
    return _extreme("max", to_expr(a), to_expr(b))


def _extreme(op: str, a: Expr, b: Expr) -> Expr:
    least, most = (a, b) if op == "min" else (b, a)
    if is_nonnegative(b - a):
        return least
    if is_nonnegative(a - b):
        return most
    return to_expr(Binary(op, *sorted((a, b), key=repr)))


def _div_range(a: Expr, b: Expr) -> tuple[int, int]:
    low, high = max(1, b.lo), max(1, b.hi)
    quotients = [n // d for n in (a.lo, a.hi) for d in (low, high)]
    return min(quotients), max(quotients)


def _mod_range(a: Expr, b: Expr) -> tuple[int, int]:
    high = max(0, b.hi - 1)
    return 0, min(high, a.hi) if a.lo >= 0 else high


_Build = Callable[[Expr, Expr], Expr]
_BINARY: dict[str, tuple[_Build, Callable[[Any, Any], Any], Callable[[Expr, Expr], Any]]] = {
    "div": (floor_div, operator.floordiv, _div_range),
    "mod": (remainder, operator.mod, _mod_range),
    "min": (minimum, lambda a, b: a * (a < b) + b * (a >= b),
            lambda a, b: (min(a.lo, b.lo), min(a.hi, b.hi))),
    "max": (maximum, lambda a, b: a * (a > b) + b * (a <= b),
            lambda a, b: (max(a.lo, b.lo), max(a.hi, b.hi))),
}  # fmt: skip
"""Of every binary atom: how it is built simplified, its value, and its range."""
