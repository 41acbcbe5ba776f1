"""Dialects of C: what sets one apart, and the names of types that all share.

In: fields. Out: a frozen value. Knows no loop IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from luminal.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Dialect:
    """What sets one C dialect apart.

    `types` names its types by ours; `head` opens a file. `signature` is formatted with `name`,
    `threads` and `parameters`; `pointer` with `type`, `name`, `number` (a type of what is only read
    is const), `size` likewise for a dimension; `extra` follows these. `entry` are the first lines
    of a kernel; `memory` qualifies pointers to what a block shares, `device` those to buffers,
    `private` those to arrays of a thread, which `align` puts at multiples of 16 bytes;
    `vector` makes one of `type` of `values`; `warp` says how many lanes `shuffle` reaches. `math`
    formats functions by name or dtype, as `{}f` for exp2f; `casts` are functions that read the bits
    of a value as another type, `own` others that it has alone.
    `arrival` waits for copies, if it can copy while threads go on."""

    name: str
    types: Mapping[str, str]
    head: str
    signature: str
    pointer: str
    size: str
    extra: tuple[str, ...]
    entry: str
    function: str
    memory: str
    device: str
    private: str
    align: str
    barrier: str
    vector: str
    warp: int
    shuffle: Callable[[str, str], str]
    math: Mapping[str, str]
    casts: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
    arrival: str = ""


def stored(dtype: DType) -> str:
    """The type of an element in memory: halves, bools and small formats as their bits."""
    if dtype.name in ("f64", "f32") or (dtype.is_int and dtype.bits >= 8):
        return dtype.name
    return "u16" if dtype.bits == 16 else "u8"


def held(dtype: DType) -> str:
    """The type of a value."""
    return "bool" if dtype.name == "bool" else stored(dtype)


def plain(name: str) -> str:
    """A name as an identifier."""
    return name.replace(".", "_")
