"""Tiles in shared memory, accesses of 16 bytes, and what NVIDIA's compiler makes of them."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import luminal
from luminal.codegen.generate import generate
from luminal.function import trace_function
from luminal.ir import dtype as dt
from luminal.ir.expr import dim
from luminal.ir.plan import Kernel, Loop, Online, Reg, Schedule, Stage
from luminal.ir.term import binary, cast, reduction
from luminal.rewrite import rewrite
from luminal.runtime.gpu import H100
from luminal.runtime.nvrtc import available, compile_cubin, usage, version
from luminal.search.extract import extract
from luminal.search.tasks import prepare
from tests.codegen_case import Case, parse
from tests.conftest import GOLDEN
from tests.gpu_case import EMULATED, check, code_of, needs_compiler
from tests.test_gpu_nvrtc import GENERATIONS
from tests.test_gpu_programs import attention, causal

kinds = pytest.mark.parametrize("kind", EMULATED)


def product(m, n, k, tile=2, block=32, depth=8, dtype=dt.f32, role="vector") -> tuple[Case, Kernel]:
    """z = x w, tiles of both in shared memory, squares of results in registers."""
    case = Case()
    case.dims = {"m": m, "k": k}
    rows, steps = (dim("m", 0, 999), dim("k", 0, 999)) if n % 2 else (m, k)
    i, j, s = case.axis("i", rows), case.axis("j", n), case.axis("k", steps)
    case.buffer("x", (rows, steps), dtype)
    case.buffer("w", (steps, n), dtype)
    case.buffer("z", (rows, n), dtype)
    x, w = case.load("x", i, s), case.load("w", s, j)
    kernel = case.kernel((i, j), "z", (i, j), reduction("sum", (s,), binary("mul", x, w)))
    threads, terms = (block // tile) ** 2, kernel.subterms()
    across = min(block, threads)
    a = Stage(terms.index(x), (Loop("i", 1, lanes=threads // depth), Loop("k", 1, lanes=depth)), (),
              ((1, 1), (0, 1)))  # fmt: skip
    b = Stage(terms.index(w), (Loop("k", 1, lanes=threads // across), Loop("j", 1, lanes=across)),
              (), ((1, 1), (0, 1)))  # fmt: skip
    items = (Loop("i", block, grid=True), Loop("j", block, grid=True),
             Loop("i", tile, lanes=block // tile), Loop("j", tile, lanes=block // tile),
             Loop("k", depth), a, b, Loop("k", 1))  # fmt: skip
    regs = (Reg("i", 1, "unroll"), Reg("j", 1, role))
    return case, replace(kernel, schedule=Schedule(items, regs))


@needs_compiler
@kinds
@pytest.mark.parametrize("role", ["vector", "unroll"])
@pytest.mark.parametrize("sizes", [(64, 64, 16), (37, 51, 29), (1, 1, 1), (0, 7, 5), (5, 7, 0)])
def test_tiled_products(sizes, role, kind):
    case, kernel = product(*sizes, role=role)
    source = check(case, kernel, kind, 1e-4, 1e-4).source
    body = source[source.index("kernel_under_test(") :]
    assert body.count("barrier(mem_flags" if kind == "metal" else "__syncthreads()") == 2


@needs_compiler
@kinds
@pytest.mark.parametrize("dtype", [dt.bf16, dt.f16, dt.i32, dt.i8, dt.i64], ids=lambda d: d.name)
def test_tiled_products_of_every_width(dtype, kind):
    case, kernel = product(33, 40, 20, tile=4, dtype=dtype)
    check(case, kernel, kind, 2e-2, 1e-2)


@needs_compiler
@kinds
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_wide_accesses(lanes, kind):
    """Every dtype, loaded and stored by vectors; the last block is not full."""
    for dtype in (dt.f32, dt.bf16, dt.i32, dt.i16, dt.i8, dt.u8, dt.boolean, dt.i64, dt.f8e4m3):
        case = Case()
        i, j = case.axis("i", 3), case.axis("j", 5 * lanes)
        case.buffer("x", (3, 5 * lanes), dtype)
        case.buffer("z", (3, 5 * lanes), dt.f32 if dtype.storage else dtype)
        x = case.load("x", i, j)
        value = cast(x, dt.f32) if dtype.storage else binary("add", x, x)
        kernel = case.kernel((i, j), "z", (i, j), value, parse(f"g:i:1 j:{lanes}l4 / j:1v"))
        source = check(case, kernel, kind, 0, 0).source
        wide = lanes * dtype.bits >= 32 and dtype.bits <= 32
        assert ("uint4*)(b0" in source or "uint2*)(b0" in source or "u32*)(b0" in source) == wide


@needs_compiler
@pytest.mark.parametrize("device", ["cuda-emulated", "metal-emulated"])
def test_arrays_that_lie_at_odd_addresses(device):
    room = np.zeros(4097, np.float32)
    x = room[1:4097]
    x[...] = np.arange(4096)
    made = luminal.compile(lambda x: x + 1, [x], search="off", device=device)
    assert "uint4" in made.compiled.program.codes[0].source
    np.testing.assert_array_equal(np.asarray(made(x)), x + 1)


@needs_compiler
@pytest.mark.parametrize("device", ["cuda-emulated", "metal-emulated"])
@pytest.mark.parametrize("function", [attention, causal], ids=["all", "causal"])
def test_one_pass_over_the_keys(function, device):
    """A row for each thread, the rest of a block masked; any number of rows and keys."""
    rng = np.random.default_rng(1)
    symbolic = {n: {1: "s"} for n in range(3)}
    made = None
    for size in (40, 1, 131):
        inputs = [rng.standard_normal((2, size, 12)).astype(np.float32) for _ in range(3)]
        made = made or luminal.compile(function, inputs, dynamic_shapes=symbolic, search="off",
                                       device=device)  # fmt: skip
        want = np.exp((s := inputs[0] @ inputs[1].swapaxes(1, 2) * 0.25) - s.max(-1, keepdims=True))
        want = np.tril(want) if function is causal else want
        want = want / want.sum(-1, keepdims=True) @ inputs[2]
        np.testing.assert_allclose(np.asarray(made(*inputs)), want, 1e-4, 1e-5)
    items = made.compiled.plan.kernels[0].schedule.items
    source = made.compiled.program.codes[0].source
    assert ("*(thread uint4*)(local_" in source) == (device == "metal-emulated")
    assert any(isinstance(i, Online) for i in items) and len(made.compiled.plan.kernels) == 1


def q8(q, scale, x):
    """A product with weights in blocks of 32 bytes that share a scale."""
    return (q.cast(dt.f32).reshape(4096, 128, 32) * scale.reshape(4096, 128, 1)).reshape(
        4096, 4096
    ) @ x


def empty(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


HALF = np.float16


FLAGSHIPS = {
    "product 4096": (lambda a, b: a @ b, (empty(4096, 4096), empty(4096, 4096))),
    "vector f32": (lambda w, x: w @ x, (empty(4096, 4096), empty(4096))),
    "vector f16": (lambda w, x: w @ x, (empty(4096, 4096, dtype=np.float16),
                                        empty(4096, dtype=np.float16))),
    "vector i8": (q8, (empty(4096, 4096, dtype=np.int8), empty(4096, 128), empty(4096))),
    "product f16": (lambda a, b: a @ b, (empty(4096, 4096, dtype=HALF),) * 2),
    "product f16 turned": (lambda a, b: a @ b.T, (empty(4096, 4096, dtype=HALF),) * 2),
    "product i8": (lambda a, b: a.cast(dt.i32) @ b.cast(dt.i32),
                   (empty(4096, 4096, dtype=np.int8),) * 2),
    "attention 64": (attention, (empty(8, 512, 64),) * 3),
    "attention 128": (attention, (empty(8, 512, 128),) * 3),
    "attention f16 64": (attention, (empty(8, 512, 64, dtype=HALF),) * 3),
    "attention f16 128": (attention, (empty(8, 512, 128, dtype=HALF),) * 3),
    "row sums": (lambda x: x.sum(-1), (empty(4096, 4096),)),
    "elementwise": (lambda x, y: x * y + 1.0, (empty(4096, 4096), empty(4096, 4096))),
}  # fmt: skip


@pytest.mark.skipif(not available(), reason="needs nvidia-cuda-nvrtc, cuda-bindings")
def test_registers_and_shared_memory(golden):
    """Of the kernels that matter: no spills, and what they take, as a table."""
    head = f"registers by NVRTC {version()}"
    lines = [head, "  ".join((*GENERATIONS, "shared bytes  threads  kernel"))]
    for name, (function, inputs) in FLAGSHIPS.items():
        graph = trace_function(function, list(inputs), None).graph
        plan = extract(rewrite(graph, numerics="exact"), H100, hints={}, k=1)[0]
        program = generate(prepare(plan, H100, {}, {}).finish(), H100)
        for code in program.codes:
            found = [usage(compile_cubin(code.source, a)[1]) for a in GENERATIONS]
            assert not any(u.spilled_bytes for u in found), name
            taken = f"{code.launch.shared_bytes:12}  {code.launch.threads:7}"
            registers = (f"{u.registers:{len(a)}}" for u, a in zip(found, GENERATIONS, strict=True))
            lines.append("  ".join((*registers, taken, name)))
    known = (GOLDEN / "gpu_usage.txt").read_text().split("\n")[0]
    if known == head or "--update-golden" in sys.argv:
        golden("gpu_usage.txt", "\n".join(lines) + "\n")


def test_a_lane_loop_over_an_ordered_axis_is_illegal():
    from luminal.codegen.schedule_rules import IllegalSchedule

    case = Case()
    i = case.axis("i", 64)
    case.buffer("x", (64,))
    case.buffer("z", (64,))
    kernel = case.kernel((i,), "z", (i,), case.load("x", i), parse("i:1l32"), ("i",))
    with pytest.raises(IllegalSchedule, match="order counts"):
        code_of(case, kernel, "cuda")
