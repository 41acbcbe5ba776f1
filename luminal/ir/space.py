"""Space: what rewriting hands to search: every program that was found equal to the graph.

In: frozen e-graphs, one per unique region. Out: values and choices; `search.extract` picks one
choice per value and decides which cuts are stored. Says nothing of costs or machines."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from luminal.ir.dtype import DType
from luminal.ir.expr import Expr, Var
from luminal.ir.plan import Buffer
from luminal.ir.term import REDUCTIONS
from luminal.ir.view import Shape


class Choice(NamedTuple):
    """One way to compute a value: operation `op` of ir.term on other values (`args`). In an e-graph
    the payload of a constant is (repr, value), which tells 0.0 from -0.0."""

    op: str
    args: tuple[int, ...]
    dtype: DType
    payload: Any = None

    @property
    def axes(self) -> tuple[Var, ...]:
        """The bound axes of a reduction."""
        return self.payload if self.op in REDUCTIONS else ()

    @property
    def indices(self) -> tuple[Expr, ...]:
        """The index expressions of a leaf."""
        if self.op == "load":
            return self.payload[1]
        return (self.payload,) if self.op in ("index", "cond") else ()


@dataclass(frozen=True, slots=True)
class Value:
    """A class of equal terms: their common free axes and the ways to compute them."""

    dtype: DType
    free: frozenset[Var]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A value that is stored (`required`) or may be stored in a buffer of its own.

    Stores value number `value` at `index` for every point of `axes`; loads of `name` in choices
    read it. `dest`, for a scatter, names the buffer whose copy is updated; `ordered` are the axes
    whose points must be stored in rising order."""

    name: str
    shape: Shape
    dtype: DType
    axes: tuple[Var, ...]
    index: tuple[Expr, ...]
    value: int
    required: bool
    ordered: tuple[str, ...] = ()
    dest: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """A unit of rewriting: its values, cuts in topological order, the buffers it only reads."""

    values: tuple[Value, ...]
    cuts: tuple[Cut, ...]
    sources: tuple[Buffer, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a region: the real names of its cuts and sources, and where each cut stands in
    the order of the graph."""

    region: int
    cuts: tuple[str, ...]
    sources: tuple[str, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """An output: its buffer, and the input that it overwrites ('' if none)."""

    name: str
    buffer: str
    shape: Shape
    dtype: DType
    updates: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """All regions, their uses in order, and the calling convention: `inputs` in the order given."""

    regions: tuple[Region, ...]
    calls: tuple[Call, ...]
    inputs: tuple[Buffer, ...]
    constants: tuple[Buffer, ...]
    results: tuple[Result, ...]
    dims: tuple[Var, ...] = ()
