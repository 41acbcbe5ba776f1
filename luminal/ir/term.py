"""Terms: scalar expressions over named axes, the language of the e-graph and of kernels.

In: smart constructors. Out: hash-consed `Term`s. A term denotes one scalar for each assignment of
its free axes; views, broadcasts and gathers have vanished into the index expressions of loads.
Constructors fold what is exact for every input and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakValueDictionary

from luminal.ir.dtype import DType, boolean, i64
from luminal.ir.expr import Expr, Var, is_nonnegative, to_expr

__all__ = [
    "BINARY", "Data", "REDUCTIONS", "Scalar", "Term", "UNARY", "binary", "cast", "cond", "constant",
    "data", "index", "load", "logical_not", "postorder", "reduction", "rename_axes", "select",
    "substitute", "unary",
]  # fmt: skip

Scalar = float | int | bool
UNARY = ("log2", "exp2", "sin", "sqrt", "recip")
BINARY = ("add", "mul", "mod", "lt", "max")
REDUCTIONS = ("sum", "rmax", "rsum", "wsum")
"""sum Σ e; rmax max e; rsum Σ exp2(x - max x)·v with args (x, v); wsum Σ (x - mean x)².

Each reduces over all the axes in its payload."""
_TABLE: WeakValueDictionary[tuple[object, ...], Term] = WeakValueDictionary()


class Term:
    """One node. `payload` by op: load (buffer, index exprs); const the value; index and cond an
    Expr (cond is true where it is >= 0); reductions the tuple of bound axes; otherwise None.

    Bool terms use 'and', 'or' and 'not' beside lt, cond and select(condition, if_true, if_false).
    """

    __slots__ = ("__weakref__", "_hash", "args", "dtype", "free", "op", "payload")

    op: str
    args: tuple[Term, ...]
    dtype: DType
    payload: object
    free: frozenset[Var]

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Callable[..., Term], tuple[object, ...]]:
        return _make, (self.op, self.args, self.dtype, self.payload)

    @property
    def axes(self) -> tuple[Var, ...]:
        """The bound axes of a reduction."""
        return self.payload if self.op in REDUCTIONS else ()  # type: ignore[return-value]

    @property
    def buffer(self) -> str:
        """The buffer of a load."""
        return self.payload[0]  # type: ignore[index]

    @property
    def indices(self) -> tuple[Expr, ...]:
        """The index expressions of a load."""
        return self.payload[1]  # type: ignore[index]

    @property
    def expr(self) -> Expr:
        """The integer expression of an index or cond term."""
        return self.payload  # type: ignore[return-value]

    @property
    def value(self) -> Scalar | None:
        """The value of a constant; None for anything else."""
        return self.payload if self.op == "const" else None  # type: ignore[return-value]

    def __repr__(self) -> str:
        if self.op == "const":
            return f"{self.payload!r}:{self.dtype}"
        if self.op == "load":
            return f"{self.buffer}[{', '.join(map(repr, self.indices))}]:{self.dtype}"
        if self.op in ("index", "cond"):
            return f"{self.op}({self.payload!r}):{self.dtype}"
        head = self.op + (f"<{' '.join(a.name for a in self.axes)}>" if self.axes else "")
        tail = f":{self.dtype}" if self.op == "cast" else ""
        return f"{head}({', '.join(map(repr, self.args))}){tail}"


class Data:
    """An atom of an index expression: the integer value of a term (a gather's index).

    The value used is clamped to [lo, hi]; if `extent` is given, a value outside [0, extent) is an
    IndexError of the caller and must be reported by whoever evaluates it.
    """

    __slots__ = ("_hash", "extent", "hi", "key", "lo", "term")

    def __init__(self, term: Term, lo: int, hi: int, extent: Expr | None) -> None:
        self.term, self.lo, self.hi, self.extent = term, lo, hi, extent
        self.key = f"data({term!r},{extent})"
        self._hash = hash((term, lo, hi, extent))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Data)
            and self.term is other.term
            and (self.lo, self.hi, self.extent) == (other.lo, other.hi, other.extent)
        )

    def __reduce__(self) -> tuple[type[Data], tuple[Term, int, int, Expr | None]]:
        return Data, (self.term, self.lo, self.hi, self.extent)

    def __repr__(self) -> str:
        return self.key

    def variables(self) -> frozenset[Var]:
        """The free axes of the term, and the dimensions of the extent."""
        return self.term.free if self.extent is None else self.term.free | self.extent.variables()

    def substitute(self, env: Mapping[Var, Expr]) -> Expr:
        """The data at other axis values."""
        extent = None if self.extent is None else self.extent.substitute(env)
        return to_expr_atom(Data(substitute(self.term, env), self.lo, self.hi, extent))

    def evaluate(self, env: Mapping[str, int]) -> int:
        """Not possible without the buffers: the interpreter handles data itself."""
        raise KeyError(self.key)


def to_expr_atom(atom: Data) -> Expr:
    """The expression that consists of one data atom."""
    return Expr((((atom,), 1),))


def data(term: Term, extent: Expr) -> Expr:
    """The integer value of `term` as an index into a dimension of size `extent`, checked unless
    its dtype or form proves it in range."""
    if term.op == "index":
        inside = is_nonnegative(term.expr) and is_nonnegative(extent - 1 - term.expr)
        if inside:
            return term.expr
    if term.op == "const" and extent.value is not None and 0 <= int(term.payload) < extent.value:  # type: ignore[call-overload]
        return to_expr(int(term.payload))  # type: ignore[call-overload]
    if term.op == "cast" and term.args[0].dtype == boolean and extent.lo >= 2:
        return to_expr_atom(Data(term, 0, 1, None))
    return to_expr_atom(Data(term, 0, max(0, extent.hi - 1), extent))


def _make(op: str, args: tuple[Term, ...], dtype: DType, payload: object = None) -> Term:
    key = (op, args, dtype, (type(payload), repr(payload)) if op == "const" else payload)
    found = _TABLE.get(key)
    if found is not None:
        return found
    term = Term()
    term.op, term.args, term.dtype, term.payload = op, args, dtype, payload
    term._hash = hash(key)
    free: frozenset[Var] = frozenset()
    for arg in args:
        free |= arg.free
    for e in term.indices if op == "load" else (term.expr,) if op in ("index", "cond") else ():
        free |= e.variables()
    term.free = free.difference(term.axes) if op in REDUCTIONS else free
    _TABLE[key] = term
    return term


def load(buffer: str, indices: tuple[Expr, ...], dtype: DType) -> Term:
    """The element of a buffer at these indices (in range by construction, or under a select)."""
    return _make("load", (), dtype, (buffer, indices))


def constant(value: Scalar, dtype: DType) -> Term:
    """A scalar; `value` is a Python float, int or bool that `dtype` holds."""
    kind = float if dtype.is_float else bool if dtype.kind == "b" else int
    return _make("const", (), dtype, kind(value))


def index(e: Expr, dtype: DType = i64) -> Term:
    """The integer value of an index expression."""
    return constant(e.value, dtype) if e.value is not None else _make("index", (), dtype, e)


def cond(e: Expr) -> Term:
    """The truth of e >= 0."""
    if is_nonnegative(e):
        return constant(True, boolean)
    if is_nonnegative(-1 - e):
        return constant(False, boolean)
    for sign, offset in ((1, -1), (-1, 0)):  # data - 1 >= 0 or -data >= 0 for a 0/1 data atom
        rest = e - offset
        if len(rest.terms) == 1 and rest.terms[0][1] == sign and len(rest.terms[0][0]) == 1:
            atom = rest.terms[0][0][0]
            if isinstance(atom, Data) and (atom.lo, atom.hi, atom.extent) == (0, 1, None):
                truth = atom.term.args[0]
                return truth if sign == 1 else logical_not(truth)
    return _make("cond", (), boolean, e)


def logical_not(x: Term) -> Term:
    """not x, for a bool term."""
    if x.op == "not":
        return x.args[0]
    if x.op == "const":
        return constant(not x.payload, boolean)
    if x.op == "cond":
        return cond(-1 - x.expr)
    return _make("not", (x,), boolean)


def unary(op: str, x: Term) -> Term:
    """log2, exp2, sin, sqrt or recip."""
    return _make(op, (x,), x.dtype)


def cast(x: Term, dtype: DType) -> Term:
    """x converted to dtype; integer constants and bools fold."""
    if x.dtype == dtype:
        return x
    if x.op == "const" and not x.dtype.is_float and dtype.bits >= 32:
        return constant(x.payload, dtype)  # type: ignore[arg-type]
    if x.op == "index" and dtype.is_int and dtype.bits >= 32:
        return _make("index", (), dtype, x.payload)
    return _make("cast", (x,), dtype)


def binary(op: str, a: Term, b: Term) -> Term:
    """add, mul, mod, lt or max (NaN wins); on bools add is or, mul is and."""
    if a.dtype == boolean and op in ("add", "max", "mul"):
        return _logic("and" if op == "mul" else "or", a, b)
    if op == "lt":
        if a.op in ("index", "const") and b.op in ("index", "const") and a.dtype.is_int:
            return cond(_as_expr(b) - _as_expr(a) - 1)
        if a.dtype == boolean:
            return _logic("and", logical_not(a), b)
        return _make("lt", (a, b), boolean)
    if op in ("add", "mul") and a.dtype.is_int and a.dtype.bits >= 32:
        if a.op in ("index", "const") and b.op in ("index", "const"):
            x, y = _as_expr(a), _as_expr(b)
            return index(x + y if op == "add" else x * y, a.dtype)
    if op in ("add", "mul"):
        folded = _neutral(op, a, b)
        if folded is not None:
            return folded
    return _make(op, (a, b), a.dtype)


def _as_expr(x: Term) -> Expr:
    return x.expr if x.op == "index" else to_expr(int(x.payload))  # type: ignore[call-overload]


def _neutral(op: str, a: Term, b: Term) -> Term | None:
    for x, y in ((a, b), (b, a)):
        if x.op == "const":
            text = repr(x.payload)
            if text in (("-0.0", "0") if op == "add" else ("1.0", "1")):
                return y
            if text == "0" and op == "mul":
                return x
    if op == "add" and a.op == "select" and b.op == "select":
        c, x, y = a.args
        d, u, v = b.args
        if d is logical_not(c):
            return select(c, binary("add", x, v), binary("add", y, u))
        if d is c:
            return select(c, binary("add", x, u), binary("add", y, v))
    return None


def _logic(op: str, a: Term, b: Term) -> Term:
    for x, y in ((a, b), (b, a)):
        if x.op == "const":
            return y if bool(x.payload) == (op == "and") else x
    if a is b:
        return a
    if a is logical_not(b):
        return constant(op == "or", boolean)
    return _make(op, (a, b), boolean)


def select(condition: Term, if_true: Term, if_false: Term) -> Term:
    """if_true where the condition holds, else if_false (the other one is not evaluated)."""
    if condition.op == "const":
        return if_true if condition.payload else if_false
    if if_true is if_false:
        return if_true
    if condition.op == "not":
        return select(condition.args[0], if_false, if_true)
    if if_true.dtype == boolean and if_true.op == if_false.op == "const":
        return condition if if_true.payload else logical_not(condition)
    return _make("select", (condition, if_true, if_false), if_true.dtype)


def reduction(op: str, axes: tuple[Var, ...], *args: Term) -> Term:
    """sum, rmax, rsum or wsum over `axes`; nested sums and maxima merge."""
    if not axes:
        return args[0]
    if op in ("sum", "rmax") and args[0].op == op and not set(axes) & set(args[0].axes):
        return _make(op, args[0].args, args[0].dtype, (*axes, *args[0].axes))
    return _make(op, args, args[-1].dtype, axes)


_BUILDERS: dict[str, Callable[..., Term]] = {
    "and": lambda a, b: _logic("and", a, b),
    "or": lambda a, b: _logic("or", a, b),
    "not": logical_not,
    "select": select,
}


def rebuild(term: Term, args: tuple[Term, ...]) -> Term:
    """The same operation on other arguments, folded again."""
    if args == term.args:
        return term
    if term.op in BINARY:
        return binary(term.op, *args)
    if term.op in UNARY:
        return unary(term.op, *args)
    if term.op in _BUILDERS:
        return _BUILDERS[term.op](*args)
    if term.op == "cast":
        return cast(args[0], term.dtype)
    if term.op in REDUCTIONS:
        return reduction(term.op, term.axes, *args)
    return _make(term.op, args, term.dtype, term.payload)


def substitute(term: Term, env: Mapping[Var, Expr]) -> Term:
    """The term with free axes replaced. Bound axes must not occur in the replacements."""
    memo: dict[Term, Term] = {}

    def visit(t: Term) -> Term:
        if t.free.isdisjoint(env):
            return t
        if t not in memo:
            if t.op == "load":
                new = load(t.buffer, tuple(e.substitute(env) for e in t.indices), t.dtype)
            elif t.op == "index":
                new = index(t.expr.substitute(env), t.dtype)
            elif t.op == "cond":
                new = cond(t.expr.substitute(env))
            elif not env.keys().isdisjoint(t.axes):  # an inner axis of the same name is another
                inner = {v: e for v, e in env.items() if v not in t.axes}
                new = rebuild(t, tuple(substitute(a, inner) for a in t.args))
            else:
                new = rebuild(t, tuple(visit(a) for a in t.args))
            memo[t] = new
        return memo[t]

    return visit(term)


def rename_axes(term: Term, fresh: Callable[[Var], Var]) -> Term:
    """The term with every bound axis renamed by `fresh`, innermost first."""
    args = tuple(rename_axes(a, fresh) for a in term.args)
    if term.op not in REDUCTIONS:
        return rebuild(term, args)
    new = tuple(fresh(a) for a in term.axes)
    env = {old: to_expr(n) for old, n in zip(term.axes, new, strict=True)}
    return _make(term.op, tuple(substitute(a, env) for a in args), term.dtype, new)


def postorder(*roots: Term) -> Iterator[Term]:
    """Every distinct subterm once, arguments first; terms inside data atoms included."""
    seen: set[Term] = set()

    def visit(t: Term) -> Iterator[Term]:
        if t in seen:
            return
        seen.add(t)
        for e in t.indices if t.op == "load" else (t.expr,) if t.op in ("index", "cond") else ():
            for inner in _data_terms(e):
                yield from visit(inner)
        for a in t.args:
            yield from visit(a)
        yield t

    for root in roots:
        yield from visit(root)


def _data_terms(e: Expr) -> Iterator[Term]:
    for atom in e.atoms():
        if isinstance(atom, Data):
            yield atom.term
        elif not isinstance(atom, Var):
            yield from _data_terms(atom.a)  # type: ignore[attr-defined]
            yield from _data_terms(atom.b)  # type: ignore[attr-defined]
