"""What the loop IR of a GPU has beside that of a CPU: barriers, arrays of a block, copies to them.

In: fields. Out: frozen values that `loopir.py` takes in. An exchange of lanes is a `Let` there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from luminal.ir.dtype import DType

if TYPE_CHECKING:
    from luminal.codegen.loopir import Load, Store


@dataclass(frozen=True, slots=True)
class Sync:
    """All threads of a block wait for one another, and see what the others wrote."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What is loaded is stored, at the latest at the `Arrival` that waits for it."""

    load: Load
    store: Store


@dataclass(frozen=True, slots=True)
class Arrival:
    """The thread's copies since the last of these are a group. All groups but the last `left` have
    arrived; for other threads, at the next barrier."""

    left: int


@dataclass(frozen=True, slots=True)
class Local:
    """A local array: of each thread, or shared by the block."""

    name: str
    dtype: DType
    elements: int
    shared: bool
