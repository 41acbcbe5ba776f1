"""LUMINAL_DEBUG and LUMINAL_DUMP show every stage; the texts parse."""

import numpy as np
import pytest

from luminal.codegen.loopir_text import parse_function
from luminal.compiler import compile_graph
from luminal.config import Config
from luminal.ir.text import parse_graph, parse_plan
from tests.contract_cases import graph_of

SHOWN = {1: "kernels=1", 2: "about", 4: "kernel('k0'", 5: "with chunks(", 6: "define "}


@pytest.mark.parametrize("level", range(8))
def test_levels(level, capfd):
    compile_graph(graph_of("softmax"), Config(search="off", cache="off", debug=level))
    shown = capfd.readouterr().err
    assert (shown == "") == (level == 0)
    for at, mark in SHOWN.items():
        assert (mark in shown) == (level >= at), at
    assert ("\t.text" in shown or ".section" in shown) == (level >= 7)


def test_dump(tmp_path):
    graph = graph_of("softmax")
    config = Config(search="off", cache="off", dump=str(tmp_path / "new"))
    compiled = compile_graph(graph, config)
    (folder,) = (tmp_path / "new").iterdir()
    files = {p.name: p.read_text() for p in folder.iterdir()}
    assert parse_graph(files["graph.txt"]) == graph
    assert parse_plan(files["plan.txt"]) == compiled.plan
    (code,) = compiled.program.codes
    assert files[f"{code.name}.ll"] == code.source
    assert parse_function(files[f"{code.name}.loops.txt"]).arguments == ("b0", "b1")
    x = np.random.default_rng(0).standard_normal((6, 50)).astype(np.float32)
    assert np.allclose(compiled(x)[0].sum(-1), 1, atol=1e-5)
