"""Prints loop IR as one kernel in a dialect of C.

In: a `loopir.Function` of a GPU, the dtypes of its buffers, a `Dialect`. Out: text that is complete
but for what the vendor's compiler brings. A vector is printed lane by lane. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from luminal.codegen.barriers import inner_blocks
from luminal.codegen.blocks import Arrival, Copy, Sync
from luminal.codegen.cstyle_dialect import Dialect, held, plain, stored
from luminal.codegen.cstyle_functions import combined, function_texts, literal
from luminal.codegen.cstyle_values import Printer
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
    Statement,
    Store,
    Value,
)
from luminal.ir.dtype import DType, by_name

_SIGNS = {"div": "/", "udiv": "/", "urem": "%", "lt": "<", "le": "<=", "eq": "==", "and": "&&",
          "or": "||"}  # fmt: skip
_WIDTH = 16
"""The most bytes of one access."""


def print_function(
    function: Function, dtypes: Mapping[str, DType], written: Collection[str], dialect: Dialect,
    note: str = "",
) -> tuple[str, int]:  # fmt: skip
    """The text of a kernel under `note`, and the bytes that a block shares."""
    return _Printer(function, dtypes, written, dialect).text(note)


class _Printer(Printer):
    """Prints one kernel: statements and operations."""

    def __init__(
        self, function: Function, dtypes: Mapping[str, DType], written: Collection[str],
        dialect: Dialect,
    ) -> None:  # fmt: skip
        super().__init__(dialect, dtypes)
        self.function, self.written = function, written
        self.private = {a.name for a in function.locals if not a.shared}
        self.computed: set[str] = set()  # what is computed from data, and may wrap
        self.exchanged = 0
        self.live: set[str] = set()
        _mark(function.body, self.live)

    def text(self, note: str) -> tuple[str, int]:
        d, f = self.dialect, self.function
        self.block(f.body)
        body = list(self.lines)
        places, shared_bytes = self.locals()
        words = "\n".join((*body, *places))
        entry = [line for line in d.entry.format(block=f.lo.name).split("\n")
                 if not line or line.split(" = ")[0].split()[-1] in words]  # fmt: skip
        parameters = ",\n    ".join((*self.parameters(), *d.extra))
        head = d.signature.format(name=f.name, threads=f.threads, parameters=parameters)
        functions = function_texts(self.functions, d.own, d.shuffle)
        macros = {"FN": d.function, "SHARED": d.memory, "BARRIER": d.barrier, "WARP": str(d.warp)}
        called = "\n".join((*functions, *body))
        functions = [*(text for n, text in d.casts.items() if n in called), *functions]
        used = "\n".join(functions)
        types = [f"typedef {d.types[t]} {t};" for t in d.types if d.types[t] != t]
        parts = [d.head, *types, *(f"#define {k} {v}" for k, v in macros.items() if k in used),
                 *functions, "",
                 *(f"// {line}" for line in note.split("\n")),
                 f"{head} {{", *entry, *places, *body, "}", ""]  # fmt: skip
        return "\n".join(parts), shared_bytes

    def parameters(self) -> list[str]:
        d, made = self.dialect, []
        for number, name in enumerate(self.function.arguments):
            kind = stored(self.dtypes[name])
            self.use(kind)
            kind = kind if name in self.written else f"const {kind}"
            made.append(d.pointer.format(type=kind, name=name, number=number))
        made += [d.size.format(name=name, number=len(made) + n)
                 for n, name in enumerate(self.function.dims)]  # fmt: skip
        return [*made, d.pointer.format(type="u32", name="error", number=len(made))]

    def locals(self) -> tuple[list[str], int]:
        """Declarations of the local arrays, and the bytes that are shared."""
        lines, total = list[str](), 0
        pointer = f"{self.dialect.memory} ".lstrip()
        for a in self.function.locals:
            kind, name = stored(a.dtype), plain(a.name)
            self.use(kind)
            if not a.shared:
                lines.append(f"    {self.dialect.align} {kind} {name}[{max(1, a.elements)}];")
                continue
            lines.append(f"    {pointer}{kind}* {name} = ({pointer}{kind}*)(shared + {total});")
            total += -(-a.elements * a.dtype.itemsize // _WIDTH) * _WIDTH
        return lines, total + self.exchanged

    # ---- statements

    def block(self, block: Block) -> None:
        for s in block.body:
            if not isinstance(s, Let | Load) or s.result.name in self.live:
                self.statement(s)

    def statement(self, s: Statement) -> None:
        if isinstance(s, Let):
            self.lets[s.result.name] = s
        match s:
            case Let() if (value := self.alias(s)) is not None:
                for n, name in enumerate(self.lanes(s.result)):
                    self.names[name] = self.lane(value, n if value.lanes > 1 else 0)
            case Let(_, "mma"):
                self.product(s)
            case Let():
                for n in range(s.result.lanes):
                    self.define(s.result, n, self.expression(s, n))
            case Load():
                self.computed.add(s.result.name)
                self.loads[s.result.name] = s
                raw = self.wide_load(s) or [self.element(s, n) for n in range(s.result.lanes)]
                for n, text in enumerate(raw):
                    self.define(s.result, n, self.loaded(s, n, text))
            case Store() if not self.wide_store(s):
                for n in range(s.value.lanes):
                    mask = f"if ({self.lane(s.mask, n)}) " if s.mask is not None else ""
                    value = self.lane(s.value, n)
                    value = f"({stored(s.dtype)}){value}" if s.dtype.name == "bool" else value
                    self.put(f"{mask}{self.element(s, n)} = {value};")
            case Fail(condition):
                lanes = (self.lane(condition, n) for n in range(condition.lanes))
                self.put(f"if ({' || '.join(lanes)}) error[0] = 1;")
            case Copy() if not self.copied(s):
                if s.load.result.name not in self.live:
                    self.statement(s.load)
                self.statement(replace(s.store, value=s.load.result))
            case Arrival(left) if self.dialect.arrival:
                self.put(self.dialect.arrival.format(left=left))
            case Sync():
                self.put(f"{self.dialect.barrier};")
            case For():
                self.loop(s)
            case If():
                self.branch(s)

    def alias(self, let: Let) -> Operand | None:
        """What a result is another name of: a splat's scalar; a load that its mask has made 0
        already where a select does it again."""
        if let.op == "splat":
            return let.args[0]
        if let.op != "select":
            return None
        condition, value, other = let.args
        load = self.loads.get(value.name) if isinstance(value, Value) else None
        zero = isinstance(other, Literal) and repr(other.value) in ("0", "0.0", "False")
        return value if load is not None and load.mask == condition and zero else None

    def declare(self, values: Sequence[Value], firsts: Sequence[Operand] = ()) -> None:
        """Variables that are assigned to later."""
        for i, value in enumerate(values):
            for n, name in enumerate(self.lanes(value)):
                first = f" = {self.lane(firsts[i], n)}" if firsts else ""
                self.put(f"{held(value.dtype)} {name}{first};")

    def assign(self, values: Sequence[Value], sources: Sequence[Operand]) -> None:
        """All at once: what another of the values is read from is kept first."""
        pairs = [(name, self.lane(source, n), value) for value, source in zip(values, sources)
                 for n, name in enumerate(self.lanes(value))]  # fmt: skip
        pairs = [p for p in pairs if p[0] != p[1]]
        targets = {name for name, _, _ in pairs}
        for i, (name, source, value) in enumerate(pairs):
            if source in targets:
                self.put(f"const {held(value.dtype)} next_{name} = {source};")
                pairs[i] = (name, f"next_{name}", value)
        for name, source, _ in pairs:
            self.put(f"{name} = {source};")

    def loop(self, s: For) -> None:
        inside = [value for value, _ in s.carried]
        self.computed |= {v.name for v in (*inside, *s.results) if v.dtype.name != "i64"}
        self.declare(inside, [first for _, first in s.carried])
        var, lo, hi = s.var.name, self.lane(s.lo, 0), self.lane(s.hi, 0)
        self.put(f"for (i64 {var} = {lo}; {var} < {hi}; ++{var}) {{")
        self.depth += 1
        self.block(s.body)
        self.assign(inside, s.yields)
        self.depth -= 1
        self.put("}")
        for value, result in zip(inside, s.results, strict=True):
            for name, target in zip(self.lanes(value), self.lanes(result), strict=True):
                self.names[target] = name

    def branch(self, s: If) -> None:
        self.declare(s.results)
        parts = ((f"if ({self.lane(s.condition, 0)}) {{", s.then, s.then_yields),
                 ("} else {", s.orelse, s.else_yields))  # fmt: skip
        for head, block, yields in parts[: 2 if s.orelse.body or s.results else 1]:
            self.put(head)
            self.depth += 1
            self.block(block)
            self.assign(s.results, yields)
            self.depth -= 1
        self.put("}")

    # ---- operations

    def expression(self, let: Let, n: int) -> str:
        """The text of one lane of a result."""
        dtype, op = let.result.dtype, let.op
        if any(isinstance(a, Value) and a.name in self.computed for a in let.args) or op == "cast":
            self.computed.add(let.result.name)
        match op:
            case "lanes":
                return literal(n, dtype.name)
            case "shuffle":
                which, lane = divmod(let.attr[n], let.args[0].lanes)
                return self.lane(let.args[which], lane)
            case "reduce_add" | "reduce_max":
                return self.reduced(let)
            case "dot4":
                return self.dot(let, n)
            case "field":
                return self.bits(let, n)
            case "lane_add" | "lane_max":
                if let.attr[0] * let.attr[1] > self.dialect.warp:
                    self.exchanged = self.function.threads * 8
                at, kind = self.dialect.memory, held(dtype)
                place = f"({at} {kind}*)(shared + {self.locals()[1] - self.exchanged})"
                count = ", ".join(map(str, let.attr))
                args = (self.lane(let.args[0], n), count, "(int)tid", place.replace("( ", "("))
                return self.call(f"{op}_{kind}", *args)
        return self.plain(let, [self.lane(a, n if a.lanes > 1 else 0) for a in let.args])

    def plain(self, let: Let, args: list[str]) -> str:
        """An operation on scalars."""
        dtype, op, source = let.result.dtype, let.op, let.args[0].dtype
        if op in _SIGNS:
            return f"{args[0]} {_SIGNS[op]} {args[1]}"
        match op:
            case "add" | "sub" | "mul" if dtype.name == "i64" and (
                let.result.name not in self.computed
            ):
                return f"{args[0]} {'+-*'[('add', 'sub', 'mul').index(op)]} {args[1]}"
            case "add" | "sub" | "mul" | "max":
                return combined(op, dtype.name, *args)
            case "min":
                return f"{args[0]} < {args[1]} ? {args[0]} : {args[1]}"
            case "not":
                return f"!{args[0]}"
            case "select":
                return f"{args[0]} ? {args[1]} : {args[2]}"
            case "recip":
                return f"{literal(1.0, dtype.name)} / {args[0]}"
            case "cast":
                return self.cast(args[0], source, dtype)
            case "floordiv" | "floormod":
                return self.call(op, *args)
            case "mod" if not dtype.is_float:
                return "false" if dtype.name == "bool" else self.call(f"mod_{dtype.name}", *args)
        name = {"mod": "fmod"}.get(op, op)
        math = self.dialect.math
        return f"{math.get(name, math[dtype.name]).format(name)}({', '.join(args)})"

    def cast(self, x: str, source: DType, target: DType) -> str:
        """A conversion as ir/interp.py gives it."""
        names = (source.name, target.name)
        if target.name == "bool":
            if source.name in ("f16", "bf16"):
                return f"({x} & 0x7fff) != 0"
            return f"{x} != 0"
        if source.name in ("f16", "bf16"):
            single = self.call(f"{source.name}_f32", x)
            return single if target.name == "f32" else self.cast(single, by_name("f32"), target)
        if target.name in ("f16", "bf16"):
            if names != ("f64", "f16"):
                x = x if source.name == "f32" else f"(f32){x}"
                names = ("f32", target.name)
            return self.call("_".join(names), x)
        if source.is_float and not target.is_float:
            return self.call("_".join(names), x)
        return f"({target.name}){x}"

    def reduced(self, let: Let) -> str:
        """The lanes of a vector as one, by halves."""
        op, name = let.op[7:], let.result.dtype.name
        parts = [self.lane(let.args[0], n) for n in range(let.args[0].lanes)]
        while len(parts) > 1:
            half = (len(parts) + 1) // 2
            for n in range(len(parts) - half):
                made = f"{let.result.name}_{half}_{n}"
                text = combined(op, name, parts[n], parts[n + half])
                self.put(f"const {held(let.result.dtype)} {made} = {text};")
                parts[n] = made
            parts = parts[:half]
        return parts[0]

    def bits(self, let: Let, n: int) -> str:
        """Some bits of an integer as a number."""
        (at, count, signed), word = let.attr, self.lane(let.args[0], n)
        text = f"(({word} >> {at}) & {(1 << count) - 1})"
        if signed:
            text = f"((i32)((u32){word} << {32 - count - at}) >> {32 - count})"
        return self.cast(text, by_name("i32"), let.result.dtype)

    def dot(self, let: Let, n: int) -> str:
        a, b, c = let.args
        pairs = (f"(i32){self.lane(a, 4 * n + k)} * (i32){self.lane(b, 4 * n + k)}"
                 for k in range(4))  # fmt: skip
        return combined("add", "i32", self.lane(c, n), f"({' + '.join(pairs)})")


def _mark(block: Block, live: set[str]) -> None:
    """Adds the names of values that a block needs, from its end on."""
    for s in reversed(block.body):
        needed: list[Operand | None] = []
        match s:
            case Let(result, _, args):
                needed = [*args] if result.name in live else []
            case Load(result):
                needed = [s.offset, s.mask] if result.name in live else []
            case Store():
                needed = [s.offset, s.value, s.mask]
            case Fail(condition):
                needed = [condition]
            case Copy(a, b):
                needed = [a.offset, a.mask, b.offset, b.mask]
            case For():
                needed = [s.lo, s.hi, *s.yields, *(first for _, first in s.carried)]
            case If():
                needed = [s.condition, *s.then_yields, *s.else_yields]
        live.update(v.name for v in needed if isinstance(v, Value))
        for inner in inner_blocks(s):
            _mark(inner, live)
