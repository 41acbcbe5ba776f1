"""Matrix instructions: small products that a warp of 32 threads computes together.

In: fields. Out: hashable values that stand in a Target, and the tables of known ones. A thread
holds, of the result, the rows rows(t), rows(t) + 8, ... and of each 8 columns the two neighbours
from 2 columns(t) on. This is all that code generation knows of a lane layout."""

from __future__ import annotations

from dataclasses import dataclass

from luminal.ir.dtype import DType, bf16, f16, f32, i8, i32

Split = tuple[tuple[int, int, int], ...]
"""A number made of parts of a thread's: sum of t // a % b * c for all (a, b, c)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """C[m, 8] += A[m, k] B[k, 8] of `operand` into `result`.

    Of A, a thread holds its rows, and of them the words (32 bits) columns(t), columns(t) + 4, ...
    Of B it holds the column rows(t) likewise; if `across` the two neighbours of C's columns in row
    rows(t)."""

    operand: DType
    result: DType
    m: int
    k: int
    rows: Split
    columns: Split
    across: bool = False


def _mma(operand: DType, result: DType) -> Matrix:
    return Matrix(operand, result, 16, 256 // operand.bits, ((4, 8, 1),), ((1, 4, 1),))


def _simd(operand: DType) -> Matrix:
    rows, columns = ((2, 4, 1), (16, 2, 4)), ((1, 2, 1), (8, 2, 2))
    return Matrix(operand, f32, 8, 8, rows, columns, across=True)


MMA = (_mma(f16, f32), _mma(bf16, f32), _mma(i8, i32))
"""mma.sync of NVIDIA from sm_80 on."""
TF32 = _mma(f32, f32)
"""The same, its operands rounded to 11 bits: for fast numerics alone."""
SIMDGROUP = (_simd(f16), _simd(bf16), _simd(f32))
"""simdgroup_matrix of Apple, 8 by 8."""
