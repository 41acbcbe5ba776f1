"""Builds one-operation kernels in loop IR, compiles them for variants of this CPU, runs them."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

import numpy as np

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import Block, For, Function, Let, Literal, Load, Statement, Store, Value
from luminal.ir import dtype as dt
from luminal.ir.target import Target
from luminal.runtime.cpu import compile_object, link, llvm
from luminal.runtime.device import baseline_target

_AVX2 = "+sse2,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma,+f16c"
_AVX512 = _AVX2 + ",+avx512f,+avx512bw,+avx512dq,+avx512vl"
X86 = "x86_64-unknown-linux-gnu"
TARGETS = {
    "sse2": Target(triple=X86),
    "avx2": Target(triple=X86, features=_AVX2, vector_bits=256, fma=True, int8_dot="maddubs"),
    "avx512": Target(
        triple=X86, features=_AVX512 + ",+avx512vnni", vector_bits=512, vector_registers=32,
        fma=True, int8_dot="vnni",
    ),
    "aarch64": Target(triple="aarch64-unknown-linux-gnu", cpu="generic",
                      features="+neon,+dotprod", fma=True, int8_dot="dotprod"),
    "apple": baseline_target("arm64-apple-macos"),
}  # fmt: skip


def runnable() -> list[str]:
    """The variants that this machine can execute."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        return ["aarch64"] if "aarch64" in machine else []
    have = llvm().get_host_cpu_features()
    needs = {name: TARGETS[name].features for name in ("sse2", "avx2", "avx512")}
    return [
        name for name, text in needs.items()
        if all(have.get(f[1:], False) for f in text.split(",") if f)
    ]  # fmt: skip


def i64(value: int) -> Literal:
    """An index constant."""
    return Literal(value, dt.i64)


def function(
    body: list[Statement],
    arguments: tuple[str, ...],
    dims: tuple[str, ...] = (),
    scratch: tuple[tuple[str, int], ...] = (),
    name: str = "kernel",
) -> Function:
    """A kernel with one grid chunk and cost 7."""
    return Function(
        name, arguments, dims, scratch, 4096, Value("lo", dt.i64), Value("hi", dt.i64),
        Block(body), Block(), i64(1), Block(), i64(7),
    )  # fmt: skip


def one_op(
    op: str,
    inputs: list[tuple[dt.DType, int]],
    output: tuple[dt.DType, int],
    attr: tuple[int, ...] = (),
) -> Function:
    """Loads the inputs a0, a1, ... at 0, applies `op`, stores the result to `out`."""
    body: list[Statement] = []
    args = []
    for i, (dtype, lanes) in enumerate(inputs):
        value = Value(f"x{i}", dtype, lanes)
        body.append(Load(value, f"a{i}", dtype, i64(0)))
        args.append(value)
    result = Value("r", *output)
    body.append(Let(result, op, tuple(args), attr))
    body.append(Store("out", output[0], i64(0), result))
    return function(body, (*(f"a{i}" for i in range(len(inputs))), "out"))


@dataclass
class Kernel:
    """A kernel in memory; call it with arrays in the order of its arguments."""

    library: object
    address: int

    def __call__(self, *arrays: np.ndarray, dims: tuple[int, ...] = (), hi: int = 1) -> int:
        """Runs chunks 0..hi-1; the error word."""
        error = np.zeros(1, np.int32)
        scratch = np.zeros(4096 + 64, np.uint8)
        words = [a.ctypes.data for a in arrays] + list(dims) + [error.ctypes.data]
        block = (ctypes.c_int64 * len(words))(*words)
        call = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )(self.address)
        call(ctypes.addressof(block), 0, hi, (scratch.ctypes.data + 63) // 64 * 64)
        return int(error[0])


def build(kernel: Function, target: str) -> Kernel:
    """Prints, verifies, compiles and links."""
    chosen = TARGETS[target]
    library = link([compile_object(print_function(kernel, chosen), chosen)], [kernel.name])
    return Kernel(library, library[kernel.name])


def for_range(var: Value, count: Value | Literal, body: list[Statement]) -> For:
    """for var in 0 .. count-1."""
    return For(var, i64(0), count, Block(body))
