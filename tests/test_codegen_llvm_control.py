"""Loops, branches, scratch, errors, whole modules: structure of the LLVM printer's text."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import (
    Block,
    Fail,
    For,
    Function,
    If,
    Let,
    Literal,
    Load,
    Statement,
    Store,
    Value,
)  # fmt: skip
from luminal.errors import InternalError
from luminal.ir import dtype as dt
from luminal.runtime.cpu import compile_object, link
from tests.llvm_kernels import TARGETS, build, for_range, function, i64, one_op, runnable

VARIANTS = runnable()
GOLDEN = Path(__file__).parent / "golden"


def index(name: str) -> Value:
    """An i64 value."""
    return Value(name, dt.i64)


def guarded(loop: For) -> list[Statement]:
    """A loop that may have nothing to do; its results are then the initial values."""
    runs = Value(f"runs_{loop.var.name}", dt.boolean)
    inside = tuple(Value(f"{v.name}_{loop.var.name}", v.dtype, v.lanes) for v in loop.results)
    first = tuple(initial for _, initial in loop.carried)
    then = Block([replace(loop, results=inside)])
    return [
        Let(runs, "lt", (loop.lo, loop.hi)), If(runs, then, Block(), inside, first, loop.results),
    ]  # fmt: skip


def row_sums(lanes: int) -> Function:
    """out[r] = sum of row r of x, r in chunk lo..hi-1: n vectors, then the rest one by one."""
    r, j, k, n, m = (index(name) for name in ("r", "j", "k", "n", "m"))
    acc, more, total = (Value(s, dt.f32, lanes) for s in ("acc", "more", "total"))
    x, tail, s, s1, out = (
        Value(q, dt.f32, lanes if q == "x" else 1) for q in ("x", "tail", "s", "s1", "out")
    )
    start, off, off2, part, whole = (index(q) for q in ("start", "off", "off2", "part", "whole"))
    first = Value("first", dt.f32)
    inner = [
        Let(part, "mul", (j, i64(lanes))), Let(off, "add", (start, part)),
        Load(x, "x", dt.f32, off), Let(more, "add", (acc, x)),
    ]  # fmt: skip
    rest = [
        Let(off2, "add", (start, k)), Load(tail, "x", dt.f32, off2), Let(s1, "add", (s, tail)),
    ]  # fmt: skip
    zero = Literal(0.0, dt.f32, lanes)
    body: list[Statement] = [
        Let(start, "mul", (r, m)),
        *guarded(For(j, i64(0), n, Block(inner), ((acc, zero),), (more,), (total,))),
        Let(first, "reduce_add", (total,)),
        Let(whole, "mul", (n, i64(lanes))),
        *guarded(For(k, whole, m, Block(rest), ((s, first),), (s1,), (out,))),
        Store("out", dt.f32, r, out),
    ]
    lo, hi = index("lo"), index("hi")
    outer = For(r, lo, hi, Block(body))
    rows, cost = index("grid"), index("cost")
    return Function(
        "sums", ("x", "out"), ("rows", "n", "m"), (), 0, lo, hi, Block([outer]),
        Block([Let(rows, "add", (index("rows"), i64(0)))]), rows,
        Block([Let(cost, "mul", (index("rows"), m))]), cost,
    )  # fmt: skip


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("width", [0, 3, 16, 37])
def test_loops_carry_values(width: int, target: str) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (5, width)).astype(np.float32)
    out = np.zeros(5, np.float32)
    build(row_sums(8), target)(x, out, dims=(5, width // 8, width), hi=4)
    np.testing.assert_array_equal(out, [*x[:4].sum(1), 0])


def test_grid_and_cost() -> None:
    target = TARGETS[VARIANTS[0]] if VARIANTS else pytest.skip("no x86-64")
    names = ["sums_grid", "sums_cost"]
    library = link([compile_object(print_function(row_sums(8), target), target)], names)
    words = (ctypes.c_int64 * 6)(0, 0, 11, 2, 30, 0)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    got = [call(library[name])(ctypes.addressof(words)) for name in names]
    assert got == [11, 330]


@pytest.mark.parametrize("target", VARIANTS)
def test_branches_yield_values_and_loops_nest_in_them(target: str) -> None:
    i, at, v = index("i"), index("at"), Value("v", dt.i32, 4)
    big, twice, result, looped = (Value(q, dt.i32, 4) for q in ("big", "twice", "result", "looped"))
    odd, cond = index("odd"), Value("cond", dt.boolean)
    step = guarded(For(
        index("j"), i64(0), i, Block([Let(twice, "add", (big, v))]), ((big, v),), (twice,),
        (looped,),
    ))  # fmt: skip
    branch = If(
        cond, Block(step), Block(), (looped,), (Literal(-1, dt.i32, 4),), (result,)
    )  # fmt: skip
    body = [
        Let(at, "mul", (i, i64(4))), Load(v, "x", dt.i32, at), Let(odd, "floormod", (i, i64(2))),
        Let(cond, "eq", (odd, i64(1))), branch, Store("out", dt.i32, at, result),
    ]  # fmt: skip
    x, out = np.arange(20, dtype=np.int32), np.zeros(20, np.int32)
    build(function([for_range(i, i64(5), body)], ("x", "out")), target)(x, out)
    rows = [[-1] * 4 if r % 2 == 0 else x[4 * r : 4 * r + 4] * (r + 1) for r in range(5)]
    np.testing.assert_array_equal(out.reshape(5, 4), rows)


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("lanes", [1, 8])
def test_fail_sets_the_error_word(lanes: int, target: str) -> None:
    x, bad = Value("x", dt.i32, lanes), Value("bad", dt.boolean, lanes)
    body = [
        Load(x, "x", dt.i32, i64(0)), Let(bad, "lt", (x, Literal(0, dt.i32, lanes))), Fail(bad),
    ]  # fmt: skip
    kernel = build(function(body, ("x",)), target)
    fine = np.arange(8, dtype=np.int32)
    assert kernel(fine) == 0
    fine[lanes - 1] = -5
    assert kernel(fine) == 1


@pytest.mark.parametrize("target", VARIANTS)
def test_scratch_is_memory_of_the_thread(target: str) -> None:
    x, y = Value("x", dt.f32, 16), Value("y", dt.f32, 16)
    body = [
        Load(x, "x", dt.f32, i64(0)), Store("tile", dt.f32, i64(16), x),
        Load(y, "tile", dt.f32, i64(16)), Store("out", dt.f32, i64(0), y),
    ]  # fmt: skip
    data, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    build(function(body, ("x", "out"), scratch=(("tile", 128),)), target)(data, out)
    np.testing.assert_array_equal(out, data)


def test_kernels_link_together() -> None:
    target = TARGETS[VARIANTS[0]] if VARIANTS else pytest.skip("no x86-64")
    masked = []
    for name in ("first", "second"):
        mask, value = Value("m", dt.boolean), Value("v", dt.f32)
        body = [
            Load(mask, "m", dt.boolean, i64(0)), Load(value, "x", dt.f32, i64(0), mask),
            Store("x", dt.f32, i64(0), value),
        ]  # fmt: skip
        masked.append(print_function(function(body, ("x", "m"), name=name), target))
    library = link([compile_object(text, target) for text in masked], ["first", "second"])
    assert library["first"] != library["second"]


def test_unknown_names_are_internal_errors() -> None:
    for body, text in (
        ([Load(Value("v", dt.f32), "nowhere", dt.f32, i64(0))], "nowhere"),
        ([Let(Value("v", dt.f32), "frobnicate", ())], "frobnicate"),
        ([Let(Value("v", dt.f32), "sqrt", (Value("ghost", dt.f32),))], "ghost"),
    ):
        with pytest.raises(InternalError, match=text):
            print_function(function(body, ()), TARGETS["sse2"])


def test_text_is_deterministic_and_as_recorded(request: pytest.FixtureRequest) -> None:
    text = print_function(row_sums(8), TARGETS["avx2"])
    assert text == print_function(row_sums(8), TARGETS["avx2"])
    path = GOLDEN / "row_sums_avx2.ll"
    if request.config.getoption("--update-golden", default=False):
        path.write_text(text)
    assert text == path.read_text()


def test_constants_keep_their_bits() -> None:
    values = [0.1, -0.0, float("nan"), float("inf"), 1e-45, 3.4e38, 1e300]
    out = np.zeros(len(values), np.float32)
    body: list[Statement] = []
    for i, value in enumerate(values):
        result = Value(f"v{i}", dt.f32)
        zero = Literal(False, dt.boolean)
        body.append(Let(result, "select", (zero, Literal(1.0, dt.f32), Literal(value, dt.f32))))
        body.append(Store("out", dt.f32, i64(i), result))
    build(function(body, ("out",)), VARIANTS[0])(out)
    with np.errstate(over="ignore"):
        wanted = np.array(values, np.float32)
    np.testing.assert_array_equal(out.view(np.int32), wanted.view(np.int32))


def test_printing_is_fast() -> None:
    x, body = Value("v0", dt.f32, 16), []
    body.append(Load(x, "x", dt.f32, i64(0)))
    for i in range(5000):
        y = Value(f"v{i + 1}", dt.f32, 16)
        body.append(Let(y, "fma", (x, x, Literal(1.0, dt.f32, 16))))
        x = y
    kernel = function([*body, Store("x", dt.f32, i64(0), x)], ("x",))
    times = []
    for _ in range(5):
        start = time.process_time()
        print_function(kernel, TARGETS["avx512"])
        times.append(time.process_time() - start)
    print(f"{min(times) * 1e3:.1f} ms")
    assert min(times) < 0.150


def test_generated_text_needs_no_library() -> None:
    """exp2, log2 and sqrt are inline; only sin of huge arguments and mod call out."""
    for op in ("exp2", "log2", "sqrt"):
        text = print_function(one_op(op, [(dt.f32, 8)], (dt.f32, 8)), TARGETS["sse2"])
        assert "llvm.exp2" not in text and "llvm.log2" not in text and "@exp2" not in text
