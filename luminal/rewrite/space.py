"""The rewriting pipeline: Graph -> prepared nodes -> cuts -> regions -> terms -> e-graphs -> Space.

In: a Graph and the numerics policy. Out: a Space. This file only strings the steps together."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from luminal.ir import Buffer, Call, ConstantData, Cut, Graph, Region, Result, Space, bf16, f16
from luminal.ir.term import Term, data, postorder, substitute
from luminal.rewrite.axes import joined
from luminal.rewrite.cuts import Part, choose_cuts, split
from luminal.rewrite.egraph import EGraph
from luminal.rewrite.lower import Lowering, positions
from luminal.rewrite.prepare import is_leaf, prepare
from luminal.rewrite.rules import saturate
from luminal.rewrite.scan import scans


def rewrite(graph: Graph, *, numerics: str) -> Space:
    """Every program that the rules find equal to `graph`.

    `numerics` is 'exact', 'relaxed' or 'fast'. Half-precision values are rounded only where they
    are stored unless the policy is exact and the graph reads no half-precision tensor."""
    graph = prepare(graph)
    halves = any(is_leaf(n) and n.dtype in (f16, bf16) for n in graph.nodes)
    parts, uses = split(graph, choose_cuts(graph, positions(graph)))
    regions = tuple(_region(part, numerics != "exact" or halves) for part in parts)
    names = _names(graph)
    calls, inputs, constants = [], [], []
    for region, numbers in uses:
        part = parts[region]
        nodes = {f"c{k}": numbers[i] for k, i in enumerate(part.cuts)}
        held = tuple(names[numbers[i]] for i, n in enumerate(part.nodes) if n.op == "Input")
        split_names = [c.name.partition(".") for c in regions[region].cuts]
        cuts = tuple(nodes[own] for own, _, _ in split_names)
        made = (_free(names[n] + dot + rest, names) if dot else names[n]
                for n, (_, dot, rest) in zip(cuts, split_names, strict=True))  # fmt: skip
        calls.append(Call(region, tuple(made), held, cuts))
    for name, node in zip(names, graph.nodes, strict=True):
        if node.op == "Input":
            inputs.append(Buffer(name, node.shape, node.dtype, "input"))
        elif isinstance(node.value, ConstantData):
            constants.append(Buffer(name, node.shape, node.dtype, "constant", data=node.value))
    wanted = ((o, names[o.edge.node], graph.nodes[o.edge.node]) for o in graph.outputs)
    results = tuple(Result(o.name, n, v.shape, v.dtype, o.updates) for o, n, v in wanted)
    return Space(regions, tuple(calls), tuple(inputs), tuple(constants), results, graph.dims)


def _names(graph: Graph) -> list[str]:
    """A buffer name for every node: inputs keep theirs, outputs and constants too if free."""
    names = {i: n.name for i, n in enumerate(graph.nodes) if n.op == "Input"}
    taken = set(names.values())
    wanted = [(o.edge.node, o.name) for o in graph.outputs]
    for n, node in enumerate(graph.nodes):
        if isinstance(node.value, ConstantData):
            wanted.append((n, node.name or "constant"))
    wanted += ((n, f"t{n}") for n in range(len(graph.nodes)))
    for n, name in wanted:
        if n not in names:
            names[n] = _free(name, taken)
            taken.add(names[n])
    return [names[n] for n in range(len(graph.nodes))]


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _region(part: Part, widen: bool) -> Region:
    """The e-graph of one part, saturated."""
    nodes = part.nodes
    sources = [i for i, n in enumerate(nodes) if n.op == "Input"]
    buffers = {i: f"s{k}" for k, i in enumerate(sources)}
    buffers |= {i: f"c{k}" for k, i in enumerate(part.cuts)}
    lowering = Lowering(nodes, buffers, part.soft, widen)
    graph, matches = EGraph(), Counter[str]()
    terms: list[Term] = []
    cuts: list[Cut] = []
    seen: set[Term] = set()
    for i in part.cuts:
        cut, term = _cut(lowering, i)
        for made, whole, equal in scans(term, cut.name, lowering.axes, seen):
            lowering.equal.append((whole, equal))
            cuts += [replace(made, value=graph.add(whole))] if made is not None else []
            matches["scan"] += made is None
        cuts.append(replace(cut, value=graph.add(term)))
        terms.append(term)
    for whole, parts in [*lowering.equal, *_joined(lowering, terms)]:
        graph.union(graph.add(whole), graph.add(parts))
    for whole, blocks, within, parts in lowering.splits:
        inner = graph.make("sum", (graph.add(parts),), whole.dtype, (within,))
        graph.union(graph.add(whole), graph.make("sum", (inner,), whole.dtype, (blocks,)))
    graph.rebuild()
    stopped = saturate(graph, matches)
    notes = (*stopped, *(f"rule {name}: {n}" for name, n in sorted(matches.items())))
    roots = [cut.value for cut in cuts]
    axes = frozenset(lowering.axes.names.values())
    values, number = graph.freeze(roots, axes, (cut.name for cut in cuts))
    final = tuple(replace(cut, value=number[graph.find(cut.value)]) for cut in cuts)
    held = tuple(Buffer(buffers[i], nodes[i].shape, nodes[i].dtype, "input") for i in sources)
    return Region(values, final, held, notes)


def _joined(lowering: Lowering, roots: list[Term]) -> Iterator[tuple[Term, Term]]:
    """Equal terms with joined axes, and what their subterms' buffers hold there."""
    shapes = {name: lowering.nodes[i].shape for i, name in lowering.buffers.items()}
    for whole in postorder(*roots):
        term, env = joined(whole, shapes, lowering.axes.fresh)
        if env:
            yield whole, term
            for computed, held in lowering.equal:
                if not computed.free.isdisjoint(env):
                    yield substitute(computed, env), substitute(held, env)


def _cut(lowering: Lowering, i: int) -> tuple[Cut, Term]:
    """A cut, its value left open, and the term that is stored."""
    node, name, required = lowering.nodes[i], lowering.buffers[i], i not in lowering.soft
    scatters = node.op == "Scatter"
    axes, where = lowering.axes.of_shape(node.inputs[1].view.shape if scatters else node.shape)
    if not scatters:
        term = lowering.compute(i, where) if required else lowering.at(i, where)
        return Cut(name, node.shape, node.dtype, axes, where, 0, required), term
    dest, chosen, source = node.inputs
    ordered = tuple(a.name for a in where[node.axis].variables())
    position = data(lowering.edge(chosen, where), node.shape[node.axis])
    index = (*where[: node.axis], position, *where[node.axis + 1 :])
    cut = Cut(name, node.shape, node.dtype, axes, index, 0, required, ordered,
              lowering.buffers[dest.node])  # fmt: skip
    return cut, lowering.edge(source, where)
