"""Rotary tables against transformers' frequencies and against their definition."""

import numpy as np
import pytest

from luminal.models.rope import RopeConfig, RopeTable, ScalingConfig


def frequencies(config: RopeConfig) -> np.ndarray:
    """The angle per position, read back from the tables at position 1."""
    cosines, sines = RopeTable(config).tables(1, 1)
    axis = 1 if config.interleaved else 0
    return np.arctan2(np.take(sines[0], 1, axis), np.take(cosines[0], 0, axis))


def plain(**changes) -> RopeConfig:
    fields = {"dims": 16, "base": 10000.0, "interleaved": False, "scaling": None, "factors": None}
    return RopeConfig(**(fields | changes))


@pytest.mark.parametrize("interleaved", [True, False])
def test_pairs_signs_and_start(interleaved: bool) -> None:
    cosines, sines = RopeTable(plain(interleaved=interleaved)).tables(5, 3)
    angles = np.arange(5, 8)[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    axis = 2 if interleaved else 1
    assert cosines.shape == ((3, 8, 2) if interleaved else (3, 2, 8))
    np.testing.assert_allclose(np.take(cosines, 1, axis), np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(np.take(sines, 0, axis), -np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(np.take(sines, 1, axis), np.sin(angles), atol=1e-6)


def test_linear_scaling_and_factors() -> None:
    base = frequencies(plain())
    scaled = frequencies(plain(scaling=ScalingConfig("linear", 4.0)))
    np.testing.assert_allclose(scaled, base / 4, rtol=1e-5)
    factors = tuple(float(f) for f in range(1, 9))
    np.testing.assert_allclose(frequencies(plain(factors=factors)), base / factors, rtol=1e-5)


def test_yarn_equals_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    rope |= {"original_max_position_embeddings": 512, "truncate": True}
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters=rope,
    )
    want, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    ours = plain(dims=64, scaling=ScalingConfig("yarn", 4.0, original_context=512))
    np.testing.assert_allclose(frequencies(ours), want.numpy(), rtol=1e-5)
    cosines, sines = RopeTable(ours).tables(1, 1)
    np.testing.assert_allclose(np.hypot(cosines, sines), magnitude, rtol=1e-6)
