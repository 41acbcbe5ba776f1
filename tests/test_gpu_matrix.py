"""Products of small matrices by warps: mma.sync and simdgroup_matrix, with their lane layouts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import luminal
from luminal import emulator
from luminal.codegen.gpu import kernel_code
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.emulator.emulated import EmulatorError
from luminal.ir import dtype as dt
from luminal.ir.canonical import canonical
from luminal.ir.expr import dim
from luminal.ir.plan import Kernel, Loop, Online, Reg, Schedule, Stage
from luminal.ir.term import binary, cast, reduction
from luminal.runtime.nvrtc import available, compile_cubin, usage
from tests.codegen_case import Case
from tests.gpu_case import EMULATED, TARGETS, check, code_of, launch, needs_compiler
from tests.test_gpu_programs import attention, causal

pytestmark = needs_compiler
kinds = pytest.mark.parametrize("kind", EMULATED)
RNG = np.random.default_rng(0)
DEPTH = {dt.f16: 32, dt.bf16: 32, dt.i8: 64, dt.f32: 16}


def product(
    m, n, k, dtype=dt.f16, block=(32, 16), warps=(2, 1), staged=True, turned=False
) -> tuple[Case, Kernel]:  # fmt: skip
    """z = x w with operands of `dtype`, by warps that each have a part of a block."""
    case = Case()
    case.dims = {"m": m, "k": k}
    rows, steps = (dim("m", 0, 999), dim("k", 0, 999)) if n % 2 else (m, k)
    i, j, s = case.axis("i", rows), case.axis("j", n), case.axis("k", steps)
    wide = dt.i32 if dtype == dt.i8 else dt.f32
    case.buffer("x", (rows, steps), dtype)
    case.buffer("w", (n, steps) if turned else (steps, n), dtype)
    case.buffer("z", (rows, n), wide)
    x, w = case.load("x", i, s), case.load("w", *((j, s) if turned else (s, j)))
    body = binary("mul", cast(x, wide), cast(w, wide))
    kernel = case.kernel((i, j), "z", (i, j), reduction("sum", (s,), body))
    terms, depth = kernel.subterms(), DEPTH[dtype]
    threads = 32 * warps[0] * warps[1]
    a = Stage(terms.index(x), (Loop("i", 1, lanes=threads // 8), Loop("k", 1, lanes=8)))
    b = Stage(terms.index(w), (Loop("j", 1, lanes=8), Loop("k", 1, lanes=threads // 8)), (),
              ((0, 1), (1, 1)))  # fmt: skip
    lanes = (Loop("i", block[0] // warps[0], lanes=warps[0]),
             Loop("j", block[1] // warps[1], lanes=warps[1]))  # fmt: skip
    items = (Loop("i", block[0], grid=True), Loop("j", block[1], grid=True), *lanes,
             Loop("k", depth), *((a, b) if staged else ()))  # fmt: skip
    regs = (Reg("i", 1, "m"), Reg("j", 1, "n"), Reg("k", 1, "k"))
    return case, replace(kernel, schedule=Schedule(items, regs))


def instruction(kind: str) -> str:
    return {"cuda": "mma.sync", "metal": "simdgroup_multiply_accumulate"}[kind]


@kinds
@pytest.mark.parametrize("dtype", [dt.f16, dt.bf16, dt.i8, dt.f32], ids=lambda d: d.name)
def test_products_of_every_dtype(dtype, kind):
    if (dtype, kind) == (dt.i8, "metal"):
        return
    rough = dtype == dt.f32 and kind == "cuda"  # tf32
    case, kernel = product(37, 21, 70, dtype)
    source = check(case, kernel, kind, 1e-2 if rough else 1e-4, 3e-2 if rough else 1e-3).source
    assert instruction(kind) in source


@kinds
@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("sizes", [(64, 32, 64), (1, 1, 1), (0, 7, 5), (5, 7, 0)])
def test_products_of_every_size(sizes, staged, kind):
    case, kernel = product(*sizes, block=(64, 32), warps=(1, 2), staged=staged, turned=staged)
    check(case, kernel, kind, 1e-4, 1e-3)


def wrong(case: Case, kernel: Kernel, kind: str, code) -> bool:
    """Whether the results of a code are not the oracle's."""
    got = launch(case, kernel, code, kind)["z"].astype(np.float64)
    want = case.expected(kernel)["z"]
    return not np.allclose(got.reshape(want.shape), want, 1e-3, 1e-2)


@kinds
def test_a_transposed_fragment_is_caught(kind):
    """Threads that hold rows where columns belong, in the table or in the text."""
    case, kernel = product(32, 16, 32)
    code = check(case, kernel, kind, 1e-4, 1e-3)
    form, old = canonical(kernel), TARGETS[kind].matrix[0]
    turned = replace(old, rows=((1, 8, 1),), columns=((8, 4, 1),))
    target = replace(TARGETS[kind], matrix=(turned,))
    broken = kernel_code(form.kernel, target, form.own(case.buffers), code.name)
    assert wrong(case, kernel, kind, broken)
    swaps = {"cuda": [("{%4, %5, %6, %7}", "{%4, %6, %5, %7}"), ("{%8, %9}", "{%9, %8}"),
                      ("{%0, %1, %2, %3}, {%4", "{%0, %2, %1, %3}, {%4")],
             "metal": [("half2>(b0)", "half2>(b0 >> 16 | b0 << 16)")]}[kind]  # fmt: skip
    for text, other in swaps:
        assert text in code.source
        broken = replace(code, source=code.source.replace(text, other))
        assert wrong(case, kernel, kind, broken)


@kinds
def test_not_all_threads_of_a_warp_meet(kind):
    case, kernel = product(32, 16, 32)
    code = check(case, kernel, kind, 1e-4, 1e-3)
    text = re.sub(r"(mma_f16\(v\d+_0,)", r"if (tid % 32 != 5) \1", code.source)
    with pytest.raises(EmulatorError, match="divergent"):
        launch(case, kernel, replace(code, source=text), kind)


@kinds
@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_programs_use_them(dtype, numerics, kind):
    """Halves always; f32 where its own precision is kept, or need not be."""
    a, b = (RNG.standard_normal(s).astype(dtype) for s in ((2, 40, 72), (72, 65)))
    made = luminal.compile(lambda a, b: a @ b + 1, [a, b], search="off", numerics=numerics,
                           device=f"{kind}-emulated")  # fmt: skip
    want = a.astype(np.float64) @ b.astype(np.float64) + 1
    rough = dtype == np.float16 or numerics == "fast"
    tolerance = (1e-2, 3e-2) if rough else (1e-5, 1e-4)
    np.testing.assert_allclose(np.asarray(made(a, b)).astype(np.float64), want, *tolerance)
    source = made.compiled.program.codes[0].source
    assert (instruction(kind) in source) == (rough or kind == "metal")


@pytest.mark.skipif(not available(), reason="needs nvidia-cuda-nvrtc, cuda-bindings")
@pytest.mark.parametrize("dtype", [dt.f16, dt.bf16, dt.i8, dt.f32], ids=lambda d: d.name)
def test_nvcc_accepts_them(dtype):
    case, kernel = product(64, 64, 64, dtype, (64, 64), (2, 2))
    for architecture in ("sm_80", "sm_90a", "sm_100"):
        _, log = compile_cubin(code_of(case, kernel, "cuda").source, architecture)
        assert usage(log).spilled_bytes == 0


def test_matrices_need_a_warp():
    case, kernel = product(64, 64, 64, warps=(2, 1))
    assert kernel.schedule is not None
    items = tuple(i for i in kernel.schedule.items if not isinstance(i, Stage))
    lanes = replace(kernel.schedule, items=(*items[:2], Loop("i", 1, lanes=32), *items[3:]))
    with pytest.raises(IllegalSchedule):
        code_of(case, replace(kernel, schedule=lanes), "cuda")


@kinds
@pytest.mark.parametrize("function", [attention, causal], ids=["all", "causal"])
def test_attention_in_one_pass(function, kind):
    """Scores and sums in registers as results of matrices; any number of rows and keys."""
    symbolic, made = {n: {1: "s"} for n in range(3)}, None
    for size in (70, 9):
        inputs = [RNG.standard_normal((2, size, 24)).astype(np.float16) for _ in range(3)]
        made = made or luminal.compile(function, inputs, dynamic_shapes=symbolic, search="off",
                                       device=f"{kind}-emulated")  # fmt: skip
        q, k, v = (x.astype(np.float64) for x in inputs)
        weights = np.exp(q @ k.swapaxes(1, 2) * 0.25)
        weights = np.tril(weights) if function is causal else weights
        want = weights / weights.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(np.asarray(made(*inputs)).astype(np.float64), want, 2e-2, 4e-3)
    (kernel,) = made.compiled.plan.kernels
    assert any(isinstance(i, Online) for i in kernel.schedule.items)
    assert instruction(kind) in made.compiled.program.codes[0].source


def test_attention_of_f32():
    """Exact on Metal; on CUDA only where rounding is allowed."""
    inputs = [RNG.standard_normal((1, 33, 16)).astype(np.float32) for _ in range(3)]
    q, k, v = inputs
    weights = np.exp(q @ k.swapaxes(1, 2) * 0.25)
    want = weights / weights.sum(-1, keepdims=True) @ v
    for kind, numerics, tolerance in (
        ("metal", "exact", 2e-5), ("cuda", "exact", 2e-5), ("cuda", "fast", 1e-2),
    ):  # fmt: skip
        made = luminal.compile(attention, inputs, search="off", numerics=numerics,
                               device=f"{kind}-emulated")  # fmt: skip
        np.testing.assert_allclose(np.asarray(made(*inputs)), want, tolerance, tolerance)
        used = instruction(kind) in made.compiled.program.codes[0].source
        assert used == ((kind, numerics) != ("cuda", "exact"))


def early(case: Case, kernel: Kernel) -> tuple[Case, Kernel]:
    """The same with tiles that are copied while the step before them is summed."""
    assert kernel.schedule is not None
    items = tuple(replace(i, ahead=1) if isinstance(i, Loop) and i.axis == "k" else i
                  for i in kernel.schedule.items)  # fmt: skip
    return case, replace(kernel, schedule=replace(kernel.schedule, items=items))


def wide(m: int, n: int, k: int) -> tuple[Case, Kernel]:
    """A product whose operands are copied by 16 bytes."""
    case, kernel = early(*product(m, n, k, turned=True))
    assert kernel.schedule is not None
    items = [replace(i, items=(Loop(i.items[0].axis, 1, lanes=16), Loop("k", 8, lanes=4)),
                     regs=(Reg("k", 1, "vector"),), layout=())
             if isinstance(i, Stage) else i for i in kernel.schedule.items]  # fmt: skip
    return case, replace(kernel, schedule=replace(kernel.schedule, items=tuple(items)))


@kinds
@pytest.mark.parametrize("sizes", [(64, 32, 128), (37, 21, 70), (5, 7, 0), (33, 16, 32)])
def test_tiles_are_made_a_step_early(sizes, kind):
    check(*early(*product(*sizes)), kind, 1e-4, 1e-3)
    source = check(*wide(*sizes), kind, 1e-4, 1e-3).source
    assert ("copy_16(" in source) == (kind == "cuda" and sizes[2] % 8 == 0 and sizes[1] % 2 == 0)


def test_copies_that_are_read_too_early_are_caught():
    case, kernel = wide(64, 32, 128)
    code = check(case, kernel, "cuda", 1e-4, 1e-3)
    wait, text = "cp.async.wait_group 1;", code.source
    for change, message in (
        (text.replace(wait, "cp.async.wait_group 2;"), "a copy has not brought yet"),
        ("".join(text.rsplit("__syncthreads();", 1)), "brought yet|no barrier"),
        (re.sub(r"copy_16\((\w+) \+ (\w+),", r"copy_16(\1 + \2 + 4,", text), "misaligned"),
        (re.sub(r"(copy_16\(\w+ \+ \w+, \w+)", r"\1 + 8192", text), "bounds"),
    ):  # fmt: skip
        assert change != text
        with pytest.raises(EmulatorError, match=message):
            launch(case, kernel, replace(code, source=change), "cuda")


def test_no_banks_conflict():
    """Tiles of products of halves go to shared memory and back by 16 bytes in 4 cycles."""
    a = np.zeros((2048, 64), np.float16)
    made = luminal.compile(lambda a, b: a @ b.transpose(0, 1), [a, a], search="off",
                           device="cuda-emulated")  # fmt: skip
    (found,) = emulator.counts(made.compiled.program, blocks=1)
    assert found.products > 0 and found.shared_cycles == 4 * found.shared_accesses
