"""The functions that kernels of C dialects call: conversions, remainders, exchanges of lanes.

In: names as `cstyle.py` prints them. Out: their text in the common part of CUDA C++, MSL and
OpenCL C, with what they need before them. No vendor's header is needed: halves and small floats are
bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from luminal.ir.dtype import by_name

_INTS = ("i8", "i16", "i32", "i64", "u8")
_F32 = """
FN f32 f16_f32(u16 x) {
    const u32 size = x & 0x7fffu, moved = size << 13;
    const u32 low = as_u32(as_f32(moved + 0x38800000u) - as_f32(0x38800000u));
    const u32 out = size < 0x400u ? low : moved + 0x38000000u;
    return as_f32((size >= 0x7c00u ? moved | 0x7f800000u : out) | (u32)(x >> 15) << 31);
}"""
_F16 = """
FN u16 f32_f16(f32 x) {
    const u32 bits = as_u32(x), size = bits & 0x7fffffffu;
    const u32 low = as_u32(as_f32(size) + 0.5f) - 0x3f000000u;
    const u32 normal = (size + (0xfffu - (112u << 23)) + ((size >> 13) & 1u)) >> 13;
    const u32 out = size < (113u << 23) ? low : normal;
    const u32 top = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return (u16)((size >= (143u << 23) ? top : out) | ((bits >> 16) & 0x8000u));
}"""
_BF16 = """
FN u16 f32_bf16(f32 x) {
    const u32 bits = as_u32(x), high = bits >> 16;
    return (u16)(x != x ? high | 0x40u : (bits + 0x7fffu + (high & 1u)) >> 16);
}"""
_ODD = """
FN u16 f64_f16(f64 x) {
    const f32 near = (f32)x;
    const f64 a = near < 0.0f ? -(f64)near : (f64)near, b = x < 0.0 ? -x : x;
    const u32 odd = (a < b || a > b) ? 1u : 0u;
    return f32_f16(as_f32((as_u32(near) - (a > b ? 1u : 0u)) | odd));
}"""
_E8M0 = """
FN f32 e8m0_f32(u8 x) {
    return as_f32(x == 255 ? 0x7fc00000u : x == 0 ? 0x400000u : (u32)x << 23);
}"""
# Bits of the mantissa, and of all but the sign; where inf or NaN begin, and what they become.
_SMALL = {"f8e4m3": (3, 7, 127, 0x7FC00000), "f4e2m1": (1, 3, 8, 0)}
_TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "f16_f32": (_F32, ()), "f32_f16": (_F16, ()), "f32_bf16": (_BF16, ()), "e8m0_f32": (_E8M0, ()),
    "f64_f16": (_ODD, ("f32_f16",)),
    "bf16_f32": ("\nFN f32 bf16_f32(u16 x) { return as_f32((u32)x << 16); }", ()),
    "f8e5m2_f32": ("\nFN f32 f8e5m2_f32(u8 x) { return f16_f32((u16)(x << 8)); }", ("f16_f32",)),
    "floordiv": ("\nFN i64 floordiv(i64 a, i64 b) { return a / b - (a % b < 0 ? 1 : 0); }", ()),
    "floormod": ("\nFN i64 floormod(i64 a, i64 b) { return a % b + (a % b < 0 ? b : 0); }", ()),
}  # fmt: skip


def _small(name: str) -> str:
    mantissa, sign, limit, top = _SMALL[name]
    bias = (1 << (sign - mantissa - 1)) - 1
    first, base = (128 - bias) << 23, (127 - bias) << 23
    return f"""
FN f32 {name}_f32(u8 x) {{
    const u32 size = x & {(1 << sign) - 1}u, moved = size << {23 - mantissa};
    const u32 low = as_u32(as_f32(moved + {first:#x}u) - as_f32({first:#x}u));
    const u32 out = size < {1 << mantissa}u ? low : moved + {base:#x}u;
    return as_f32((size >= {limit}u ? {top:#x}u : out) | (u32)(x >> {sign} & 1) << 31);
}}"""


def _saturating(source: str, target: str) -> str:
    """Truncates; too large is the largest, NaN 0."""
    dtype, f = by_name(target), "f" if source == "f32" else ""
    half = dtype.bits - (dtype.kind == "i")
    exact = dtype.bits < 32 or (source == "f64" and dtype.bits == 32)
    high = float((1 << half) - 1 if exact else 1 << half)
    low = -float(1 << half) if dtype.kind == "i" else 0.0
    most, least = literal((1 << half) - 1, target), literal(int(low), target)
    return f"""
FN {target} {source}_{target}({source} x) {{
    if (x != x) return 0;
    return x >= {high!r}{f} ? {most} : x <= {low!r}{f} ? {least} : ({target})x;
}}"""


def _remainder(name: str) -> str:
    bad = "b == 0" if name == "u8" else "b == 0 || b == -1"
    return f"\nFN {name} mod_{name}({name} a, {name} b) {{ return {bad} ? 0 : ({name})(a % b); }}"


def _lanes(op: str, name: str, shuffle: Callable[[str, str], str]) -> str:
    """All of n threads that lie s apart get the sum or maximum of their values."""
    joined = combined("add" if op == "lane_add" else "max", name, "v", "w")
    return f"""
FN {name} {op}_{name}({name} v, int n, int s, int tid, SHARED {name}* lanes) {{
    for (int m = s; m < n * s && m < WARP; m *= 2) {{
        const {name} w = {shuffle("v", name)};
        v = {joined};
    }}
    if (n * s > WARP) {{
        const int step = s < WARP ? WARP : s, first = tid - tid % (n * s) + tid % step;
        lanes[tid] = v;
        BARRIER;
        v = lanes[first];
        for (int i = step; i < n * s; i += step) {{
            const {name} w = lanes[first + i];
            v = {joined};
        }}
        BARRIER;
    }}
    return v;
}}"""


def literal(value: float | int | bool, name: str) -> str:
    """A number as text."""
    if name == "bool":
        return "true" if value else "false"
    if not by_name(name).is_float:
        if name == "i64" and not -(1 << 31) <= int(value) < 1 << 31:
            return f"(i64){int(value) % (1 << 64):#x}u"
        return f"(i32){int(value) % (1 << 32):#x}u" if value == -(1 << 31) else str(int(value))
    value, f = float(value), "" if name == "f64" else "f"
    if value != value or abs(value) == float("inf"):
        top = 0x7FF8 if value != value else 0x7FF0 if value > 0 else 0xFFF0
        wide = {0x7FF8: 0x7FC0, 0x7FF0: 0x7F80, 0xFFF0: 0xFF80}[top]
        return f"as_f64({top << 48:#x}u)" if name == "f64" else f"as_f32({wide << 16:#x}u)"
    return f"{value!r}{f}"


def combined(op: str, name: str, a: str, b: str) -> str:
    """a op b for add, sub, mul or max; integers wrap."""
    dtype = by_name(name)
    if name == "bool":
        return f"{a} && {b}" if op == "mul" else f"{a} || {b}"
    if op == "max":
        return (
            f"{a} > {b} || {a} != {a} ? {a} : {b}" if dtype.is_float else f"{a} > {b} ? {a} : {b}"
        )
    sign = {"add": "+", "sub": "-", "mul": "*"}[op]
    if dtype.is_float:
        return f"{a} {sign} {b}"
    wide = "u64" if dtype.bits == 64 else "u32"
    return f"({name})(({wide}){a} {sign} ({wide}){b})"


def function_texts(
    names: Iterable[str], own: Mapping[str, str], shuffle: Callable[[str, str], str]
) -> list[str]:
    """The text of functions in an order in which each stands behind what it needs; `own` holds
    those that a dialect writes itself."""
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        head, _, tail = name.rpartition("_")
        text, needed = (own[name], ()) if name in own else _TEXTS.get(name, ("", ()))
        for n in needed:
            add(n)
        if not text and head.startswith("lane"):
            text = _lanes(head, tail, shuffle)
        elif not text and head == "mod":
            text = _remainder(tail)
        elif not text:
            text = _small(head) if head in _SMALL else _saturating(head, tail)
        texts[name] = text

    for name in sorted(names):
        add(name)
    return list(texts.values())
