"""LLVM text of the runtime's own native code, completed from native.ll for a target.

In: a triple and the platform's way to park a thread. Out: LLVM text with the functions `lm_*`,
and the layout of the two structures they share with Python (CALL, POOL).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CALL", "POOL", "POOL_BYTES", "runtime_text"]

# Word (i64) indices in the block of one call.
CALL = {name: i for i, name in enumerate((
    "pool", "table", "phases", "args", "scratch", "stride", "values", "index", "index_count",
    "pointers", "error", "int_type", "gil_ns",
))}  # fmt: skip

# Byte offsets in a pool; groups that different threads write lie in different cache lines.
POOL = {
    "ticket": 0, "pending": 64, "sleepers": 128, "finished": 132, "busy": 136,
    "table": 192, "phase": 200, "phases": 208, "args": 216, "scratch": 224, "stride": 232,
    "kernel": 256, "kernel_args": 264, "grid": 272, "batch": 280, "batches": 288,
    "threads": 320, "spins": 328, "batch_ns": 336, "wake_ns": 344, "serial_ns": 352,
    "mutex": 384, "condition": 512,
}  # fmt: skip
POOL_BYTES = 640

_RECORD = """%r = getelementptr i8, ptr %table, i64 %row
  %fn = load ptr, ptr %r
  %r1 = getelementptr i8, ptr %r, i64 8
  %grid = load ptr, ptr %r1
  %r2 = getelementptr i8, ptr %r, i64 16
  %cost = load ptr, ptr %r2
  %r3 = getelementptr i8, ptr %r, i64 24
  %shift = load i64, ptr %r3
  %a = getelementptr i8, ptr %args, i64 %shift
  %g = call i64 %grid(ptr %a)"""


def _expand(line: str) -> str:
    """One line with its $-abbreviations written out as LLVM text."""
    head, _, rest = line.strip().partition("{")
    if head == "$at":
        names = rest.rstrip("}").split(",")
        return "\n".join(
            f"  %p.{name} = getelementptr i8, ptr %pool, i64 {POOL[name]}" for name in names
        )
    if head == "$word":
        out = []
        for piece in line.strip().split("$word{")[1:]:
            kind, name = piece.strip().rstrip("}").split(",")
            out.append(f"  %b.{name} = getelementptr i64, ptr %b, i64 {CALL[name]}")
            out.append(f"  %{name} = load {kind}, ptr %b.{name}")
        return "\n".join(out)
    if head == "$record":
        return f"  %row = mul i64 {rest.rstrip('}')}, 32\n  {_RECORD}"
    if head == "$bump":
        return f"""  %word.{rest[0] == "0"} = add i64 {rest.rstrip("}")}, 4294967296
  %old.{rest[0] == "0"} = atomicrmw add ptr %pool, i64 %word.{rest[0] == "0"} seq_cst"""
    return line


def runtime_text(triple: str, python: bool = True, park: str = "") -> str:
    """LLVM text of the runtime for `triple`.

    `python` adds the CPython entry point; `park` is "futex" or "condition", by default the one
    that the system has.
    """
    x86 = triple.startswith("x86_64")
    park = park or ("futex" if "linux" in triple else "condition")
    wanted = {park, "python" if python else ""}
    lines: list[str] = []
    keep = True
    for line in Path(__file__).with_name("native.ll").read_text().splitlines():
        if line.startswith((";[", ";]")):
            keep = line == ";]" or line[2:] in wanted
        elif keep and not line.startswith(";"):
            lines.append(_expand(line))
    declared = "x86.sse2.pause()" if x86 else "aarch64.hint(i32)"
    lines[:0] = [f"declare void @llvm.{declared}", "declare i64 @llvm.smin.i64(i64, i64)"]
    pause = f"call void @llvm.{'x86.sse2.pause()' if x86 else 'aarch64.hint(i32 1)'}"
    text = "\n".join(lines).replace("$pause", pause).replace("$futex", "202" if x86 else "98")
    return text.replace("$mutex", str(POOL["mutex"])).replace("$condition", str(POOL["condition"]))
