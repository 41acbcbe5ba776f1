"""PyTorch models on CUDA: graphs are traced from fake CUDA tensors, and run on the fake driver.

No CUDA tensor exists here: the memory of CPU tensors is lent to the driver, and takes its place."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from luminal.errors import UnsupportedError
from luminal.frontend.torch import build, prepass, recipe, storage
from luminal.frontend.torch.decompositions import table
from luminal.frontend.torch.options import Options
from tests.cuda_case import machine
from tests.gpu_case import needs_compiler

pytestmark = needs_compiler
STRICT = Options(fallback="error", config=(("search", "off"), ("cache", "off")))


@pytest.fixture
def gpu(monkeypatch):
    """The driver, for whom the memory of `lend`ed tensors is its own."""
    found = machine(monkeypatch)

    def lend(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), max(16, storage.nbytes())
        room = (ctypes.c_uint8 * size).from_address(address)
        found.driver.live[address] = np.frombuffer(room, np.uint8)
        found.driver.starts = sorted(found.driver.live)
        held.append(tensor)
        return tensor

    def allocator(device):
        assert device == torch.device("cuda", 0)
        return lambda size, stride, dtype: lend(torch.empty_strided(size, stride, dtype=dtype))

    held, found.lend = [], lend
    monkeypatch.setattr(recipe, "allocator", allocator)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return found


def traced(function, inputs):
    """The ATen graph of a function of CUDA tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [torch.empty_like(mode.from_tensor(x), device="cuda:0") for x in inputs]
        return make_fx(lambda *x: tupled(function(*x)), decomposition_table=table())(*fakes)


def tupled(value):
    return value if isinstance(value, tuple) else (value,)


def check(gpu, function, *inputs, options=STRICT):
    call = build.build(traced(function, inputs), "inference", options, {})
    got = call([gpu.lend(x.clone()) for x in inputs])
    gpu.driver.drain()
    want = function(*inputs)
    for g, w in zip(got, tupled(want), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)
    return call


def functional(module):
    """A module as a function of its input, parameters and buffers."""
    module = module.eval()
    names, tensors = zip(*[*module.named_parameters(), *module.named_buffers()])

    def function(x, *given):
        return torch.func.functional_call(module, dict(zip(names, given)), (x,))

    return function, [t.detach() for t in tensors]


def test_a_perceptron(gpu):
    function, given = functional(nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 5)))
    call = check(gpu, function, torch.randn(3, 12), *given)
    assert call.recipe.device == torch.device("cuda", 0) and not call.recipe.storable


def test_convolution_and_norm(gpu):
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    function, given = functional(nn.Sequential(*layers))
    check(gpu, function, torch.randn(1, 2, 6, 6), *given)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(gpu, causal):
    """Dynamo's graph calls this function instead of ATen's choice of a kernel."""

    def function(q, k, v):
        return prepass.attention(q, k, v, is_causal=causal)

    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    check(gpu, function, q, k, v)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(function(q, k, v), want)
    assert prepass.attention(q, k, v, dropout_p=0.5).shape == q.shape


def test_the_prepass_takes_over_attention_on_gpus_alone():
    for device, wanted in (("cpu", F.scaled_dot_product_attention), ("cuda", prepass.attention)):
        graph = torch.fx.Graph()
        q = graph.placeholder("q")
        with FakeTensorMode():
            q.meta["example_value"] = torch.empty(1, 2, 3, 4, device=device)
        node = graph.call_function(F.scaled_dot_product_attention, (q, q, q))
        graph.output(node)
        assert prepass.prepass(torch.fx.GraphModule({}, graph)) is None
        assert node.target is wanted


def test_results_that_are_alike_or_constant(gpu):
    def function(x):
        y = x + 1
        return y, y * 1, torch.arange(5, device=x.device), x * 1

    check(gpu, function, torch.randn(4, 4))


def test_tensors_of_the_host_beside_them(gpu):
    """They run in eager, and strict mode says so."""

    def function(x):
        return x * 2, torch.arange(3) + 1

    with pytest.raises(UnsupportedError, match="device cpu"):
        check(gpu, function, torch.randn(4))


def test_tensors_of_the_host_where_the_settings_say_cuda(monkeypatch):
    monkeypatch.setenv("LUMINAL_DEVICE", "cuda")
    run = torch.compile(lambda x: x + 1, backend="luminal", options={"search": "off"})
    torch.testing.assert_close(run(torch.zeros(3)), torch.ones(3))


def test_memory_is_where_the_graph_is():
    found = storage.allocator(torch.device("meta"))((2, 3), (3, 1), torch.float32)
    assert found.device.type == "meta" and found.shape == (2, 3)
