"""Which features of a processor machine code relies on, and how they are found at run time.

In: a Target. Out: rows (name, where, bits) that `lm_missing` of features.ll looks up: CPUID on
x86-64, the auxiliary vector on aarch64 Linux. Other systems have no rows: their least processor
has all that is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luminal.ir.target import Target

__all__ = ["Row", "check_text", "rows"]

_CPUID: dict[tuple[int, int, int], dict[str, int]] = {  # (leaf, subleaf, register): bits
    (1, 0, 2): {
        "sse3": 0, "ssse3": 9, "fma": 12, "sse4.1": 19, "sse4.2": 20, "movbe": 22, "popcnt": 23,
        "avx": 28, "f16c": 29,
    },
    (7, 0, 1): {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19,
        "avx512ifma": 21, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31,
    },
    (7, 0, 2): {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "avx512vnni": 11, "avx512bitalg": 12,
        "avx512vpopcntdq": 14,
    },
    (7, 0, 3): {"avx512vp2intersect": 8, "avx512fp16": 23},
    (7, 1, 0): {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    (7, 1, 3): {"avxvnniint8": 4, "avxneconvert": 5, "avxvnniint16": 10},
    (0x80000001, 0, 2): {"lzcnt": 5, "xop": 11, "fma4": 16, "tbm": 21},
}  # fmt: skip
_CONTROL = 0xFFFFFFFF  # in place of a leaf: which registers the operating system saves
_CAPABILITIES: dict[int, dict[str, int]] = {  # entry of the auxiliary vector: bits
    16: {
        "neon": 1, "lse": 8, "fullfp16": 10, "rdm": 12, "jsconv": 13, "complxnum": 14, "rcpc": 15,
        "dotprod": 20, "sve": 22, "fp16fml": 23,
    },
    26: {"sve2": 1, "i8mm": 13, "bf16": 14},
}  # fmt: skip
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_LEVELS = {
    "x86-64-v2": _V2, "x86-64-v3": _V3,
    "x86-64-v4": (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A feature: three numbers that say where to look, and the bits that must be set there."""

    name: str
    place: tuple[int, int, int]
    mask: int


def rows(target: Target) -> list[Row]:
    """What the code of a target needs."""
    named = {f[1:] for f in target.features.split(",") if f.startswith("+")}
    named |= {*_LEVELS.get(target.cpu, ())}
    if target.triple.startswith("x86_64"):
        found = [Row(name, place, 1 << bit) for place, bits in _CPUID.items()
                 for name, bit in bits.items() if name in named]  # fmt: skip
        for name, mask in (("avx", 6), ("avx512f", 0xE0)):
            if name in named:
                found.append(Row(f"{name} (saved by the system)", (_CONTROL, 0, 0), mask))
        return found
    if "linux" not in target.triple:
        return []
    return [Row(name, (entry, 0, 0), 1 << bit) for entry, bits in _CAPABILITIES.items()
            for name, bit in bits.items() if name in named]  # fmt: skip


def check_text(target: Target) -> str:
    """LLVM text of `lm_missing`(rows, count) -> i32: the first row whose bits are not set, or -1.
    It is compiled for the least processor, so that it can say what is missing."""
    if not rows(target):
        return "define i32 @lm_missing(ptr %rows, i64 %count) {\n  ret i32 -1\n}\n"
    wanted = "x86_64" if target.triple.startswith("x86_64") else "aarch64"
    parts = Path(__file__).with_name("features.ll").read_text().split(";; ")[1:]
    found = dict(part.split("\n", 1) for part in parts)
    return found[wanted] + found["both"]
