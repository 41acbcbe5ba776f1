"""Canonical names: kernels that are equal up to names become equal values.

In: a Kernel. Out: the kernel with buffers b0.., axes a0.., dims d0.. numbered in order of use, and
what each stood for. Cache keys and shared machine code rest on this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.ir.expr import Expr, Var, to_expr
from luminal.ir.plan import Item, Kernel, Loop, Online, Reg, Schedule, Stage, Store
from luminal.ir.term import (
    Data,
    Term,
    cond,
    index,
    load,
    postorder,
    rebuild,
    reduction,
    substitute,
)  # fmt: skip

__all__ = ["Canonical", "canonical", "rename_buffers", "rename_schedule"]


@dataclass(frozen=True, slots=True)
class Canonical:
    """`kernel` with canonical names; `buffers[i]` is what `b<i>` was called, in argument order,
    `dims[i]` what `d<i>` was, and `axes` maps old axis names to new ones."""

    kernel: Kernel
    buffers: tuple[str, ...]
    dims: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]


def rename_buffers(term: Term, names: dict[str, str]) -> Term:
    """The term with loads redirected to other buffers, inside index data too."""
    memo: dict[Term, Term] = {}

    def visit(t: Term) -> Term:
        if t not in memo:
            if t.op == "load":
                indices = tuple(rename_in_expr(e, names) for e in t.indices)
                memo[t] = load(names.get(t.buffer, t.buffer), indices, t.dtype)
            elif t.op == "index":
                memo[t] = index(rename_in_expr(t.expr, names), t.dtype)
            elif t.op == "cond":
                memo[t] = cond(rename_in_expr(t.expr, names))
            else:
                memo[t] = rebuild(t, tuple(visit(a) for a in t.args))
        return memo[t]

    return visit(term)


def _reads_data(e: Expr) -> bool:
    return any(
        isinstance(a, Data) or (not isinstance(a, Var) and (_reads_data(a.a) or _reads_data(a.b)))  # type: ignore[attr-defined]
        for a in e.atoms()
    )


def rename_in_expr(e: Expr, names: dict[str, str]) -> Expr:
    """The expression with loads inside its data atoms redirected."""
    if not _reads_data(e):
        return e
    total = to_expr(0)
    for monomial, coef in e.terms:
        piece = to_expr(coef)
        for atom in monomial:
            if isinstance(atom, Data):
                new = Data(rename_buffers(atom.term, names), atom.lo, atom.hi, atom.extent)
                piece = piece * Expr((((new,), 1),))
            elif isinstance(atom, Var):
                piece = piece * to_expr(atom)
            else:
                both = (rename_in_expr(atom.a, names), rename_in_expr(atom.b, names))  # type: ignore[attr-defined]
                piece = piece * Expr((((type(atom)(*both),), 1),))  # type: ignore[call-arg]
        total = total + piece
    return total


def canonical(kernel: Kernel) -> Canonical:
    """The canonical form of a kernel, its schedule included."""
    dims = {v: Var(f"d{n}", v.lo, v.hi) for n, v in enumerate(kernel.dims())}
    dim_env = {old: to_expr(new) for old, new in dims.items()}
    bound = dict.fromkeys(a for t in kernel.subterms() for a in t.axes)
    axes: dict[Var, Var] = {}
    for n, a in enumerate((*kernel.axes, *(b for b in bound if b not in kernel.axes))):
        limit = a.bound.substitute(dim_env) if a.bound is not None else None
        axes[a] = Var(f"a{n}", a.lo, a.hi, limit)
    env = {**dim_env, **{old: to_expr(new) for old, new in axes.items()}}
    buffers = kernel.arguments()
    names = {old: f"b{n}" for n, old in enumerate(buffers)}

    def renew(term: Term) -> Term:
        return rename_buffers(_substitute_all(term, env, axes), names)

    stores = tuple(
        Store(names[s.buffer], tuple(rename_in_expr(e.substitute(env), names) for e in s.index),
              renew(s.value))
        for s in kernel.stores
    )  # fmt: skip
    plain = {old.name: new.name for old, new in axes.items()}
    new = Kernel("k", tuple(axes[a] for a in kernel.axes), stores, None,
                 tuple(plain[a] for a in kernel.ordered),
                 tuple(dims[v] for v in kernel.sizes))  # fmt: skip
    if kernel.schedule is not None:
        new = replace(new, schedule=rename_schedule(kernel.schedule, plain, names))
    return Canonical(new, buffers, tuple(v.name for v in kernel.dims()), tuple(plain.items()))


def _substitute_all(term: Term, env: dict[Var, Expr], axes: dict[Var, Var]) -> Term:
    """Free and bound axes renamed at once (bound names are unique in a kernel)."""
    memo: dict[Term, Term] = {}
    for t in postorder(term):
        if t.op in ("load", "index", "cond", "const"):
            memo[t] = substitute(t, env)
        else:
            args = tuple(memo[a] for a in t.args)
            if t.axes:
                memo[t] = reduction(t.op, tuple(axes[a] for a in t.axes), *args)
            else:
                memo[t] = rebuild(t, args)
    return memo[term]


def rename_schedule(s: Schedule, axes: dict[str, str], buffers: dict[str, str]) -> Schedule:
    """The schedule with other names of axes and buffers."""
    return Schedule(
        tuple(_item(i, axes, buffers) for i in s.items),
        tuple(_reg(r, axes) for r in s.regs),
        tuple((buffers.get(b, b), d) for b, d in s.prefetch),
    )


def _reg(r: Reg, axes: dict[str, str]) -> Reg:
    return replace(r, axis=axes[r.axis])


def _item(item: Item, axes: dict[str, str], buffers: dict[str, str]) -> Item:
    match item:
        case Loop():
            return replace(item, axis=axes[item.axis])
        case Stage():
            return replace(item, items=tuple(_item(i, axes, buffers) for i in item.items),
                           regs=tuple(_reg(r, axes) for r in item.regs))  # fmt: skip
        case Online():
            parts = (item.logits, item.weights, item.values)
            logits, weights, values = (rename_schedule(p, axes, buffers) for p in parts)
            return replace(item, axis=axes[item.axis], logits=logits, weights=weights,
                           values=values)  # fmt: skip
