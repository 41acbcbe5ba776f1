"""The CUDA runtime, every line of it, on a fake driver that refuses what the real one would."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import luminal
from luminal.compiler import compile_graph
from luminal.config import Config
from luminal.errors import ArgumentError, DeviceError, DTypeError, OutOfRangeError, ShapeError
from luminal.explanation.facts import kernel_facts
from luminal.frontend import functional as F
from luminal.ir.dtype import bf16, f32
from luminal.ir.expr import Var, const, dim
from luminal.ir.graph import ConstantData, Output
from luminal.llm import load, runner
from luminal.runtime import cuda, cuda_executor, nvrtc
from luminal.runtime.cuda import CudaDevice
from luminal.runtime.cuda_executor import CudaExecutor
from tests import fake_cuda
from tests.cuda_case import machine
from tests.gpu_case import agree, needs_compiler
from tests.graph_builder import GraphBuilder
from tests.tiny_models import decoder_bytes

pytestmark = needs_compiler
RNG = np.random.default_rng(0)
DYNAMIC = {0: {0: luminal.Dim("n", 1, 64)}}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def no_errors_of_finalizers(monkeypatch):
    """What goes wrong while memory is given back is an error, too."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    yield
    gc.collect()
    assert seen == []


@pytest.fixture
def gpu(monkeypatch):
    return machine(monkeypatch)


@pytest.fixture
def with_torch(monkeypatch):
    return machine(monkeypatch, torch=True)


def compiled(function, inputs, **kwargs):
    return luminal.compile(function, list(inputs), search="off", device="cuda", **kwargs)


def two_kernels(x, w):
    """Softmax over rows, then sums over columns: several kernels and a temporary."""
    y = F.softmax(x @ w, -1)
    return y - y.mean(0, keepdim=True), y.sum(0)


def want_two(x, w):
    z = np.exp(x @ w - (x @ w).max(-1, keepdims=True))
    y = z / z.sum(-1, keepdims=True)
    return y - y.mean(0, keepdims=True), y.sum(0)


def close(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(g), w, 1e-4, 1e-5)


def test_arrays_of_the_host(gpu):
    x, w = normal(5, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    assert made.compiled.program.target.cpu == "sm_90a"
    assert len(made.plan.kernels) > 1
    close(made(x, w), want_two(x, w))
    close(made(x + 1, w), want_two(x + 1, w))
    assert gpu.driver.calls["cuGraphInstantiate"] == 1  # the second call patches the first's graph


def test_one_kernel_needs_no_graph(gpu):
    x = normal(4, 4)
    made = compiled(lambda x: x + 1, (x,))
    np.testing.assert_array_equal(made(x), x + 1)
    assert "cuGraphCreate" not in gpu.driver.calls and gpu.driver.calls["cuLaunchKernel"] == 1


def test_what_the_device_holds_is_not_copied(gpu):
    x, w = normal(5, 12), normal(12, 9)
    made = compiled(lambda x, w: (x @ w, x + 1), (x, w))
    device = made.compiled.executor.device
    with device:
        held = [cuda.DeviceArray(device, device.upload(a), a.shape, a.dtype) for a in (x, w)]
    before = dict(gpu.driver.calls)
    product, more = made(*held)
    after = gpu.driver.calls
    for name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize"):
        assert after.get(name, 0) == before.get(name, 0)
    close((product.numpy(), more.numpy()), (x @ w, x + 1))
    assert product.reshape((45,)).numpy().shape == (45,)
    (again, _) = made(held[0], w)  # one of each
    close([again.numpy()], [x @ w])


def test_only_what_changes_is_patched(with_torch):
    t, driver = with_torch.torch, with_torch.driver
    x, w = normal(6, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    a, b = t.tensor(x), t.tensor(w)
    first = made(a, b)
    close([r.get() for r in first], want_two(x, w))
    outs = [r.address for r in first]
    del first
    before = driver.calls.get("cuGraphExecKernelNodeSetParams", 0)
    second = made(a, b)
    if [r.address for r in second] == outs:  # the allocator gave the same memory again
        assert driver.calls.get("cuGraphExecKernelNodeSetParams", 0) == before
    patches = driver.calls.get("cuGraphExecKernelNodeSetParams", 0)
    other = t.tensor(x * 2)
    third = made(other, b)
    assert driver.calls["cuGraphExecKernelNodeSetParams"] > patches
    close([r.get() for r in third], want_two(x * 2, w))
    close([r.get() for r in second], want_two(x, w))  # the earlier result is still itself


def test_pytorch_lends_memory_and_stream(with_torch):
    t, driver = with_torch.torch, with_torch.driver
    x, w = normal(6, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    t.now = 100 + len(driver.streams)
    driver.streams[t.now] = None
    before = dict(driver.calls)
    got = made(t.tensor(x), t.tensor(w))
    assert all(r.is_cuda and r.dtype is t.float32 for r in got)
    assert "cuMemAllocAsync" not in driver.calls and "cuStreamCreate" not in driver.calls
    assert driver.calls.get("cuStreamSynchronize", 0) == before.get("cuStreamSynchronize", 0)
    assert driver.queue  # nothing has been waited for
    close([r.get() for r in got], want_two(x, w))


def test_inside_a_recording_of_pytorch(with_torch):
    t = with_torch.torch
    x, w = normal(6, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    a, b = t.tensor(x), t.tensor(w)
    results = []
    recorded = t.capture(lambda: results.extend(made(a, b)))
    assert len(recorded) == len(made.plan.kernels) and not with_torch.driver.queue
    for factor in (1, 3):
        a.put(x * factor)
        for work in recorded:
            work()
        close([r.get() for r in results], want_two(x * factor, w))
    close([r.get() for r in made(a, b)], want_two(x * 3, w))  # and outside of it again


def test_sizes_change_from_call_to_call(with_torch):
    t = with_torch.torch
    w = normal(12, 9)
    made = compiled(two_kernels, (normal(6, 12), w), dynamic_shapes=DYNAMIC)
    b = t.tensor(w)
    for n in (6, 1, 64, 3, 6):
        x = normal(n, 12)
        close([r.get() for r in made(t.tensor(x), b)], want_two(x, w))
    assert with_torch.driver.calls["cuGraphInstantiate"] == 1
    with pytest.raises(ShapeError, match="out of its range"):
        made(t.tensor(normal(65, 12)), b)


def test_kernels_with_nothing_to_do(gpu):
    def function(x, y):
        return x + 1, (y * 2).sum(-1), F.softmax(y @ y.transpose(0, 1), -1).sum(0)

    many = {1: {0: luminal.Dim("m", 0, 64)}}
    made = compiled(function, (normal(4), normal(6, 3)), dynamic_shapes=many)
    x = normal(4)
    for n in (0, 6, 0, 2):
        y = normal(n, 3)
        first, second, _ = made(x, y)
        close((first, second), (x + 1, (y * 2).sum(-1)))
    assert gpu.driver.calls["cuGraphNodeSetEnabled"] > 0


def test_an_index_out_of_range(with_torch):
    t = with_torch.torch
    table, at = normal(30, 7), np.array([3, 30, 1])
    made = compiled(lambda t, at: t[at], (table, at))
    a, bad, good = t.tensor(table), t.tensor(at), t.tensor(at * 0)
    late = made(a, bad)  # no error yet: nothing has waited
    with_torch.driver.drain()
    with pytest.raises(OutOfRangeError, match="this or an earlier call"):
        made(a, good)
    np.testing.assert_array_equal(made(a, good).get(), table[at * 0])  # and then all is well
    made(a, bad)
    with pytest.raises(OutOfRangeError):
        made.compiled.executor.synchronize()
    with pytest.raises(OutOfRangeError):  # arrays of the host: this very call
        made(table, at)
    assert late.shape == (3, 7)


def test_memory_that_lies_oddly(with_torch):
    t = with_torch.torch
    base = t.tensor(normal(41))
    made = compiled(lambda x: (x * 2, x.sum()), (normal(40),))
    x = fake_cuda.FakeTensor(t, base.address + 4, (40,), t.float32, keep=base)
    close([r.get() for r in made(x)], (x.get() * 2, x.get().sum()))
    executor = made.compiled.executor  # results may lie oddly, too
    out, total = t.tensor(normal(41)), t.tensor(normal(4))
    executor.run_pointers([base.address], [out.address + 4, total.address])
    np.testing.assert_array_equal(out.get()[1:], base.get()[:40] * 2)


def update_graph():
    """Adds an input into another, in place."""
    g = GraphBuilder()
    n = dim("n", 1, 32)
    state, x = g.input("state", (n, const(4)), f32), g.input("x", (n, const(4)), f32)
    return g.finish((Output("y", g.op("Add", (state, x)), updates="state"),), (Var("n", 1, 32),))


def test_inputs_that_are_updated(with_torch):
    t = with_torch.torch
    made = compile_graph(update_graph(), Config(device="cuda", search="off", cache="off"))
    state, x = normal(3, 4), normal(3, 4)
    want = state + x
    held = t.tensor(state)
    (result,) = made(held, t.tensor(x))
    assert result is held
    np.testing.assert_allclose(held.get(), want)
    turned = t.tensor(state.T)
    turned.shape, turned.dense = (3, 4), False
    np.testing.assert_array_equal(turned.get(), state)
    (result,) = made(turned, t.tensor(x))
    assert result is turned
    np.testing.assert_allclose(turned.get(), want)
    (result,) = made(state, x)
    assert result is state
    np.testing.assert_allclose(state, want)
    with pytest.raises(ArgumentError, match="is updated in place. Got an array of the host"):
        made(state, t.tensor(x))


def test_wrong_inputs(with_torch):
    t = with_torch.torch
    x = normal(4, 4)
    made = compiled(lambda x, y: x + y, (x, x))
    good = t.tensor(x)
    elsewhere = fake_cuda.FakeTensor(t, good.address, (4, 4), t.float32, index=1)
    with pytest.raises(DeviceError, match=r"is on another device. Got cuda:1; expected cuda:0"):
        made(good, elsewhere)
    with pytest.raises(DTypeError):
        made(good, t.tensor(x, t.float16))
    with pytest.raises(DTypeError, match="Got bfloat16; expected f32"):
        made(good, t.tensor(x, t.bfloat16))
    with pytest.raises(ShapeError):
        made(good, t.tensor(normal(4, 5)))
    with pytest.raises(ArgumentError, match="wrong number of inputs"):
        made(good)
    np.testing.assert_array_equal(made(good, x).get(), x + x)


def test_bfloat16_and_constants(with_torch):
    t = with_torch.torch
    g = GraphBuilder()
    x = g.input("x", (const(8),), bf16)
    fixed = g.tensor(ConstantData("c", np.arange(4, dtype=np.float32)), (const(4),), f32)
    graph = g.finish((Output("y", g.op("Add", (x, x))), Output("c", fixed)))
    made = compile_graph(graph, Config(device="cuda", search="off", cache="off"))
    bits = np.full(8, 0x3F80, np.uint16)  # 1.0
    doubled, constant = made(t.tensor(bits, t.bfloat16))
    assert doubled.dtype is t.bfloat16 and (doubled.get() == 0x4000).all()
    np.testing.assert_array_equal(constant.get(), np.arange(4))


def test_a_result_that_is_a_constant(with_torch):
    t = with_torch.torch
    g = GraphBuilder()
    x = g.input("x", (const(8),), f32)
    fixed = g.tensor(ConstantData("c", np.arange(4, dtype=np.float32)), (const(4),), f32)
    graph = g.finish((Output("y", g.op("Add", (x, x))), Output("z", fixed)))
    program = compile_graph(graph, Config(device="cuda", search="off", cache="off")).program
    plan = program.plan
    (name,) = [b.name for b in plan.buffers if b.kind == "constant"]
    buffers = [replace(b, alias=name) if b.name == "z" else b for b in plan.buffers]
    kept = [n for n, k in enumerate(plan.kernels) if "z" not in k.writes()]
    plan = replace(plan, buffers=tuple(buffers), kernels=tuple(plan.kernels[n] for n in kept))
    program = replace(program, plan=plan, calls=tuple(program.calls[n] for n in kept))
    device = CudaDevice()
    run = CudaExecutor(program, [device.compile(c.source) for c in program.codes], device)
    x = normal(8)
    close([r.get() for r in run(t.tensor(x))], (x + x, np.arange(4)))
    close(run(x), (x + x, np.arange(4)))


def test_weights_are_copied_once(gpu):
    w, x = normal(12, 9), normal(5, 12)
    g = GraphBuilder()
    a, b = g.input("x", (const(5), const(12)), f32), g.input("w", (const(5), const(12)), f32)
    graph = g.finish((Output("y", g.op("Add", (a, b))),))
    w = normal(5, 12)
    config = Config(device="cuda", search="off", cache="off")
    made = compile_graph(graph, config, weights={"w": w})
    close(made(x), [x + w])
    before = gpu.driver.calls["cuMemcpyHtoDAsync"]
    close(made(x), [x + w])
    assert gpu.driver.calls["cuMemcpyHtoDAsync"] == before + 1  # x alone
    made.executor.rebind({"w": w * 2})
    close(made(x), [x + w * 2])
    w[...] = 3
    made.executor.rebind({"w": w})
    close(made(x), [x + 3])
    w[...] = 4  # a change inside of an array
    made.executor.rebind({"w": w})
    close(made(x), [x + 4])


def test_a_decoder_generates_the_tokens_of_the_cpu(gpu, tmp_path, monkeypatch):
    """Its caches stay on the device, also when they grow."""
    path = tmp_path / "model.gguf"
    path.write_bytes(decoder_bytes())
    monkeypatch.setattr(runner, "_FIRST_CAPACITY", 6)
    tokens = []
    for name in ("cpu", "cuda"):
        monkeypatch.setenv("LUMINAL_DEVICE", name)
        model = load(path, search="off")
        tokens.append(list(model.generate([3, 9, 27, 17, 51], 4, stop_at_eos=False)))
    assert tokens[0] == tokens[1]


def test_facts_about_kernels(gpu):
    x, w = normal(5, 12), normal(12, 9)
    found = kernel_facts(compiled(two_kernels, (x, w)).compiled)
    assert [f.time_us for f in found] == [1.0] * len(found)


def test_the_real_bindings_take_such_arguments():
    """Without a driver they read their arguments, and only then look for it."""
    d = pytest.importorskip("cuda.bindings.driver")
    try:
        if d.cuInit(0)[0] == 0:
            pytest.skip("there is a driver")
    except RuntimeError as error:
        missing = type(error)
    attribute = d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    shared = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    threshold = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    f, node, graph = d.CUfunction(5), d.CUgraphNode(5), d.CUgraph(5)
    ready, p, event = d.CUgraphExec(5), d.CUDA_KERNEL_NODE_PARAMS(), d.CUevent(5)
    p.func, p.kernelParams, p.extra, p.gridDimX = f, 64, 0, 3
    for call, *args in (
        (d.cuDriverGetVersion,), (d.cuDeviceGet, 0), (d.cuDevicePrimaryCtxRetain, d.CUdevice(0)),
        (d.cuDeviceGetAttribute, attribute, d.CUdevice(0)), (d.cuCtxPushCurrent, d.CUcontext(5)),
        (d.cuCtxPopCurrent,), (d.cuModuleLoadData, b"cubin"),
        (d.cuModuleGetFunction, d.CUmodule(5), b"name"), (d.cuFuncSetAttribute, f, shared, 60000),
        (d.cuStreamCreate, 1), (d.cuStreamSynchronize, 7), (d.cuStreamIsCapturing, 0),
        (d.cuMemAllocAsync, 16, 7), (d.cuMemFreeAsync, 64, 7), (d.cuMemHostAlloc, 4096, 3),
        (d.cuDeviceGetDefaultMemPool, d.CUdevice(0)),
        (d.cuMemPoolSetAttribute, d.CUmemoryPool(5), threshold, d.cuuint64_t((1 << 64) - 1)),
        (d.cuMemcpyHtoDAsync, 64, 64, 4, 7), (d.cuMemcpyDtoHAsync, 64, 64, 4, 7),
        (d.cuMemcpyDtoDAsync, 64, 64, 4, 7),
        (d.cuLaunchKernel, f, 1, 1, 1, 32, 1, 1, 0, 7, 64, 0), (d.cuGraphCreate, 0),
        (d.cuGraphAddKernelNode, graph, [node], 1, p), (d.cuGraphAddKernelNode, graph, [], 0, p),
        (d.cuGraphInstantiate, graph, 0), (d.cuGraphExecKernelNodeSetParams, ready, node, p),
        (d.cuGraphNodeSetEnabled, ready, node, 1), (d.cuGraphLaunch, ready, 7),
        (d.cuGraphExecDestroy, ready), (d.cuGraphDestroy, graph), (d.cuEventCreate, 0),
        (d.cuEventRecord, event, 7), (d.cuEventSynchronize, event), (d.cuEventDestroy, event),
        (d.cuEventElapsedTime, event, event),
    ):  # fmt: skip
        with pytest.raises(missing):
            call(*args)


def test_many_shapes_are_remembered(with_torch, monkeypatch):
    t = with_torch.torch
    monkeypatch.setattr(cuda_executor, "MOST_SEEN", 2)
    made = compiled(lambda x: x + 1, (normal(3),), dynamic_shapes=DYNAMIC)
    for n in (3, 4, 5, 6, 3):
        x = normal(n)
        np.testing.assert_array_equal(made(t.tensor(x)).get(), x + 1)
    assert len(made.compiled.executor._seen) <= 2


def test_times_of_kernels(with_torch):
    t = with_torch.torch
    x, w = normal(6, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    given = [t.tensor(x), t.tensor(w)]
    outs = [t.tensor(normal(6, 9)), t.tensor(normal(9))]
    pointers = [[a.address for a in s] for s in (given, outs)]
    times = made.compiled.executor.time_us(*pointers, repeats=2)
    assert times == [1.0] * len(made.plan.kernels)


def test_memory_is_given_back(gpu):
    x, w = normal(5, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    made(x, w)
    held = len(gpu.driver.live)
    for _ in range(3):
        made(x, w)
    gpu.driver.drain()
    assert len(gpu.driver.live) <= held
    before = gpu.driver.calls.get("cuGraphExecDestroy", 0)
    del made
    gc.collect()
    assert gpu.driver.calls["cuGraphExecDestroy"] == before + 1


def test_several_threads(with_torch):
    t = with_torch.torch
    w = normal(12, 9)
    made = compiled(two_kernels, (normal(6, 12), w), dynamic_shapes=DYNAMIC)
    b, wrong = t.tensor(w), []

    def work(n):
        x = normal(n, 12)
        a = t.tensor(x)
        try:
            for _ in range(4):
                close([r.get() for r in made(a, b)], want_two(x, w))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 9)]
    [x.start() for x in threads]
    [x.join() for x in threads]
    assert wrong == []


def test_after_a_failure_the_next_call_starts_anew(with_torch):
    t, driver = with_torch.torch, with_torch.driver
    x, w = normal(6, 12), normal(12, 9)
    made = compiled(two_kernels, (x, w))
    a, b = t.tensor(x), t.tensor(w)
    made(a, b)
    launch = driver.cuGraphLaunch
    driver.cuGraphLaunch = lambda *_: (fake_cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
    with pytest.raises(DeviceError, match="cuGraphLaunch failed"):
        made(t.tensor(x * 2), b)
    driver.cuGraphLaunch = launch
    close([r.get() for r in made(a, b)], want_two(x, w))


@pytest.mark.parametrize("number", range(8))
def test_random_graphs(number, gpu):
    agree(number, "cuda")


# ---- what a machine may lack


def test_cubins_are_kept_on_disk(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    x, w = normal(5, 12), normal(12, 9)
    compiled(two_kernels, (x, w))
    first = gpu.nvrtc.compiled
    made = compiled(two_kernels, (x, w))
    assert gpu.nvrtc.compiled == first > 0
    close(made(x, w), want_two(x, w))
    monkeypatch.setattr(gpu.nvrtc, "nvrtcVersion", lambda: (0, 13, 1))
    assert "nvrtc 13.1" in CudaDevice().target.features  # another compiler, another key


def test_no_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"Got no cuda-bindings; .*pip install 'luminal\[cuda\]'"):
        CudaDevice()


def test_the_bindings_without_a_driver():
    driver = pytest.importorskip("cuda.bindings.driver")
    assert cuda.driver_module() is driver
    try:
        driver.cuInit(0)
    except RuntimeError:
        with pytest.raises(DeviceError, match="no NVIDIA driver"):
            CudaDevice()


def test_no_driver(gpu, monkeypatch):
    def missing(_):
        raise RuntimeError("Failed to dlopen libcuda.so.1\nmore")

    monkeypatch.setattr(gpu.driver, "cuInit", missing)
    with pytest.raises(
        DeviceError, match=r"no NVIDIA driver could be loaded \(Failed to dlopen libcuda.so.1\)"
    ):
        CudaDevice()


@pytest.mark.parametrize("facts, text", [
    ({"devices": 0}, "CUDA_ERROR_NO_DEVICE: no device; expected success. Try CUDA_VISIBLE_DEVICES"),
    ({"version": 11_080}, "too old. Got one for CUDA 11.8; expected 12.0 or later"),
])  # fmt: skip
def test_unfit_machines(monkeypatch, facts, text):
    machine(monkeypatch, **facts)
    with pytest.raises(DeviceError, match=text):
        CudaDevice()


def test_older_gpus_have_no_matrix_instructions(gpu, monkeypatch):
    monkeypatch.setitem(fake_cuda.H100_FACTS, 75, 7)
    assert CudaDevice().target.matrix == () and CudaDevice().target.cpu == "sm_70"


def test_no_such_device(gpu):
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_DEVICE"):
        CudaDevice(3)


def test_a_context_that_cannot_be_made_current(gpu):
    device = CudaDevice()
    device.context.alive = False
    with pytest.raises(DeviceError, match="cuCtxPushCurrent failed"), device:
        pass
    device.context.alive = True
    with device:  # the lock is free again
        assert device.stream()


def test_out_of_memory(monkeypatch):
    found = machine(monkeypatch, memory_bytes=1 << 14)
    x = normal(4, 4)
    made = compiled(lambda x: x + 1, (x,))
    np.testing.assert_array_equal(made(x), x + 1)
    wide = compiled(lambda x: x + 1, (normal(90, 90),))
    with pytest.raises(DeviceError, match="cuMemAllocAsync failed. Got CUDA_ERROR_OUT_OF_MEMORY"):
        wide(normal(90, 90))
    np.testing.assert_array_equal(made(x), x + 1)
    assert found.driver.stack == []  # no context is left behind


def test_a_cubin_that_the_driver_cannot_load(gpu):
    with pytest.raises(DeviceError, match=r"INVALID_IMAGE.*CUDA 13.0\); .*Try a newer driver"):
        CudaDevice().load(b"?", "k")


def test_shared_memory_beyond_48_kib_is_asked_for(gpu):
    device = CudaDevice()
    text = (
        'extern "C" __global__ void __launch_bounds__(32) wide(\n    float* x,\n    float* error)'
    )
    code = device.compile(text + " { x[threadIdx.x] = threadIdx.x; }")
    plain = device.load(code, "wide", 60 << 10)
    assert plain.shared == 60 << 10
    with pytest.raises(DeviceError, match="cuFuncSetAttribute failed"):
        CudaDevice().load(code, "wide", 228 << 10)


# ---- the fake itself


def test_the_fake_has_the_signatures_of_the_real_one():
    driver = pytest.importorskip("cuda.bindings.driver")
    fake = fake_cuda.FakeDriver()
    for name in [n[1:] for n in dir(fake_cuda.FakeDriver) if n.startswith("_cu")]:
        ours = inspect.signature(getattr(fake, f"_{name}")).parameters
        assert list(ours) == list(inspect.signature(getattr(driver, name)).parameters), name
    for e in fake_cuda.ENUMS:
        for member in e:
            assert int(getattr(getattr(driver, e.__name__), member.name)) == member.value
    fields = {n for n in dir(driver.CUDA_KERNEL_NODE_PARAMS) if n[0] != "_"} - {"getPtr"}
    assert fields == set(fake_cuda.CUDA_KERNEL_NODE_PARAMS.__slots__)
    real = driver.CUDA_KERNEL_NODE_PARAMS()
    real.func, real.kernelParams, real.extra, real.gridDimX = driver.CUfunction(5), 64, 0, 3
    assert driver.cuuint64_t((1 << 64) - 1) and nvrtc.OPTIONS


def test_the_fake_refuses(gpu):
    d, kinds = gpu.driver, fake_cuda.CUresult
    device = CudaDevice()
    assert d.cuMemAllocAsync(16, 0)[0] == kinds.CUDA_ERROR_INVALID_CONTEXT
    text = 'extern "C" __global__ void __launch_bounds__(32) f(\n    float* x,\n    float* error)'
    f = device.load(device.compile(text + " { x[threadIdx.x] = 1; }"), "f")
    with device:
        memory = device.empty(256)
        words = (fake_cuda.ctypes.c_uint64 * 2)(memory.address, memory.address)
        base = fake_cuda.ctypes.addressof(words)
        pointers = (fake_cuda.ctypes.c_void_p * 2)(base, base + 8)
        at, stream = fake_cuda.ctypes.addressof(pointers), device.stream()

        def launch(blocks, threads, shared=0):
            return d.cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, shared, stream, at, 0)[0]

        assert launch(1, 32) == 0
        assert launch(0, 32) == kinds.CUDA_ERROR_INVALID_VALUE
        assert launch(1, 2048) == kinds.CUDA_ERROR_INVALID_VALUE
        assert launch(1, 64) == kinds.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        assert launch(1, 32, 49 << 10) == kinds.CUDA_ERROR_INVALID_VALUE
        with pytest.raises(TypeError):
            d.cuLaunchKernel(f, 1, 1, 1)
        graph = d.cuGraphCreate(0)[1]
        ready = d.cuGraphInstantiate(graph, 0)[1]
        d.cuGraphExecDestroy(ready)
        assert d.cuGraphLaunch(ready, stream)[0] == kinds.CUDA_ERROR_INVALID_HANDLE
        assert d.cuStreamSynchronize(999)[0] == kinds.CUDA_ERROR_INVALID_HANDLE
        words[0] = 64  # not memory of the device
        assert launch(1, 32) == 0  # found later, and then nothing works any more
        assert d.cuStreamSynchronize(stream)[0] == kinds.CUDA_ERROR_ILLEGAL_ADDRESS
        assert d.cuMemAllocAsync(16, stream)[0] == kinds.CUDA_ERROR_ILLEGAL_ADDRESS
        d.broken = False
