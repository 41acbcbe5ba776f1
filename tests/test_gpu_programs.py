"""Whole programs on the emulated GPUs: the oracle's results, index errors, any size."""

from __future__ import annotations

import numpy as np
import pytest

import luminal
from luminal.compiler import Compiled, compile_graph
from luminal.config import Config
from luminal.emulator import emulated
from luminal.errors import DeviceError, OutOfRangeError
from luminal.frontend import functional as F
from luminal.ir.dtype import f32, i8, i32
from luminal.ir.expr import const
from luminal.ir.graph import Graph, Output
from luminal.llm import load
from luminal.runtime.gpu import H100
from luminal.search import tasks
from tests.gpu_case import CACHE, agree, needs_compiler
from tests.graph_builder import GraphBuilder
from tests.tiny_models import decoder_bytes

pytestmark = needs_compiler
DEVICES = ("cuda-emulated", "metal-emulated")
devices = pytest.mark.parametrize("device", DEVICES)
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def attention(q, k, v):
    return F.softmax((q @ k.transpose(-1, -2)) * 0.25, -1) @ v


def causal(q, k, v):
    n = q.shape[-2]
    scores = (q @ k.transpose(-1, -2)) * 0.25
    mask = F.arange(n).reshape(n, 1) < F.arange(n).reshape(1, n)
    return F.softmax(F.where(mask, float("-inf"), scores), -1) @ v


def norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()


def masked(q, k, v, mask):
    """Attention with an added mask: the sum in one pass has a scale."""
    return F.matmul(F.softmax(F.add(F.matmul(q, F.swapaxes(k, -1, -2)), mask), -1), v)


def lowest(n):
    """A mask that hides the last half, and all of the first row, by the lowest number."""
    mask = np.zeros((n, n), np.float32)
    mask[:, n // 2 :] = mask[0] = np.finfo(np.float32).min
    return mask


PROGRAMS = {
    "matmul": (lambda a, b: a @ b, (normal(37, 50), normal(50, 29))),
    "matmul_transposed": (lambda a, b: a @ b.transpose(0, 1), (normal(5, 200), normal(19, 200))),
    "vector": (lambda w, x: w @ x, (normal(40, 300), normal(300))),
    "batched": (lambda a, b: a @ b, (normal(3, 5, 9), normal(3, 9, 11))),
    "softmax": (lambda x: F.softmax(x, -1), (normal(7, 133),)),
    "softmax_of_columns": (lambda x: F.softmax(x, 0), (normal(33, 17),)),
    "norm": (norm, (normal(6, 100),)),
    "attention": (attention, (normal(2, 21, 16), normal(2, 21, 16), normal(2, 21, 16))),
    "causal": (causal, (normal(2, 19, 8), normal(2, 19, 8), normal(2, 19, 8))),
    "masked_rows": (masked, (*[normal(2, 21, 16)] * 3, lowest(21))),
    "masked_halves": (
        masked,
        (
            *[normal(2, 32, 16).astype(np.float16)] * 3,
            np.maximum(lowest(32), -65504).astype(np.float16),
        ),
    ),
    "cumsum": (lambda x: F.cumsum(x, -1), (normal(4, 45),)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), (normal(1, 3, 9, 9), normal(4, 3, 3, 3))),
    "gather": (lambda t, at: t[at], (normal(30, 7), RNG.integers(0, 30, 11))),
    "total": (lambda x: x.sum(), (normal(70, 70),)),
    "largest": (lambda x: x.max(), (normal(3000),)),
}


@devices
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, device):
    function, inputs = PROGRAMS[name]
    made = [luminal.compile(function, list(inputs), search="off", device=d)
            for d in ("cpu", device)]  # fmt: skip
    want, got = (np.asarray(m(*inputs)) for m in made)
    close(got, want)


def close(got, want):
    """Matrix instructions take weights of attention that are rounded to halves."""
    tolerance = (2e-3, 1e-3) if want.dtype == np.float16 else (1e-4, 2e-5)
    np.testing.assert_allclose(got, want, *tolerance)


@devices
def test_scaled_powers_over_padded_axes(device, monkeypatch):
    """In one pass: rows of the lowest scores, 21 rows and keys in blocks of 32 and 4."""
    compare_candidates("masked_rows", device, 4, monkeypatch)


@pytest.mark.nightly
@devices
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_is_right(name, device, monkeypatch):
    """All schedules that the model makes, not only its first."""
    compare_candidates(name, device, 16, monkeypatch)


def compare_candidates(name, device, count, monkeypatch):
    function, inputs = PROGRAMS[name]
    want = np.asarray(luminal.compile(function, list(inputs), search="off", device="cpu")(*inputs))
    every = tasks.candidates
    monkeypatch.setenv("LUMINAL_CACHE", "off")
    for number in range(count):
        monkeypatch.setattr(tasks, "candidates", lambda *a, **_: every(*a[:5])[number:][:1]
                            or every(*a[:5])[-1:])  # fmt: skip
        made = luminal.compile(function, list(inputs), search="off", device=device)
        close(np.asarray(made(*inputs)), want)


def compiled(graph: Graph, device: str) -> Compiled:
    return compile_graph(graph, Config(device=device, search="off", cache=str(CACHE)))


@pytest.mark.parametrize("number", range(24))
def test_random_graphs(number):
    agree(number, DEVICES[number % 2])


@pytest.mark.nightly
@devices
@pytest.mark.parametrize("number", range(24, 400))
def test_many_random_graphs(number, device):
    agree(number, device)


@devices
def test_an_index_out_of_range(device):
    at = np.array([3, 30, 1])
    made = luminal.compile(lambda t, at: t[at], [normal(30, 7), at * 0], search="off",
                           device=device)  # fmt: skip
    with pytest.raises(OutOfRangeError, match=r"Got an index < 0 or >= the size"):
        made(normal(30, 7), at)
    with pytest.raises(OutOfRangeError):
        made(normal(30, 7), at - 34)


@devices
def test_a_scatter_keeps_the_last(device):
    g = GraphBuilder()
    base, src, at = (g.input(n, (const(rows), const(40)), dtype) for n, rows, dtype in
                     (("base", 9, f32), ("src", 20, f32), ("at", 20, i32)))  # fmt: skip
    graph = g.finish((Output("y0", g.scatter(base, at, src, 0)),))
    inputs = [normal(9, 40), normal(20, 40), RNG.integers(0, 9, (20, 40)).astype(np.int32)]
    want = inputs[0].copy()
    for r in range(20):
        want[inputs[2][r], np.arange(40)] = inputs[1][r]
    np.testing.assert_array_equal(compiled(graph, device)(*inputs)[0], want)


@devices
def test_quantised_weights(device):
    """Σ_k scale[n, k / 32] q[n, k] x[k], as a decoder's products are."""

    def decode(q, scale, x):
        return (q.cast(f32).reshape(24, 4, 32) * scale.reshape(24, 4, 1)).reshape(24, 128) @ x

    q = RNG.integers(-127, 128, (24, 128)).astype(np.int8)
    scale, x = normal(24, 4), normal(128)
    made = luminal.compile(decode, [q, scale, x], search="off", device=device)
    want = (q.astype(np.float32).reshape(24, 4, 32) * scale[..., None]).reshape(24, 128) @ x
    np.testing.assert_allclose(np.asarray(made(q, scale, x)), want, 1e-4, 1e-3)
    assert i8 in {b.dtype for b in made.compiled.plan.buffers}


@pytest.mark.parametrize(
    "device", [DEVICES[0], pytest.param(DEVICES[1], marks=pytest.mark.nightly)]
)
def test_a_decoder_generates_the_tokens_of_the_cpu(device, tmp_path, monkeypatch):
    """Prefill, a cache that is updated in place, and steps of one token."""
    path = tmp_path / "model.gguf"
    path.write_bytes(decoder_bytes())
    tokens = []
    for name in ("cpu", device):
        monkeypatch.setenv("LUMINAL_DEVICE", name)
        model = load(path, search="off")
        tokens.append(list(model.generate([3, 9, 27, 17, 51], 4, stop_at_eos=False)))
    assert tokens[0] == tokens[1]


def test_no_compiler_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(emulated, "compiler", lambda: None)
    device = emulated.EmulatedDevice(H100)
    with pytest.raises(DeviceError, match=r"\[device\].* Got no g\+\+; expected one in PATH. Try"):
        device.compile('extern "C" __global__ void f() {}')
