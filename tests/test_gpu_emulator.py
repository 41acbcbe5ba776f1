"""The emulator refuses broken kernels: right ones, broken on purpose in their text."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import luminal
from luminal import emulator
from luminal.emulator.emulated import EmulatedDevice, EmulatorError
from luminal.ir import dtype as dt
from luminal.ir.expr import to_expr
from luminal.ir.plan import Kernel, Loop, Schedule, Stage, Store
from luminal.ir.term import binary, cast, data, reduction
from luminal.ir.term import load as read
from tests.codegen_case import Case, parse
from tests.gpu_case import EMULATED, TARGETS, check, launch, load, needs_compiler

pytestmark = needs_compiler
kinds = pytest.mark.parametrize("kind", EMULATED)
BARRIER = {"cuda": "__syncthreads();",
           "metal": "threadgroup_barrier(mem_flags::mem_threadgroup);"}  # fmt: skip


def centred() -> tuple[Case, Kernel]:
    """z[i, j] = x[i, j] - sum_k x[i, k]: a statistic in shared memory, by two warps."""
    case = Case()
    i, j, k = case.axis("i", 3), case.axis("j", 50), case.axis("k", 50)
    case.buffer("x", (3, 50))
    case.buffer("z", (3, 50))
    total = reduction("sum", (k,), case.load("x", i, k))
    kernel = case.kernel((i, j), "z", (i, j), binary("add", case.load("x", i, j), total))
    stage = Stage(kernel.subterms().index(total), (Loop("k", 1, lanes=64),))
    items = (Loop("i", 1, grid=True), stage, Loop("j", 1, lanes=64))
    return case, replace(kernel, schedule=Schedule(items))


def broken(kind: str, change, case_of=centred) -> str:
    """What the emulator says of a kernel whose text is changed."""
    case, kernel = case_of()
    code = check(case, kernel, kind)
    text = change(code.source)
    assert text != code.source
    with pytest.raises(EmulatorError) as error:
        launch(case, kernel, replace(code, source=text), kind)
    return str(error.value)


def last(text: str, old: str, new: str) -> str:
    """The text with the last of `old` replaced."""
    head, _, tail = text.rpartition(old)
    return head + new + tail


@kinds
def test_a_barrier_is_missing(kind):
    message = broken(kind, lambda text: last(text, BARRIER[kind], ""))
    assert re.search(r"read of byte \d+ of shared memory, which thread 0 wrote", message)


@kinds
def test_a_barrier_that_not_all_meet(kind):
    new = f"if (tid < 40) {BARRIER[kind]}\n}}"
    assert "divergent" in broken(kind, lambda text: last(text, "}", new))


@kinds
def test_an_exchange_that_not_all_meet(kind):
    def change(text: str) -> str:
        return re.sub(r"= (lane_add_f32\(.*\));", r"= tid < 5 ? 0.0f : \1;", text)

    assert "divergent" in broken(kind, change)


@kinds
@pytest.mark.parametrize("by", ["+ 100", "- 100"])
def test_a_read_out_of_bounds(kind, by):
    message = broken(kind, lambda text: re.sub(r"b0\[(\w+)\]", rf"b0[\1 {by}]", text))
    assert "out of bounds: read of 4 bytes" in message


@kinds
def test_a_store_one_too_far(kind):
    """The last thread of the last block writes beyond the end; the guard is off by one."""
    message = broken(kind, lambda text: re.sub(r"\+ 49;", "+ 50;", text))
    assert "out of bounds" in message or "wrote" in message


@kinds
def test_two_threads_store_one_element(kind):
    message = broken(kind, lambda text: re.sub(r"b1\[\w+\] =", "b1[block1] =", text))
    assert re.search(r"write of byte \d+ of buffer 1, which thread \d+ wrote", message)


@kinds
def test_a_store_into_an_input(kind):
    address = {"cuda": "(f32*)b0", "metal": "(device f32*)b0"}[kind]
    message = broken(kind, lambda text: re.sub(r"b1\[(\w+)\] =", rf"({address})[\1] =", text))
    assert "read only" in message


@kinds
def test_a_misaligned_access(kind):
    at = {"cuda": "", "metal": "device "}[kind]
    wide = f"*({at}const u64*)(b0 + 1) == 0 ? 1.0f : "

    def change(text: str) -> str:
        return re.sub(
            r"const f32 (v\d+) = (v\d+ \? b0)", rf"const f32 \1 = {wide}\2", text, count=1
        )

    assert "misaligned read of 8 bytes" in broken(kind, change)


@kinds
def test_more_shared_memory_than_declared(kind):
    case, kernel = centred()
    code = check(case, kernel, kind)
    short = replace(code.launch, shared_bytes=64)
    with pytest.raises(EmulatorError, match="of 64 shared ones"):
        launch(case, kernel, replace(code, launch=short), kind)


def doubled() -> tuple[Case, Kernel]:
    """A sum twice in a local array of each thread."""
    case = Case()
    i, j, k = case.axis("i", 32), case.axis("j", 4), case.axis("k", 5)
    case.buffer("x", (32, 4, 5))
    case.buffer("z", (32, 4))
    total = reduction("sum", (k,), case.load("x", i, j, k))
    kernel = case.kernel((i, j), "z", (i, j), binary("mul", total, total))
    stage = Stage(kernel.subterms().index(total), (Loop("j", 1),))
    return case, replace(kernel, schedule=Schedule((Loop("i", 1, lanes=32), stage, Loop("j", 1))))


@kinds
def test_a_local_array_out_of_bounds(kind):
    def change(text: str) -> str:
        return re.sub(r"= (local_\d+)\[(\w+)\]", r"= \1[\2 + 4]", text)

    assert "of a local array" in broken(kind, change, doubled)


@kinds
def test_an_index_error_is_reported_and_nothing_wild_is_read(kind):
    case = Case()
    i = case.axis("i", 40)
    index = np.arange(40)
    case.buffer("x", (40,))
    case.buffer("at", (40,), dt.i64, index)
    case.buffer("z", (40,))
    where = data(cast(case.load("at", i), dt.i64), to_expr(40))
    kernel = Kernel("k", (i,), (Store("z", (to_expr(i),), read("x", (where,), dt.f32)),),
                    parse("i:1l32"))  # fmt: skip
    code = check(case, kernel, kind)
    for bad in (-1, 40, 1 << 62):
        case.bits["at"] = np.where(index == 17, bad, index)
        ready = load(code, kind)
        arrays = [case.bits[n] for n in kernel.arguments()]
        buffers = [(a.ctypes.data, a.nbytes, n in kernel.writes())
                   for a, n in zip(arrays, kernel.arguments(), strict=True)]  # fmt: skip
        launched = ready.launch(1, code.launch.threads, code.launch.shared_bytes, 32, buffers, [])
        assert not launched


def test_counts_of_transactions():
    """Of a product with a vector: rows are read once, by whole sectors; a stride costs more."""
    matrix, vector = np.zeros((64, 1024), np.float32), np.zeros(1024, np.float32)
    made = luminal.compile(lambda w, x: w @ x, [matrix, vector], search="off",
                           device="cuda-emulated")  # fmt: skip
    (found,) = emulator.counts(made.compiled.program, blocks=64)
    assert matrix.nbytes // 32 <= found.sectors_read <= matrix.nbytes // 32 * 2.1
    assert found.sectors_written <= 64 and found.reads >= matrix.nbytes // 512
    (some,) = emulator.counts(made.compiled.program, blocks=2)
    assert some.sectors_read == found.sectors_read
    strided = luminal.compile(lambda x: x[:, ::8] + 1.0, [matrix], search="off",
                              device="cuda-emulated")  # fmt: skip
    (found,) = emulator.counts(strided.compiled.program)
    assert found.sectors_read == matrix.nbytes // 32


def test_counts_of_conflicting_banks():
    """Threads that write a column of 32 words each wait for one another."""
    device = EmulatedDevice(TARGETS["cuda"])
    for stride, cycles in ((1, 2), (32, 64)):
        ready = device.load(device.compile(f"""
extern __shared__ __align__(16) unsigned char shared[];
extern "C" __global__ void __launch_bounds__(64) f(unsigned int* error) {{
    ((float*)shared)[threadIdx.x * {stride}] = 0.0f;
}}"""), "f")  # fmt: skip
        ready.counts = emulator.Counts()
        ready.launch(1, 64, 64 * 32 * 4, 32, [], [])
        assert (ready.counts.shared_accesses, ready.counts.shared_cycles) == (2, cycles)
