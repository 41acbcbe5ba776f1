"""Prints loop IR as LLVM text for CPUs.

In: a `loopir.Function` and a Target. Out: the text of a self-contained module with the symbols
that ir/program.py KernelCode names. No LLVM pass but code generation will run: vectors are
explicit, everything is inline. Decides nothing about the kernel."""

import functools
import operator

from luminal.codegen import loopir
from luminal.codegen.llvm_math import decode
from luminal.codegen.llvm_ops import instruction
from luminal.codegen.llvm_text import BITS, ELEMENT, MEMORY, Emitter, Reg, suffix, vector
from luminal.errors import InternalError
from luminal.ir import DType, Target

_ZEROS = "@.zero"  # where a masked-off scalar load reads from


def print_function(function: loopir.Function, target: Target) -> str:
    """LLVM text of one kernel: `name`, `name_grid` and `name_cost`, and what they need.

    Symbols of the C library that it may call: fmod, fmodf (op mod), sin (op sin, huge arguments).
    """
    printer = _Printer(function, target)
    body = printer.define("", function.body)
    grid = printer.define("_grid", function.grid, function.grid_value)
    cost = printer.define("_cost", function.cost, function.cost_value)
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
    """Prints one kernel. For the function at hand, `regs` maps names of values to operands, `lets`
    to their definitions; `prologue` loads arguments, by text."""

    def __init__(self, function: loopir.Function, target: Target) -> None:
        self.function, self.emitter = function, Emitter(target)
        self.words = {n: i for i, n in enumerate((*function.arguments, *function.dims, ""))}
        self.scratch = dict(function.scratch)

    def define(self, ending: str, block: loopir.Block, result: loopir.Operand | None = None) -> str:
        """The text of the kernel, or of a function that computes one number from the arguments."""
        self.emitter.reset()
        self.regs: dict[str, Reg] = {}
        self.lets: dict[str, loopir.Let] = {}
        self.prologue: dict[str, str] = {}
        kind, more = "i64", ""
        if result is None:
            lo, hi = self._new(self.function.lo), self._new(self.function.hi)
            kind, more = "void", f", {lo}, {hi}, ptr %.scratch"
        self._block(block)
        self.emitter.put("ret void" if result is None else f"ret {self._operand(result)}")
        head = f"define {kind} @{self.function.name}{ending}(ptr %.args{more}) #0 {{\nentry:"
        return "\n".join((head, *self.prologue.values(), *self.emitter.lines, "}", ""))

    def _new(self, value: loopir.Value) -> Reg:
        """The register that a value is given, under its own name."""
        reg = Reg(self.emitter, f"%{value.name}", ELEMENT[value.dtype.name], value.lanes)
        self.regs[value.name] = reg
        return reg

    def _operand(self, operand: loopir.Operand) -> Reg:
        if isinstance(operand, loopir.Literal):
            element = ELEMENT[operand.dtype.name]
            return self.emitter.const(operand.value, element, operand.lanes)
        name = operand.name
        if name not in self.regs:
            self.regs[name] = self._argument(name, "i64", f"%{name}")
        return self.regs[name]

    def _argument(self, name: str, element: str, text: str = "") -> Reg:
        """A word of the argument block, loaded at the function's entry; "" is the error word."""
        if name not in self.words:
            raise InternalError(f"[codegen] {self.function.name}: {name!r} is nowhere defined")
        word = self.words[name]
        reg = Reg(self.emitter, text or f"%.a{word}", element)
        at = f"  %.w{word} = getelementptr inbounds i64, ptr %.args, i64 {word}\n"
        self.prologue[reg.text] = f"{at}  {reg.text} = load {reg.type}, ptr %.w{word}, align 8"
        return reg

    def _pointer(self, base: str) -> Reg:
        if base not in self.scratch:
            return self._argument(base, "ptr")
        start = self.scratch[base]
        reg = Reg(self.emitter, f"%.s{start}", "ptr")
        line = f"  {reg.text} = getelementptr inbounds i8, ptr %.scratch, i64 {start}"
        self.prologue[reg.text] = line
        return reg

    def _block(self, block: loopir.Block) -> None:
        emitter = self.emitter
        for statement in block.body:
            match statement:
                case loopir.Let():
                    self._let(statement)
                case loopir.Load():
                    self._load(statement)
                case loopir.Store():
                    value = self._operand(statement.value)
                    place = self._place(statement)
                    mask = statement.mask and self._operand(statement.mask)
                    _store(*place, statement.dtype, value, mask)
                case loopir.Prefetch():
                    element, offset = MEMORY[statement.dtype.name], self._operand(statement.offset)
                    at = f"getelementptr {element}, {self._pointer(statement.base)}, {offset}"
                    how = (emitter.const(n, "i32") for n in (0, 2, 1))  # a read, into L2, of data
                    where = emitter.let(at, "ptr")  # not `inbounds`: it may lie outside
                    emitter.put(emitter.call("void", "llvm.prefetch.p0", where, *how))
                case loopir.For():
                    self._for(statement)
                case loopir.If():
                    self._if(statement)
                case loopir.Fail():
                    condition = self._operand(statement.condition).any()
                    error = self._argument("", "ptr", "%.error")
                    emitter.when(condition, f"store i32 1, {error}, align 4")

    def _let(self, let: loopir.Let) -> None:
        args = [self._operand(a) for a in let.args]
        made = instruction(self.emitter, let, args)
        if isinstance(made, str):
            self.emitter.put(f"{self._new(let.result).text} = {made}")
        else:
            self.regs[let.result.name] = made
        self.lets[let.result.name] = let

    def _load(self, statement: loopir.Load) -> None:
        dtype, result = statement.dtype, statement.result
        half = self._half(statement.offset) if dtype.bits == 4 else None
        place = self._place(statement)
        mask = statement.mask and self._operand(statement.mask)
        self.regs[result.name] = _load(*place, dtype, result.lanes, mask, half)

    def _place(self, statement: loopir.Load | loopir.Store) -> tuple[Reg, Reg]:
        """Pointer and offset. What all lanes of a gather share goes into the pointer, so that
        the lanes' own part is constant or narrow."""
        pointer, lanes = self._pointer(statement.base), statement.offset.lanes
        if lanes == 1 or statement.dtype.bits < 8:
            return pointer, self._operand(statement.offset)
        shared, steps, others = self._spread(statement.offset)
        for scalar in shared:
            pointer = pointer.at(MEMORY[statement.dtype.name], scalar)
        if any(steps) or not others:
            text = "<" + ", ".join(f"i64 {step}" for step in steps) + ">"
            others.insert(0, Reg(self.emitter, text, "i64", lanes))
        return pointer, functools.reduce(operator.add, others)

    def _spread(self, operand: loopir.Operand) -> tuple[list[Reg], list[int], list[Reg]]:
        """A vector of integers as a sum: scalars, constants by lane, other vectors."""
        lanes = operand.lanes
        if isinstance(operand, loopir.Literal):
            return [], [int(operand.value)] * lanes, []
        let = self.lets.get(operand.name)
        op = let.op if let is not None else ""
        if let is not None and op == "splat":
            return [self._operand(let.args[0])], [0] * lanes, []
        if op == "lanes":
            return [], list(range(lanes)), []
        if let is not None and op in ("add", "mul"):
            a, b = (self._spread(x) for x in let.args)
            if op == "add":
                return a[0] + b[0], list(map(operator.add, a[1], b[1])), a[2] + b[2]
            if not (a[0] or a[2] or b[0] or b[2]):
                return [], list(map(operator.mul, a[1], b[1])), []
        return [], [0] * lanes, [self._operand(operand)]

    def _half(self, operand: loopir.Operand) -> Reg | None:
        """Half of an integer that is seen to be even, computed anew; else None."""
        if isinstance(operand, loopir.Literal):
            value = int(operand.value)
            return None if value % 2 else self.emitter.const(value // 2, "i64")
        let = self.lets.get(operand.name)
        if let is not None and operand.lanes == 1 and let.op == "mul":
            for one, other in (let.args, let.args[::-1]):
                even = self._half(one)
                if even is not None:
                    return even * self._operand(other)
        if let is not None and operand.lanes == 1 and let.op == "add":
            a, b = let.args
            first = self._half(a)
            second = first and self._half(b)
            return second and first and first + second
        return None

    def _for(self, loop: loopir.For) -> None:
        emitter, hi = self.emitter, self._operand(loop.hi)
        initial = [self._operand(value) for value in (loop.lo, *(v for _, v in loop.carried))]
        before, body, after = emitter.block, emitter.label(), emitter.label()
        emitter.jump(body)
        emitter.place(body)
        inside = [self._new(value) for value in (loop.var, *(v for v, _ in loop.carried))]
        first = len(emitter.lines)
        emitter.lines += [""] * len(inside)  # for phis of what the body will yield
        self._block(loop.body)
        last, yields = emitter.block, [self._operand(value) for value in loop.yields]
        following = emitter.let(f"add nuw nsw {inside[0]}, 1", inside[0].element)
        more = following.compare("slt", hi)
        mark = f"!llvm.loop !{2 + emitter.loops}"
        emitter.loops += 1
        emitter.put(f"br {more}, label %{body}, label %{after}, {mark}")
        for i, (reg, start, step) in enumerate(zip(inside, initial, (following, *yields))):
            emitter.lines[first + i] = _phi(reg, (start, before), (step, last))
        emitter.place(after)
        for result, value in zip(loop.results, yields, strict=True):
            emitter.lines.append(_phi(self._new(result), (value, last)))

    def _if(self, branch: loopir.If) -> None:
        emitter, condition = self.emitter, self._operand(branch.condition)
        then, orelse, after = emitter.label(), emitter.label(), emitter.label()
        emitter.branch(condition, then, orelse)
        ends: list[list[tuple[Reg, str]]] = []
        for label, block, yields in (
            (then, branch.then, branch.then_yields),
            (orelse, branch.orelse, branch.else_yields),
        ):
            emitter.place(label)
            self._block(block)
            ends.append([(self._operand(value), emitter.block) for value in yields])
            emitter.jump(after)
        emitter.place(after)
        for result, *sources in zip(branch.results, *ends, strict=True):
            emitter.lines.append(_phi(self._new(result), *sources))


def _phi(result: Reg, *sources: tuple[Reg, str]) -> str:
    """The line of a value that depends on the block that control comes from."""
    pairs = ", ".join(f"[{value.text}, %{block}]" for value, block in sources)
    return f"  {result.text} = phi {result.type} {pairs}"


# ---- memory: storage formats are decoded; a lane that is masked off reads nothing


def _load(
    pointer: Reg, offset: Reg, dtype: DType, lanes: int, mask: Reg | None, half: Reg | None
) -> Reg:
    """The operand loaded; `half` is half of a 4-bit format's offset, if that is known even."""
    element = MEMORY[dtype.name]
    if half is not None and lanes % 2 == 0 and offset.lanes == 1:
        raw = _nibbles(pointer, half, lanes, mask)
    elif lanes > 1 and (dtype.bits == 4 or _by_lanes(offset, element)):
        raw = Reg(pointer.emitter, "poison", element, lanes)
        for n in range(lanes):
            one = offset.lane(n) if offset.lanes > 1 or n == 0 else offset + n
            raw = raw.insert(_scalar(pointer, one, dtype, mask and mask.lane(n)), n)
    elif lanes == 1:
        raw = _scalar(pointer, offset, dtype, mask)
    else:
        raw = _read(pointer.at(element, offset), element, lanes, mask)
    if dtype.name == "bool":
        return raw.compare("ne", raw.zero)
    value = decode(raw, dtype.name)
    if mask is not None and dtype.name == "e8m0":  # whose bits 0 are not 0.0
        return mask.pick(value, value.zero)
    return value


def _by_lanes(offset: Reg, element: str) -> bool:
    """Whether a gather or scatter is done one element at a time."""
    return offset.lanes > 1 and (BITS[element] < 32 or "avx512f" not in offset.emitter.flags)


def _masked(op: str, element: str, lanes: int, where: Reg) -> str:
    return f"llvm.masked.{op}.{suffix(element, lanes)}.{suffix('ptr', where.lanes)}"


def _read(where: Reg, element: str, lanes: int, mask: Reg | None) -> Reg:
    """The bits at an address, or at many."""
    emitter, kind = where.emitter, vector(element, lanes)
    if mask is not None and lanes == 1:
        emitter.declared[f"{_ZEROS} = private constant [64 x i8] zeroinitializer, align 64"] = None
        where = mask.pick(where, Reg(emitter, _ZEROS, "ptr"))
    if where.lanes == 1 and (mask is None or lanes == 1):
        return emitter.let(f"load {kind}, {where}, align 1", element, lanes)
    name = _masked("load" if where.lanes == 1 else "gather", element, lanes, where)
    on = mask or emitter.const(True, "i1", lanes)
    zero = Reg(emitter, "zeroinitializer", element, lanes)
    rhs = emitter.call(kind, name, where, emitter.const(1, "i32"), on, zero)
    return emitter.let(rhs, element, lanes)


def _scalar(pointer: Reg, offset: Reg, dtype: DType, mask: Reg | None) -> Reg:
    """The bits of one element; the upper bits are 0."""
    element = MEMORY[dtype.name]
    if dtype.bits >= 8:
        return _read(pointer.at(element, offset), element, 1, mask)
    byte = _read(pointer.at(element, offset >> 1), element, 1, mask)
    return (byte >> ((offset.cast("trunc", "i8") & 1) << 2)) & 15


def _nibbles(pointer: Reg, half: Reg, lanes: int, mask: Reg | None) -> Reg:
    """4-bit elements from a byte on, as i8 lanes with upper bits 0."""
    on = mask and mask.slice(0, lanes // 2, 2) | mask.slice(1, lanes // 2, 2)
    low = _read(pointer.at("i8", half), "i8", lanes // 2, on).cast("zext", "i16")
    both = ((low | (low << 4)) & 0x0F0F).bits("i8")
    return both if mask is None else mask.pick(both, both.zero)


def _store(pointer: Reg, offset: Reg, dtype: DType, value: Reg, mask: Reg | None) -> None:
    """Instructions that write `value`; scatters in lane order: the last of equal offsets stays, as
    llvm.masked.scatter too defines."""
    element = MEMORY[dtype.name]
    value = value.cast("zext", element) if dtype.name == "bool" else value
    if not _by_lanes(offset, element):
        _write(pointer.at(element, offset), value, mask)
        return
    for n in range(value.lanes):
        on, one, part = mask and mask.lane(n), offset.lane(n), value.lane(n)
        _write(pointer.at(element, one), part, on)


def _write(where: Reg, value: Reg, mask: Reg | None) -> None:
    emitter, line, one = where.emitter, f"store {value}, {where}, align 1", where.lanes == 1
    if one and mask is None:
        emitter.put(line)
    elif one and mask is not None and value.lanes == 1:
        emitter.when(mask, line)
    else:
        name = _masked("store" if one else "scatter", value.element, value.lanes, where)
        on = mask or emitter.const(True, "i1", value.lanes)
        on = _opaque(on) if one and BITS[value.element] < 32 else on
        emitter.put(emitter.call("void", name, value, where, emitter.const(1, "i32"), on))


def _opaque(mask: Reg) -> Reg:
    """The mask, so that LLVM cannot see a constant: it stores a single 8- or 16-bit lane of a
    constant mask as 32 bits, which overwrites the neighbours."""
    return mask & mask.emitter.let("icmp ne ptr %.args, null", "i1").splat(mask.lanes)
