"""Cases: a graph as text, sizes of its dims, a seed; and the random inputs that belong to it.

In: the text of a case. Out: its graph, its constants, arrays for its inputs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from luminal.ir.dtype import DType, boolean, by_name, f64
from luminal.ir.graph import ConstantData, Graph
from luminal.ir.numeric import encode
from luminal.ir.text import parse_graph

__all__ = ["Case", "Pick", "graph_of", "make_inputs", "parse_case"]

Pick = Callable[[int, int], int]


@dataclass(frozen=True)
class Case:
    """A graph as text, sizes of its dims for each run, the seed of its inputs."""

    text: str
    dims: tuple[tuple[tuple[str, int], ...], ...]
    seed: int
    wild: bool = False

    def __str__(self) -> str:
        runs = [" ".join(f"{n}={v}" for n, v in d) for d in self.dims]
        lines = [f"# seed {self.seed}{' wild' if self.wild else ''}"]
        return "\n".join([*lines, *(f"# run {r}" for r in runs), self.text])


def parse_case(text: str) -> Case:
    """The case that `str` printed."""
    seed, wild = re.search(r"^# seed (\d+)( wild)?", text, re.M).groups()
    runs = [re.findall(r"(\w+)=(\d+)", line) for line in re.findall(r"^# run(.*)$", text, re.M)]
    dims = tuple(tuple((n, int(v)) for n, v in run) for run in runs)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#")) + "\n"
    return Case(body, dims or ((),), int(seed), bool(wild))


def constants(text: str, seed: int) -> dict[str, ConstantData]:
    """Data for every named constant of a graph's text."""
    found = {}
    pattern = r"Constant\(name='([\w.]+)', shape=\[([\d, ]*)\], dtype=(\w+)"
    for name, shape, dtype in re.findall(pattern, text):
        sizes = tuple(int(s) for s in shape.split(",") if s.strip())
        kind = by_name(dtype)
        found[name] = ConstantData(name, _data(sizes, kind, _rng(name, seed)))
    return found


def graph_of(case: Case) -> Graph:
    """The graph of a case."""
    return parse_graph(case.text, constants(case.text, case.seed))


def _rng(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng((zlib.crc32(name.encode()), seed))


def _data(sizes: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if dtype == boolean:
        return rng.integers(0, 2, sizes).astype(bool)
    if dtype.storage:
        last = sizes[-1] // (2 if dtype.bits == 4 else 1)
        return rng.integers(0, 120, (*sizes[:-1], last)).astype(dtype.np)
    if dtype.is_int:
        low = 0 if dtype.kind == "u" else -9
        return rng.integers(low, 10, sizes).astype(dtype.np)
    values = rng.integers(-16, 17, sizes) / 4.0
    return encode(values.astype(np.float64 if dtype == f64 else np.float32), dtype)


def make_inputs(
    graph: Graph, dims: dict[str, int], seed: int, wild: bool = False
) -> dict[str, np.ndarray]:  # fmt: skip
    """Bits of every input; what is an index fits the dimension that it indexes.

    Inputs called `special...` hold some NaN, inf and -0.0; `wild` puts an index out of range.
    """
    limits: dict[int, int] = {}
    for node in graph.nodes:
        if node.op in ("Gather", "Scatter"):
            extent = node.inputs[0].view.shape[node.axis].evaluate(dims)
            index = node.inputs[1].node
            limits[index] = min(limits.get(index, extent), extent)
    found = {}
    for number, node in enumerate(graph.nodes):
        if node.op != "Input":
            continue
        rng = _rng(node.name, seed)
        sizes = tuple(e.evaluate(dims) for e in node.shape)
        stated = re.search(r"_lt_(\w+)", node.name)
        if stated:
            limits[number] = dims.get(stated[1]) or int(stated[1])
        if number in limits:
            limit = limits[number]
            values = rng.integers(0, max(1, limit), sizes)
            if wild and values.size:
                values.reshape(-1)[rng.integers(values.size)] = (-1, limit, 100, -100)[seed % 4]
            found[node.name] = values.astype(node.dtype.np)
            continue
        array = _data(sizes, node.dtype, rng)
        if node.name.startswith("mask") and node.dtype.is_float:
            array = encode(np.where(rng.integers(0, 2, sizes), 0, -np.inf), node.dtype)
        if node.name.startswith("special") and array.size:
            odd = np.asarray([np.nan, np.inf, -np.inf, -0.0], np.float32)
            flat = array.reshape(-1)
            for value in odd[: 1 + seed % 4]:
                flat[rng.integers(flat.size)] = encode(value, node.dtype)
        found[node.name] = array
    return found
