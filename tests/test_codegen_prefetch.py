"""Loops that look ahead: results as without, every later tile hinted at, nothing else touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from luminal.codegen.generate import lower
from luminal.codegen.loopir_text import function_text, parse_function
from luminal.ir.dtype import f16, f32, i8, i32
from luminal.ir.expr import dim, to_expr
from luminal.ir.plan import Kernel
from luminal.ir.term import binary, cast, cond, constant, reduction, select
from tests.codegen_case import HOST, Case, parse
from tests.loopir_interp import Interpreter
from tests.native_case import run_native

PANELS = ((1, 16), (0, 1), (1, 1))
PAGE = mmap.PAGESIZE


def gemm(m: int, n: int, k: int, schedule: str, symbolic: bool = False) -> tuple[Case, Kernel]:
    c = Case()
    sizes = (m, n, k)
    if symbolic:
        c.dims = {"M": m, "N": n, "K": k}
        sizes = tuple(dim(name, 0 if name == "K" else 1, 4096) for name in "MNK")
    c.buffer("A", (sizes[0], sizes[2]))
    c.buffer("B", (sizes[2], sizes[1]), layout=PANELS)
    c.buffer("C", sizes[:2], data=np.full((m, n), np.nan, np.float32))
    i, j, r = (c.axis(name, size) for name, size in zip("mnk", sizes))
    value = reduction("sum", (r,), binary("mul", c.load("A", i, r), c.load("B", r, j)))
    return c, c.kernel((i, j), "C", (i, j), value, parse(schedule))


GEMM = "n:16+1 m:4+1 k:2 / k:1u m:1u n:8u n:1v"
BLOCKED = "k:8 n:16+1 m:4+1 k:2 / k:1u m:1u n:8u n:1v"
STREAM = "n:16 k:4+3 / k:1u m:1u n:8u n:1v"


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("sizes", [(12, 32, 16), (13, 37, 19), (1, 8, 4), (4, 80, 9), (5, 3, 0)])
@pytest.mark.parametrize("schedule", [GEMM, BLOCKED, STREAM])
def test_results_are_those_without(
    sizes: tuple[int, int, int], symbolic: bool, schedule: str
) -> None:
    if schedule is STREAM and symbolic:
        schedule = "m:2 " + schedule
    c, kernel = gemm(*sizes, schedule, symbolic)
    c.check(kernel, native=True)
    function = c.check(kernel)
    text = function_text(function)
    assert "prefetch(" in text or 0 in sizes or sizes == (1, 8, 4)
    assert parse_function(text) == function


def hints(c: Case, kernel: Kernel) -> dict[str, set[int]]:
    memory = {n: c.bits[n].copy() for n in c.bits}
    memory["B"] = np.zeros(1 << 14, np.float32)
    interpreter = Interpreter(c.lowered(kernel), memory, c.dims)
    interpreter.run()
    return {n: {at for name, at in interpreter.hints if name == n} for n in ("A", "B", "C")}


def test_every_vector_of_the_next_tiles_is_hinted_at() -> None:
    m, n, k = 16, 64, 24
    found = hints(*gemm(m, n, k, GEMM))
    assert found["B"] >= set(range(16 * k, n * k, 8))  # all panels but the first
    assert found["C"] >= {i * n + j for i in range(4, m) for j in range(0, n, 8)}
    assert not found["A"]  # which no lane moves along
    assert all(0 <= at < (n + 16) * k for at in found["B"])
    found = hints(*gemm(1, n, k, STREAM))
    assert found["B"] >= {p * 16 * k + i * 16 + j for p in range(4) for i in range(12, k)
                          for j in (0, 8)}  # fmt: skip


def test_the_hints_of_a_tile_are_spread_over_its_sum() -> None:
    c, kernel = gemm(16, 64, 64, "m:4+1 n:16 k:2 / k:1u m:1u n:8u n:1v")
    text = function_text(c.lowered(kernel))
    assert text.count("prefetch('C'") == 1  # eight vectors, 32 steps


def test_nothing_is_hinted_at_without() -> None:
    c, kernel = gemm(16, 64, 24, "n:16 m:4 k:2 / k:1u m:1u n:8u n:1v")
    assert "prefetch" not in function_text(c.lowered(kernel))


def test_windows_bytes_and_halves() -> None:
    c = Case()
    c.buffer("x", (3, 21))
    c.buffer("w", (16, 3, 3))
    c.buffer("y", (16, 21))
    o, p, ch, t = (c.axis(*a) for a in (("o", 16), ("p", 21), ("c", 3), ("t", 3)))
    place = to_expr(p) + t - 1
    inside = binary("and", cond(place), cond(20 - place))
    padded = select(inside, c.load("x", ch, place), constant(0.0, f32))
    conv = reduction("sum", (ch, t), binary("mul", padded, c.load("w", o, ch, t)))
    for schedule in ("o:8 p:4+1 c:1 t:1 / p:1u o:1v", "o:4 p:8+2 c:1+1 t:1s / o:1u p:1v"):
        c.check(c.kernel((o, p), "y", (o, p), conv, parse(schedule)), native=True)
    c = Case()
    c.buffer("a", (40,), i8)
    c.buffer("b", (40, 24), i8)
    c.buffer("h", (24,), f16)
    c.buffer("z", (24,))
    j, k = c.axis("j", 24), c.axis("k", 40)
    dots = reduction("sum", (k,), binary("mul", cast(c.load("a", k), i32),
                                         cast(c.load("b", k, j), i32)))  # fmt: skip
    scaled = binary("mul", cast(dots, f32), cast(c.load("h", j), f32))
    kernel = c.kernel((j,), "z", (j,), scaled, parse("j:8+1 k:8+2 / k:1u j:1v"))
    c.check(kernel, native=True)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last before a page that may not be touched."""
    flat = array.reshape(-1)
    size = -(-flat.nbytes // PAGE) * PAGE
    area = mmap.mmap(-1, size + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + size), PAGE, 0) == 0
    end = np.frombuffer(area, np.uint8, size)[size - flat.nbytes :].view(flat.dtype)
    end[:] = flat
    return end


@pytest.mark.parametrize(
    "schedule", [GEMM, BLOCKED, STREAM, "n:16+999 m:4+999 k:2+999 / n:8u n:1v"]
)
def test_a_hint_beyond_the_end_of_memory_does_no_harm(schedule: str) -> None:
    c, kernel = gemm(4, 64, 64, schedule)
    memory = {n: guarded(b.reshape(-1)) for n, b in c.bits.items()}
    memory["B"] = guarded(np.ones(64 * 64, np.float32))
    assert not run_native(lower(kernel, HOST, c.buffers, "k"), HOST, memory, {})
    expected = np.repeat(c.bits["A"].sum(1, dtype=np.float64), 64)
    np.testing.assert_allclose(memory["C"], expected, 1e-4, 1e-4)
