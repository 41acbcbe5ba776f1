"""OpenCL C 1.2 as a dialect of `cstyle.py`.

In: nothing. Out: `OPENCL`. Lanes exchange through memory: subgroups are optional there."""

from luminal.codegen.cstyle_dialect import Dialect

_CASTS = {
    "as_f32": "FN f32 as_f32(u32 x) { return as_float(x); }",
    "as_u32": "FN u32 as_u32(f32 x) { return as_uint(x); }",
    "as_f64": "FN f64 as_f64(u64 x) { return as_double(x); }",
}

OPENCL = Dialect(
    name="opencl",
    types={"u64": "ulong", "u32": "uint", "u16": "ushort", "u8": "uchar", "i64": "long",
           "i32": "int", "i16": "short", "i8": "char", "f32": "float", "f64": "double"},
    head="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
    signature="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void {name}(\n"
              "    {parameters})",
    pointer="__global {type}* {name}",
    size="const i64 {name}",
    extra=("__local u8* shared",),
    entry="    const i64 {block} = get_group_id(0);\n    const i64 tid = get_local_id(0);",
    function="static inline",
    memory="__local",
    device="__global ",
    private="",
    align="__attribute__((aligned(16)))",
    barrier="barrier(CLK_LOCAL_MEM_FENCE)",
    vector="({type})({values})",
    warp=1,
    shuffle=lambda value, name: value,
    math={"f32": "{}", "f64": "{}"},
    casts=_CASTS,
)  # fmt: skip
