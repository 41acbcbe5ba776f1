"""The C interface of a model as LLVM text: tables of one program around library.ll.

In: a program with its memory planned, and a name. Out: text that holds the interface, the thread
pool and the tables; kernels are joined to it by building.py. Runs and compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from luminal.aot import features
from luminal.ir.expr import Binary, Expr, ceil_div, const, prod
from luminal.ir.layout import size
from luminal.ir.plan import Buffer
from luminal.runtime.executor import Executor
from luminal.runtime.native import CALL, POOL, runtime_text
from luminal.runtime.pool import BATCH_NS, SERIAL_NS, SPIN_US, WAKE_NS
from luminal.runtime.signature import array_shape

__all__ = ["ERRORS", "Interface", "functions", "stamp"]

ERRORS = (
    ("OK", "no error"),
    ("INDEX", "an index lies outside the dimension that it indexes"),
    ("DIMS", "the value of a dim is missing or outside its range"),
    ("MEMORY", "not enough memory"),
    ("WEIGHTS", "the file of weights is missing or another one"),
    ("PROCESSOR", "this processor lacks instructions that the code uses"),
    ("ARGUMENT", "a handle, the place for one, or the address of a tensor is null"),
    ("DATA", "the model refuses these inputs"),
)
_FUNCTIONS = ("load", "run", "free", "input_bytes", "output_bytes", "error")


def functions(name: str) -> list[str]:
    """The symbols of the interface."""
    return [f"{name}_{function}" for function in _FUNCTIONS]


def stamp(size_bytes: int, checksum: int) -> bytes:
    """The first 32 bytes of a file of weights; 32 zeros follow."""
    return b"\x89LUMW\r\n\x1a" + b"".join(
        n.to_bytes(8, "little") for n in (1, size_bytes, checksum)
    )


@dataclass(frozen=True, slots=True)
class Interface:
    """A model to be written: its name, an executor that knows its memory (and was given no code),
    the offset of each constant in the weights, their bytes and checksum, whether they are part of
    the program, and how many of the last results are checks."""

    name: str
    executor: Executor
    offsets: tuple[int, ...]
    weight_bytes: int
    checksum: int
    embedded: bool
    checks: int = 0

    def text(self) -> str:
        """LLVM text; embedded weights are left to another object."""
        target = self.executor.program.target
        parts = (runtime_text(target.triple, python=False), features.check_text(target),
                 self._template(), self._tables(), self._sizes())  # fmt: skip
        return "\n".join(parts)

    @property
    def weights(self) -> str:
        """The symbol of the weights, where they are embedded."""
        return f"{self.name}_weights"

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers of the results that a caller sees."""
        specs = self.executor.outputs
        return tuple(o.buffer for o in specs[: len(specs) - self.checks])

    # ---- the template

    def _template(self) -> str:
        triple = self.executor.program.target.triple
        linux, windows = "linux" in triple, "windows" in triple
        wanted = {"windows"} if windows else {"posix", "linux" if linux else "macos"}
        wanted.add("condition" if not (linux or windows) else "lockless")
        text = Path(__file__).with_name("library.ll").read_text()
        text = re.sub(r"^;\[(\w+)$(.*?)^;\]$", lambda m: m[2] if m[1] in wanted else "", text,
                      flags=re.MULTILINE | re.DOTALL)  # fmt: skip
        text = re.sub(r"^;.*\n", "", text, flags=re.MULTILINE)
        values = self._values()
        text = re.sub(r"%\((\w+)\)", lambda m: str(values[m[1]]), text)
        text = re.sub(r"\$for\{(\w+),([^}]*)\}", _LOOP, text)
        text = re.sub(r"\$end\{(\w+)\}", _END, text)
        word = r"  %\1.p = getelementptr i64, ptr \2, i64 \3"
        text = re.sub(r" *\$word\{(\w+),([^,}]*),([^}]*)\}", word, text)
        if windows:
            text = re.sub(r"^define (.*@N_)", r"define dllexport \1", text, flags=re.MULTILINE)
        return text.replace("@N_", f"@{self.name}_")

    def _values(self) -> dict[str, object]:
        run, plan = self.executor, self.executor.program.plan
        index = run.launches[1]
        inputs, fresh = len(plan.inputs), len(run.fresh)
        constants, slots = len(run.constants), len(run.memory.sizes)
        first_slot = inputs + fresh + constants
        words = first_slot + slots + len(plan.dims)
        own = len(CALL)  # words of the handle after those of the call block
        checks, args = own + 3, own + 3 + -(-self.checks // 8)
        found: dict[str, object] = {f"call_{n}": place // 8 for n, place in CALL.items()}
        found |= {n: POOL[n] // 8 for n in ("threads", "spins", "batch_ns", "wake_ns", "serial_ns",
                                            "mutex", "condition")}  # fmt: skip
        found |= {f"error_{n.lower()}": code for code, (n, _) in enumerate(ERRORS)}
        least = '"target-cpu"="x86-64" "target-features"="+sse2"'
        target = run.program.target
        return found | {
            "pool_bytes": max(POOL.values()) + 64, "clock": 1 if "linux" in target.triple else 6,
            "spin_ns_thousandfold": int(SPIN_US * 1e6), "file_bytes": 64 + self.weight_bytes,
            "batch_ns_value": BATCH_NS, "wake_ns_value": WAKE_NS, "serial_ns_value": SERIAL_NS,
            "inputs": inputs, "fresh": fresh, "outputs": len(run.outputs) - self.checks,
            "check_count": self.checks, "dims": len(plan.dims), "constants": constants,
            "slots": slots, "sizes": max(1, inputs + len(run.outputs) + slots),
            "first_constant": inputs + fresh, "first_slot": first_slot,
            "first_slot_size": inputs + len(run.outputs), "first_dim": first_slot + slots,
            "words": words, "launches": len(plan.kernels), "index": index.size,
            "stride": run.scratch_stride, "rows": len(features.rows(target)),
            "errors": len(ERRORS), "arena": own, "arena_bytes": own + 1, "mapped": own + 2,
            "checks": checks, "args": args, "values": args + index.size,
            "handle_words": args + index.size + words + 1,
            "least": least if target.triple.startswith("x86_64") else "",
        }  # fmt: skip

    # ---- tables

    def _tables(self) -> str:
        run, program = self.executor, self.executor.program
        rows = []
        for call, offset in zip(program.calls, run.launches[0][:, 3], strict=True):
            name = program.codes[call].name
            rows.append(
                f"%Launch {{ ptr @{name}, ptr @{name}_grid, ptr @{name}_cost, i64 {offset} }}"
            )
        used = dict.fromkeys(code.name for code in program.codes)
        declared = [f"declare void @{n}(ptr, i64, i64, ptr)\ndeclare i64 @{n}_grid(ptr)\n"
                    f"declare i64 @{n}_cost(ptr)" for n in used]  # fmt: skip
        found = features.rows(program.target)
        masks = [f"[4 x i32] [{', '.join(f'i32 {n}' for n in (*r.place, r.mask))}]" for r in found]
        texts = [f'@lm_text{n} = internal constant [{len(text) + 1} x i8] c"{text}\\00"'
                 for n, (_, text) in enumerate(ERRORS)]  # fmt: skip
        places = ", ".join(f"ptr @lm_text{n}" for n in range(len(ERRORS)))
        mark = "".join(f"\\{b:02x}" for b in stamp(self.weight_bytes, self.checksum))
        dims, inside = program.plan.dims, f"@{self.weights}" if self.embedded else "null"
        return "\n".join([
            *declared, *texts,
            f"@lm_texts = internal constant [{len(ERRORS)} x ptr] [{places}]",
            f"@lm_table = internal constant [{len(rows)} x %Launch] [{', '.join(rows)}]",
            f"@lm_rows = internal constant [{len(masks)} x [4 x i32]] [{', '.join(masks)}]",
            f'@lm_stamp = internal constant [32 x i8] c"{mark}"',
            _words("lm_index", run.launches[1]), _words("lm_offsets", self.offsets),
            _words("lm_fresh", run.fresh), _words("lm_sources", self._sources()),
            _words("lm_low", [v.lo for v in dims]), _words("lm_high", [v.hi for v in dims]),
            f"@{self.weights} = external hidden constant [0 x i8]" if self.embedded else "",
            f"@lm_embedded = internal constant ptr {inside}",
        ])  # fmt: skip

    def _sources(self) -> list[int]:
        """The word that holds the address of each visible result."""
        run = self.executor
        inputs, constants = len(run.program.plan.inputs), list(run.constants)
        found = []
        for spec in run.outputs[: len(self.outputs)]:
            place = spec.source
            if spec.kind == "fresh":
                place += inputs
            elif spec.kind == "constant":
                root = run.memory.root[spec.buffer.name]
                place = inputs + len(run.fresh) + constants.index(root)
            found.append(place)
        return found

    def _sizes(self) -> str:
        """The function that computes all sizes in bytes from the dims."""
        run, plan = self.executor, self.executor.program.plan
        buffers = [*map(plan.buffer, plan.inputs), *(o.buffer for o in run.outputs)]
        writer = _Sizes({v.name: n for n, v in enumerate(plan.dims)})
        exprs = [*map(_bytes_of, buffers), *run.memory.sizes]
        for number, e in enumerate(exprs):
            value = writer.value(e)
            writer.lines.append(f"  %out{number} = getelementptr i64, ptr %out, i64 {number}")
            writer.lines.append(f"  store i64 {value}, ptr %out{number}")
        body = "\n".join(writer.lines)
        head = "define internal void @lm_sizes(ptr %dims, ptr %out) nounwind {\n"
        return f"{head}{body}\n  ret void\n}}\n"


def _bytes_of(buffer: Buffer) -> Expr:
    if buffer.dtype.bits == 4:
        return prod(array_shape(buffer))
    return ceil_div(size(buffer.shape) * const(buffer.dtype.bits), 8)


def _words(name: str, values: Iterable[int] | np.ndarray) -> str:
    listed = [f"i64 {int(v)}" for v in values]
    return f"@{name} = internal constant [{len(listed)} x i64] [{', '.join(listed)}]"


_LOOP = r"""  %\1.at = alloca i64
  store i64 0, ptr %\1.at
  br label %\1.test
\1.test:
  %\1 = load i64, ptr %\1.at
  %\1.more = icmp slt i64 %\1, \2
  br i1 %\1.more, label %\1.body, label %\1.end
\1.body:"""
_END = r"""  %\1.next = add i64 %\1, 1
  store i64 %\1.next, ptr %\1.at
  br label %\1.test
\1.end:"""


class _Sizes:
    """Expressions over dims as LLVM lines."""

    def __init__(self, dims: dict[str, int]) -> None:
        self.lines: list[str] = []
        self._known: dict[object, str] = {}
        for name, number in dims.items():
            self.lines += [f"  %d{number}.p = getelementptr i64, ptr %dims, i64 {number}",
                           f"  %d{number} = load i64, ptr %d{number}.p"]  # fmt: skip
            self._known[name] = f"%d{number}"

    def line(self, text: str) -> str:
        name = f"%s{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def value(self, e: Expr) -> str:
        """The operand that holds an expression."""
        total = "0"
        for monomial, coefficient in e.terms:
            product = str(coefficient)
            for atom in monomial:
                product = self.line(f"mul i64 {product}, {self.atom(atom)}")
            total = self.line(f"add i64 {total}, {product}")
        return total

    def atom(self, atom: object) -> str:
        key = getattr(atom, "name", atom)
        if key not in self._known:
            assert isinstance(atom, Binary)
            self._known[key] = self._binary(atom.op, self.value(atom.a), self.value(atom.b))
        return self._known[key]

    def _binary(self, op: str, a: str, b: str) -> str:
        if op in ("min", "max"):
            less = self.line(f"icmp {'slt' if op == 'min' else 'sgt'} i64 {a}, {b}")
            return self.line(f"select i1 {less}, i64 {a}, i64 {b}")
        rest = self.line(f"srem i64 {a}, {b}")
        negative = self.line(f"icmp slt i64 {rest}, 0")
        if op == "mod":
            return self.line(
                f"select i1 {negative}, i64 {self.line(f'add i64 {rest}, {b}')}, i64 {rest}"
            )
        whole = self.line(f"sdiv i64 {a}, {b}")
        return self.line(
            f"select i1 {negative}, i64 {self.line(f'add i64 {whole}, -1')}, i64 {whole}"
        )
