"""The rewriting pipeline: Graph -> prepared nodes -> cuts -> regions -> terms -> e-graphs -> Space.

In: a Graph and the numerics policy. Out: a Space. This file only strings the steps together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from luminal.ir.dtype import bf16, f16
from luminal.ir.expr import Expr
from luminal.ir.graph import ConstantData, Graph, Node
from luminal.ir.space import Call, Cut, Region, Result, Source, Space
from luminal.ir.term import Term, data, postorder, substitute
from luminal.ir.view import Shape
from luminal.rewrite.axes import joined
from luminal.rewrite.counters import counters
from luminal.rewrite.cuts import choose_cuts, is_leaf
from luminal.rewrite.egraph import EGraph
from luminal.rewrite.lower import Lowering
from luminal.rewrite.prepare import Prepared, prepare
from luminal.rewrite.regions import Part, Use, split
from luminal.rewrite.rules import saturate

__all__ = ["rewrite"]


def rewrite(graph: Graph, *, numerics: str) -> Space:
    """Every program that the rules find equal to `graph`.

    `numerics` is 'exact', 'relaxed' or 'fast'. Half-precision values are rounded only where they
    are stored unless the policy is exact and the graph reads no half-precision tensor.
    """
    prepared = prepare(graph)
    widen = numerics != "exact" or _reads_halves(prepared.nodes)
    parts, uses = split(prepared, choose_cuts(prepared, counters(prepared)))
    regions = tuple(_region(part, widen) for part in parts)
    names = _names(prepared)
    calls = tuple(_call(use, parts[use.part], names) for use in uses)
    inputs, constants = [], []
    for n, node in enumerate(prepared.nodes):
        if node.op == "Input":
            inputs.append(Source(names[n], node.shape, node.dtype))
        elif isinstance(node.value, ConstantData):
            constants.append((Source(names[n], node.shape, node.dtype), node.value))
    results = tuple(
        Result(o.name, names[o.node], prepared.nodes[o.node].shape, prepared.nodes[o.node].dtype,
               o.updates)
        for o in prepared.outputs
    )  # fmt: skip
    return Space(regions, calls, tuple(inputs), tuple(constants), results, graph.dims)


def _reads_halves(nodes: list[Node]) -> bool:
    return any(is_leaf(n) and n.dtype in (f16, bf16) for n in nodes)


def _names(prepared: Prepared) -> list[str]:
    """A buffer name for every node: inputs keep theirs, outputs and constants too if free."""
    taken = {n.name for n in prepared.nodes if n.op == "Input"}
    names: dict[int, str] = {i: n.name for i, n in enumerate(prepared.nodes) if n.op == "Input"}

    def claim(number: int, name: str) -> None:
        while name in taken:
            name += "_"
        taken.add(name)
        names[number] = name

    for o in prepared.outputs:
        if o.node not in names:
            claim(o.node, o.name)
    for number, node in enumerate(prepared.nodes):
        if isinstance(node.value, ConstantData) and number not in names:
            claim(number, node.name or "constant")
    for number in range(len(prepared.nodes)):
        if number not in names:
            claim(number, f"t{number}")
    return [names[n] for n in range(len(prepared.nodes))]


def _cut_numbers(part: Part) -> list[int]:
    return sorted((*part.stored, *(s for s in part.soft if s not in part.stored)))


def _call(use: Use, part: Part, names: list[str]) -> Call:
    cuts = [use.numbers[i] for i in _cut_numbers(part)]
    sources = [use.numbers[i] for i, n in enumerate(part.nodes) if n.op == "Input"]
    return Call(
        use.part, tuple(names[n] for n in cuts), tuple(names[n] for n in sources), tuple(cuts)
    )


def _region(part: Part, widen: bool) -> Region:
    """The e-graph of one part, saturated."""
    nodes = list(part.nodes)
    sources = {i: f"s{k}" for k, i in enumerate(i for i, n in enumerate(nodes) if n.op == "Input")}
    cut_names = {i: f"c{k}" for k, i in enumerate(_cut_numbers(part))}
    stored = {**sources, **{i: cut_names[i] for i in part.stored}}
    soft = {i: cut_names[i] for i in part.soft if i not in part.stored}
    lowering = Lowering(nodes, stored, soft, widen)
    graph = EGraph()
    made = [(i, *_root(lowering, i)) for i in _cut_numbers(part)]
    roots = [graph.add(term) for _, _, _, term in made]
    shapes = {name: nodes[i].shape for i, name in {**stored, **soft}.items()}
    for whole, parts in [*lowering.equal, *_joined(lowering, [m[3] for m in made], shapes)]:
        graph.union(graph.add(whole), graph.add(parts))
    for s in lowering.splits:
        inner = graph.make("sum", (graph.add(s.parts),), s.whole.dtype, (s.within,))
        whole = graph.make("sum", (inner,), s.whole.dtype, (s.blocks,))
        graph.union(graph.add(s.whole), whole)
    graph.rebuild()
    matches: Counter[str] = Counter()
    stopped = saturate(graph, matches)
    notes = (*stopped, *(f"rule {name}: {n}" for name, n in sorted(matches.items())))
    values, number = graph.freeze(roots, frozenset(lowering.axes.names.values()))
    cuts = []
    for (i, axes, where, _), root in zip(made, roots, strict=True):
        node = nodes[i]
        ordered, dest = (), ""
        if node.op == "Scatter":
            dest = stored[node.inputs[0].node]
            ordered = tuple(a.name for a in where[node.axis][1])
        cuts.append(Cut(cut_names[i], node.shape, node.dtype, axes, tuple(e for e, _ in where),
                        number[graph.find(root)], i in part.stored, ordered, dest))  # fmt: skip
    held = tuple(Source(name, nodes[i].shape, nodes[i].dtype) for i, name in sources.items())
    return Region(values, tuple(cuts), held, notes)


def _joined(
    lowering: Lowering, roots: list[Term], shapes: dict[str, Shape]
) -> Iterator[tuple[Term, Term]]:
    """Equal terms with joined axes, and what their subterms' buffers hold there."""
    for t in postorder(*roots):
        found = joined(t, shapes, lowering.axes.fresh) if len(t.axes) > 1 else None
        if found is not None:
            yield found.whole, found.term
            for whole, held in lowering.equal:
                if not whole.free.isdisjoint(found.env):
                    yield substitute(whole, found.env), substitute(held, found.env)


def _root(lowering: Lowering, i: int) -> tuple[tuple, list[tuple[Expr, tuple]], Term]:
    """Axes of a cut, per dimension (index, its axes), and the stored term."""
    node = lowering.nodes[i]
    shape = node.inputs[1].view.shape if node.op == "Scatter" else node.shape
    axes, where = lowering.axes.of_shape(shape)
    if node.op != "Scatter":
        term = lowering.compute(i, where) if i in lowering.stored else lowering.at(i, where)
        return axes, [(e, ()) for e in where], term
    position = data(lowering.edge(node.inputs[1], where), node.shape[node.axis])
    dims = [(e, tuple(e.variables())) for e in where]
    dims[node.axis] = (position, dims[node.axis][1])
    return axes, dims, lowering.edge(node.inputs[2], where)
