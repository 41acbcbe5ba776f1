"""Prints loop IR as LLVM text for CPUs.

In: a `loopir.Function` and a Target. Out: the text of a self-contained module with the symbols
that ir/program.py KernelCode names. No LLVM pass but code generation will run: vectors are
explicit, everything is inline. Decides nothing about the kernel.
"""

from __future__ import annotations

import re

from luminal.codegen import llvm_memory
from luminal.codegen.llvm_dot import dot4
from luminal.codegen.llvm_ops import instruction
from luminal.codegen.llvm_types import ELEMENT, MEMORY, Emitter, constant, suffix, vector
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
from luminal.errors import InternalError
from luminal.ir.target import Target

__all__ = ["print_function"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.$-]*\Z")


def print_function(function: Function, target: Target) -> str:
    """LLVM text of one kernel: `name`, `name_grid` and `name_cost`, and what they need.

    Symbols of the C library that it may call: fmod, fmodf (op mod), sin (op sin, huge arguments).
    """
    printer = _Printer(function, target)
    body = printer.main()
    grid = printer.size("_grid", function.grid, function.grid_value)
    cost = printer.size("_cost", function.cost, function.cost_value)
    emitter = printer.emitter
    head = "\n".join(emitter.declared)
    loops = "\n".join(f"!{i} = distinct !{{!{i}, !0}}" for i in range(2, 2 + emitter.loops))
    width = f'"prefer-vector-width"="{target.vector_bits}"' if emitter.x86 else ""
    return (
        f'target triple = "{target.triple}"\n\n{head}\n\n{body}\n{grid}\n{cost}\n'
        f'attributes #0 = {{ nounwind "no-builtins" "target-cpu"="{target.cpu}" '
        f'"target-features"="{target.features}" {width} }}\n\n'
        f'!0 = !{{!"llvm.loop.unroll.disable"}}\n!1 = !{{i32 1}}\n{loops}\n'
    )


class _Printer:
    """State while one kernel is printed: `texts` maps names of values to operand texts, `lets` to
    their definitions; `nibbles` are values loaded from u4."""

    def __init__(self, function: Function, target: Target) -> None:
        self.function = function
        self.emitter = Emitter(target)
        self.base_index = {name: i for i, name in enumerate(function.arguments)}
        self.dim_index = {name: i for i, name in enumerate(function.dims)}
        self.scratch = dict(function.scratch)
        self._begin()

    def _begin(self) -> None:
        self.emitter.reset()
        self.texts: dict[str, str] = {}
        self.prologue: dict[str, str] = {}
        self.lets: dict[str, Let] = {}
        self.nibbles: set[str] = set()

    def main(self) -> str:
        """The text of the kernel proper."""
        function = self.function
        self._begin()
        lo, hi = self._define(function.lo.name), self._define(function.hi.name)
        self._block(function.body)
        self.emitter.put("ret void")
        head = f"define void @{function.name}(ptr %.args, i64 {lo}, i64 {hi}, ptr %.scratch)"
        return self._finish(head)

    def size(self, ending: str, block: Block, value: Operand) -> str:
        """The text of a function that computes one number from the arguments."""
        self._begin()
        self._block(block)
        self.emitter.put(f"ret i64 {self._operand(value)}")
        return self._finish(f"define i64 @{self.function.name}{ending}(ptr %.args)")

    def _finish(self, head: str) -> str:
        lines = [f"{head} #0 {{", "entry:", *self.prologue.values(), *self.emitter.lines, "}", ""]
        return "\n".join(lines)

    def _define(self, name: str) -> str:
        text = f"%{name}" if _PLAIN.match(name) else f'%"{name}"'
        self.texts[name] = text
        return text

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, Literal):
            return constant(operand.value, operand.dtype.name, operand.lanes)
        text = self.texts.get(operand.name)
        if text is not None:
            return text
        if operand.name not in self.dim_index:
            raise InternalError(
                f"[codegen] {self.function.name}: value {operand.name!r} is used before it is "
                "defined"
            )
        word = len(self.function.arguments) + self.dim_index[operand.name]
        text = self._define(operand.name)
        self._argument(operand.name, text, "i64", word)
        return text

    def _argument(self, key: str, text: str, kind: str, word: int) -> None:
        """Load word number `word` of the argument block at the function's entry."""
        at = f"  %.w{word} = getelementptr inbounds i64, ptr %.args, i64 {word}\n"
        self.prologue[key] = f"{at}  {text} = load {kind}, ptr %.w{word}, align 8"

    def _pointer(self, base: str) -> str:
        if base in self.base_index:
            index = self.base_index[base]
            text = f"%.a{index}"
            if text not in self.prologue:
                self._argument(text, text, "ptr", index)
            return text
        if base not in self.scratch:
            raise InternalError(f"[codegen] {self.function.name}: no buffer called {base!r}")
        text = f"%.s{self.scratch[base]}"
        self.prologue[text] = (
            f"  {text} = getelementptr inbounds i8, ptr %.scratch, i64 {self.scratch[base]}"
        )
        return text

    def _block(self, block: Block) -> None:
        for statement in block.body:
            kind = type(statement)
            if kind is Let:
                self._let(statement)
            elif kind is Load:
                self._load(statement)
            elif kind is Store:
                self._store(statement)
            elif kind is For:
                self._for(statement)
            elif kind is If:
                self._if(statement)
            elif kind is Fail:
                self._fail(statement)
            elif kind is Prefetch:
                offset = self._operand(statement.offset)
                pointer = self._pointer(statement.base)
                llvm_memory.prefetch(self.emitter, statement, pointer, offset)
            else:
                raise InternalError(f"[codegen] unknown statement {statement!r}")

    def _name(self, value: Value, rhs: str) -> None:
        """Bind a value to an instruction, under its own name, or to an operand."""
        if rhs[0] == "=":
            self.texts[value.name] = rhs[1:]
        else:
            self.emitter.lines.append(f"  {self._define(value.name)} = {rhs}")

    def _let(self, let: Let) -> None:
        args = [self._operand(a) for a in let.args]
        if let.op == "dot4":
            self.texts[let.result.name] = self._dot4(let, args)
            return
        self._name(let.result, instruction(self.emitter, let, args))
        self.lets[let.result.name] = let
        if let.op in ("shuffle", "splat") and all(map(self._is_nibble, let.args)):
            self.nibbles.add(let.result.name)

    def _is_nibble(self, operand: Operand) -> bool:
        return isinstance(operand, Value) and operand.name in self.nibbles

    def _dot4(self, let: Let, args: list[str]) -> str:
        """Operands known to be 0..15 may stand first and take shorter code."""
        a, b, c = args
        unsigned = let.args[0].dtype.name == "u8"
        if not unsigned and self._is_nibble(let.args[1]):
            a, b = b, a
        small = self._is_nibble(let.args[0]) or self._is_nibble(let.args[1])
        return dot4(self.emitter, let.result.lanes, unsigned or small, small, a, b, c)

    def _mask(self, mask: Operand | None) -> str | None:
        return None if mask is None else self._operand(mask)

    def _load(self, statement: Load) -> None:
        half = self._half(statement.offset) if statement.dtype.bits == 4 else None
        pointer, offset = self._place(statement)
        mask = self._mask(statement.mask)
        operand = llvm_memory.load(self.emitter, statement, pointer, offset, mask, half)
        self.texts[statement.result.name] = operand
        if statement.dtype.name == "u4":
            self.nibbles.add(statement.result.name)

    def _place(self, statement: Load | Store) -> tuple[str, str]:
        """Pointer and offset. What all lanes of a gather share goes into the pointer, so that
        the lanes' own part is constant or narrow."""
        pointer = self._pointer(statement.base)
        if statement.offset.lanes == 1 or statement.dtype.bits < 8:
            return pointer, self._operand(statement.offset)
        lanes = statement.offset.lanes
        shared, steps, others = self._spread(statement.offset)
        element = MEMORY[statement.dtype.name]
        for text in shared:
            gep = f"getelementptr inbounds {element}, ptr {pointer}, i64 {text}"
            pointer = self.emitter.let(gep)
        offset = "<" + ", ".join(f"i64 {step}" for step in steps) + ">"
        kind = vector("i64", lanes)
        for i, text in enumerate(others):
            keep = i or any(steps)
            offset = self.emitter.let(f"add {kind} {offset}, {text}") if keep else text
        return pointer, offset

    def _spread(self, operand: Operand) -> tuple[list[str], list[int], list[str]]:
        """A vector of integers as a sum: scalars, constants by lane, other vectors."""
        lanes = operand.lanes
        if isinstance(operand, Literal):
            return [], [int(operand.value)] * lanes, []
        let = self.lets.get(operand.name)
        match let.op if let is not None else "":
            case "splat" if let:
                return [self._operand(let.args[0])], [0] * lanes, []
            case "lanes":
                return [], list(range(lanes)), []
            case "add" if let:
                a, b = (self._spread(x) for x in let.args)
                return a[0] + b[0], [x + y for x, y in zip(a[1], b[1], strict=True)], a[2] + b[2]
            case "mul" if let:
                a, b = (self._spread(x) for x in let.args)
                if not (a[0] or a[2] or b[0] or b[2]):
                    return [], [x * y for x, y in zip(a[1], b[1], strict=True)], []
        return [], [0] * lanes, [self._operand(operand)]

    def _half(self, operand: Operand) -> str | None:
        """Half of an integer that is seen to be even, computed anew; else None."""
        if isinstance(operand, Literal):
            return str(int(operand.value) // 2) if int(operand.value) % 2 == 0 else None
        let = self.lets.get(operand.name)
        if let is None or operand.lanes > 1 or let.op not in ("add", "sub", "mul"):
            return None
        first, second = let.args
        if let.op == "mul":
            even, other = self._half(first), second
            if even is None:
                even, other = self._half(second), first
            if even is None:
                return None
            return self.emitter.let(f"mul i64 {even}, {self._operand(other)}")
        a = self._half(first)
        b = None if a is None else self._half(second)
        return None if b is None else self.emitter.let(f"{let.op} i64 {a}, {b}")

    def _store(self, statement: Store) -> None:
        value = self._operand(statement.value)
        pointer, offset = self._place(statement)
        mask = self._mask(statement.mask)
        llvm_memory.store(self.emitter, statement, pointer, offset, value, mask)

    def _fail(self, statement: Fail) -> None:
        emitter, condition = self.emitter, self._operand(statement.condition)
        lanes = statement.condition.lanes
        if lanes > 1:
            name = f"llvm.vector.reduce.or.{suffix('i1', lanes)}"
            condition = emitter.let(emitter.call("i1", name, (vector("i1", lanes), condition)))
        word = len(self.function.arguments) + len(self.function.dims)
        self._argument("%.error", "%.error", "ptr", word)
        bad, good = emitter.label(), emitter.label()
        emitter.branch(condition, bad, good)
        emitter.place(bad)
        emitter.put("store i32 1, ptr %.error, align 4")
        emitter.jump(good)
        emitter.place(good)

    def _for(self, loop: For) -> None:
        emitter = self.emitter
        lo, hi = self._operand(loop.lo), self._operand(loop.hi)
        initial = [self._operand(value) for _, value in loop.carried]
        kind = ELEMENT[loop.var.dtype.name]
        before, body, after = emitter.block, emitter.label(), emitter.label()
        emitter.jump(body)
        emitter.place(body)
        var, first = self._define(loop.var.name), len(emitter.lines)
        emitter.lines.extend("" for _ in range(1 + len(initial)))
        inside = [self._define(value.name) for value, _ in loop.carried]
        self._block(loop.body)
        last, yields = emitter.block, [self._operand(value) for value in loop.yields]
        following = emitter.let(f"add nuw nsw {kind} {var}, 1")
        more = emitter.let(f"icmp slt {kind} {following}, {hi}")
        mark = f"!llvm.loop !{2 + emitter.loops}"
        emitter.loops += 1
        emitter.put(f"br i1 {more}, label %{body}, label %{after}, {mark}")
        phis = [(var, kind, lo, following)]
        for i, (value, _) in enumerate(loop.carried):
            phis.append((inside[i], self._type(value), initial[i], yields[i]))
        for i, (name, type_, start, step) in enumerate(phis):
            text = f"  {name} = phi {type_} [{start}, %{before}], [{step}, %{last}]"
            emitter.lines[first + i] = text
        emitter.place(after)
        for i, result in enumerate(loop.results):
            name, type_ = self._define(result.name), self._type(result)
            emitter.put(f"{name} = phi {type_} [{yields[i]}, %{last}]")

    def _if(self, branch: If) -> None:
        emitter, condition = self.emitter, self._operand(branch.condition)
        then, orelse, after = emitter.label(), emitter.label(), emitter.label()
        emitter.branch(condition, then, orelse)
        ends: list[tuple[str, list[str]]] = []
        for label, block, yields in (
            (then, branch.then, branch.then_yields),
            (orelse, branch.orelse, branch.else_yields),
        ):
            emitter.place(label)
            self._block(block)
            ends.append((emitter.block, [self._operand(value) for value in yields]))
            emitter.jump(after)
        emitter.place(after)
        for i, result in enumerate(branch.results):
            pairs = ", ".join(f"[{values[i]}, %{block}]" for block, values in ends)
            emitter.put(f"{self._define(result.name)} = phi {self._type(result)} {pairs}")

    @staticmethod
    def _type(value: Value) -> str:
        return vector(ELEMENT[value.dtype.name], value.lanes)
