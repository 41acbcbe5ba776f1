"""The Metal shading language as a dialect of `cstyle.py`.

In: nothing. Out: `METAL`. It has no 64-bit floats, and lanes exchange at most 32 bits."""

from luminal.codegen.cstyle_dialect import Dialect

_CASTS = {
    "as_f32": "FN f32 as_f32(u32 x) { return as_type<f32>(x); }",
    "as_u32": "FN u32 as_u32(f32 x) { return as_type<u32>(x); }",
}
_SMALL = ("bool", "u8", "i8", "i16", "u16")


def _shuffle(value: str, name: str) -> str:
    if name in ("i64", "u64"):
        low, high = (f"simd_shuffle_xor((u32)({value}{shift}), (ushort)m)" for shift in
                     ("", " >> 32"))  # fmt: skip
        return f"({name})((u64){low} | (u64){high} << 32)"
    wide = f"(int){value}" if name in _SMALL else value
    return f"({name})simd_shuffle_xor({wide}, (ushort)m)"


def _simd(name: str, kind: str, words: int) -> str:
    """A product of matrices by a SIMD group: of each, a thread holds two neighbours of a row."""
    pair = f"{kind}2"
    head = ", ".join(f"u32 {x}{n}" for x in "ab" for n in range(words))
    given = (f"as_type<{pair}>({x}0)" if words == 1 else f"{pair}(as_f32({x}0), as_f32({x}1))"
             for x in "ab")  # fmt: skip
    first, second = given
    return f"""
FN void mma_{name}(thread f32& c0, thread f32& c1, {head}) {{
    simdgroup_matrix<{kind}, 8, 8> x, y;
    simdgroup_matrix<float, 8, 8> z;
    x.thread_elements() = {first};
    y.thread_elements() = {second};
    z.thread_elements() = float2(c0, c1);
    simdgroup_multiply_accumulate(z, x, y, z);
    c0 = z.thread_elements()[0];
    c1 = z.thread_elements()[1];
}}"""


_OWN = {
    "mma_f16": _simd("f16", "half", 1), "mma_bf16": _simd("bf16", "bfloat", 1),
    "mma_f32": _simd("f32", "float", 2),
}  # fmt: skip


METAL = Dialect(
    name="metal",
    types={"u64": "ulong", "u32": "uint", "u16": "ushort", "u8": "uchar", "i64": "long",
           "i32": "int", "i16": "short", "i8": "char", "f32": "float"},
    head="#include <metal_stdlib>\nusing namespace metal;",
    signature="kernel void {name}(\n    {parameters})",
    pointer="device {type}* {name} [[buffer({number})]]",
    size="constant i64& {name} [[buffer({number})]]",
    extra=("threadgroup u8* shared [[threadgroup(0)]]",
           "uint group [[threadgroup_position_in_grid]]",
           "uint lane [[thread_position_in_threadgroup]]"),
    entry="    const i64 {block} = group;\n    const i64 tid = lane;",
    function="static inline",
    memory="threadgroup",
    device="device ",
    private="thread ",
    align="alignas(16)",
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup)",
    vector="{type}({values})",
    warp=32,
    shuffle=_shuffle,
    math={"f32": "precise::{}", "fma": "fma"},
    casts=_CASTS,
    own=_OWN,
)  # fmt: skip
