"""Target: what code is generated for. Facts only; detection lives in runtime/device.py.

In: fields. Out: a hashable value that goes into cache keys."""

from dataclasses import dataclass

from luminal.ir.dtype import DType
from luminal.ir.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Target:
    """One CPU or GPU and its limits.

    `vector_bits` of each of `vector_registers`; `fma`: it is one instruction; `int8_dot`: 8-bit dot
    products ('', 'maddubs', 'vnni', 'dotprod'). Bytes, GFLOP/s and GB/s of a core. `kind`: 'cpu' or
    a GPU's; a core shares `l1_bytes` then, `warp` threads make `matrix` products."""

    kind: str = "cpu"
    triple: str = "x86_64-unknown-linux-gnu"
    cpu: str = "x86-64"
    features: str = ""
    vector_bits: int = 128
    vector_registers: int = 16
    fma: bool = False
    int8_dot: str = ""
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 8 << 20
    cores: int = 1
    gflops: float = 20.0
    bandwidth_gbs: float = 10.0
    launch_us: float = 1.0
    warp: int = 1
    matrix: tuple[Matrix, ...] = ()

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // max(8, dtype.bits))
