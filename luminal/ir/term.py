"""Terms: scalar expressions over named axes, the language of the e-graph and of kernels.

In: smart constructors. Out: hash-consed `Term`s. A term denotes one scalar for each assignment of
its free axes; views, broadcasts and gathers have vanished into the index expressions of loads.
Constructors fold what is exact for every input and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from luminal.ir.dtype import DType, boolean, i64
from luminal.ir.expr import Atom, Expr, Var, is_nonnegative, to_expr
from luminal.ir.graph import depth_first

Scalar = float | int | bool
UNARY = ("log2", "exp2", "sin", "sqrt", "recip")
BINARY = ("add", "mul", "mod", "lt", "max")
LOGIC = ("and", "or", "not", "select")
REDUCTIONS = ("sum", "rmax", "rsum", "wsum")
"""sum Σ e; rmax max e; rsum Σ exp2(s·(x - max x))·v with args (x, s, v), or (x, v) where s is 1;
wsum Σ (x - mean x)². The scale s is a constant above 0: where s·x overflows the difference may not.

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
    payload: Any
    free: frozenset[Var]

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Callable[..., Term], tuple[object, ...]]:
        return _make, (self.op, self.args, self.dtype, self.payload)

    @property
    def axes(self) -> tuple[Var, ...]:
        return self.payload if self.op in REDUCTIONS else ()

    @property
    def buffer(self) -> str:
        return self.payload[0]

    @property
    def indices(self) -> tuple[Expr, ...]:
        return self.payload[1]

    @property
    def expr(self) -> Expr:
        return self.payload

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """The integer expressions of a load, index or cond term; () for anything else."""
        if self.op == "load":
            return self.payload[1]
        return (self.payload,) if self.op in ("index", "cond") else ()

    @property
    def value(self) -> Scalar | None:
        """The value of a constant; None for anything else."""
        return self.payload if self.op == "const" else None

    def with_exprs(self, change: Callable[[Expr], Expr]) -> Any:
        """The payload where `change` has been made to every integer expression."""
        if self.op == "load":
            return self.buffer, tuple(map(change, self.indices))
        return change(self.expr) if self.op in ("index", "cond") else self.payload

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


class Data(Atom):
    """An atom of an index expression: the integer value of a term (a gather's index).

    The value used is clamped to [lo, hi]; if `extent` is given, a value outside [0, extent) is an
    IndexError of the caller and must be reported by whoever evaluates it."""

    __slots__ = ("extent", "term")

    def __init__(self, term: Term, lo: int, hi: int, extent: Expr | None) -> None:
        self.term, self.extent = term, extent
        super().__init__(f"data({term!r},{extent})", lo, hi, (term, lo, hi, extent))

    def variables(self) -> frozenset[Var]:
        return self.term.free if self.extent is None else self.term.free | self.extent.variables()

    def substitute(self, env: Mapping[Var, Expr]) -> Expr | None:
        return self.with_term(substitute(self.term, env), lambda e: e.substitute(env))

    def with_term(self, term: Term, change: Callable[[Expr], Expr] = lambda e: e) -> Expr | None:
        """The value of another term, its extent changed too; None if both stay."""
        extent = None if self.extent is None else change(self.extent)
        if term is self.term and extent is self.extent:
            return None
        return to_expr(Data(term, self.lo, self.hi, extent))


def data_atoms(*exprs: Expr) -> Iterator[Data]:
    """The data atoms of expressions, nested ones included."""
    return (atom for e in exprs for atom in e.all_atoms() if isinstance(atom, Data))


def data(term: Term, extent: Expr) -> Expr:
    """The integer value of `term` as an index into a dimension of size `extent`, checked unless
    its dtype or form proves it in range."""
    if term.op == "index" and is_nonnegative(term.expr) and is_nonnegative(extent - 1 - term.expr):
        return term.expr
    if term.op == "const" and extent.value is not None and 0 <= int(term.payload) < extent.value:
        return to_expr(int(term.payload))
    if term.op == "cast" and term.args[0].dtype == boolean and extent.lo >= 2:
        return to_expr(Data(term, 0, 1, None))
    return to_expr(Data(term, 0, max(0, extent.hi - 1), extent))


def _make(op: str, args: tuple[Term, ...], dtype: DType, payload: Any = None) -> Term:
    key = (op, args, dtype, (type(payload), repr(payload)) if op == "const" else payload)
    found = _TABLE.get(key)
    if found is not None:
        return found
    term = Term()
    term.op, term.args, term.dtype, term.payload = op, args, dtype, payload
    term._hash = hash(key)
    free = frozenset[Var]().union(*(a.free for a in args), *(e.variables() for e in term.exprs))
    term.free = free.difference(term.axes)
    _TABLE[key] = term
    return term


def make(op: str, args: tuple[Term, ...], dtype: DType, payload: Any = None) -> Term:
    """Any operation, folded; the dtype of most follows from the arguments."""
    if op in _SPECIAL:
        return _SPECIAL[op](args, dtype, payload)
    if op in REDUCTIONS:
        return reduction(op, payload, *args)
    return unary(op, *args) if op in UNARY else binary(op, *args)


_SPECIAL: dict[str, Callable[..., Term]] = {
    "load": lambda _, dtype, payload: load(payload[0], payload[1], dtype),
    "const": lambda _, dtype, payload: constant(payload, dtype),
    "index": lambda _, dtype, payload: index(payload, dtype),
    "cond": lambda _, dtype, payload: cond(payload),
    "cast": lambda args, dtype, _: cast(args[0], dtype),
    "not": lambda args, *_: logical_not(*args),
    "select": lambda args, *_: select(*args),
}


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
    return cond(-1 - x.expr) if x.op == "cond" else _make("not", (x,), boolean)


def unary(op: str, x: Term) -> Term:
    """log2, exp2, sin, sqrt or recip."""
    return _make(op, (x,), x.dtype)


def cast(x: Term, dtype: DType) -> Term:
    """x converted to dtype; integer constants and bools fold."""
    if x.dtype == dtype:
        return x
    if x.op == "const" and not x.dtype.is_float and dtype.bits >= 32:
        return constant(x.payload, dtype)
    if x.op == "index" and dtype.is_int and dtype.bits >= 32:
        return _make("index", (), dtype, x.payload)
    return _make("cast", (x,), dtype)


def binary(op: str, a: Term, b: Term) -> Term:
    """add, mul, mod, lt or max (NaN wins); on bools add is or, mul is and."""
    if a.dtype == boolean and op not in ("mod", "lt"):
        return _logic("and" if op in ("mul", "and") else "or", a, b)
    counted = a.op in ("index", "const") and b.op in ("index", "const") and a.dtype.is_int
    if op == "lt":
        if counted:
            return cond(_as_expr(b) - _as_expr(a) - 1)
        if a.dtype == boolean:
            return _logic("and", logical_not(a), b)
        return _make("lt", (a, b), boolean)
    if op in ("add", "mul"):
        if counted and a.dtype.bits >= 32:
            x, y = _as_expr(a), _as_expr(b)
            return index(x + y if op == "add" else x * y, a.dtype)
        return _neutral(op, a, b) or _make(op, (a, b), a.dtype)
    return _make(op, (a, b), a.dtype)


def _as_expr(x: Term) -> Expr:
    return x.expr if x.op == "index" else to_expr(int(x.payload))


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


def rebuild(
    term: Term, args: tuple[Term, ...], change: Callable[[Expr], Expr] | None = None
) -> Term:
    """The same operation on other arguments and changed integer expressions, folded again."""
    payload = term.payload if change is None else term.with_exprs(change)
    if args == term.args and payload == term.payload:
        return term
    return make(term.op, args, term.dtype, payload)


def substitute(term: Term, env: Mapping[Var, Expr]) -> Term:
    """The term with free axes replaced. Bound axes must not occur in the replacements."""
    memo: dict[Term, Term] = {}

    def visit(t: Term) -> Term:
        if t.free.isdisjoint(env):
            return t
        if t not in memo:
            args = tuple(map(visit, t.args))
            if not env.keys().isdisjoint(t.axes):  # an inner axis of the same name is another
                inner = {v: e for v, e in env.items() if v not in t.axes}
                args = tuple(substitute(a, inner) for a in t.args)
            memo[t] = rebuild(t, args, lambda e: e.substitute(env))
        return memo[t]

    return visit(term)


class Renaming:
    """Variables, bound ones too, and buffers under other names, inside index data too."""

    def __init__(self, variables: Mapping[Var, Var], buffers: Mapping[str, str]) -> None:
        self.variables, self.buffers = variables, buffers
        self._memo: dict[Term, Term] = {}

    def expr(self, e: Expr) -> Expr:
        return e.map(self._leaf)

    def _leaf(self, atom: Atom) -> Expr | None:
        if isinstance(atom, Data):
            return atom.with_term(self.term(atom.term), self.expr)
        new = self.variables.get(atom) if isinstance(atom, Var) else None
        return None if new is None else to_expr(new)

    def term(self, t: Term) -> Term:
        if t not in self._memo:
            payload = t.with_exprs(self.expr)
            if t.op == "load":
                payload = (self.buffers.get(t.buffer, t.buffer), payload[1])
            elif t.axes:
                payload = tuple(self.variables.get(a, a) for a in t.axes)
            self._memo[t] = make(t.op, tuple(map(self.term, t.args)), t.dtype, payload)
        return self._memo[t]


def postorder(*roots: Term) -> Iterator[Term]:
    """Every distinct subterm once, arguments first; terms inside data atoms included."""
    return depth_first(roots, lambda t: (*(atom.term for atom in data_atoms(*t.exprs)), *t.args))
