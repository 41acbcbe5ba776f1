"""Fold: what is exact while terms are built: constants, selections of constants, padded sums.

In: an operation and its argument terms. Out: a simpler equal term, or None. Holds for every
input bit by bit; rules that need e-classes are in `rules.py`."""

from luminal.ir import DType, Expr, Var, const, is_nonnegative
from luminal.ir.numeric import apply, cast, full
from luminal.ir.term import Term, binary, constant, postorder, select, substitute

_NEUTRAL = ("-0.0", "0", "False")


def fold(op: str, args: list[Term], dtype: DType) -> Term | None:
    """The value of an operation on constants or on one selection of constants."""
    args = [_as_select(a) for a in args] if op in ("mul", "add", "lt") else args
    picks = {a.args[0] for a in args if a.op == "select"}
    sides = [[a.args[side] if a.op == "select" else a for a in args] for side in (1, 2)]
    if len(picks) > 1 or any(a.op != "const" for side in sides for a in side):
        return None
    made, other = (_evaluate(op, side, dtype) for side in sides)
    if made is None or other is None:
        return None
    return select(picks.pop(), made, other) if picks else made


def _as_select(t: Term) -> Term:
    """A number made from a truth value, as a selection of 1 or 0."""
    if t.op == "cast" and t.args[0].dtype.kind == "b" and t.args[0].op != "const":
        return select(t.args[0], constant(1, t.dtype), constant(0, t.dtype))
    return t


def _evaluate(op: str, args: list[Term], dtype: DType) -> Term | None:
    source = args[0].dtype
    if source.storage or dtype.storage:
        return None
    values = [full(a.payload, a.dtype) for a in args]
    made = cast(values[0], source, dtype) if op == "cast" else apply(op, source, *values)
    return constant(made.item(), dtype)


def selects_on(body: Term, axis: Var) -> bool:
    """True if the body chooses by the value of `axis`, and by nothing else where it does."""
    chosen = [
        t for t in postorder(body)
        if axis in t.free and (t.op == "cond" or (t.op == "select" and axis in t.args[0].free))
    ]  # fmt: skip
    return any(t.op == "cond" for t in chosen) and all(
        t.op == "select" or substitute(t, {axis: const(0)}).op == "const" for t in chosen
    )


def padded_sum(a: Term, b: Term) -> Term | None:
    """a + b where each is a part padded with the neutral value and the parts do not overlap.

    select(c, x, -0.0) + select(d, y, -0.0) = select(c, x, select(d, y, -0.0)) if not (c and d)."""
    left, right = _chain(a), _chain(b)
    if not left or not right:
        return None
    if any(not _disjoint(c, d) for c, _ in left for d, _ in right):
        return None
    if len(left) == len(right) == 1 and binary("add", left[0][0], right[0][0]).op == "const":
        return select(left[0][0], left[0][1], right[0][1])
    total = b
    for c, x in reversed(left):
        total = select(c, x, total)
    return total


def _chain(t: Term) -> list[tuple[Term, Term]]:
    parts: list[tuple[Term, Term]] = []
    while t.op == "select":
        parts.append((t.args[0], t.args[1]))
        t = t.args[2]
    return parts if t.op == "const" and repr(t.payload) in _NEUTRAL else []


def _disjoint(c: Term, d: Term) -> bool:
    return any(is_nonnegative(-1 - (x + y)) for x in _bounds(c) for y in _bounds(d))


def _bounds(c: Term) -> list[Expr]:
    if c.op == "and":
        return _bounds(c.args[0]) + _bounds(c.args[1])
    return [c.expr] if c.op == "cond" else []
