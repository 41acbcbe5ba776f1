"""Runs kernels and programs on the emulated GPUs, and compares them with the oracle."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen.gpu import kernel_code
from luminal.compiler import compile_graph
from luminal.config import Config
from luminal.emulator.emulated import EmulatedDevice, Kernel, compiler
from luminal.errors import DeviceError, DTypeError, OutOfRangeError
from luminal.ir import TF32, ceil_div
from luminal.ir.canonical import canonical
from luminal.ir.layout import pack, size
from luminal.ir.numeric import decode
from luminal.ir.plan import Kernel as PlanKernel
from luminal.ir.program import KernelCode
from luminal.runtime.gpu import H100, M2
from luminal.runtime.opencl import GENERIC, OpenClDevice
from luminal.search.cache import Cache, digest
from tests.codegen_case import Case
from tests.fuzz_check import compare, expect
from tests.random_cases import graph_of, make_inputs
from tests.random_graphs import random_case

needs_compiler = pytest.mark.skipif(compiler() is None, reason="the emulator needs g++")
EMULATED = ("cuda", "metal")
TARGETS = {"cuda": replace(H100, matrix=(*H100.matrix, TF32)), "metal": M2, "opencl": GENERIC}
CACHE = Path(tempfile.gettempdir(), f"luminal-gpu-tests-{os.getuid()}")
_STORE = Cache(CACHE)


@cache
def opencl() -> OpenClDevice | None:
    """The OpenCL device of this machine; None if there is none."""
    try:
        return OpenClDevice()
    except DeviceError:
        return None


def load(code: KernelCode, kind: str) -> Kernel:
    """A kernel of the emulator, compiled if it is not kept from an earlier run."""
    device = opencl() if kind == "opencl" else EmulatedDevice(TARGETS[kind])
    key = digest(code.source, kind, *(f.read_text() for f in sorted(HEADERS)))
    found = _STORE.get("object", key)
    if found is None:
        found = device.compile(code.source)
        _STORE.put("object", key, found)
    return device.load(found, code.name)


def agree(number: int, device: str) -> None:
    """A random graph gives what the oracle does."""
    case = random_case(random.Random(number).randint)
    graph = graph_of(case)
    try:
        made = compile_graph(graph, Config(device=device, search="off", cache=str(CACHE)))
    except DTypeError:
        assert device.startswith("metal") and "f64" in case.text
        return
    names = [n.name for n in graph.nodes if n.op == "Input"]
    special = "special" in case.text or any(0 in dict(d).values() for d in case.dims)
    for run in case.dims:
        inputs = make_inputs(graph, dict(run), case.seed, case.wild)
        want = expect(graph, inputs, dict(run))
        try:
            got = made(*(inputs[n].copy() for n in names), dims=dict(run))
        except OutOfRangeError:
            assert want.bits is None
            continue
        if want.bits is not None:
            assert compare(want, list(got), f"{number} {run}", not special) == []


HEADERS = [f for f in (Path(__file__).parent.parent / "luminal/emulator").rglob("*")
           if f.is_file() and f.suffix != ".pyc"]  # fmt: skip


def code_of(case: Case, kernel: PlanKernel, kind: str) -> KernelCode:
    """The code of a kernel of a case."""
    form = canonical(kernel)
    return kernel_code(form.kernel, TARGETS[kind], form.own(case.buffers), "kernel_under_test")


def launch(case: Case, kernel: PlanKernel, code: KernelCode, kind: str) -> dict[str, np.ndarray]:
    """The packed buffers of a case after the kernel ran; OutOfRangeError is an assertion here."""
    memory = {n: np.ascontiguousarray(pack(b, case.buffers[n].layout)).copy()
              for n, b in case.bits.items()}  # fmt: skip
    arguments = []
    for name in kernel.arguments():
        b = case.buffers[name]
        size_bytes = ceil_div(size(b.shape, b.layout) * b.dtype.bits, 8).evaluate(case.dims)
        arguments.append((memory[name].ctypes.data, size_bytes, name in kernel.writes()))
    sizes = [case.dims[v.name] for v in kernel.dims()]
    names = [v.name for v in code.launch.dims]
    blocks = code.launch.blocks.evaluate(dict(zip(names, sizes, strict=True)))
    ready = load(code, kind)
    if blocks:
        assert ready.launch(blocks, code.launch.threads, code.launch.shared_bytes, 32, arguments,
                            sizes)  # fmt: skip
    return memory


def check(case: Case, kernel: PlanKernel, kind: str, rtol: float = 2e-5, atol: float = 1e-5):
    """Compares every written buffer with the oracle's; the code."""
    code = code_of(case, kernel, kind)
    memory, expected = launch(case, kernel, code, kind), case.expected(kernel)
    for name in kernel.writes():
        b = case.buffers[name]
        got = decode(memory[name], b.dtype).astype(expected[name].dtype)
        np.testing.assert_allclose(got, pack(expected[name], b.layout), rtol, atol, err_msg=name)
    return code


def scheduled(kernel: PlanKernel, schedule) -> PlanKernel:
    """The kernel with another schedule."""
    return replace(kernel, schedule=schedule)
