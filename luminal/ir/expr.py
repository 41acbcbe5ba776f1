"""Symbolic integers: dimensions and index expressions, with ranges and a simplifier.

In: integers and named variables with ranges. Out: canonical polynomials over atoms (variables,
floor divisions, remainders, minima, maxima, data). Division is floor division, as in Python;
divisors are positive. An `Expr` is immutable; equal values built differently compare equal
wherever the simplifier can see it. Knows nothing of tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import Protocol, runtime_checkable

__all__ = [
    "Atom", "Div", "Expr", "ExprLike", "MaxOf", "MinOf", "Mod", "ONE", "UNBOUNDED", "Var", "ZERO",
    "axis_var", "ceil_div", "const", "dim", "floor_div", "is_nonnegative", "maximum", "minimum",
    "parse", "prod", "remainder", "to_expr",
]  # fmt: skip

UNBOUNDED = 1 << 48
Monomial = tuple["Atom", ...]


@runtime_checkable
class Atom(Protocol):
    """What a polynomial is made of: hashable, ordered by `key`, with an inclusive range."""

    key: str
    lo: int
    hi: int

    def variables(self) -> frozenset[Var]:
        """The variables that occur in this atom."""
        ...

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        """This atom with variables replaced."""
        ...

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The value for given variables, by name."""
        ...


class Var:
    """A named integer in [lo, hi]; `bound`, if given, is an exclusive symbolic upper bound."""

    __slots__ = ("_hash", "bound", "hi", "key", "lo", "name")

    def __init__(
        self, name: str, lo: int = 0, hi: int = UNBOUNDED, bound: Expr | None = None
    ) -> None:
        self.name, self.lo, self.hi, self.bound = name, lo, max(lo, hi), bound
        self.key = name
        self._hash = hash((name, lo, self.hi, bound))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Var)
            and self._hash == other._hash
            and (self.name, self.lo, self.hi, self.bound)
            == (other.name, other.lo, other.hi, other.bound)
        )

    def __reduce__(self) -> tuple[type[Var], tuple[str, int, int, Expr | None]]:
        return Var, (self.name, self.lo, self.hi, self.bound)

    def __repr__(self) -> str:
        return self.name

    @property
    def extent(self) -> Expr:
        """Number of values of a variable that starts at 0: its bound, or hi + 1."""
        return self.bound if self.bound is not None else const(self.hi + 1)

    def variables(self) -> frozenset[Var]:
        return frozenset((self,))

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        return env[self] if self in env else Expr((((self,), 1),))

    def evaluate(self, env: Mapping[str, int]) -> int:
        return env[self.name]


class _Binary:
    """Common part of the four binary atoms."""

    __slots__ = ("_hash", "a", "b", "hi", "key", "lo")
    symbol = "?"

    def __init__(self, a: Expr, b: Expr) -> None:
        self.a, self.b = a, b
        self.key = f"{self.symbol}({a},{b})"
        self._hash = hash((self.symbol, a, b))
        self.lo, self.hi = self._range()

    def _range(self) -> tuple[int, int]:
        raise NotImplementedError

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and self._hash == other._hash  # type: ignore[attr-defined]
            and self.a == other.a  # type: ignore[attr-defined]
            and self.b == other.b  # type: ignore[attr-defined]
        )

    def __repr__(self) -> str:
        return self.key

    def __reduce__(self) -> tuple[type, tuple[Expr, Expr]]:
        return type(self), (self.a, self.b)

    def variables(self) -> frozenset[Var]:
        return self.a.variables() | self.b.variables()


class Div(_Binary):
    """Floor division a // b, b > 0."""

    __slots__ = ()
    symbol = "div"

    def _range(self) -> tuple[int, int]:
        low, high = max(1, self.b.lo), max(1, self.b.hi)
        quotients = [n // d for n in (self.a.lo, self.a.hi) for d in (low, high)]
        return min(quotients), max(quotients)

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        return floor_div(self.a.substitute(env), self.b.substitute(env))

    def evaluate(self, env: Mapping[str, int]) -> int:
        return self.a.evaluate(env) // self.b.evaluate(env)


class Mod(_Binary):
    """Remainder a % b in [0, b), b > 0."""

    __slots__ = ()
    symbol = "mod"

    def _range(self) -> tuple[int, int]:
        high = max(0, self.b.hi - 1)
        return 0, min(high, self.a.hi) if self.a.lo >= 0 else high

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        return remainder(self.a.substitute(env), self.b.substitute(env))

    def evaluate(self, env: Mapping[str, int]) -> int:
        return self.a.evaluate(env) % self.b.evaluate(env)


class MinOf(_Binary):
    """The smaller of two."""

    __slots__ = ()
    symbol = "min"

    def _range(self) -> tuple[int, int]:
        return min(self.a.lo, self.b.lo), min(self.a.hi, self.b.hi)

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        return minimum(self.a.substitute(env), self.b.substitute(env))

    def evaluate(self, env: Mapping[str, int]) -> int:
        return min(self.a.evaluate(env), self.b.evaluate(env))


class MaxOf(_Binary):
    """The larger of two."""

    __slots__ = ()
    symbol = "max"

    def _range(self) -> tuple[int, int]:
        return max(self.a.lo, self.b.lo), max(self.a.hi, self.b.hi)

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        return maximum(self.a.substitute(env), self.b.substitute(env))

    def evaluate(self, env: Mapping[str, int]) -> int:
        return max(self.a.evaluate(env), self.b.evaluate(env))


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
                a, b = _monomial_range(monomial)
                low += coef * (a if coef > 0 else b)
                high += coef * (b if coef > 0 else a)
            self._range = (low, high)
        return self._range

    def variables(self) -> frozenset[Var]:
        """All variables, those inside divisions and data included."""
        if self._vars is None:
            found: frozenset[Var] = frozenset()
            for atom in self.atoms():
                found |= atom.variables()
            self._vars = found
        return self._vars

    def atoms(self) -> Iterator[Atom]:
        """The top-level atoms, in canonical order, repeated if they occur repeatedly."""
        return (atom for monomial, _ in self.terms for atom in monomial)

    def coefficient(self, var: Var) -> Expr | None:
        """The linear coefficient of `var`; None if it occurs non-linearly or inside an atom."""
        out: dict[Monomial, int] = {}
        for monomial, coef in self.terms:
            count = 0
            for atom in monomial:
                if atom is var or atom == var:
                    count += 1
                elif not isinstance(atom, Var) and var in atom.variables():
                    return None
            if count > 1:
                return None
            if count:
                rest = list(monomial)
                rest.remove(var)
                out[tuple(rest)] = out.get(tuple(rest), 0) + coef
        return _build(out)

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        """This expression with variables replaced, simplified again."""
        if not env or self.variables().isdisjoint(env):
            return self
        total = ZERO
        for monomial, coef in self.terms:
            factor = const(coef)
            for atom in monomial:
                factor = factor * atom.substitute(env)
            total = total + factor
        return total

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The value for given variables, by name; KeyError if one is missing."""
        total = 0
        for monomial, coef in self.terms:
            for atom in monomial:
                coef *= atom.evaluate(env)
            total += coef
        return total

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
        return floor_div(self, to_expr(other))

    def __mod__(self, other: ExprLike) -> Expr:
        return remainder(self, to_expr(other))

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


ExprLike = Expr | int | Var


def _atom_key(atom: Atom) -> str:
    return atom.key


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[str, ...]]:
    return -len(term[0]), tuple(a.key for a in term[0])


def _monomial_range(monomial: Monomial) -> tuple[int, int]:
    low = high = 1
    for atom in monomial:
        corners = (low * atom.lo, low * atom.hi, high * atom.lo, high * atom.hi)
        low, high = min(corners), max(corners)
    return low, high


def _build(terms: dict[Monomial, int]) -> Expr:
    kept = [(m, c) for m, c in terms.items() if c]
    if any(isinstance(a, Mod) for m, _ in kept for a in m):
        kept = _rejoin(dict(kept))
    kept.sort(key=_term_key)
    return Expr(tuple(kept))


def _rejoin(terms: dict[Monomial, int]) -> list[tuple[Monomial, int]]:
    """c * (x % n) + c * n * (x // n) is c * x."""
    for monomial, coef in list(terms.items()):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            rest = monomial[:position] + monomial[position + 1 :]
            partner = Expr(((rest, coef),)) * atom.b * floor_div(atom.a, atom.b)
            if len(partner.terms) != 1 or terms.get(partner.terms[0][0]) != partner.terms[0][1]:
                continue
            left = {m: c for m, c in terms.items() if m not in (monomial, partner.terms[0][0])}
            joined = Expr(tuple(left.items())) + Expr(((rest, coef),)) * atom.a
            return list(joined.terms)
    return list(terms.items())


def const(value: int) -> Expr:
    """The integer `value` as an expression."""
    return Expr((((), value),)) if value else ZERO


ZERO = Expr(())
ONE = Expr((((), 1),))


def to_expr(value: ExprLike) -> Expr:
    """An expression from an int, a variable or an expression."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Var):
        return Expr((((value,), 1),))
    return const(int(value))


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
    """The product; 1 for none."""
    out = ONE
    for value in values:
        out = out * value
    return out


def _lowest(e: Expr) -> Expr:
    """Replace variables that have symbolic bounds by the end at which `e` is smallest."""
    for _ in range(8):
        for var in sorted(e.variables(), key=_atom_key):
            if var.bound is None:
                continue
            slope = e.coefficient(var)
            if slope is None or not slope.terms:
                continue
            if slope.lo >= 0:
                e = e.substitute({var: const(var.lo)})
            elif slope.hi <= 0:
                e = e.substitute({var: var.bound - 1})
            else:
                continue
            break
        else:
            return e
    return e


def is_nonnegative(e: ExprLike) -> bool:
    """True if e >= 0 can be proved from the ranges and symbolic bounds of its variables."""
    e = to_expr(e)
    return e.lo >= 0 or _lowest(e).lo >= 0


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


def _coarse(rest: Expr, divisor: int) -> tuple[int, Expr, Expr] | None:
    """rest == g*a + s with g | divisor and 0 <= s < g, for the largest such g > 1."""
    for g in range(divisor // 2 if rest.terms else 0, 1, -1):
        if divisor % g:
            continue
        a, s = _split(rest, const(g))
        if a.variables() and _within(s, const(g)):
            return g, a, s
    return None


def _shared_factor(rest: Expr, den: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """rest == g*a + s and den == g*d with g > 1 and 0 <= s < g, for a symbolic divisor."""
    if len(den.terms) == 1 and den.terms[0][0]:
        symbols, size = den.terms[0]
        inside = [c for m, c in rest.terms if _remove(m, symbols) is not None]
        common = gcd(size, *inside)
        unit = Expr(((symbols, common),))
        a, s = _split(rest, unit) if inside else (ZERO, rest)
        if a.terms and _within(s, unit):
            return unit, a, const(size // common), s
    g = gcd(*(c for _, c in den.terms))
    if den.value is not None or g == 1:
        return None
    a, s = _split(rest, const(g))
    if not _within(s, const(g)):
        return None
    return const(g), a, Expr(tuple((m, c // g) for m, c in den.terms)), s


def floor_div(num: ExprLike, den: ExprLike) -> Expr:
    """num // den (floor), den > 0, simplified by ranges."""
    num, den = to_expr(num), to_expr(den)
    if den.value == 1 or not num.terms:
        return num
    if num.value is not None and den.value is not None:
        return const(num.value // den.value)
    quotient, rest = _split(num, den)
    if not rest.terms or _within(rest, den):
        return quotient
    if den.value is not None:
        coarse = _coarse(rest, den.value)
        if coarse:
            return quotient + floor_div(coarse[1], den.value // coarse[0])
    if rest.lo < 0 <= num.lo:
        quotient, rest = ZERO, num
    shared = _shared_factor(rest, den)
    if shared:
        return quotient + floor_div(shared[1], shared[2])
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        inner = rest.terms[0][0][0]
        if isinstance(inner, Div):
            return quotient + floor_div(inner.a, inner.b * den)
    return quotient + Expr((((Div(rest, den),), 1),))


def remainder(num: ExprLike, den: ExprLike) -> Expr:
    """num % den in [0, den), den > 0, simplified by ranges."""
    num, den = to_expr(num), to_expr(den)
    if den.value == 1 or not num.terms:
        return ZERO
    if num.value is not None and den.value is not None:
        return const(num.value % den.value)
    _, rest = _split(num, den)
    if not rest.terms or _within(rest, den):
        return rest
    if den.value is not None:
        coarse = _coarse(rest, den.value)
        if coarse:
            return remainder(coarse[1], den.value // coarse[0]) * coarse[0] + coarse[2]
    if rest.lo < 0 <= num.lo:
        rest = num
    shared = _shared_factor(rest, den)
    if shared:
        return remainder(shared[1], shared[2]) * shared[0] + shared[3]
    return Expr((((Mod(rest, den),), 1),))


def ceil_div(num: ExprLike, den: int) -> Expr:
    """The least integer >= num / den, den > 0."""
    return floor_div(to_expr(num) + (den - 1), den)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """min(a, b), one of them if that can be proved."""
    a, b = to_expr(a), to_expr(b)
    if is_nonnegative(b - a):
        return a
    if is_nonnegative(a - b):
        return b
    a, b = sorted((a, b), key=repr)
    return Expr((((MinOf(a, b),), 1),))


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """max(a, b), one of them if that can be proved."""
    a, b = to_expr(a), to_expr(b)
    if is_nonnegative(a - b):
        return a
    if is_nonnegative(b - a):
        return b
    a, b = sorted((a, b), key=repr)
    return Expr((((MaxOf(a, b),), 1),))


_CALLS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "div": floor_div,
    "mod": remainder,
    "min": minimum,
    "max": maximum,
}


def parse(text: str, names: Mapping[str, ExprLike]) -> Expr:
    """The expression that `repr` printed; `names` gives its variables. ValueError if malformed.

    >>> n = dim("n", 1, 100)
    >>> parse(repr((n + 3) // 2), {"n": n}) == (n + 3) // 2
    True
    """
    return _from_ast(ast.parse(text, mode="eval").body, names)


def _from_ast(node: ast.expr, names: Mapping[str, ExprLike]) -> Expr:
    match node:
        case ast.Constant(value=int(value)):
            return const(value)
        case ast.Name(id=name) if name in names:
            return to_expr(names[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_from_ast(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _from_ast(left, names), _from_ast(right, names)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
            return _CALLS[name](_from_ast(left, names), _from_ast(right, names))
    raise ValueError(f"[expr] not an index expression: {ast.unparse(node)}")
