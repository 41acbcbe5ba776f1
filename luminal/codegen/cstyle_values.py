"""Operands and accesses to memory in a dialect of C.

In: values, loads and stores of loop IR. Out: text. Neighbours are read and written by up to 16
bytes at once where the offset is seen to be a multiple of that."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from luminal.codegen.blocks import Copy
from luminal.codegen.cstyle_dialect import Dialect, held, plain, stored
from luminal.codegen.cstyle_functions import literal
from luminal.codegen.loopir import Let, Literal, Load, Operand, Store, Value
from luminal.errors import DTypeError
from luminal.ir.dtype import DType


class Printer:
    """The lines of one kernel. `functions` are those it calls; `names` maps lanes of values to the
    variables that hold them; `lets` and `loads` say what made a value; `private` are the
    arrays of a thread."""

    def __init__(self, dialect: Dialect, dtypes: Mapping[str, DType]) -> None:
        self.dialect, self.dtypes = dialect, dtypes
        self.functions: set[str] = set()
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        self.lets: dict[str, Let] = {}
        self.loads: dict[str, Load] = {}
        self.private: set[str] = set()
        self.depth = 1

    # ---- operands

    def use(self, kind: str) -> None:
        """DTypeError for a type that the dialect lacks."""
        if kind != "bool" and kind not in self.dialect.types:
            raise DTypeError(f"[{self.dialect.name}] it has no 64-bit floats. Got {kind}; expected "
                             "f32 or smaller. Try a cast to float32.")  # fmt: skip

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def lane(self, operand: Operand, n: int) -> str:
        """The text of one lane of an operand."""
        if isinstance(operand, Literal):
            self.use(held(operand.dtype))
            if held(operand.dtype) == "u16" and not operand.value:
                return "0"
            return literal(_rounded(operand), operand.dtype.name)
        name = operand.name if operand.lanes == 1 else f"{operand.name}_{n}"
        return self.names.get(name, name)

    def lanes(self, value: Value) -> list[str]:
        """The names of the variables of a value."""
        self.use(held(value.dtype))
        return [self.lane(value, n) for n in range(value.lanes)]

    def define(self, value: Value, n: int, text: str) -> None:
        self.put(f"const {held(value.dtype)} {self.lanes(value)[n]} = {text};")

    def call(self, name: str, *args: str) -> str:
        self.functions.add(name)
        return f"{name}({', '.join(args)})"

    # ---- memory

    def place(self, s: Load | Store, n: int) -> str:
        """The offset of one lane."""
        if s.offset.lanes > 1:
            return self.lane(s.offset, n)
        return self.lane(s.offset, 0) + (f" + {n}" if n else "")

    def element(self, s: Load | Store, n: int) -> str:
        name, kind = plain(s.base), stored(s.dtype)
        if s.base in self.dtypes and stored(self.dtypes[s.base]) != kind:  # words of nibbles
            name = f"(({self.dialect.device}const {kind}*){name})"
        return f"{name}[{self.place(s, n)}]"

    def width(self, s: Load | Store, lanes: int) -> int:
        """How many elements one access takes: up to 16 bytes at an offset that is seen to be a
        multiple of them, all or none masked off."""
        count = min(lanes, 128 // s.dtype.bits)
        uniform = s.mask is None or self.uniform(s.mask)
        whole = self.factor(s.offset) % count == 0 and count * s.dtype.bits % 32 == 0
        able = s.offset.lanes == 1 and 8 <= s.dtype.bits <= 32 and lanes % count == 0
        return count if count > 1 and able and uniform and whole else 1

    def factor(self, operand: Operand) -> int:
        """A power of two that divides an integer."""
        if isinstance(operand, Literal):
            value = int(operand.value)
            return min(value & -value, 16) if value else 16
        let = self.lets.get(operand.name)
        if let is None or let.op not in ("add", "sub", "mul"):
            return 1
        a, b = map(self.factor, let.args)
        return min(a * b, 16) if let.op == "mul" else min(a, b)

    def uniform(self, mask: Operand) -> bool:
        let = self.lets.get(mask.name) if isinstance(mask, Value) else None
        return isinstance(mask, Literal) or (let is not None and let.op == "splat")

    def words(self, s: Load | Store, lanes: int) -> tuple[int, str]:
        """Elements of one access and the type of its words; 1 if there is none."""
        count = self.width(s, lanes)
        return count, {4: "u32", 8: "uint2", 16: "uint4"}[max(32, count * s.dtype.bits) // 8]

    def wide(self, s: Load | Store, kind: str, n: int) -> str:
        """The memory of one access as words."""
        d = self.dialect
        at = d.private if s.base in self.private else f"{d.memory} ".lstrip()
        at = d.device if s.base in self.dtypes else at
        const = "const " if isinstance(s, Load) else ""
        return f"*({at}{const}{kind}*)({plain(s.base)} + {self.place(s, n)})"

    def wide_load(self, s: Load) -> list[str]:
        """Texts of the bits of every lane, out of as few accesses as can be."""
        count, kind = self.words(s, s.result.lanes)
        if count == 1:
            return []
        texts: list[str] = []
        for n in range(0, s.result.lanes, count):
            name, text = f"{s.result.name}_at{n}", self.wide(s, kind, n)
            if s.mask is not None:
                zeros = self.vector(kind, ["0u"] * (count * s.dtype.bits // 32))
                text = f"{self.lane(s.mask, 0)} ? {text} : {zeros}"
            self.put(f"const {kind} {name} = {text};")
            for k in range(count):
                word, bit = divmod(k * s.dtype.bits, 32)
                part = name if kind == "u32" else f"{name}.{'xyzw'[word]}"
                shifted = f"({part} >> {bit})" if bit else part
                of = stored(s.dtype)
                texts.append(f"as_f32({part})" if of == "f32" else f"({of}){shifted}")
        return texts

    def wide_store(self, s: Store) -> bool:
        """Whether a vector is stored in as few accesses as can be."""
        count, kind = self.words(s, s.value.lanes)
        if count == 1 or s.mask is not None:
            return False
        for n in range(0, s.value.lanes, count):
            words = self.packed([self.lane(s.value, n + k) for k in range(count)], s.dtype)
            self.put(f"{self.wide(s, kind, n)} = {self.vector(kind, words)};")
        return True

    def packed(self, lanes: list[str], dtype: DType) -> list[str]:
        """The bits of values as words."""
        of, each = stored(dtype), 32 // dtype.bits
        texts = [f"as_u32({x})" if of == "f32" else f"(u32)({of}){x}" if each == 1
                 else f"(u32)({of.replace('i', 'u')}){x}" for x in lanes]  # fmt: skip
        groups = (texts[w : w + each] for w in range(0, len(lanes), each))
        return [" | ".join(f"{t} << {i * dtype.bits}" if i else t for i, t in enumerate(group))
                for group in groups]  # fmt: skip

    def product(self, s: Let) -> None:
        """A product of matrices: its rows of the first operand, word by word, then the second."""
        count, parts = s.attr
        both = [[w for v in s.args[n : n + parts]
                 for w in self.packed([self.lane(v, k) for k in range(v.lanes)], v.dtype)]
                for n in range(0, (count + 1) * parts, parts)]  # fmt: skip
        sums = [self.lane(v, k) for v in s.args[-count:] for k in range(2)]
        names = self.lanes(s.result)
        for name, first in zip(names, sums, strict=True):
            self.put(f"{held(s.result.dtype)} {name} = {first};")
        words = [w for words in zip(*both[:count]) for w in words] + both[count]
        self.put(f"{self.call(f'mma_{s.args[0].dtype}', *names, *words)};")

    def copied(self, s: Copy) -> bool:
        """Whether a copy is one instruction that goes on while the thread does."""
        a, b, lanes = s.load, s.store, s.store.value.lanes
        size = lanes * b.dtype.bits // 8
        whole = lanes == 1 or self.width(a, lanes) == self.width(b, lanes) == lanes
        if not self.dialect.arrival or size not in (4, 8, 16) or b.mask or not whole:
            return False
        if a.base not in self.dtypes or a.dtype != b.dtype or a.offset.lanes > 1:
            return False
        some = "true" if a.mask is None else self.lane(a.mask, 0)
        to, source = (f"{plain(x.base)} + {self.place(x, 0)}" for x in (b, a))
        self.put(f"{self.call(f'copy_{size}', to, source, some)};")
        return True

    def vector(self, kind: str, words: list[str]) -> str:
        made = self.dialect.vector.format(type=kind, values=", ".join(words))
        return made if len(words) > 1 else words[0]

    def loaded(self, s: Load, n: int, text: str) -> str:
        """An element, decoded; 0 where the mask turns it off."""
        dtype = s.dtype
        if dtype.bits == 4:
            place = self.place(s, n)
            text = f"({plain(s.base)}[({place}) >> 1] >> (({place}) & 1) * 4) & 15"
        if dtype.name == "bool":
            text = f"{text} != 0"
        elif dtype.name == "i4":
            text = f"(i8)((({text}) ^ 8) - 8)"
        elif dtype.name == "u4":
            text = f"(i8)({text})"
        elif dtype.storage:
            text = self.call(f"{dtype.name}_f32", f"(u8)({text})" if dtype.bits == 4 else text)
        if s.mask is None:
            return text
        off = Literal(False if dtype.name == "bool" else 0, s.result.dtype)
        return f"{self.lane(s.mask, n)} ? {text} : {self.lane(off, 0)}"


def _rounded(operand: Literal) -> float | int | bool:
    """A value that its dtype holds, so that its text is exact."""
    if operand.dtype.name in ("f32", "f16", "bf16"):
        with np.errstate(over="ignore"):
            return float(np.float32(operand.value))
    return operand.value
