"""Random graphs: every plan that extraction offers computes what the graph computes."""

import numpy as np
import pytest

from tests.rewrite_programs import RandomGraph, check_graph, random_feed


@pytest.mark.parametrize("seed", range(60))
def test_random_graph(seed: int) -> None:
    graph = RandomGraph(seed).finish()
    feed = random_feed(graph, {}, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        check_graph(graph, feed, tolerance=1e-3, k=3)


@pytest.mark.parametrize("seed", range(30))
def test_random_symbolic_graph(seed: int) -> None:
    graph = RandomGraph(seed, symbolic=True).finish()
    for n in (1, 5):
        feed = random_feed(graph, {"n": n}, np.random.default_rng(seed))
        with np.errstate(all="ignore"):
            check_graph(graph, feed, {"n": n}, tolerance=1e-3, k=3)
