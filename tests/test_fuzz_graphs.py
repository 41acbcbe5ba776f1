"""Random graphs: oracle == plans == compiled code, with random choices at every level.

The default run checks 500 cases, always the same; `make fuzz` checks 10,000 (LUMINAL_FUZZ=count
others here). Each file of `corpus/` is a case that failed once.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luminal.ir.expr import prod
from luminal.ir.text import graph_text, parse_graph
from luminal.search.worker import Worker
from tests import fuzz
from tests.random_cases import Case, graph_of, parse_case
from tests.random_graphs import random_case
from tests.random_programs import LARGEST, random_program

FILES = sorted(fuzz.CORPUS.glob("*.txt"))
CASES = 500


@st.composite
def cases(draw: st.DrawFn, steps: int = 10) -> Case:
    """A random case."""
    return random_case(lambda lo, hi: draw(st.integers(lo, hi)), steps)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("tests.fuzz_check:check", fuzz.TIMEOUT_S) as made:
        yield made


@pytest.mark.timeout(1800)
def test_random_cases_agree_at_every_stage() -> None:
    assert [str(f) for f in fuzz.run(range(CASES)) if f is not None] == []


def test_programs_fit_the_oracle() -> None:
    """Number 502 once had 190 million elements, which looked like a hang."""
    for number in (502, *range(0, 200, 2)):
        case = random_program(random.Random(number).randint)
        graph = graph_of(case)
        sizes = [prod(n.shape).evaluate(dict(run)) for n in graph.nodes for run in case.dims]
        assert max(sizes) <= LARGEST


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_many_random_cases() -> None:
    count = int(os.environ.get("LUMINAL_FUZZ", "0"))
    if not count:
        pytest.skip("LUMINAL_FUZZ gives the number of cases")
    numbers = range(CASES, CASES + count)
    assert [str(f) for f in fuzz.run(numbers, thorough=True) if f is not None] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_corpus(worker: Worker, path: Path) -> None:
    text = path.read_text()
    for seed in range(3):
        assert fuzz.problems(worker, text, **{"seed": seed, **fuzz.options_of(text)}) == []


@given(cases())
@settings(deadline=None, database=None, derandomize=True, max_examples=60,
          suppress_health_check=list(HealthCheck), print_blob=False)  # fmt: skip
def test_text_of_graphs_reads_back(case: Case) -> None:
    graph = graph_of(case)
    data = {n.name: n.value for n in graph.nodes if hasattr(n.value, "array")}
    again = parse_graph(graph_text(graph), data)
    assert again == graph


def test_a_case_reads_back() -> None:
    text = "# seed 3 wild\n# run n=1 m=2\n# run n=0 m=2\ndim('n', 0, 9)\n"
    assert str(parse_case(text)) == text


def test_shrinking_keeps_what_fails() -> None:
    drawn = fuzz._shrunk([5, 0, 7, 3, 9, 1], lambda picks: 7 in picks and len(picks) > 1)
    assert drawn in ([7, 0], [0, 7])
