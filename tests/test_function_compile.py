"""luminal.compile: structures, dynamic shapes, errors, kinds of inputs, threads, reports."""

import threading
from collections import namedtuple

import numpy as np
import pytest

import luminal
import luminal.frontend.functional as F
from luminal.errors import ArgumentError, DTypeError, LuminalError, OutOfRangeError, ShapeError
from luminal.function import trace_function
from luminal.ir.interp import run_graph
from luminal.ir.plan import Stage

Pair = namedtuple("Pair", "first second")
F32 = np.float32
RNG = np.random.default_rng(0)


def compiled(fn, *examples, **options):
    return luminal.compile(fn, list(examples), search="off", **options)


def floats(*shape):
    return RNG.standard_normal(shape).astype(F32)


X, Y = floats(3, 4), floats(3, 4)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, y: x + y, X + Y),
        (lambda x, y: (x + y,), (X + Y,)),
        (lambda x, y: (x + y, x * y), (X + Y, X * Y)),
        (lambda x, y: [x + y, x * y], [X + Y, X * Y]),
        (lambda x, y: {"sum": x + y, "parts": (x, [y])}, {"sum": X + Y, "parts": (X, [Y])}),
        (lambda x, y: Pair(x + y, x), Pair(X + Y, X)),
        (lambda x, y: (x, y, x), (X, Y, X)),
        (lambda x, y: (x + y, 3.0), (X + Y, np.float32(3.0))),
        (lambda x, y: (), ()),
    ],
    ids=["single", "1-tuple", "tuple", "list", "dict", "namedtuple", "inputs", "number", "empty"],
)
def test_results_have_the_structure_that_the_function_returned(fn, expected) -> None:
    check(compiled(fn, X, Y)(X, Y), expected)


def check(got, expected) -> None:
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            check(got[key], value)
    elif isinstance(expected, tuple | list):
        assert type(got) is type(expected) and len(got) == len(expected)
        for a, b in zip(got, expected):
            check(a, b)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_function_that_returns_something_else_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must return tensors. Got str"):
        compiled(lambda x: "text", X)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 16, 17, 64, 1000])
def test_one_compilation_serves_every_size(size: int) -> None:
    f = dynamic()
    x, w = floats(size, 5), floats(5, 6)
    total, product = f(x, w)
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(product, x @ w, rtol=1e-4, atol=1e-4)


def dynamic():
    if "f" not in _made:
        _made["f"] = compiled(
            lambda x, w: (luminal.sum(x, 0), x @ w), floats(8, 5), floats(5, 6),
            dynamic_shapes={0: {0: luminal.Dim("n", 0, 4096)}},
        )  # fmt: skip
    return _made["f"]


_made: dict = {}


def test_equal_names_are_equal_sizes() -> None:
    f = compiled(lambda x, y: x + y, X, Y, dynamic_shapes={0: {0: "n"}, 1: {0: "n"}})
    assert f(floats(9, 4), floats(9, 4)).shape == (9, 4)
    with pytest.raises(ShapeError, match="wrong shape"):
        f(floats(9, 4), floats(8, 4))


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((X,), ArgumentError, "wrong number of inputs. Got 1; expected 2"),
        ((X, Y, X), ArgumentError, "wrong number of inputs. Got 3"),
        ((X.T, Y), ShapeError, r"input 0 .* wrong shape. Got \(4, 3\); expected \(3, 4\)"),
        ((X[0], Y), ShapeError, "wrong rank"),
        ((X.astype(np.float64), Y), DTypeError, "wrong dtype. Got float64; expected f32"),
        ((X, Y.astype(np.int32)), DTypeError, "input 1 .* wrong dtype. Got int32"),
        ((X.astype(X.dtype.newbyteorder()), Y), DTypeError, "float32 in the byte order of another"),
        ((X, "text"), ArgumentError, "not an array. Got str"),
        ((X, None), ArgumentError, "not an array"),
        ((X, 1.0), LuminalError, "input 1"),
    ],
)
def test_wrong_inputs_are_refused_with_a_clear_text(args, error, text) -> None:
    f = compiled(lambda x, y: x + y, X, Y)
    with pytest.raises(error, match=text):
        f(*args)
    np.testing.assert_allclose(f(X, Y), X + Y, rtol=1e-6)


def test_sizes_outside_the_declared_range_are_refused() -> None:
    f = dynamic()
    with pytest.raises(ShapeError, match="n is out of its range. Got 4097"):
        f(floats(4097, 5), floats(5, 6))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dynamic_shapes": {5: {0: "n"}}}, "names inputs"),
        ({"dynamic_shapes": {0: {7: "n"}}}, "names axis 7"),
        ({"dynamic_shapes": {0: {0: luminal.Dim("n", 8, 9)}}}, "expected it to fit"),
        ({"numerics": "sloppy"}, "numerics must be one of"),
        ({"threads": -1}, "threads"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_wrong_options_are_refused(options, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        compiled(lambda x: x + 1, X, **options)


def test_examples_must_be_arrays() -> None:
    with pytest.raises(ArgumentError, match="list or tuple"):
        luminal.compile(lambda x: x, X, search="off")
    with pytest.raises(LuminalError, match="example 0"):
        compiled(lambda x: x, object())
    with pytest.raises(DTypeError, match="complex64, which luminal lacks"):
        compiled(lambda x: x, np.zeros(3, np.complex64))


@pytest.mark.parametrize("bad", [10, -11, 1 << 40, -(1 << 40)])
def test_an_index_out_of_range_is_an_error_and_no_crash(bad: int) -> None:
    table, index = floats(10, 6), np.array([0, 9, 3])
    f = compiled(lambda t, i: luminal.embedding(i, t), table, index)
    np.testing.assert_array_equal(f(table, index), table[index])
    with pytest.raises(OutOfRangeError):
        f(table, np.array([0, bad, 3]))
    np.testing.assert_array_equal(f(table, index), table[index])


@pytest.mark.parametrize("bad", [4, -5, 1 << 33])
def test_a_scatter_out_of_range_writes_nothing_wild(bad: int) -> None:
    f = compiled(lambda x, i, v: luminal.index_copy(x, 0, i, v), X[:, :], np.array([1]), X[:1])
    with pytest.raises(OutOfRangeError):
        f(X, np.array([bad]), X[:1])


def test_inputs_of_any_strides() -> None:
    f = compiled(lambda x: x * 2 + 1, floats(4, 6))
    base = floats(12, 8)
    for x in (
        base[:8:2, 1:7],
        base[4:8, :6][::-1],
        base[:6, :4].T,
        np.broadcast_to(base[0, :6], (4, 6)),
    ):
        np.testing.assert_allclose(f(x), x * 2 + 1, rtol=1e-6)
    fortran = np.asfortranarray(base[:4, :6])
    np.testing.assert_allclose(f(fortran), fortran * 2 + 1, rtol=1e-6)


def test_inputs_at_odd_addresses() -> None:
    f = compiled(lambda x: x * 2, floats(33))
    raw = np.zeros(4 * 33 + 1, np.uint8)
    x = np.frombuffer(raw.data, F32, 33, 0) if raw.ctypes.data % 4 else raw[:132].view(F32)
    x[:] = floats(33)
    np.testing.assert_allclose(f(x), x * 2)
    shifted = np.zeros(34, F32)[1:]
    shifted[:] = x
    np.testing.assert_allclose(f(shifted), x * 2)


def test_results_do_not_share_memory_with_later_results() -> None:
    f = compiled(lambda x: x + 1, floats(5))
    first = f(np.zeros(5, F32))
    f(np.ones(5, F32))
    np.testing.assert_array_equal(first, np.ones(5, F32))


def test_large_results_are_not_recycled_while_they_are_held() -> None:
    f = compiled(lambda x: x + 1, np.zeros(3 << 20, F32))
    first = f(np.zeros(3 << 20, F32))
    view = first[10:20]
    del first
    second = f(np.ones(3 << 20, F32))
    assert view[0] == 1 and second[0] == 2


def test_dlpack_objects() -> None:
    torch = pytest.importorskip("torch")
    f = compiled(lambda x, y: x @ y, torch.ones(3, 4), torch.ones(4, 2))
    a, b = torch.randn(3, 4), torch.randn(2, 4).T
    np.testing.assert_allclose(f(a, b), (a @ b).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(LuminalError, match="input 0"):
        f(torch.randn(3, 4, requires_grad=True), b)


def test_an_update_happens_in_place() -> None:
    def step(cache, row, at):
        after = luminal.index_copy(cache, 0, at, row)
        return luminal.sum(after, 0), luminal.update(cache, after)

    cache, row, at = floats(6, 3), floats(1, 3), np.array([2])
    f = compiled(step, cache.copy(), row, at)
    held = cache.copy()
    total, updated = f(held, row, at)
    cache[2] = row
    np.testing.assert_array_equal(held, cache)
    assert np.shares_memory(updated, held)
    np.testing.assert_allclose(total, cache.sum(0), rtol=1e-5)
    frozen = cache.copy()
    frozen.setflags(write=False)
    with pytest.raises(LuminalError, match="read-only|writ"):
        f(frozen, row, at)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "int8", "uint8", "bool"])
def test_dtypes(dtype: str) -> None:
    x = (RNG.integers(0, 2, (3, 5)) if dtype == "bool" else RNG.integers(0, 50, (3, 5))).astype(
        dtype
    )
    got = compiled(lambda a: (luminal.roll(a, 1, 1), luminal.cat([a, a], 0)), x)(x)
    np.testing.assert_array_equal(got[0], np.roll(x, 1, 1))
    np.testing.assert_array_equal(got[1], np.concatenate([x, x]))


def test_scalars_and_empty_inputs() -> None:
    f = compiled(lambda x, s: x * s, floats(0, 4), F32(2))
    assert f(floats(0, 4), F32(3)).shape == (0, 4)
    g = compiled(lambda s: s * 2 + 1, F32(2))
    assert g(F32(4)) == 9 and g(np.array(1, F32)) == 3
    h = compiled(lambda x: (luminal.sum(x), luminal.sum(x, 0)), floats(0, 4))
    assert h(floats(0, 4))[0] == 0 and list(h(floats(0, 4))[1]) == [0] * 4


def test_several_threads_call_at_once() -> None:
    f = compiled(
        lambda x, w: luminal.softmax(x @ w, -1), floats(8, 32), floats(32, 16),
        dynamic_shapes={0: {0: "n"}},
    )  # fmt: skip
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            x = rng.standard_normal((int(rng.integers(1, 70)), 32)).astype(F32)
            w = rng.standard_normal((32, 16)).astype(F32)
            e = np.exp(x @ w - (x @ w).max(-1, keepdims=True))
            if not np.allclose(f(x, w), e / e.sum(-1, keepdims=True), rtol=1e-3, atol=1e-5):
                wrong.append(x.shape)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_plan_stats_and_explain() -> None:
    f = compiled(lambda x, y: luminal.relu(x @ y), floats(8, 16), floats(16, 8))
    f(floats(8, 16), floats(16, 8))
    assert len(f.plan.kernels) == f.stats.kernels == 1
    assert f.plan.inputs == ("x0", "x1") and len(f.plan.outputs) == 1
    assert f.stats.total_s >= f.stats.compile_s >= 0
    text = f.explain()
    assert "1 kernels" in text and "kernel('k0'" in text and "schedule(" in text


def attention(q, k, v):
    """Causal attention of 8 heads over 2 heads of keys, in plain operations."""
    heads, rows, d = q.shape
    k, v = (luminal.repeat_interleave(x, heads // k.shape[0], 0) for x in (k, v))
    scores = (q @ luminal.transpose(k, 1, 2)) * d**-0.5
    here, there = luminal.arange(rows).reshape(-1, 1), luminal.arange(rows).reshape(1, -1)
    scores = luminal.masked_fill(scores, there > here, float("-inf"))
    return luminal.softmax(scores, -1) @ v


def reference(q, k, v, row: int) -> np.ndarray:
    """One row of the result, in f64."""
    heads = q.shape[0] // k.shape[0]
    out = []
    for h in range(q.shape[0]):
        s = k[h // heads, : row + 1].astype(np.float64) @ q[h, row] / np.sqrt(q.shape[-1])
        e = np.exp(s - s.max())
        out.append(e @ v[h // heads, : row + 1] / e.sum())
    return np.array(out)


def test_long_attention_is_one_pass_over_the_keys_in_little_memory() -> None:
    q, k, v = floats(8, 4096, 64), floats(2, 4096, 64), floats(2, 4096, 64)
    f = compiled(attention, q, k, v)
    got = f(q, k, v)
    for row in (0, 1, 63, 64, 1000, 4095):
        np.testing.assert_allclose(got[:, row], reference(q, k, v, row), rtol=2e-4, atol=2e-5)
    over_keys = [n for n in f.plan.kernels if {"x1", "x2"} & set(n.reads())]
    assert len(over_keys) == 1
    assert f.stats.arena_bytes < 8 << 20


def test_short_attention_is_right() -> None:
    q, k, v = floats(8, 65, 64), floats(2, 65, 64), floats(2, 65, 64)
    got = compiled(attention, q, k, v)(q, k, v)
    for row in range(65):
        np.testing.assert_allclose(got[:, row], reference(q, k, v, row), rtol=2e-4, atol=2e-5)


def _chain(x, y):
    """A layer norm of costly values, and a softmax of costly values of that."""
    x = F.silu(x) + F.tanh(y)
    return F.softmax(F.gelu(F.layer_norm(x, x.shape[-1:])) + y, -1)


def _short_statistics(x, y):
    """Statistics over less of the row than the result has: no row can be shared."""
    e = F.exp(x)
    return e - F.sum(F.exp(x[:, : x.shape[1] // 2]), -1, keepdim=True) * F.exp(y)


def _along_both(x, y):
    """The same costly value of two inputs, summed along two axes of equal size."""
    e = F.exp(x * y)
    return e / F.sum(e, -1, keepdim=True) + F.amax(e, 0, keepdim=True)


@pytest.mark.parametrize("net", [_chain, _short_statistics, _along_both])
@pytest.mark.parametrize("shape", [(5, 300), (33, 33), (3, 1), (1, 70), (64, 64)])
def test_rows_that_several_statistics_share_are_right(net, shape) -> None:
    x, y = floats(*shape), floats(*shape)
    run, graph = compiled(net, x, y), trace_function(net, [x, y]).graph
    names = [n.name for n in graph.nodes if n.op == "Input"]
    (expected,) = run_graph(graph, dict(zip(names, (x, y))))
    np.testing.assert_allclose(run(x, y), expected, rtol=2e-5, atol=2e-6)


def test_a_chain_of_statistics_is_one_kernel_that_makes_costly_values_once() -> None:
    run = compiled(_chain, floats(64, 512), floats(64, 512))
    (kernel,) = run.plan.kernels
    stages = [i for i in kernel.schedule.items if isinstance(i, Stage)]
    shared = [kernel.subterms()[i.term] for i in stages if i.same]
    assert [t.op for t in shared] == ["add", "add"]  # what is normalised, what the softmax is of


@pytest.mark.parametrize("threads", [2.7, float("inf"), float("nan"), -1, "two"])
def test_threads_are_a_whole_number(threads):
    with pytest.raises(ArgumentError, match="threads must be a whole number"):
        luminal.compile(lambda x: x, [X], threads=threads)
