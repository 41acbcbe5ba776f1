"""A slow interpreter of loop IR: the meaning of every statement, in NumPy.

In: a Function, arrays by argument name (storage bits), dims. Out: the arrays, changed in place, and
whether an index error was reported. Reads and writes outside an array raise.
"""

from __future__ import annotations

import numpy as np

from luminal.codegen.loopir import (
    Block,
    Fail,
    For,
    Function,
    If,
    Let,
    Literal,
    Load,
    Operand,
    Prefetch,
    Store,
    Value,
)  # fmt: skip
from luminal.ir.dtype import DType, i32
from luminal.ir.numeric import apply, cast, decode, encode, value_dtype

PLAIN = {"sub": np.subtract, "div": np.divide}


class Interpreter:
    """Runs one function."""

    def __init__(self, function: Function, arrays: dict[str, np.ndarray], dims: dict[str, int]):
        self.function, self.dims = function, dims
        self.memory = {name: a.reshape(-1) for name, a in arrays.items()}
        self.room = {name: function.scratch_bytes - at for name, at in function.scratch}
        self.memory |= dict.fromkeys(self.room)
        self.failed = False
        self.hints = set[tuple[str, int]]()
        self.values: dict[str, np.ndarray] = {}

    def run(self) -> bool:
        """Runs all chunks; True if an index was out of range."""
        self.values = {n: np.asarray([v]) for n, v in self.dims.items()}
        self.block(self.function.grid)
        count = int(self.get(self.function.grid_value)[0])
        self.block(self.function.cost)
        assert int(self.get(self.function.cost_value)[0]) >= 0
        self.values = {n: np.asarray([v]) for n, v in self.dims.items()}
        self.values[self.function.lo.name] = np.asarray([0])
        self.values[self.function.hi.name] = np.asarray([count])
        self.block(self.function.body)
        return self.failed

    def get(self, operand: Operand) -> np.ndarray:
        if isinstance(operand, Literal):
            return np.full(operand.lanes, operand.value, value_dtype(operand.dtype))
        return self.values[operand.name]

    def set(self, value: Value, array: np.ndarray) -> None:
        array = np.asarray(array)
        assert array.shape == (value.lanes,), (value, array.shape)
        self.values[value.name] = array

    def block(self, block: Block) -> None:
        for s in block.body:
            match s:
                case Let():
                    self.set(s.result, self.let(s))
                case Load():
                    self.load(s)
                case Store():
                    self.store(s)
                case Prefetch():
                    self.hints.add((s.base, int(self.get(s.offset)[0])))
                case Fail():
                    self.failed |= bool(np.any(self.get(s.condition)))
                case For():
                    self.loop(s)
                case If():
                    then = bool(self.get(s.condition)[0])
                    self.block(s.then if then else s.orelse)
                    for r, y in zip(s.results, s.then_yields if then else s.else_yields):
                        self.set(r, self.get(y))

    def loop(self, s: For) -> None:
        lo, hi = int(self.get(s.lo)[0]), int(self.get(s.hi)[0])
        assert lo < hi
        carried = [self.get(start) for _, start in s.carried]
        for n in range(lo, hi):
            self.set(s.var, np.asarray([n]))
            for (inside, _), value in zip(s.carried, carried):
                self.set(inside, value)
            self.block(s.body)
            carried = [self.get(y) for y in s.yields]
        for r, value in zip(s.results, carried):
            self.set(r, value)

    def let(self, s: Let) -> np.ndarray:
        args = [self.get(a) for a in s.args]
        dtype, lanes = s.result.dtype, s.result.lanes
        for a, v in zip(s.args, args):
            assert a.lanes == v.shape[0]
        if s.op not in ("splat", "reduce_add", "reduce_max", "shuffle", "dot4"):
            assert all(a.lanes == lanes for a in s.args), s
        kind = s.args[0].dtype if s.args else dtype
        with np.errstate(all="ignore"):
            return self.operation(s, args, kind, dtype, lanes)

    def operation(self, s: Let, args: list[np.ndarray], kind: DType, dtype: DType, lanes: int):
        match s.op:
            case "add" | "mul" | "mod" | "max" | "lt" | "exp2" | "log2" | "sin" | "sqrt" | "recip":
                assert all(a.dtype == kind for a in s.args), s
                return apply(s.op, kind, *args)
            case "sub" | "div":
                return PLAIN[s.op](*args)
            case "fma":
                return args[0] * args[1] + args[2]
            case "udiv" | "floordiv":
                assert (args[1] > 0).all()
                return args[0] // args[1]
            case "urem" | "floormod":
                assert (args[1] > 0).all()
                return args[0] % args[1]
            case "min":
                return np.minimum(*args)
            case "le":
                return args[0] <= args[1]
            case "eq":
                return args[0] == args[1]
            case "and":
                return args[0] & args[1]
            case "or":
                return args[0] | args[1]
            case "not":
                return ~args[0]
            case "select":
                return np.where(*args)
            case "cast":
                return cast(args[0], kind, dtype)
            case "splat":
                return np.repeat(args[0], lanes)
            case "lanes":
                return np.arange(lanes).astype(dtype.np)
            case "reduce_add":
                return np.sum(args[0], keepdims=True, dtype=args[0].dtype)
            case "reduce_max":
                return np.max(args[0], keepdims=True)
            case "shuffle":
                return np.concatenate(args)[list(s.attr)]
            case "field":
                at, count, signed = s.attr
                bits = args[0].astype(np.int64) >> at & (1 << count) - 1
                return (bits - (signed * bits >> count - 1 << count)).astype(dtype.np)
            case "dot4":
                wide = [a.astype(np.int64).reshape(-1, 4) for a in args[:2]]
                return (args[2] + (wide[0] * wide[1]).sum(1)).astype(np.int32)
        raise AssertionError(s.op)

    def place(self, base: str, dtype: DType) -> np.ndarray:
        if self.memory[base] is None:
            size = self.room[base] // dtype.itemsize * dtype.itemsize
            self.memory[base] = np.full(size, 99, np.uint8).view(dtype.np).copy()
        return self.memory[base]

    def offsets(self, offset: Operand, lanes: int) -> np.ndarray:
        start = self.get(offset)
        return start if offset.lanes == lanes and lanes > 1 else start[0] + np.arange(lanes)

    def load(self, s: Load) -> None:
        memory = self.place(s.base, s.dtype)
        where = self.offsets(s.offset, s.result.lanes)
        mask = self.get(s.mask) if s.mask is not None else np.ones(len(where), bool)
        assert mask.shape == where.shape
        used = where[mask]
        if s.dtype == i32 and memory.itemsize == 1:  # whole words of smaller elements
            memory = memory.view(np.int32)
        memory = decode(memory, s.dtype).astype(value_dtype(s.dtype))
        assert ((used >= 0) & (used < memory.size)).all(), (s, used, memory.size)
        value = np.zeros(len(where), memory.dtype)
        value[mask] = memory[used]
        self.set(s.result, value)

    def store(self, s: Store) -> None:
        memory = self.place(s.base, s.dtype)
        where = self.offsets(s.offset, s.value.lanes)
        mask = self.get(s.mask) if s.mask is not None else np.ones(len(where), bool)
        assert s.value.dtype == s.dtype, s
        used = where[mask]
        assert ((used >= 0) & (used < memory.size)).all(), (s, used, memory.size)
        memory[used] = encode(self.get(s.value), s.dtype)[mask]
