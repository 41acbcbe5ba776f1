"""What the loop IR of a GPU has beside that of a CPU: barriers and arrays of a block.

In: fields. Out: frozen values that `loopir.py` takes in. An exchange of lanes is a `Let` there."""

from dataclasses import dataclass

from luminal.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Sync:
    """All threads of a block wait for one another, and see what the others wrote."""


@dataclass(frozen=True, slots=True)
class Local:
    """A local array: of each thread, or shared by the block."""

    name: str
    dtype: DType
    elements: int
    shared: bool
