"""Block formats of quantised weights: how each GGUF type stores its numbers.

In: raw blocks as bytes [blocks, size_bytes]. Out: `Blocks`, one common form in which every weight
is scale·sub_scale·quant + minimum·sub_minimum. Must not know files, models or kernels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["BLOCK_TYPES", "REFUSED_TYPES", "BlockType", "Blocks"]

_F16 = np.dtype("<f2")
_CODEBOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Unpacked blocks of one type, arrays per block along the first axis.

    quants: integers [blocks, elements], each within `bits` ("u4", "i4" or "i8").
    scale, minimum: floats [blocks]; sub_scale, sub_minimum: small integers [blocks, groups].
    """

    bits: str
    quants: np.ndarray
    scale: np.ndarray
    sub_scale: np.ndarray | None = None
    minimum: np.ndarray | None = None
    sub_minimum: np.ndarray | None = None

    def decode(self) -> np.ndarray:
        """The weights as f32 [blocks, elements]."""
        blocks, elements = self.quants.shape
        scale = _product(self.scale, self.sub_scale)
        weights = self.quants.reshape(blocks, scale.shape[1], -1).astype(np.float32)
        weights *= scale[:, :, None]
        if self.minimum is not None:
            minimum = _product(self.minimum, self.sub_minimum)
            weights = weights.reshape(blocks, minimum.shape[1], -1) + minimum[:, :, None]
        return weights.reshape(blocks, elements)


@dataclass(frozen=True, slots=True)
class BlockType:
    """One GGUF tensor type; `plain` is the NumPy dtype of an unquantised one.

    A type with neither `plain` nor `unpack` is decoded by the `gguf` package.
    """

    code: int
    name: str
    elements: int
    size_bytes: int
    unpack: Callable[[np.ndarray], Blocks] | None = None
    plain: str | None = None


def _product(scale: np.ndarray, sub_scale: np.ndarray | None) -> np.ndarray:
    scale = scale.astype(np.float32)[:, None]
    return scale if sub_scale is None else scale * sub_scale.astype(np.float32)


def _half(raw: np.ndarray, at: int) -> np.ndarray:
    """The f16 number at a byte offset of every block."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(_F16)[:, 0]


def _nibbles(raw: np.ndarray, run: int) -> np.ndarray:
    """Per `run` bytes all low nibbles, then all high ones: u8 [blocks, 2 * bytes]."""
    grouped = raw.reshape(len(raw), -1, 1, run)
    return (np.concatenate((grouped & 15, grouped >> 4), axis=2)).reshape(len(raw), -1)


def _bits(raw: np.ndarray, width: int, run: int) -> np.ndarray:
    """Fields of `width` bits, lowest first; per `run` bytes one field of every byte in turn."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    grouped = raw.reshape(len(raw), -1, 1, run) >> shifts
    return (grouped & ((1 << width) - 1)).reshape(len(raw), -1)


def _high_bits(raw: np.ndarray, at: int) -> np.ndarray:
    """32 single bits, as 16 for u8 [blocks, 32]: the fifth bit of Q5_0 and Q5_1."""
    return np.unpackbits(raw[:, at : at + 4], axis=1, bitorder="little") << 4


def _q4_0(raw: np.ndarray) -> Blocks:
    return Blocks("i4", _nibbles(raw[:, 2:], 16).view(np.int8) - 8, _half(raw, 0))


def _q4_1(raw: np.ndarray) -> Blocks:
    quants = _nibbles(raw[:, 4:], 16).view(np.int8)
    return Blocks("u4", quants, _half(raw, 0), minimum=_half(raw, 2))


def _q5_0(raw: np.ndarray) -> Blocks:
    quants = (_nibbles(raw[:, 6:], 16) | _high_bits(raw, 2)).view(np.int8) - 16
    return Blocks("i8", quants, _half(raw, 0))


def _q5_1(raw: np.ndarray) -> Blocks:
    quants = (_nibbles(raw[:, 8:], 16) | _high_bits(raw, 4)).view(np.int8)
    return Blocks("i8", quants, _half(raw, 0), minimum=_half(raw, 2))


def _q8_0(raw: np.ndarray) -> Blocks:
    return Blocks("i8", raw[:, 2:].view(np.int8), _half(raw, 0))


def _q2_k(raw: np.ndarray) -> Blocks:
    packed = raw[:, :16]
    quants = _bits(raw[:, 16:80], 2, 32).view(np.int8)
    sub_scale, sub_minimum = (packed & 15).view(np.int8), (packed >> 4).view(np.int8)
    return Blocks("u4", quants, _half(raw, 80), sub_scale, -_half(raw, 82), sub_minimum)


def _q3_k(raw: np.ndarray) -> Blocks:
    low = _bits(raw[:, 32:96], 2, 32).view(np.int8)
    high = _bits(raw[:, :32], 1, 32).view(np.int8)
    packed = raw[:, 96:108]
    low_scale = _nibbles(packed[:, :8], 8)
    high_scale = _bits(packed[:, 8:], 2, 4)
    sub_scale = (low_scale | (high_scale << 4)).view(np.int8) - 32
    return Blocks("i4", low + 4 * high - 4, _half(raw, 108), sub_scale)


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 8 scales and 8 minima, 6 bits each, that Q4_K and Q5_K keep in 12 bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate((first & 63, (rest & 15) | ((first >> 6) << 4)), axis=1)
    minimum = np.concatenate((second & 63, (rest >> 4) | ((second >> 6) << 4)), axis=1)
    return scale.view(np.int8), minimum.view(np.int8)


def _q4_k(raw: np.ndarray) -> Blocks:
    scale, minimum = _six_bit_pairs(raw[:, 4:16])
    quants = _nibbles(raw[:, 16:], 32).view(np.int8)
    return Blocks("u4", quants, _half(raw, 0), scale, -_half(raw, 2), minimum)


def _q5_k(raw: np.ndarray) -> Blocks:
    scale, minimum = _six_bit_pairs(raw[:, 4:16])
    high = _bits(raw[:, 16:48], 1, 32) << 4
    quants = (_nibbles(raw[:, 48:], 32) | high).view(np.int8)
    return Blocks("i8", quants, _half(raw, 0), scale, -_half(raw, 2), minimum)


def _q6_k(raw: np.ndarray) -> Blocks:
    low = _nibbles(raw[:, :128], 64)
    high = _bits(raw[:, 128:192], 2, 32) << 4
    return Blocks(
        "i8", (low | high).view(np.int8) - 32, _half(raw, 208), raw[:, 192:208].view(np.int8)
    )


def _iq4_nl(raw: np.ndarray) -> Blocks:
    return Blocks("i8", _CODEBOOK[_nibbles(raw[:, 2:], 16)], _half(raw, 0))


def _iq4_xs(raw: np.ndarray) -> Blocks:
    high = np.ascontiguousarray(raw[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = _bits(raw[:, 4:8], 4, 1)
    sub_scale = (low | ((high & 3) << 4).astype(np.uint8)).view(np.int8) - 32
    return Blocks("i8", _CODEBOOK[_nibbles(raw[:, 8:], 16)], _half(raw, 0), sub_scale)


_TYPES = (
    BlockType(0, "F32", 1, 4, plain="<f4"),
    BlockType(1, "F16", 1, 2, plain="<f2"),
    BlockType(2, "Q4_0", 32, 18, _q4_0),
    BlockType(3, "Q4_1", 32, 20, _q4_1),
    BlockType(6, "Q5_0", 32, 22, _q5_0),
    BlockType(7, "Q5_1", 32, 24, _q5_1),
    BlockType(8, "Q8_0", 32, 34, _q8_0),
    BlockType(10, "Q2_K", 256, 84, _q2_k),
    BlockType(11, "Q3_K", 256, 110, _q3_k),
    BlockType(12, "Q4_K", 256, 144, _q4_k),
    BlockType(13, "Q5_K", 256, 176, _q5_k),
    BlockType(14, "Q6_K", 256, 210, _q6_k),
    BlockType(16, "IQ2_XXS", 256, 66),
    BlockType(17, "IQ2_XS", 256, 74),
    BlockType(18, "IQ3_XXS", 256, 98),
    BlockType(19, "IQ1_S", 256, 50),
    BlockType(20, "IQ4_NL", 32, 18, _iq4_nl),
    BlockType(21, "IQ3_S", 256, 110),
    BlockType(22, "IQ2_S", 256, 82),
    BlockType(23, "IQ4_XS", 256, 136, _iq4_xs),
    BlockType(24, "I8", 1, 1, plain="<i1"),
    BlockType(25, "I16", 1, 2, plain="<i2"),
    BlockType(26, "I32", 1, 4, plain="<i4"),
    BlockType(27, "I64", 1, 8, plain="<i8"),
    BlockType(28, "F64", 1, 8, plain="<f8"),
    BlockType(29, "IQ1_M", 256, 56),
    BlockType(30, "BF16", 1, 2, plain="<u2"),
    BlockType(34, "TQ1_0", 256, 54),
    BlockType(35, "TQ2_0", 256, 66),
    BlockType(39, "MXFP4", 32, 17),
)
BLOCK_TYPES: Mapping[int, BlockType] = {block.code: block for block in _TYPES}
REFUSED_TYPES: Mapping[int, str] = {
    4: "Q4_2, which was removed from GGUF",
    5: "Q4_3, which was removed from GGUF",
    9: "Q8_1, which is for activations only",
    15: "Q8_K, which is for activations only",
    31: "Q4_0_4_4, which was removed from GGUF",
    32: "Q4_0_4_8, which was removed from GGUF",
    33: "Q4_0_8_8, which was removed from GGUF",
    36: "IQ4_NL_4_4, which was removed from GGUF",
    37: "IQ4_NL_4_8, which was removed from GGUF",
    38: "IQ4_NL_8_8, which was removed from GGUF",
}
