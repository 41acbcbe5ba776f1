"""The Metal runtime, every line of it, on a fake of pyobjc that refuses what Metal would."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import luminal
from luminal import devices
from luminal.compiler import compile_graph
from luminal.config import Config
from luminal.errors import DeviceError, InternalError, OutOfRangeError
from luminal.frontend import functional as F
from luminal.frontend.tensor import tensor
from luminal.runtime import metal
from luminal.runtime.metal import MetalDevice
from tests import fake_metal
from tests.gpu_case import agree, needs_compiler
from tests.test_gpu_cuda import close, normal, two_kernels, update_graph, want_two

pytestmark = needs_compiler


@pytest.fixture
def gpu(monkeypatch):
    device = fake_metal.Device()
    monkeypatch.setattr(metal, "modules", lambda: fake_metal.modules(device))
    devices._other.cache_clear()
    monkeypatch.setenv("LUMINAL_CACHE", "off")
    yield device
    devices._other.cache_clear()


def compiled(function, inputs, **kwargs):
    return luminal.compile(function, list(inputs), search="off", device="metal", **kwargs)


def test_one_command_buffer_a_call_and_no_copies(gpu):
    x, w = normal(5, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    assert len(made.plan.kernels) > 1
    copied = gpu.copied
    close(made(x, w), want_two(x, w))
    close(made(x + 1, w), want_two(x + 1, w))
    assert gpu.commits == 2 and gpu.copied == copied and gpu.shared > 0


def test_memory_that_cannot_be_shared_is_copied(gpu):
    gpu.shares = False
    x, w = normal(5, 12), normal(12, 9)
    close(compiled(two_kernels, (x, w))(x, w), want_two(x, w))
    assert gpu.shared == 0


def test_sizes_that_change_and_nothing_to_do(gpu):
    many = {0: {0: luminal.Dim("n", 0, 64)}}
    made = compiled(lambda x: (x * 2, F.softmax(x, -1).sum(0)), (normal(4, 6),),
                    dynamic_shapes=many)  # fmt: skip
    for n in (4, 0, 64, 1):
        x = normal(n, 6)
        e = np.exp(x)
        close(made(x), (x * 2, (e / e.sum(-1, keepdims=True)).sum(0)))


def test_an_index_out_of_range(gpu):
    at = np.array([3, 30, 1])
    made = compiled(lambda t, at: t[at], (normal(30, 7), at))
    with pytest.raises(OutOfRangeError):
        made(normal(30, 7), at)
    table = normal(30, 7)
    np.testing.assert_array_equal(made(table, at * 0), table[at * 0])


def test_inputs_that_are_updated_and_weights(gpu):
    made = compile_graph(update_graph(), Config(device="metal", search="off", cache="off"))
    state, x = normal(3, 4), normal(3, 4)
    want = state + x
    assert made(state, x)[0] is state
    np.testing.assert_allclose(state, want)
    x, w = normal(5, 12), normal(12, 9)
    made = compiled(lambda x: x @ tensor(w), (x,))
    for _ in range(2):
        np.testing.assert_allclose(made(x), x @ w, 1e-4, 1e-5)


@pytest.mark.parametrize("number", range(8))
def test_random_graphs(number, gpu):
    agree(number, "metal")


# ---- what may be missing or fail


def test_no_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "Metal", None)
    with pytest.raises(
        DeviceError, match=r"pyobjc-framework-Metal is not installed.*'luminal\[metal\]'"
    ):
        MetalDevice()


def test_the_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "Metal", fake_metal)
    monkeypatch.setitem(sys.modules, "objc", sys)
    assert metal.modules() == (fake_metal, sys)


def test_no_gpu(monkeypatch):
    monkeypatch.setattr(metal, "modules", lambda: fake_metal.modules(None))
    with pytest.raises(DeviceError, match="no GPU. Got none from macOS"):
        MetalDevice()


def test_text_that_metal_refuses(gpu):
    with pytest.raises(InternalError, match=r"\[metal\] no kernel"):
        MetalDevice().compile("void f() {}")
    with pytest.raises(InternalError, match=r"\[metal\] no function"):
        MetalDevice().load(b"kernel void f() {}", "g")


def test_a_call_that_fails(gpu):
    x = normal(4, 4)
    made = compiled(lambda x: x + 1, (x,))
    gpu.broken = "Insufficient Memory"
    with pytest.raises(DeviceError, match="a call failed. Got Insufficient Memory; expected"):
        made(x)
    gpu.broken = ""
    np.testing.assert_array_equal(made(x), x + 1)
    assert metal._reason(None) == "no reason"


def test_out_of_memory(gpu):
    device = MetalDevice()
    gpu.room = 1 << 10
    with pytest.raises(DeviceError, match="out of memory. Got no buffer of 4096 bytes"):
        device.buffer(4096)


def test_a_gpu_with_few_threads(gpu):
    x = normal(64, 64)
    gpu.most = 1
    made = compiled(lambda x: x + 1, (x,))
    with pytest.raises(DeviceError, match="runs too few threads. Got .* at most 1"):
        made(x)
