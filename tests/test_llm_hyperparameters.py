"""Hyperparameters and weight tables of decoder files: defaults, variants and refusals."""

from pathlib import Path
from typing import Any

import pytest

from luminal.errors import LuminalError, UnsupportedError, WeightsError
from luminal.models.decoder_weights import read_weights
from luminal.models.hyperparameters import DecoderConfig, read_config
from luminal.weights import GGUFFile, open_gguf
from tests import gguf_writer as gw
from tests.tiny_models import decoder_bytes


def opened(tmp_path: Path, **changes: Any) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(decoder_bytes(**changes))
    return open_gguf(path)


def config_of(tmp_path: Path, **changes: Any) -> DecoderConfig:
    file = opened(tmp_path, **changes)
    config = read_config(file)
    read_weights(file, config)
    return config


def test_a_plain_llama(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert (config.n_heads, config.n_kv_heads, config.head_dim, config.group) == (4, 2, 8, 2)
    assert (config.vocab, config.d_model, config.d_ff, config.n_layers) == (64, 32, 64, 2)
    assert config.rope.interleaved
    assert config.rope.scaling is None
    assert config.windows == (0, 0)


def test_rope_scaling_variants(tmp_path: Path) -> None:
    linear = {"rope.scaling.type": (gw.STRING, "linear"), "rope.scaling.factor": (gw.F32, 4.0)}
    scaling = config_of(tmp_path, keys=linear).rope.scaling
    assert (scaling.kind, scaling.factor) == ("linear", 4.0)
    yarn = linear | {"rope.scaling.type": (gw.STRING, "yarn")}
    yarn |= {"rope.scaling.original_context_length": (gw.U32, 16)}
    assert config_of(tmp_path, keys=yarn).rope.scaling.original_context == 16
    old = config_of(tmp_path, keys={"rope.scale_linear": (gw.F32, 2.0)}).rope.scaling
    assert (old.kind, old.factor) == ("linear", 2.0)


BAD = {
    "no layers": {"block_count": None},
    "no heads": {"attention.head_count": (gw.U32, 0)},
    "kv heads do not divide": {"attention.head_count_kv": (gw.U32, 3)},
    "absurd layers": {"block_count": (gw.U32, 100_000)},
    "one layer too many": {"block_count": (gw.U32, 3)},
    "heads as text": {"attention.head_count": (gw.STRING, "4")},
    "heads per layer": {"attention.head_count": (gw.ARRAY, (gw.I32, [4, 4]))},
    "no epsilon": {"attention.layer_norm_rms_epsilon": None},
    "epsilon NaN": {"attention.layer_norm_rms_epsilon": (gw.F32, float("nan"))},
    "odd rotation": {"rope.dimension_count": (gw.U32, 7)},
    "wide rotation": {"rope.dimension_count": (gw.U32, 64)},
    "no width": {"embedding_length": None},
    "other width": {"embedding_length": (gw.U32, 48)},
    "other ff": {"feed_forward_length": (gw.U32, 65)},
    "unknown scaling": {"rope.scaling.type": (gw.STRING, "odd")},
    "scaling without factor": {"rope.scaling.type": (gw.STRING, "linear")},
    "no context": {"context_length": (gw.U32, 0)},
}


@pytest.mark.parametrize("case", BAD)
def test_bad_hyperparameters_are_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(LuminalError, match=r"\[load\] model\.gguf: ") as caught:
        config_of(tmp_path, keys=BAD[case])
    assert "\n" not in str(caught.value)


def test_architectures(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'mamba'"):
        read_config(opened(tmp_path, architecture="mamba"))
    with pytest.raises(WeightsError, match=r"general\.architecture"):
        read_config(opened(tmp_path, architecture=None))
    with pytest.raises(WeightsError, match=r"blk\.0\.attn_q\.bias"):
        config_of(tmp_path, architecture="qwen2", without=("blk.0.attn_q.bias",))


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight"])
def test_missing_tensors_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        config_of(tmp_path, without=(name,))


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"blk\.0\.attn_k\.weight.*wrong shape"):
        config_of(tmp_path, keys={"attention.head_count_kv": (gw.U32, 4)})


def test_tied_table_is_counted_once(tmp_path: Path) -> None:
    untied, tied = opened(tmp_path), None
    separate = read_weights(untied, read_config(untied))
    tied = opened(tmp_path, without=("output.weight",))
    shared = read_weights(tied, read_config(tied))
    assert shared.output is shared.embedding
    assert separate.size_bytes - shared.size_bytes == 64 * 32 * 4
