"""Hyperparameters of decoder models, read from GGUF metadata and checked.

In: an open GGUFFile. Out: a DecoderConfig. Every missing, mistyped or absurd entry gives a
WeightsError that names its key. Must not read weights.
"""

import math
from dataclasses import dataclass

from luminal.errors import UnsupportedError, WeightsError
from luminal.frontend.weights import GGUFFile
from luminal.models.rope import RopeConfig, ScalingConfig

__all__ = ["ARCHITECTURES", "DecoderConfig", "read_config"]

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
_MAX_COUNT = 1 << 24
_MAX_LAYERS = 1024
_GEMMA_WINDOW_PERIOD = 6
_GEMMA_LOCAL_BASE = 10000.0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape and variant of a decoder model.

    `windows` has one entry per layer: how many keys a query sees, 0 for all of them. Layers with
    a window use `local_rope`. `gelu` picks tanh-GELU in place of SiLU.
    """

    architecture: str
    vocab: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    rms_epsilon: float
    context_length: int
    rope: RopeConfig
    local_rope: RopeConfig
    windows: tuple[int, ...]
    embedding_scale: float = 1.0
    gelu: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.n_heads // self.n_kv_heads


class _Keys:
    """Typed access to the metadata of one file, under the prefix of its architecture."""

    __slots__ = ("file", "prefix")

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file, self.prefix = file, architecture + "."

    def fail(self, problem: str) -> WeightsError:
        return WeightsError(f"[load] {self.file.path.name}: {problem}")

    def count(self, key: str, default: int | None = None, limit: int = _MAX_COUNT) -> int:
        key = self.prefix + key
        value = self.file.metadata.get(key, default)
        if value is None:
            raise self.fail(f"the key {key} is missing")
        if type(value) is not int or not 0 < value <= limit:
            shown = f"{value!r:.40}"
            raise self.fail(f"{key} is {shown}. Expected a whole number from 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        key = self.prefix + key
        value = self.file.metadata.get(key, default)
        if value is None:
            raise self.fail(f"the key {key} is missing")
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.fail(f"{key} is {value!r:.40}. Expected a number above 0")
        return float(value)


def read_config(file: GGUFFile) -> DecoderConfig:
    """Reads the hyperparameters of a decoder model from the metadata of its file."""
    architecture = file.metadata.get("general.architecture")
    if architecture is None:
        raise WeightsError(f"[load] {file.path.name}: the key general.architecture is missing")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"[load] {file.path.name}: the architecture {architecture!r} is not supported. "
            f"Expected one of {', '.join(ARCHITECTURES)}"
        )
    keys = _Keys(file, architecture)
    gemma = architecture == "gemma3"
    d_model, n_layers = keys.count("embedding_length"), keys.count("block_count", limit=_MAX_LAYERS)
    n_heads, n_kv_heads, head_dim = _heads(keys, d_model)
    context_length = keys.count("context_length", limit=1 << 31)
    rope = _rope(keys, head_dim, context_length)
    return DecoderConfig(
        architecture=architecture,
        vocab=_vocab(keys),
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        d_ff=keys.count("feed_forward_length"),
        rms_epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=context_length,
        rope=rope,
        local_rope=_local_rope(keys, rope) if gemma else rope,
        windows=_windows(keys, n_layers, gemma),
        embedding_scale=math.sqrt(d_model) if gemma else 1.0,
        gelu=gemma,
    )


def _vocab(keys: _Keys) -> int:
    table = keys.file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise keys.fail("the tensor token_embd.weight is missing or not a matrix")
    return table.shape[0]


def _heads(keys: _Keys, d_model: int) -> tuple[int, int, int]:
    n_heads = keys.count("attention.head_count", limit=1 << 16)
    n_kv_heads = keys.count("attention.head_count_kv", n_heads, limit=1 << 16)
    if n_heads % n_kv_heads:
        raise keys.fail(
            f"{n_heads} query heads cannot share {n_kv_heads} key heads "
            f"({keys.prefix}attention.head_count_kv). Expected a divisor"
        )
    stated = keys.file.metadata.get(keys.prefix + "attention.key_length")
    if stated is None and d_model % n_heads:
        raise keys.fail(
            f"{keys.prefix}embedding_length {d_model} is not a multiple of {n_heads} heads"
        )
    head_dim = keys.count("attention.key_length", d_model // n_heads, limit=1 << 14)
    value_dim = keys.count("attention.value_length", head_dim, limit=1 << 14)
    if head_dim != value_dim:
        raise UnsupportedError(
            f"[load] {keys.file.path.name}: heads with {head_dim} key and {value_dim} value "
            "numbers are not supported. Expected the same number"
        )
    return n_heads, n_kv_heads, head_dim


def _rope(keys: _Keys, head_dim: int, context_length: int) -> RopeConfig:
    dims = keys.count("rope.dimension_count", head_dim, limit=head_dim)
    if dims % 2:
        raise keys.fail(f"{keys.prefix}rope.dimension_count is {dims}. Expected an even number")
    return RopeConfig(
        dims=dims,
        base=keys.number("rope.freq_base", 10000.0),
        interleaved=keys.prefix in ("llama.", "mistral."),
        scaling=_scaling(keys, context_length),
        factors=_factors(keys, dims),
    )


def _scaling(keys: _Keys, context_length: int) -> ScalingConfig | None:
    kind = keys.file.metadata.get(keys.prefix + "rope.scaling.type")
    if kind is None:
        old = keys.prefix + "rope.scale_linear"
        return (
            ScalingConfig("linear", keys.number("rope.scale_linear"))
            if (old in keys.file.metadata)
            else None
        )
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(
            f"[load] {keys.file.path.name}: the rope scaling {kind!r:.40} is not supported. "
            "Expected none, linear or yarn"
        )
    original = keys.count("rope.scaling.original_context_length", context_length, 1 << 31)
    return ScalingConfig(
        kind=kind,
        factor=keys.number("rope.scaling.factor"),
        original_context=original,
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _factors(keys: _Keys, dims: int) -> tuple[float, ...] | None:
    tensor = keys.file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.shape != (dims // 2,):
        raise keys.fail(
            f"tensor rope_freqs.weight has the shape {tensor.shape}. Expected ({dims // 2},)"
        )
    values = tensor.dequantise().astype(float).tolist()
    if not all(math.isfinite(v) and v > 0 for v in values):
        raise keys.fail("tensor rope_freqs.weight holds numbers that are not above 0")
    return tuple(values)


def _local_rope(keys: _Keys, rope: RopeConfig) -> RopeConfig:
    base = keys.number("rope.freq_base_swa", _GEMMA_LOCAL_BASE)
    return RopeConfig(rope.dims, base, rope.interleaved, None, None)


def _windows(keys: _Keys, n_layers: int, gemma: bool) -> tuple[int, ...]:
    if not gemma:
        return (0,) * n_layers
    window = keys.count("attention.sliding_window", limit=1 << 31)
    period = _GEMMA_WINDOW_PERIOD
    return tuple(0 if (layer + 1) % period == 0 else window for layer in range(n_layers))
