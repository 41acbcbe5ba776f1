"""Graphs and plans of real programs print and parse back to equal values; golden texts."""

import pytest

from luminal.codegen.generate import generate, lower_canonical
from luminal.codegen.loopir_text import function_text, parse_function
from luminal.ir.graph import ConstantData
from luminal.ir.text import graph_text, parse_graph, parse_plan, plan_text
from luminal.ir.verify import verify_graph, verify_plan
from tests.contract_cases import CASES, TARGET, graph_of, plan_of

GOLDEN = ("softmax", "norm_linear")


@pytest.mark.parametrize("name", CASES)
def test_texts_parse_to_equal_values(name):
    graph = graph_of(name)
    data = {n.value.name: n.value for n in graph.nodes if isinstance(n.value, ConstantData)}
    again = parse_graph(graph_text(graph), data)
    assert again == graph
    verify_graph(again)
    plan = plan_of(graph)
    held = {b.data.name: b.data for b in plan.buffers if b.data is not None}
    read = parse_plan(plan_text(plan), held)
    assert plan_text(read) == plan_text(plan)
    assert [k.schedule for k in read.kernels] == [k.schedule for k in plan.kernels]
    assert all(k.schedule is not None for k in read.kernels)
    assert read.buffers == plan.buffers
    verify_plan(read)
    sources = [[c.source for c in generate(p, TARGET).codes] for p in (plan, read)]
    assert sources[0] == sources[1]


def loop_texts(name: str) -> str:
    plan = plan_of(graph_of(name))
    buffers = {b.name: b for b in plan.buffers}
    return "\n".join(function_text(lower_canonical(k, TARGET, buffers)) for k in plan.kernels)


@pytest.mark.parametrize("name", CASES)
def test_loop_ir_parses_to_an_equal_function(name):
    plan = plan_of(graph_of(name))
    buffers = {b.name: b for b in plan.buffers}
    for kernel in plan.kernels:
        function = lower_canonical(kernel, TARGET, buffers)
        assert parse_function(function_text(function)) == function


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name, golden):
    graph = graph_of(name)
    golden(f"{name}.graph.txt", graph_text(graph))
    golden(f"{name}.plan.txt", plan_text(plan_of(graph)))
    golden(f"{name}.loops.txt", loop_texts(name))


def test_bad_lines_are_named():
    with pytest.raises(ValueError, match="n0 = Nothing"):
        parse_graph("n0 = Nothing()")
    with pytest.raises(ValueError, match="__import__"):
        parse_plan("__import__('os')")
    with pytest.raises(ValueError, match="v = wrong"):
        parse_function("v = wrong")
