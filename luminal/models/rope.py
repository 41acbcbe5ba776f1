"""Rotary position embedding: the angles of each position, on the host in f64.

In: a RopeConfig and positions. Out: cosines and signed sines in f32, with every scaling variant
(linear, YaRN, per-frequency factors) already applied. Must not touch lazy tensors.
"""

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["RopeConfig", "RopeTable", "ScalingConfig"]


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """How positions beyond the trained context are squeezed: kind "linear" or "yarn"."""

    kind: str
    factor: float
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotated dims of a head, base of the frequencies, pairing and scaling.

    interleaved pairs (0, 1), (2, 3), …; otherwise dim i goes with dim i + dims/2. `factors`
    divide the frequencies one by one (Llama 3 stores its scaling so).
    """

    dims: int
    base: float
    interleaved: bool
    scaling: ScalingConfig | None
    factors: tuple[float, ...] | None


class RopeTable:
    """Frequencies of one RopeConfig, ready to give angles."""

    __slots__ = ("_frequencies", "_magnitude", "_pair_axis")

    def __init__(self, config: RopeConfig) -> None:
        frequencies = config.base ** (-np.arange(0, config.dims, 2, dtype=np.float64) / config.dims)
        if config.factors is not None:
            frequencies = frequencies / np.asarray(config.factors)
        self._magnitude, self._pair_axis = 1.0, 2 if config.interleaved else 1
        scaling = config.scaling
        if scaling is not None and scaling.kind == "linear":
            frequencies = frequencies / scaling.factor
        elif scaling is not None:
            kept = _kept_share(config, scaling)
            frequencies = frequencies * (kept + (1.0 - kept) / scaling.factor)
            self._magnitude = scaling.attention_factor * (
                1.0 + 0.1 * math.log(max(scaling.factor, 1.0))
            )
        self._frequencies = frequencies

    def tables(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and signed sin for the positions start … start + count - 1, f32 [count, *pairs].

        pairs is (dims/2, 2) when interleaved, else (2, dims/2); the first of a pair has -sin.
        """
        angles = np.arange(start, start + count, dtype=np.float64)[:, None] * self._frequencies
        cosines, sines = np.cos(angles) * self._magnitude, np.sin(angles) * self._magnitude
        cosines, sines = (
            np.stack(pair, self._pair_axis).astype(np.float32)
            for pair in ((cosines, cosines), (-sines, sines))
        )
        return cosines, sines


def _kept_share(config: RopeConfig, scaling: ScalingConfig) -> np.ndarray:
    """YaRN's ramp (arXiv:2309.00071): 1 where a frequency turns often enough to be kept."""

    def dim_of(turns: float) -> float:
        wavelengths = scaling.original_context / (turns * 2 * math.pi)
        return config.dims * math.log(wavelengths) / (2 * math.log(config.base))

    low = max(0.0, math.floor(dim_of(scaling.beta_fast)))
    high = min(config.dims - 1.0, math.ceil(dim_of(scaling.beta_slow)))
    ramp = (np.arange(config.dims // 2) - low) / max(0.001, high - low)
    return 1.0 - np.clip(ramp, 0.0, 1.0)
