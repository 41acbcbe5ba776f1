"""The weights of a decoder model: which tensors it needs, and their planes.

In: an open GGUFFile and its DecoderConfig. Out: DecoderWeights, every tensor present and of the
right shape, or a WeightsError that names it. Must not compute with weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from luminal.errors import WeightsError
from luminal.frontend.weights import GGUFFile, Plane, Planes
from luminal.models.hyperparameters import DecoderConfig

__all__ = ["DecoderWeights", "Weight", "read_weights"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight as planes, with the name it has in the file; vectors are plain f32."""

    name: str
    planes: Planes

    @property
    def shape(self) -> Shape:
        """The extents; a layer computes x · wᵀ for w [rows, columns]."""
        return self.planes.quants.shape


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights.

    `layers[i]` maps names such as "attn_q.weight". `output` is the embedding table where tied.
    """

    embedding: Weight
    output: Weight
    output_norm: Weight
    layers: tuple[Mapping[str, Weight], ...]

    @property
    def size_bytes(self) -> int:
        """Memory of all planes, a tied table counted once."""
        parts = [self.embedding, self.output_norm]
        parts += [self.output] if self.output is not self.embedding else []
        parts += [part for layer in self.layers for part in layer.values()]
        return sum(part.planes.size_bytes for part in parts)


def read_weights(file: GGUFFile, config: DecoderConfig) -> DecoderWeights:
    """Reads and checks all weights that the architecture needs."""
    reader = _Reader(file)
    table = (config.vocab, config.d_model)
    reader.check_all(config)
    embedding = reader.matrix("token_embd.weight", table)
    tied = "output.weight" not in file.tensors
    required, optional = _layer_shapes(config)
    layers = []
    for index in range(config.n_layers):
        names = required | {k: v for k, v in optional.items() if f"blk.{index}.{k}" in file.tensors}
        layers.append({k: reader.read(f"blk.{index}.{k}", shape) for k, shape in names.items()})
    return DecoderWeights(
        embedding=embedding,
        output=embedding if tied else reader.matrix("output.weight", table),
        output_norm=reader.vector("output_norm.weight", (config.d_model,)),
        layers=tuple(layers),
    )


def _layer_shapes(config: DecoderConfig) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes of the tensors of a layer that must exist, and of those that may."""
    d, heads = config.d_model, config.n_heads * config.head_dim
    keys = config.n_kv_heads * config.head_dim
    required: dict[str, Shape] = {
        "attn_norm.weight": (d,),
        "attn_q.weight": (heads, d),
        "attn_k.weight": (keys, d),
        "attn_v.weight": (keys, d),
        "attn_output.weight": (d, heads),
        "ffn_norm.weight": (d,),
        "ffn_gate.weight": (config.d_ff, d),
        "ffn_up.weight": (config.d_ff, d),
        "ffn_down.weight": (d, config.d_ff),
    }
    biases: dict[str, Shape] = {
        "attn_q.bias": (heads,),
        "attn_k.bias": (keys,),
        "attn_v.bias": (keys,),
    }
    head_norms: dict[str, Shape] = {
        "attn_q_norm.weight": (config.head_dim,),
        "attn_k_norm.weight": (config.head_dim,),
    }
    optional: dict[str, Shape] = {"attn_output.bias": (d,)}
    if config.architecture == "gemma3":
        after: dict[str, Shape] = {"post_attention_norm.weight": (d,), "post_ffw_norm.weight": (d,)}
        return required | head_norms | after, {}
    if config.architecture == "qwen2":
        return required | biases, optional
    if config.architecture == "qwen3":
        return required | head_norms, optional
    return required, biases | optional


class _Reader:
    """Takes tensors of one file, checking names and shapes."""

    __slots__ = ("file",)

    def __init__(self, file: GGUFFile) -> None:
        self.file = file

    def check_all(self, config: DecoderConfig) -> None:
        """Refuses missing and misshapen tensors before the first one is unpacked."""
        required, _ = _layer_shapes(config)
        self._check("output_norm.weight", (config.d_model,))
        for index in range(config.n_layers):
            for name, shape in required.items():
                self._check(f"blk.{index}.{name}", shape)

    def read(self, name: str, shape: Shape) -> Weight:
        return self.matrix(name, shape) if len(shape) == 2 else self.vector(name, shape)

    def matrix(self, name: str, shape: Shape) -> Weight:
        self._check(name, shape)
        tensor = self.file.tensors[name]
        if tensor.type_name in ("F64", "I8", "I16", "I32", "I64"):
            raise WeightsError(
                f"[load] {self.file.path.name}: the weight matrix {name!r} has the type "
                f"{tensor.type_name}. Expected F32, F16, BF16 or a quantised type"
            )
        return Weight(name, tensor.deferred())

    def vector(self, name: str, shape: Shape) -> Weight:
        self._check(name, shape)
        values = self.file.tensors[name].dequantise().astype(np.float32)
        return Weight(name, Planes(Plane("f32", shape, values)))

    def _check(self, name: str, shape: Shape) -> None:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise WeightsError(f"[load] {self.file.path.name}: the tensor {name!r} is missing")
        if tensor.shape != shape:
            raise WeightsError(
                f"[load] {self.file.path.name}: the tensor {name!r} has the wrong shape. "
                f"Got {tensor.shape}; expected {shape}"
            )
