"""Index expressions: the simplifier against plain integer evaluation."""

import ast
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.ir.expr import (
    axis_var,
    ceil_div,
    const,
    dim,
    floor_div,
    is_nonnegative,
    maximum,
    minimum,
    remainder,
    to_expr,
)
from luminal.ir.text import Reader

S, B = dim("s", 1, 40), dim("b", 1, 6)
AXES = {"i": axis_var("i", 24), "j": axis_var("j", S), "k": axis_var("k", B), "u": axis_var("u", 5)}
NAMES = {**AXES, "s": S, "b": B}


def parse(text):
    reader = Reader({})
    reader.names |= {n: to_expr(v) for n, v in NAMES.items()}
    return to_expr(reader.value(ast.parse(text, mode="eval").body))


def draw_point(rng):
    env = {"s": rng.randint(1, 40), "b": rng.randint(1, 6)}
    return {**env, "i": rng.randrange(24), "j": rng.randrange(env["s"]),
            "k": rng.randrange(env["b"]), "u": rng.randrange(5)}  # fmt: skip


leaves = st.sampled_from(sorted(NAMES)) | st.integers(-9, 40)
trees = st.recursive(
    leaves,
    lambda sub: st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), sub, sub)
    | st.tuples(st.sampled_from(["//", "%"]), sub,
                st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, "s", "b"])),
    max_leaves=9,
)  # fmt: skip


def build(t):
    if isinstance(t, str):
        return to_expr(NAMES[t])
    if isinstance(t, int):
        return const(t)
    op, a, b = t[0], build(t[1]), build(t[2])
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b,
            "min": lambda: minimum(a, b), "max": lambda: maximum(a, b),
            "//": lambda: a // b, "%": lambda: a % b}[op]()  # fmt: skip


def plain(t, env):
    if isinstance(t, str):
        return env[t]
    if isinstance(t, int):
        return t
    op, a, b = t[0], plain(t[1], env), plain(t[2], env)
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b,
            "min": lambda: min(a, b), "max": lambda: max(a, b),
            "//": lambda: a // b, "%": lambda: a % b}[op]()  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(trees, st.integers(0, 2**32))
def test_simplified_equals_plain(tree, seed):
    rng = random.Random(seed)
    e = build(tree)
    for _ in range(8):
        env = draw_point(rng)
        value = plain(tree, env)
        assert e.evaluate(env) == value
        assert e.lo <= value <= e.hi
        if is_nonnegative(e):
            assert value >= 0


@settings(max_examples=150, deadline=None)
@given(trees)
def test_text_round_trip(tree):
    e = build(tree)
    assert parse(repr(e)) == e


@settings(max_examples=150, deadline=None)
@given(trees, trees, st.integers(0, 2**32))
def test_substitution_commutes_with_evaluation(tree, inner, seed):
    env = draw_point(random.Random(seed))
    e, new = build(tree), build(inner)
    if new.lo < 0 or new.hi > 23:
        return
    got = e.substitute({AXES["i"]: new}).evaluate(env)
    assert got == plain(tree, {**env, "i": plain(inner, env)})


def test_flat_index_splits_back():
    j, k = to_expr(AXES["j"]), to_expr(AXES["k"])
    flat = k * S + j
    assert flat // S == k and flat % S == j
    assert (flat * 64 + 5) // 64 == flat
    assert (flat // S) * S + flat % S == flat


def test_tiles_divide():
    i, k = to_expr(axis_var("i", 24)), to_expr(AXES["k"])
    assert (i + 144 * k) // 16 == i // 16 + 9 * k
    assert (24 * k + i) // 24 == k and ceil_div(const(17), 16) == 2


def test_division_by_a_product_of_symbols():
    m = to_expr(axis_var("m", B * S))
    c = to_expr(axis_var("c", 64))
    assert (64 * m + c) // (64 * S) == m // S
    assert floor_div(S * 2 + 2, S + 1) == 2 and remainder(S * 2 + 2, S + 1) == 0


@pytest.mark.parametrize("text", ["i +", "i ** 2", "f(i, 2)", "q", "i if i else 2"])
def test_bad_text_is_refused(text):
    with pytest.raises((ValueError, SyntaxError, KeyError)):
        parse(text)
