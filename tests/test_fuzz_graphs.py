"""Random graphs: oracle == plans == compiled code, with default and random schedules.

The default run draws a few examples from a fixed seed; `-m fuzz` with LUMINAL_FUZZ=count is the
long one. Each file of `corpus/` is a case that failed once.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from luminal.ir.text import graph_text, parse_graph
from luminal.search.worker import Worker, WorkerFailed
from tests.random_cases import Case, graph_of, parse_case
from tests.random_graphs import random_case
from tests.random_programs import random_program

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.txt"))
QUICK = {
    "deadline": None, "database": None, "derandomize": True, "max_examples": 25,
    "suppress_health_check": list(HealthCheck), "print_blob": False,
}  # fmt: skip
ISAS = ("native", "avx2", "baseline")


@st.composite
def cases(draw: st.DrawFn, steps: int = 10) -> Case:
    """A random case."""
    return random_case(lambda lo, hi: draw(st.integers(lo, hi)), steps)


@st.composite
def programs(draw: st.DrawFn) -> Case:
    """A random program of the tensor API."""
    return random_program(lambda lo, hi: draw(st.integers(lo, hi)))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("tests.fuzz_check:check", 120) as made:
        yield made


def problems(worker: Worker, case: Case, **options: object) -> list[str]:
    try:
        return worker.call((str(case), options))
    except WorkerFailed as error:
        return [f"the worker failed: {error}"]


def supported(isa: str) -> bool:
    from luminal.errors import DeviceError
    from luminal.runtime.device import select_target

    try:
        select_target(isa)
    except DeviceError:
        return False
    return True


@given(cases(), st.sampled_from(ISAS), st.integers(0, 9))
@settings(**QUICK)
def test_random_graphs_agree_at_every_stage(
    worker: Worker, case: Case, isa: str, seed: int
) -> None:
    isa = isa if supported(isa) else "native"
    assert problems(worker, case, isa=isa, seed=seed) == []


@given(programs(), st.sampled_from(ISAS), st.integers(0, 9))
@settings(**{**QUICK, "max_examples": 14})
def test_random_programs_agree_at_every_stage(
    worker: Worker, case: Case, isa: str, seed: int
) -> None:
    isa = isa if supported(isa) else "native"
    assert problems(worker, case, isa=isa, seed=seed) == []


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@given(st.one_of(cases(20), programs()), st.sampled_from(ISAS), st.integers(0, 1 << 20))
@settings(**{**QUICK, "derandomize": False, "phases": (Phase.generate, Phase.shrink),
             "max_examples": int(os.environ.get("LUMINAL_FUZZ", "0")) or 1})  # fmt: skip
def test_many_random_graphs(worker: Worker, case: Case, isa: str, seed: int) -> None:
    if "LUMINAL_FUZZ" not in os.environ:
        pytest.skip("LUMINAL_FUZZ gives the number of graphs")
    isa = isa if supported(isa) else "native"
    assert problems(worker, case, isa=isa, seed=seed) == []


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_corpus(worker: Worker, path: Path) -> None:
    case = parse_case(path.read_text())
    assert problems(worker, case) == []


@given(cases())
@settings(**{**QUICK, "max_examples": 60})
def test_text_of_graphs_reads_back(case: Case) -> None:
    graph = graph_of(case)
    data = {n.name: n.value for n in graph.nodes if hasattr(n.value, "array")}
    again = parse_graph(graph_text(graph), data)
    assert again == graph


def test_a_case_reads_back() -> None:
    text = "# seed 3 wild\n# run n=1 m=2\n# run n=0 m=2\ndim('n', 0, 9)\n"
    assert str(parse_case(text)) == text
