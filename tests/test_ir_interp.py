"""The oracle itself, against NumPy written out by hand, and the text formats around it."""

import numpy as np
import pytest

from luminal.errors import InternalError, OutOfRangeError
from luminal.frontend import views as V
from luminal.ir import term as T
from luminal.ir.canonical import canonical
from luminal.ir.dtype import bf16, boolean, f8e4m3, f16, f32, f64, i4, i8, i32, i64, u4
from luminal.ir.expr import axis_var, const, dim, to_expr
from luminal.ir.graph import ConstantData, Edge, Node, Output
from luminal.ir.interp import eval_term, run_graph, run_plan
from luminal.ir.numeric import cast, decode, encode
from luminal.ir.plan import Buffer, Kernel, Loop, Plan, Reg, Schedule, Store
from luminal.ir.text import graph_text, parse_graph, parse_plan, plan_text
from luminal.ir.verify import verify_graph, verify_plan
from luminal.ir.view import identity
from tests.graph_builder import GraphBuilder

RNG = np.random.default_rng(0)
S = dim("s", 1, 64)
E = to_expr


def shape(*sizes):
    return tuple(const(n) if isinstance(n, int) else n for n in sizes)


def run(builder, edge, inputs, dims=None, **extra):
    graph = builder.finish((Output("y", edge),), tuple(sorted(S.variables(), key=repr)))
    verify_graph(graph)
    assert parse_graph(graph_text(graph), extra) == graph
    return run_graph(graph, inputs, dims)[0]


def matmul_graph():
    g = GraphBuilder()
    x, w = g.input("x", (S, const(4)), f32), g.input("w", shape(4, 3), f32)
    full = (S, const(3), const(4))
    i, j, k = (E(a) for a in V.axes_of(full))
    a = g.view(x, V.View(full, x.view.shape, (i, k)))
    b = g.view(w, V.View(full, w.view.shape, (k, j)))
    return g, g.reduce("SumReduce", g.op("Mul", (a, b)), 2)


def test_matmul_graph():
    g, y = matmul_graph()
    x, w = RNG.standard_normal((5, 4), np.float32), RNG.standard_normal((4, 3), np.float32)
    np.testing.assert_allclose(run(g, y, {"x": x, "w": w}, {"s": 5}), x @ w, rtol=1e-6)


def test_padding_keeps_signed_zero_and_fill():
    g = GraphBuilder()
    x = g.input("x", shape(3), f32)
    y = g.view(x, V.pad(shape(3), 0, 1, 1, -0.0))
    got = run(g, y, {"x": np.array([-0.0, 1, np.nan], np.float32)})
    assert np.signbit(got).tolist()[:2] == [True, True] and np.isnan(got[3]) and len(got) == 5


def test_select_is_a_gather_of_a_stack():
    g = GraphBuilder()
    n = shape(4)
    a, b, c = g.input("a", n, f32), g.input("b", n, f32), g.input("c", n, boolean)
    parts = []
    for edge, before in ((b, 0), (a, 1)):
        row = g.view(edge, V.reshape(n, shape(1, 4)))
        parts.append(g.view(row, V.pad(shape(1, 4), 0, before, 1 - before, -0.0)))
    stack = g.op("Add", tuple(parts))
    index = g.view(g.cast(c, i32), V.reshape(n, shape(1, 4)))
    y = g.gather(stack, index, 0)
    a_, b_ = np.array([1, np.inf, -0.0, 4], "f"), np.array([np.nan, 2, 3, np.nan], "f")
    c_ = np.array([True, False, True, False])
    got = run(g, y, {"a": a_, "b": b_, "c": c_})[0]
    np.testing.assert_array_equal(got, np.where(c_, a_, b_))
    assert np.signbit(got[2])


def test_gather_checks_and_scatter_keeps_the_last():
    g = GraphBuilder()
    x, i = g.input("x", shape(5), f32), g.input("i", shape(3), i64)
    assert run(
        g, g.gather(x, i, 0), {"x": np.arange(5, dtype="f"), "i": np.array([4, 0, 2])}
    ).tolist() == [4, 0, 2]
    with pytest.raises(OutOfRangeError, match="index 5"):
        run(g, g.gather(x, i, 0), {"x": np.arange(5, dtype="f"), "i": np.array([4, 5, 2])})
    v = g.input("v", shape(3), f32)
    got = run(
        g,
        g.scatter(x, i, v, 0),
        {"x": np.zeros(5, "f"), "i": np.array([1, 3, 1]), "v": np.array([7, 8, 9], "f")},
    )
    assert got.tolist() == [0, 9, 0, 8, 0]


def test_casts():
    f = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 2.9, -2.9, 200.0])
    assert cast(f, f64, i8).tolist() == [0, 127, -128, 127, -128, 2, -2, 127]
    assert cast(f, f64, i64).tolist()[:5] == [0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63)]
    assert cast(np.array([300, -1]), i64, i8).tolist() == [44, -1]
    assert cast(f, f64, boolean).tolist() == [True] * 8


def test_half_rounds_once_and_storage_decodes():
    x = np.array([1 + 2**-9, 1 + 2**-8 + 2**-12], np.float32)
    assert encode(cast(x, f32, bf16), bf16).tolist() == [0x3F80, 0x3F81]
    assert decode(np.array([0x21, 0xF8], np.uint8), u4).tolist() == [1, 2, 8, 15]
    assert decode(np.array([0x21, 0xF8], np.uint8), i4).tolist() == [1, 2, -8, -1]
    torch = pytest.importorskip("torch")
    bits = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(bits).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decode(bits, f8e4m3), want)


def attention_term():
    q, k, d, e = axis_var("q", S), axis_var("k", S), axis_var("d", 8), axis_var("e", 8)
    score = T.reduction(
        "sum", (d,), T.binary("mul", T.load("Q", (E(q), E(d)), f32), T.load("K", (E(k), E(d)), f32))
    )
    masked = T.select(T.cond(E(q) - E(k)), score, T.constant(float("-inf"), f32))
    one = T.constant(1.0, f32)
    top = T.reduction("rsum", (k,), masked, T.load("V", (E(k), E(e)), f32))
    return T.binary("mul", top, T.unary("recip", T.reduction("rsum", (k,), masked, one))), (q, e)


def test_terms_evaluate_like_numpy():
    term, axes = attention_term()
    q, k, v = (RNG.standard_normal((9, 8), np.float32) for _ in range(3))
    score = np.where(np.tril(np.ones((9, 9), bool)), q @ k.T, -np.inf).astype(np.float64)
    p = np.exp2(score - score.max(1, keepdims=True))
    got = eval_term(term, axes, {"Q": q, "K": k, "V": v}, {"s": 9})
    np.testing.assert_allclose(got, p / p.sum(1, keepdims=True) @ v, rtol=1e-5)


def test_wsum_and_empty_reductions():
    k = axis_var("k", S)
    x = RNG.standard_normal(50) + 1000
    got = eval_term(T.reduction("wsum", (k,), T.load("x", (E(k),), f64)), (), {"x": x}, {"s": 50})
    assert abs(got - x.var() * 50) < 1e-9
    n = axis_var("n", dim("m", 0, 4))
    empty = {"x": np.zeros(0, np.float32)}
    assert eval_term(T.reduction("sum", (n,), T.load("x", (E(n),), f32)), (), empty, {"m": 0}) == 0
    assert (
        eval_term(T.reduction("rmax", (n,), T.load("x", (E(n),), f32)), (), empty, {"m": 0})
        == -np.inf
    )


def attention_plan():
    term, axes = attention_term()
    rows = (S, const(8))
    buffers = [Buffer(n, rows, f32, "input") for n in "QKV"] + [Buffer("y", rows, f32, "output")]
    schedule = Schedule((Loop("q", 4, split=True, grid=True),), (Reg("e", 1, "vector"),))
    kernel = Kernel("a", axes, (Store("y", tuple(map(E, axes)), term),), schedule)
    return Plan((kernel,), tuple(buffers), ("Q", "K", "V"), ("y",), tuple(S.variables()))


def test_plan_runs_prints_and_parses():
    plan = attention_plan()
    verify_plan(plan)
    assert parse_plan(plan_text(plan)) == plan
    q, k, v = (RNG.standard_normal((7, 8), np.float32) for _ in range(3))
    got = run_plan(plan, {"Q": q, "K": k, "V": v}, {"s": 7})[0]
    score = np.where(np.tril(np.ones((7, 7), bool)), q @ k.T, -np.inf).astype(np.float64)
    p = np.exp2(score - score.max(1, keepdims=True))
    np.testing.assert_allclose(got, p / p.sum(1, keepdims=True) @ v, rtol=1e-5)


def test_canonical_form_ignores_names():
    plan = attention_plan()
    text = plan_text(plan)
    for old, new in (
        ("'Q'", "'Z'"),
        ("'q'", "'r'"),
        ("[q,", "[r,"),
        ("q - ", "r - "),
        ("(q", "(r"),
        (" + q", " + r"),
    ):
        text = text.replace(old, new)
    other = parse_plan(text.replace("index(q", "index(r").replace("cond(q", "cond(r"))
    one, two = canonical(plan.kernels[0]), canonical(other.kernels[0])
    assert one.kernel == two.kernel and one.buffers != two.buffers
    assert canonical(one.kernel).kernel == one.kernel


def test_bad_text_names_the_line():
    with pytest.raises(ValueError, match="n0 = Frobnicate"):
        parse_graph("n0 = Frobnicate(shape=[], dtype=f32)")


def test_verifier_refuses():
    g, y = matmul_graph()
    graph = g.finish((Output("y", y),))
    broken = Node("Exp2", (Edge(1, identity(shape(2, 2))),), shape(2, 2), f32)
    for nodes in ((broken,), (*graph.nodes, broken)):
        with pytest.raises(InternalError, match="verify graph"):
            verify_graph(type(graph)(nodes, graph.outputs))
    with pytest.raises(InternalError, match="floats"):
        b = GraphBuilder()
        b.op("Sqrt", (b.input("x", shape(2), i32),))
        verify_graph(b.finish(()))


def test_constants_travel_by_name():
    g = GraphBuilder()
    data = ConstantData("w", np.array([1, 2], np.uint16) << 7)
    got = run(g, g.cast(g.tensor(data, shape(2), bf16), f32), {}, w=data)
    np.testing.assert_array_equal(got, decode(data.array, bf16))
    assert f16.itemsize == 2
