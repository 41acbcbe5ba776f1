"""The table of the 15 primitives: every fact about an operation lives here, once.

In: nothing. Out: `PRIMITIVES`, the leaves, and dtype rules. Other modules look facts up and never
repeat them. The pinned meaning of each primitive is executable in `interp.py`."""

from dataclasses import dataclass

from luminal.ir.dtype import DType, boolean


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive: `arity` inputs, its `kind`, relative `cost` in flops, whether integers and
    bools are accepted (`ints`) beside floats, and the name of an elementwise one in a `Term`."""

    name: str
    arity: int
    kind: str
    cost: int
    ints: bool
    term: str
    meaning: str


_TABLE = (
    Primitive("Log2", 1, "unary", 8, False, "log2", "base-2 logarithm; NaN below 0, -inf at 0"),
    Primitive("Exp2", 1, "unary", 8, False, "exp2", "2 to the power x"),
    Primitive("Sin", 1, "unary", 12, False, "sin", "sine, x in radians"),
    Primitive("Sqrt", 1, "unary", 4, False, "sqrt", "square root; NaN below 0"),
    Primitive("Recip", 1, "unary", 4, False, "recip", "1 / x; ±inf at ±0"),
    Primitive("Add", 2, "binary", 1, True, "add", "sum; integers wrap; bools: or"),
    Primitive("Mul", 2, "binary", 1, True, "mul", "product; integers wrap; bools: and"),
    Primitive("Mod", 2, "binary", 8, True, "mod", "C fmod, dividend's sign; ints: x mod 0 = 0"),
    Primitive("LessThan", 2, "binary", 1, True, "lt", "a < b as bool; false with NaN"),
    Primitive("SumReduce", 1, "reduce", 1, True, "", "sum along an axis; 0 if empty; bools: any"),
    Primitive("MaxReduce", 1, "reduce", 1, True, "", "maximum; NaN wins; empty: the least value"),
    Primitive("Iota", 0, "source", 0, True, "", "0, 1, 2, ... along one dimension"),
    Primitive("Gather", 2, "index", 1, True, "", "out[.., o, ..] = src[.., index[.., o, ..], ..]"),
    Primitive("Scatter", 3, "index", 1, True, "", "copy of dest with dest[.., index, ..] = src"),
    Primitive("Cast", 1, "unary", 1, True, "cast", "to another dtype; corners: interp.py"),
)
PRIMITIVES = {p.name: p for p in _TABLE}
LEAVES = ("Input", "Constant")


def result_dtype(op: str, inputs: tuple[DType, ...]) -> DType:
    """The dtype that primitive `op` yields for inputs of these dtypes (not Iota, not Cast)."""
    return boolean if op == "LessThan" else inputs[0]
