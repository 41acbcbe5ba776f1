"""Soundness of the rules: after saturation every node of every class has one value, in f64."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import luminal.rewrite
from luminal.ir.dtype import boolean, f64, i8, i32, i64
from luminal.ir.expr import axis_var, const, dim, to_expr
from luminal.ir.interp import eval_term
from luminal.ir.space import Value
from luminal.ir.term import (
    Term,
    binary,
    cast,
    cond,
    constant,
    index,
    load,
    make,
    reduction,
    select,
    unary,
)  # fmt: skip
from luminal.rewrite.axes import divisors, joined
from luminal.rewrite.egraph import EGraph
from luminal.rewrite.rules import RULES, saturate
from luminal.search.extract import rename_apart

SIZE = dim("n", 1, 64)
I, J, K = axis_var("i", 3), axis_var("j", 8), axis_var("k", SIZE)  # noqa: E741
DIMS = {"n": 5}
RNG = np.random.default_rng(0)
BUFFERS = {
    "A": RNG.standard_normal((3, 8)), "B": RNG.standard_normal((3, 5)),
    "a": RNG.standard_normal(3), "b": RNG.standard_normal(8), "c": RNG.standard_normal(5),
    "mask": RNG.random((3, 8)) > 0.4, "rows": np.array([True, False, True]),
    "q": RNG.integers(-128, 127, 8).astype(np.int8),
    "S": np.where(RNG.random((3, 8)) > 0.5, RNG.standard_normal((3, 8)), -np.inf),
}  # fmt: skip
BUFFERS["S"][1] = -np.inf


def at(name: str, *axes: object) -> Term:
    dtype = boolean if name in ("mask", "rows") else f64
    return load(name, tuple(to_expr(a) for a in axes), dtype)  # type: ignore[arg-type]


def num(value: float) -> Term:
    return constant(value, f64)


def add(a: Term, b: Term) -> Term:
    return binary("add", a, b)


def mul(a: Term, b: Term) -> Term:
    return binary("mul", a, b)


def total(axis: object, x: Term) -> Term:
    return reduction("sum", (axis,), x)  # type: ignore[arg-type]


def top(axis: object, x: Term) -> Term:
    return reduction("rmax", (axis,), x)  # type: ignore[arg-type]


def minus(a: Term, b: Term) -> Term:
    return add(a, mul(b, num(-1.0)))


def exp2(x: Term) -> Term:
    return unary("exp2", x)


def shares(x: Term, axis: object) -> Term:
    """Powers of x over their sum, with the usual shift."""
    e = exp2(mul(minus(x, top(axis, x)), num(1.4426950408889634)))
    return mul(e, unary("recip", total(axis, e)))


x, xs = at("A", I, J), at("B", I, K)
absent = num(float("-inf"))
small = cast(load("q", (to_expr(J),), i8), i32)
count = unary("recip", cast(index(SIZE), f64))
CASES: dict[str, Term] = {
    "factor_leaves_sum": total(J, mul(mul(at("a", I), x), mul(at("b", J), num(3.0)))),
    "factor_leaves_weighted_sum": reduction("rsum", (J,), x, mul(at("a", I), at("b", J))),
    "sum_of_invariant": total(J, at("a", I)),
    "maximum_of_invariant": top(J, at("a", I)),
    "constant_leaves_maximum": top(J, mul(x, num(0.25))),
    "sum_of_powers": total(J, mul(exp2(add(x, at("a", I))), at("b", J))),
    "sum_of_powers_masked": total(J, exp2(at("S", I, J))),
    "shares": total(J, mul(shares(x, J), at("b", J))),
    "shares_scaled": total(J, mul(shares(mul(x, num(0.125)), J), at("b", J))),
    "shares_symbolic": total(K, mul(shares(xs, K), at("c", K))),
    "shares_choice": total(
        J, mul(shares(select(at("mask", I, J), x, num(-1e9)), J), at("b", J))
    ),
    "shares_index": total(
        J, mul(shares(select(cond(to_expr(I) - J + 3), x, absent), J), at("b", J))
    ),
    "shares_bias": total(
        J, mul(shares(add(x, select(at("mask", I, J), num(0.0), num(-3e38))), J), at("b", J))
    ),
    "squares_from_mean": total(
        J, mul(minus(x, mul(total(J, x), num(0.125))), minus(x, mul(total(J, x), num(0.125))))
    ),
    "squares_symbolic": total(
        K, mul(minus(xs, mul(total(K, xs), count)), minus(xs, mul(total(K, xs), count)))
    ),
    "choice_leaves_sum": total(J, mul(select(at("rows", I), x, num(0.0)), at("b", J))),
    "any_above": select(
        reduction("sum", (J,), binary("lt", absent, at("S", I, J))),
        total(J, exp2(at("S", I, J))), num(7.0),
    ),
    "factor_leaves_inner_loops": reduction(
        "sum", (J, K), mul(mul(at("a", I), at("b", J)), mul(at("c", K), x))
    ),
    "addend_leaves_inner_loops": reduction(
        "sum", (J, K), mul(at("c", K), add(mul(at("c", K), x), at("b", J)))
    ),
    "integer_sum_narrows": cast(total(J, cast(mul(small, small), i64)), f64),
    "cast_of_wider_integer": cast(cast(mul(small, small), i64), f64),
    "common_power_cancels": mul(
        total(J, mul(exp2(x), at("b", J))), unary("recip", total(J, exp2(x)))
    ),
}  # fmt: skip


def _cheapest(values: tuple[Value, ...]) -> dict[int, Term]:
    """Some term for every value: the smallest."""
    best: dict[int, tuple[int, Term]] = {}
    changed = True
    while changed:
        changed = False
        for v, value in enumerate(values):
            for choice in value.choices:
                if all(a in best for a in choice.args):
                    size = 1 + sum(best[a][0] for a in choice.args)
                    if v not in best or size < best[v][0]:
                        term = remake(choice, tuple(best[a][1] for a in choice.args))
                        best[v], changed = (size, term), True
    return {v: t for v, (_, t) in best.items()}


def _values(term: Term) -> Iterator[tuple[Term, Term]]:
    """Pairs of terms that the saturated graph holds equal."""
    graph = EGraph()
    root = graph.add(term)
    assert saturate(graph) == ()
    values, _ = graph.freeze([root])
    best = _cheapest(values)
    for v, value in enumerate(values):
        for choice in value.choices:
            yield best[v], remake(choice, tuple(best[a] for a in choice.args))


def remake(choice, args):
    return make(choice.op, args, choice.dtype, choice.payload)


def _evaluate(term: Term) -> np.ndarray:
    axes = tuple(a for a in (I, J, K) if a in term.free)
    return eval_term(rename_apart(term), axes, BUFFERS, DIMS)


@pytest.mark.parametrize("name", CASES)
def test_every_choice_has_one_value(name: str) -> None:
    with np.errstate(all="ignore"):
        for a, b in _values(CASES[name]):
            axes = tuple(v for v in (I, J, K) if v in a.free | b.free)
            left, right = (eval_term(rename_apart(t), axes, BUFFERS, DIMS) for t in (a, b))
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "op"),
    [("shares", "rsum"), ("shares_scaled", "rsum"), ("shares_symbolic", "rsum"),
     ("shares_choice", "rsum"), ("shares_index", "rsum"), ("shares_bias", "rsum"),
     ("squares_from_mean", "wsum"), ("squares_symbolic", "wsum"), ("sum_of_powers", "rsum")],
)  # fmt: skip
def test_one_pass_forms_are_found(name: str, op: str) -> None:
    graph = EGraph()
    graph.add(CASES[name])
    saturate(graph)
    assert any(node[0] == op for c in graph.classes() for node in graph.nodes(c))


def test_the_shift_of_a_softened_maximum_cancels() -> None:
    """Σ exp2(s·(x - max x))·v is exactly rsum(s·x, v): no exponential is left outside."""
    graph = EGraph()
    c = graph.add(total(J, mul(exp2(mul(minus(x, top(J, x)), num(1.5))), at("b", J))))
    saturate(graph)
    assert any(node[0] == "rsum" for node in graph.nodes(c))


def test_no_maximum_of_a_finite_mask_overflows() -> None:
    """Rows that a finite mask hides altogether keep their uniform shares."""
    hidden = select(cond(to_expr(J) - 100), x, num(-1.7976931348623157e308))
    term = total(J, mul(shares(hidden, J), at("b", J)))
    graph = EGraph()
    root = graph.add(term)
    saturate(graph)
    values, number = graph.freeze([root])
    best = _cheapest(values)
    for choice in values[number[graph.find(root)]].choices:
        found = remake(choice, tuple(best[a] for a in choice.args))
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(_evaluate(found), BUFFERS["b"].mean(), rtol=1e-9)


def test_axis_splits_follow_the_indices() -> None:
    wide = axis_var("w", 64)
    blocks = load("s", (to_expr(wide) // 32,), f64)
    assert divisors(mul(blocks, load("q", (to_expr(wide),), f64)), wide) == [32]
    assert divisors(load("q", (to_expr(wide),), f64), wide) == []


def test_axes_join_where_memory_is_contiguous() -> None:
    a, b = axis_var("p", 3), axis_var("r", 8)
    flat, split = to_expr(a) * 8 + b, (to_expr(a), to_expr(b))
    buffers = {"v": RNG.standard_normal(24), "w": RNG.standard_normal((3, 8)), "a": BUFFERS["a"]}
    body = mul(mul(load("v", (flat,), f64), load("w", split, f64)), at("a", a))
    term = reduction("sum", (a, b), body)
    shapes = {"v": (const(24),), "w": (const(3), const(8)), "a": (const(3),)}
    found, _ = joined(term, shapes, lambda e, used: axis_var("k", e))
    assert [x.extent for x in found.axes] == [24]
    np.testing.assert_allclose(
        eval_term(found, (), buffers), eval_term(term, (), buffers), rtol=1e-12
    )
    gaps = reduction("sum", (a, b), load("w", (to_expr(b) % 3, to_expr(a)), f64))
    assert joined(gaps, shapes, lambda e, used: axis_var("k", e)) == (gaps, {})


def test_saturation_is_linear_in_long_products() -> None:
    term = num(1.5)
    for n in range(40):
        term = mul(load(f"v{n}", (to_expr(J if n % 2 else I),), f64), term)
    graph = EGraph()
    graph.add(total(J, term))
    assert saturate(graph) == ()
    assert len(graph) < 200


def test_rules_name_no_model_part() -> None:
    folder = Path(luminal.rewrite.__file__).parent
    words = ("softmax", "attention", "norm", "gelu", "silu", "conv", "rope", "causal", "query")
    for path in folder.rglob("*.py"):
        text = re.sub("normal|property", "", path.read_text().lower())
        for word in words:
            assert word not in text, (path.name, word)


def test_every_rule_has_an_equation_and_a_condition() -> None:
    for rules in RULES.values():
        for rule in rules:
            text = rule.__doc__ or ""
            assert "=" in text.split("\n")[0], rule.__name__
            assert "Exact" in text or "Condition" in text, rule.__name__
            assert any(rule.__name__ in name or name.startswith(rule.__name__) for name in CASES)
