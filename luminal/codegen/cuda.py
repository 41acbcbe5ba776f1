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


def _mma(name: str, shape: str, kind: str = "", result: str = "f32") -> str:
    """A product of matrices by a warp: sums, and words of both operands."""
    sums, words = ("c0", "c1", "c2", "c3"), ("a0", "a1", "a2", "a3", "b0", "b1")
    made = ", ".join(f'"+{"f" if result == "f32" else "r"}"({c})' for c in sums)
    read = ", ".join(f'"r"({w})' for w in words)
    head = ", ".join((*(f"{result}& {c}" for c in sums), *(f"u32 {w}" for w in words)))
    kinds = f"{(r := result.replace('i', 's'))}.{kind or name}.{kind or name}.{r}"
    near = "".join(
        f'    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"({w}) : "f"(as_f32({w})));\n' for w in words
    )
    return f"""
FN void mma_{name}({head}) {{
{near if kind == "tf32" else ""}    asm("mma.sync.aligned.{shape}.row.col.{kinds} "
        "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
        : {made}
        : {read});
}}"""


def _cast(source: str, target: str, instruction: str) -> str:
    letter = {"f32": "f", "u16": "h"}
    return f"""{{
    {target} y;
    asm("{instruction} %0, %1;" : "={letter[target]}"(y) : "{letter[source]}"(x));
    return y;
}}"""


def _copy(size: int) -> str:
    """From global to shared memory; zeros where there is nothing to copy."""
    return f"""
FN void copy_{size}(void* to, const void* from, bool some) {{
    const u32 at = (u32)__cvta_generic_to_shared(to), bytes = some ? {size} : 0;
    asm volatile("cp.async.{"cg" if size == 16 else "ca"}.shared.global [%0], [%1], {size}, %2;"
        : : "r"(at), "l"(from), "r"(bytes) : "memory");
}}"""


_OWN = {
    **{f"copy_{n}": _copy(n) for n in (4, 8, 16)},
    "f16_f32": "\nFN f32 f16_f32(u16 x) " + _cast("u16", "f32", "cvt.f32.f16"),
    "f32_f16": "\nFN u16 f32_f16(f32 x) " + _cast("f32", "u16", "cvt.rn.f16.f32"),
    "mma_f16": _mma("f16", "m16n8k16"), "mma_bf16": _mma("bf16", "m16n8k16"),
    "mma_i8": _mma("i8", "m16n8k32", "s8", "i32"), "mma_f32": _mma("f32", "m16n8k8", "tf32"),
}  # fmt: skip

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
    own=_OWN,
    arrival='asm volatile("cp.async.commit_group;" : : : "memory"); '
            'asm volatile("cp.async.wait_group {left};" : : : "memory");',
)  # fmt: skip
