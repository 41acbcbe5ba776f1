"""Target: what code is generated for. Facts only; detection lives in runtime/device.py.

In: fields. Out: a hashable value that goes into cache keys."""

from dataclasses import dataclass

from luminal.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Target:
    """One CPU or GPU and its limits.

    `vector_bits` is the SIMD register width, `vector_registers` their number, `fma` whether fused
    multiply-add is one instruction, `int8_dot` the name of the 8-bit dot-product intrinsic family
    ('' none, 'maddubs', 'vnni', 'dotprod'). Sizes in bytes, rates in GFLOP/s and GB/s for one core.
    `kind` is 'cpu' or a GPU's dialect ('cuda', 'metal', 'opencl'); then a core is a multiprocessor,
    `l1_bytes` what a block may share, `warp` the number of threads that run in step.
    """

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

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // max(8, dtype.bits))
