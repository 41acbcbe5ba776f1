"""Repeats in Dynamo's graph: stretches of nodes that do the same to other tensors, like layers.

In: a graph from Dynamo with example values. Out: runs of segments, each of which computes what the
first of its run computes, of operands with equal metadata. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.amp import autocast_mode
from torch.fx import GraphModule, Node

from luminal.frontend.torch.fingerprint import Unknown, text_of, token

__all__ = ["Segment", "repeats"]

_LEAST_SAVED = 24  # nodes; below that, tracing another graph costs more
_PERIODS = 48
_HARMLESS = ("_log_api_usage_once",)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes; those from outside that they read, in order of first use; those that are
    read outside. Segments with equal `text` compute the same."""

    nodes: tuple[Node, ...]
    operands: tuple[Node, ...]
    results: tuple[Node, ...]
    text: str


def repeats(gm: GraphModule) -> list[list[Segment]]:
    """Runs of at least two segments. Segments of a run have the same text, results included."""
    if _changes_state(gm):
        return []
    calls = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    tokens = [_token(n, number) for number, n in enumerate(calls)]
    place = {n: i for i, n in enumerate(calls)}
    last = [max((place.get(u, len(calls)) for u in n.users), default=-1) for n in calls]
    found = []
    for low, high, period in _runs(tokens, last, 0, len(calls)):
        cuts = range(low, high + 1, period)
        segments = [_segment(calls[a:b], place) for a, b in pairwise(cuts)]
        found += _equal(segments, place)
    return found


def _changes_state(gm: GraphModule) -> bool:
    """True if a node may change what later ones do: modes are on, or the function is not known."""
    depth = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or isinstance(node.target, torch._ops.OperatorBase):
            continue
        depth += node.target is autocast_mode._enter_autocast
        depth -= node.target is autocast_mode._exit_autocast
        if depth and node.target is not autocast_mode._enter_autocast:
            continue
        known = node.target in (autocast_mode._enter_autocast, autocast_mode._exit_autocast)
        if not known and getattr(node.target, "__name__", "") not in _HARMLESS:
            try:
                token(node)
            except Unknown:
                return True
    return depth != 0


def _token(node: Node, number: int) -> object:
    """What the node does, apart from which tensors it reads; its number if that is not known."""
    try:
        what = token(node)
        return (
            what,
            text_of((node.args, node.kwargs), lambda n: "%"),
            _metadata(node.meta.get("example_value")),
        )
    except Unknown:
        return number


def _metadata(value: object) -> object:
    """What tracing can see of a value; Unknown if it is no plain tensor of fixed sizes."""
    if isinstance(value, (list, tuple)):
        return tuple(_metadata(v) for v in value)
    if isinstance(value, (bool, int, float, str, type(None), torch.dtype, torch.device)):
        return repr(value)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise Unknown
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    views = value.is_conj() or value.is_neg()
    if not all(type(n) is int for n in sizes) or value.device.type != "cpu" or views:
        raise Unknown
    return sizes, value.dtype, value.requires_grad, isinstance(value, torch.nn.Parameter)


def _runs(
    tokens: Sequence[object], last: Sequence[int], low: int, high: int
) -> Iterator[tuple[int, int, int]]:
    """(begin, end, period) of runs between two places, cut where the fewest values cross."""
    best, most = None, _LEAST_SAVED
    for period in _periods(tokens[low:high]):
        for begin, end in _stretches(tokens, low, high, period):
            saved = end - begin - period
            if saved > most:
                best, most = (begin, end, period), saved
    if best is None:
        return
    begin, end, period = best
    turns = range(min(period, end - begin - 2 * period + 1))
    start = min((begin + t for t in turns), key=lambda c: _crossing(last, begin, c + period))
    stop = start + (end - start) // period * period
    yield from _runs(tokens, last, low, start)
    yield start, stop, period
    yield from _runs(tokens, last, stop, high)


def _periods(tokens: Sequence[object]) -> list[int]:
    """The commonest distances between a token and its next occurrence, shortest first."""
    seen: dict[object, int] = {}
    gaps: Counter[int] = Counter()
    for place, what in enumerate(tokens):
        if what in seen:
            gaps[place - seen[what]] += 1
        seen[what] = place
    return sorted(gap for gap, _ in gaps.most_common(_PERIODS))


def _stretches(
    tokens: Sequence[object], low: int, high: int, period: int
) -> Iterator[tuple[int, int]]:
    """Longest stretches in which every token is that of one period before."""
    begin = low
    for place in range(low + period, high + 1):
        if place == high or tokens[place] != tokens[place - period]:
            if place - begin >= 2 * period:
                yield begin, place
            begin = place - period + 1


def _crossing(last: Sequence[int], begin: int, cut: int) -> int:
    """How many values are made between two places and read later."""
    return sum(last[i] >= cut for i in range(begin, cut))


def _segment(nodes: Sequence[Node], place: dict[Node, int]) -> Segment:
    inside = {n: i for i, n in enumerate(nodes)}
    operands: dict[Node, int] = {}

    def name(node: Node) -> str:
        if node in inside:
            return f"%{inside[node]}"
        return f"${operands.setdefault(node, len(operands))}"

    lines = []
    for node in nodes:
        lines.append(token(node) + text_of((node.args, node.kwargs), name))
    results = tuple(n for n in nodes if any(u not in inside for u in n.users))
    try:
        lines += [str(_metadata(n.meta.get("example_value"))) for n in operands]
    except Unknown:
        lines.append(f"from {place[nodes[0]]}")
    return Segment(tuple(nodes), tuple(operands), results, "\n".join(lines))


def _equal(segments: Sequence[Segment], place: dict[Node, int]) -> Iterator[list[Segment]]:
    """Neighbours with one text; each gives whatever one of them has to give."""
    rest = list(segments)
    while rest:
        count = 1
        while count < len(rest) and rest[count].text == rest[0].text:
            count += 1
        run, rest = rest[:count], rest[count:]
        if count > 1 and (count - 1) * len(run[0].nodes) >= _LEAST_SAVED:
            given = {i for s in run for i, n in enumerate(s.nodes) if n in s.results}
            yield [
                Segment(s.nodes, s.operands, tuple(s.nodes[i] for i in sorted(given)), s.text)
                for s in run
            ]
