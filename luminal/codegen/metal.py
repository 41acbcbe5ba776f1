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
)  # fmt: skip
