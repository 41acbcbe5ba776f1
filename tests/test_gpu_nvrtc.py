"""CUDA text is what NVIDIA's compiler accepts, without a warning, for three generations."""

from __future__ import annotations

import random

import pytest

from luminal.codegen.generate import generate
from luminal.compiler import alternatives
from luminal.errors import InternalError
from luminal.function import trace_function
from luminal.ir import dtype as dt
from luminal.ir.term import cast
from luminal.rewrite import rewrite
from luminal.runtime.gpu import H100
from luminal.runtime.nvrtc import available, compile_cubin, usage
from luminal.search.extract import extract
from luminal.search.tasks import prepare
from tests.codegen_case import Case
from tests.gpu_case import code_of
from tests.random_cases import graph_of
from tests.random_graphs import random_case
from tests.test_gpu_programs import PROGRAMS
from tests.test_gpu_terms import COMPUTING, STORAGE, many

pytestmark = pytest.mark.skipif(not available(), reason="needs nvidia-cuda-nvrtc, cuda-bindings")
GENERATIONS = ("sm_80", "sm_90a", "sm_100")


def sources(graph) -> list[str]:
    """The CUDA text of a graph, by the model's schedules."""
    plans = extract(rewrite(graph, numerics="exact"), H100, hints={}, k=1)
    plan = prepare(plans[0], H100, {}, {}).finish()
    return [code.source for code in generate(plan, H100, alternatives(plan, H100, {})).codes]


def accepted(source: str, generations=GENERATIONS) -> None:
    for architecture in generations:
        cubin, log = compile_cubin(source, architecture)
        assert cubin.startswith(b"\x7fELF") and "warning" not in log, log
        assert usage(log).spilled_bytes == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, inputs = PROGRAMS[name]
    for source in sources(trace_function(function, list(inputs), None).graph):
        accepted(source)


@pytest.mark.parametrize("number", range(0, 24, 2))
def test_random_graphs(number):
    for source in sources(graph_of(random_case(random.Random(number).randint))):
        accepted(source, GENERATIONS[number // 2 % 3 :][:1])


def test_a_warning_is_an_error():
    text = 'extern "C" __global__ void f(int* x) { int unused; x[0] = 1; }'
    with pytest.raises(InternalError, match="unused"):
        compile_cubin(text, "sm_90a")


def test_conversions_of_every_dtype():
    """One kernel for every source, with a store for every target."""
    for source in (*COMPUTING, *STORAGE):
        case = Case()
        case.buffer("x", (46,), source)
        targets = [d for d in COMPUTING if d != source]
        if source.storage:
            targets = [dt.f32] if source.is_float else [dt.i8]
        made = {f"to_{d.name}": lambda x, i, d=d: cast(x, d) for d in targets}
        accepted(code_of(case, many(case, ("x",), made, "i:1l32"), "cuda").source, ("sm_90a",))
