"""Loop IR: structured SSA between the generic lowering and the printers of each target.

In: objects built by `lower*.py`. Out: the same objects, printed by `llvm.py` (and C dialects).
Every value is a scalar or a vector of one dtype and is defined before its use in an enclosing
block. Nothing here knows terms, schedules or operators."""

from __future__ import annotations

from dataclasses import dataclass, field

from luminal.codegen.blocks import Arrival, Copy, Local, Sync
from luminal.ir.dtype import DType

OPS = {
    "add": "a + b (ints wrap)", "sub": "a - b", "mul": "a * b", "div": "a / b, floats",
    "fma": "a * b + c, floats, one rounding where the target has it",
    "mod": "C fmod; ints: sign of the dividend, x mod 0 = 0", "udiv": "a // b, ints >= 0, b > 0",
    "urem": "a % b, ints >= 0, b > 0", "floordiv": "floor(a / b), signed, b > 0",
    "floormod": "a - b * floor(a / b), b > 0", "min": "smaller of two ints",
    "max": "larger of two numbers; NaN wins", "lt": "a < b; false with NaN", "le": "a <= b",
    "eq": "a == b", "and": "bools", "or": "bools", "not": "bool", "select": "c ? a : b",
    "exp2": "2 ** a", "log2": "base-2 logarithm", "sin": "sine", "sqrt": "square root",
    "recip": "1 / a", "cast": "to the dtype of the result, as ir/interp.py defines it",
    "field": "attr (at, count, signed): `count` bits of an i32 from bit `at` on, as a number",
    "splat": "scalar to every lane", "lanes": "0, 1, 2, ... as a vector; no argument",
    "shuffle": "lanes `attr` of the concatenation of a and b",
    "reduce_add": "sum of the lanes, any order", "reduce_max": "maximum of the lanes; NaN wins",
    "dot4": "c + sums of 4 adjacent products: a u8 or i8, b i8, 4n lanes each; c i32, n lanes. "
    "attr (1,): a is 0..15",
    "lane_add": "sum over `attr` (n, s): the n threads of a block that lie s apart; all get it",
    "lane_max": "maximum over these; NaN wins", "mma": "a product of matrices, see `matrix.py`",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value: `lanes` elements of `dtype` (bool is one bit; lanes 1 is a scalar). f16 and
    bf16 are loaded, stored and cast, never computed with. The name is an identifier."""

    name: str
    dtype: DType
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, in every lane."""

    value: float | int | bool
    dtype: DType
    lanes: int = 1


Operand = Value | Literal


@dataclass(frozen=True, slots=True)
class Let:
    """result = op(args)."""

    result: Value
    op: str
    args: tuple[Operand, ...]
    attr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """result = element(s) of argument or scratch `base` at `offset` (an i64, in elements).

    A vector result reads consecutive elements from a scalar offset, or gathers from a vector of
    offsets. `mask` (bool, same lanes) turns lanes off; those are 0. 4-bit elements lie two to a
    byte, low nibble first. `dtype` is the storage type in memory; the result has the same dtype
    for computing types, and for storage types the decoded one (u4 i4 -> i8, f8/f4/e8m0 -> f32)."""

    result: Value
    base: str
    dtype: DType
    offset: Operand
    mask: Operand | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a value to consecutive elements of `base`, or scatters at a vector of offsets in
    lane order. The value has the storage dtype already."""

    base: str
    dtype: DType
    offset: Operand
    value: Operand
    mask: Operand | None = None


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Hints that the element of `base` at `offset`, which need not exist, will be needed."""

    base: str
    dtype: DType
    offset: Operand


@dataclass(frozen=True, slots=True)
class Fail:
    """Sets the kernel's error word if `condition` (any lane) is true."""

    condition: Operand


@dataclass(slots=True)
class Block:
    """Statements in order."""

    body: list[Statement] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class For:
    """for var in lo .. hi-1, step 1, where lo < hi is known. `carried` are (inside, initial) pairs;
    the body ends by passing `yields` to the next iteration, and `results` hold the last ones
    after the loop."""

    var: Value
    lo: Operand
    hi: Operand
    body: Block
    carried: tuple[tuple[Value, Operand], ...] = ()
    yields: tuple[Operand, ...] = ()
    results: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    """Runs one block; `results` take `then_yields` or `else_yields`."""

    condition: Operand
    then: Block
    orelse: Block
    then_yields: tuple[Operand, ...] = ()
    else_yields: tuple[Operand, ...] = ()
    results: tuple[Value, ...] = ()


Statement = Let | Load | Store | Prefetch | Fail | Sync | Copy | Arrival | For | If


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel. `arguments` are the names of its buffers and `dims` those of its symbolic
    dimensions (i64 values usable in the body), in the order of the argument block. `scratch` maps
    names of local memory to (byte offset in the thread's scratch). `lo`, `hi`: the chunk range.
    `grid` and `cost_ns` are blocks that compute i64 values `grid_value`, `cost_value`. On a GPU
    `lo` is the block's number, "tid" that of one of its `threads`, and `locals` its arrays."""

    name: str
    arguments: tuple[str, ...]
    dims: tuple[str, ...]
    scratch: tuple[tuple[str, int], ...]
    scratch_bytes: int
    lo: Value
    hi: Value
    body: Block
    grid: Block
    grid_value: Operand
    cost: Block
    cost_value: Operand
    locals: tuple[Local, ...] = ()
    threads: int = 0
