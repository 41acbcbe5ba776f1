"""Schedules: legal for the lowering, within the register file, equal in every process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from luminal.codegen.generate import lower
from luminal.ir.plan import Loop, Online, Reg, Stage
from luminal.ir.target import Target
from luminal.search.points import register_tiles
from luminal.search.roles import waste
from luminal.search.schedule import Candidate, candidates
from luminal.search.strategy import Trial, shortlist
from luminal.workbench import run_trial
from tests.search_kernels import AVX2, AVX512, SSE, ZOO, Case, matmul
from tests.test_ir_layout import is_valid

HEAVY = ("matmul big", "conv stem", "attention symbolic")


def free(case: Case) -> frozenset[str]:
    return frozenset(b.name for b in case.buffers.values() if b.kind in ("constant", "temp"))


def options(case: Case, target: Target) -> list[Candidate]:
    return candidates(case.kernel, case.buffers, target, {}, free(case))


def with_layouts(case: Case, candidate: Candidate) -> dict:
    return {
        n: replace(b, layout=candidate.layouts.get(n, b.layout)) for n, b in case.buffers.items()
    }


@pytest.mark.parametrize("name", [n for n in ZOO if n not in HEAVY])
def test_the_default_lowers(name: str) -> None:
    case = ZOO[name]
    best = options(case, AVX512)[0]
    lower(replace(case.kernel, schedule=best.schedule), AVX512, with_layouts(case, best), "k")


@pytest.mark.parametrize("target", [AVX2, SSE], ids=["avx2", "sse"])
@pytest.mark.parametrize("name", ["odd", "softmax", "conv 7", "transpose", "attention decode"])
def test_the_default_lowers_on_narrow_vectors(name: str, target: Target) -> None:
    case = ZOO[name]
    best = options(case, target)[0]
    lower(replace(case.kernel, schedule=best.schedule), target, with_layouts(case, best), "k")


@pytest.mark.parametrize("name", ["odd", "row sum", "column sum", "matmul 4", "layernorm symbolic"])
def test_every_candidate_lowers(name: str) -> None:
    case = ZOO[name]
    for c in options(case, AVX512):
        lower(replace(case.kernel, schedule=c.schedule), AVX512, with_layouts(case, c), "k")


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE], ids=["avx512", "avx2", "sse"])
@pytest.mark.parametrize("name", ZOO)
def test_candidates_obey_the_rules(name: str, target: Target) -> None:
    case = ZOO[name]
    found = options(case, target)
    assert len({c.schedule for c in found}) == len(found)
    axes = {a.name for a in case.kernel.axes} - set(case.kernel.ordered)
    bound = {a.name for t in case.kernel.subterms() for a in t.axes}
    for c in found:
        grid = [i.axis for i in c.schedule.items if isinstance(i, Loop) and i.grid]
        assert set(grid) <= axes and len(set(grid)) == len(grid)
        assert all(isinstance(i, Loop) and i.grid for i in c.schedule.items[: len(grid)])
        for n, layout in c.layouts.items():
            assert case.buffers[n].kind in ("constant", "temp")
            assert is_valid(layout, len(case.buffers[n].shape))
        replicas = prod(_count(c, r) for r in c.schedule.regs
                        if r.role == "unroll" and r.axis not in bound)  # fmt: skip
        assert replicas <= max(target.vector_registers, 1)


def _count(c: Candidate, reg: Reg) -> int:
    position = c.schedule.regs.index(reg)
    outer = [r.tile for r in c.schedule.regs[:position] if r.axis == reg.axis]
    outer = outer or [
        i.tile for i in c.schedule.items if isinstance(i, Loop) and i.axis == reg.axis
    ]
    return outer[-1] // reg.tile if outer else 1


def _names(c: Candidate) -> list[str]:
    return [type(i).__name__ for i in c.schedule.items]


def test_structure_decides() -> None:
    assert any(isinstance(i, Online) for i in options(ZOO["attention"], AVX512)[0].schedule.items)
    shared = options(ZOO["softmax"], AVX512)[0]
    assert [bool(i.same) for i in shared.schedule.items if isinstance(i, Stage)] == [
        False,
        True,
        False,
    ]
    assert "Stage" in _names(options(ZOO["linear input"], AVX512)[0])
    assert options(ZOO["linear"], AVX512)[0].layouts["W"] == ((0, 16), (1, 1), (0, 1))
    assert options(ZOO["linear"], AVX2)[0].layouts["W"] == ((0, 8), (1, 1), (0, 1))
    assert options(ZOO["conv 3x3"], AVX512)[0].layouts["Y"] == (
        (0, 1),
        (1, 16),
        (2, 1),
        (3, 1),
        (1, 1),
    )
    assert not any(i.grid for i in options(ZOO["scatter"], AVX512)[0].schedule.items)


def test_lanes_follow_contiguous_rows() -> None:
    best = options(ZOO["softmax of columns"], AVX512)[0].schedule
    lanes = {r.axis for r in best.regs if r.role == "vector"}
    stages = [i for i in best.items if isinstance(i, Stage)]
    assert lanes == {"c"} and stages
    assert all({r.axis for r in s.regs if r.role == "vector"} == {"c"} for s in stages)


def test_what_a_sum_needs_is_computed_before_it() -> None:
    assert "Stage" in _names(options(ZOO["maximum in a sum"], AVX512)[0])


def test_a_group_shares_its_input() -> None:
    best = options(ZOO["grouped"], AVX512)[0].schedule
    assert {r.axis for r in best.regs if r.role == "vector"} == {"o"}
    assert any(r.axis == "x" and r.role == "unroll" for r in best.regs)


def test_a_gemv_over_rows_of_an_input_sums_across_lanes() -> None:
    regs = options(ZOO["linear input 1"], AVX512)[0].schedule.regs
    assert [r.axis for r in regs if r.role == "vector"] == ["k"]


@pytest.mark.parametrize("name", ["matmul", "elementwise", "layernorm", "conv 3x3", "matmul big"])
def test_there_are_chunks_for_every_core(name: str) -> None:
    case, found = ZOO[name], options(ZOO[name], AVX512)[0]
    sizes = {a.name: a.hi + 1 for a in case.kernel.axes}
    chunks = prod(-(-sizes[i.axis] // i.tile) for i in found.schedule.items
                  if isinstance(i, Loop) and i.grid)  # fmt: skip
    assert 4 * AVX512.cores <= chunks <= 64 * AVX512.cores


def _summed_inside(c: Candidate) -> list[int]:
    """Parts of a sum over k that loops inside of a panel of lanes, but around rows, run through."""
    loops = [i for i in c.schedule.items if isinstance(i, Loop)]
    axes = [i.axis for i in loops]
    return [i.tile for at, i in enumerate(loops)
            if i.axis == "k" and "n" in axes[:at] and "m" in axes[at:]]  # fmt: skip


def test_a_long_sum_is_parted_inside_of_a_panel() -> None:
    for k, part in ((4096, [2048]), (5632, [1888]), (2048, [])):
        found = options(matmul(256, 1024, k, transposed=True), AVX512)
        assert _summed_inside(next(c for c in found if not _looks(c))) == part
    case = matmul(130, 50, 2100, transposed=True)
    target = replace(SSE, vector_bits=512, vector_registers=32)
    parted = next(c for c in options(case, target) if _summed_inside(c) == [1056])
    kernel, buffers = replace(case.kernel, schedule=parted.schedule), with_layouts(case, parted)
    trial = Trial(kernel, tuple(buffers.values()), (), 0, check=True)
    assert run_trial((trial, target, 1, 0)).error == ""


def _looks(c: Candidate) -> bool:
    return any(isinstance(i, Loop) and i.ahead for i in c.schedule.items)


def test_tiles_are_prefetched_where_that_pays_and_else_by_the_clock() -> None:
    for rows in (16, 64, 256, 1024):
        found = options(matmul(rows, 4096, 4096, transposed=True), AVX512)
        assert _looks(found[0]) and not all(map(_looks, found))
    for shape in ((1, 4096, 4096), (1024, 1024, 1024)):
        found = shortlist(options(matmul(*shape, transposed=True), AVX512), 8)
        assert not _looks(found[0]) and any(map(_looks, found))


def test_register_tiles_fit() -> None:
    for t in register_tiles(1000, 1000, 16, 32, 2, 2):
        assert t.rows * t.vectors * 2 + t.vectors * 2 + 1 <= 32
    best = register_tiles(1024, 1024, 8, 16)[0]
    assert best.rows * best.vectors >= 10
    assert waste(10, 4) == 1.2


@pytest.mark.parametrize("name", ["odd", "gather", "compare", "elementwise small",
                                  "softmax symbolic", "attention decode", "grouped",
                                  "softmax of columns", "maximum in a sum"])  # fmt: skip
def test_the_default_computes_what_the_oracle_does(name: str) -> None:
    case = ZOO[name]
    best = options(case, AVX512)[0]
    dims = {v.name: 37 for v in case.kernel.dims()}
    target = replace(SSE, vector_bits=512, vector_registers=32)
    kernel, buffers = replace(case.kernel, schedule=best.schedule), with_layouts(case, best)
    trial = Trial(kernel, tuple(buffers.values()), tuple(dims.items()), 0, check=True)
    assert run_trial((trial, target, 1, 0)).error == ""


SCRIPT = """
from tests.search_kernels import AVX512, ZOO
from luminal.search.schedule import candidates
from luminal.search.strategy import shortlist
from luminal.search.cache import digest
for name, c in ZOO.items():
    free = frozenset(b.name for b in c.buffers.values() if b.kind in ("constant", "temp"))
    found = candidates(c.kernel, c.buffers, AVX512, {}, free)
    print(name, digest(*((c.schedule, c.layouts) for c in found)))
"""


def test_two_processes_agree() -> None:
    root = str(Path(__file__).parents[1])
    runs = [
        subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=root,
                       env={"PYTHONPATH": root, "PYTHONHASHSEED": seed}, check=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] and len(runs[0].splitlines()) == len(ZOO)
