"""CUDA C++ as a dialect of `cstyle.py`, for NVRTC: no header is included.

In: nothing. Out: `CUDA`. Halves are converted by one instruction where there is a device, by
integer arithmetic where the text is compiled as C++."""

from luminal.codegen.cstyle_dialect import Dialect

_CASTS = {
    "as_f32": "FN f32 as_f32(u32 x) { return __uint_as_float(x); }",
    "as_u32": "FN u32 as_u32(f32 x) { return __float_as_uint(x); }",
    "as_f64": "FN f64 as_f64(u64 x) { return __longlong_as_double((i64)x); }",
}
_SMALL = ("bool", "u8", "i8", "i16", "u16")


def _shuffle(value: str, name: str) -> str:
    wide = f"(int){value}" if name in _SMALL else value
    return f"({name})__shfl_xor_sync(0xffffffffu, {wide}, m)"


CUDA = Dialect(
    name="cuda",
    types={"u64": "unsigned long long", "u32": "unsigned int", "u16": "unsigned short",
           "u8": "unsigned char", "i64": "long long", "i32": "int", "i16": "short",
           "i8": "signed char", "f32": "float", "f64": "double"},
    head="extern __shared__ __align__(16) unsigned char shared[];",
    signature='extern "C" __global__ void __launch_bounds__({threads}) {name}(\n    {parameters})',
    pointer="{type}* {name}",
    size="i64 {name}",
    extra=(),
    entry="    const i64 {block} = blockIdx.x;\n    const i64 tid = threadIdx.x;",
    function="static __device__ __forceinline__",
    memory="",
    device="",
    private="",
    align="__align__(16)",
    barrier="__syncthreads()",
    vector="make_{type}({values})",
    warp=32,
    shuffle=_shuffle,
    math={"f32": "{}f", "f64": "{}"},
    casts=_CASTS,
)  # fmt: skip
