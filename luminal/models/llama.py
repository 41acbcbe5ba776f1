"""Decoder models of the Llama family (Llama, Mistral, Qwen 2 and 3, Gemma 3) in the tensor API.

In: a DecoderConfig, its weights and the inputs of one step. Out: logits and the updated key/value
caches, as lazy tensors. Weights stay quantised: they are decoded where they are used. Must not
compile or hold state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, Update, tensor, tensor_from_bits, update
from luminal.frontend.weights import Plane
from luminal.ir.dtype import by_name
from luminal.models.decoder_weights import DecoderWeights, Matrix
from luminal.models.hyperparameters import DecoderConfig

__all__ = ["StepInputs", "decoder_step", "linear"]

Layer = Mapping[str, Matrix | np.ndarray]
Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one step reads: n_q new tokens after n_kv - n_q that the caches already hold.

    ids, positions: i64 [n_q]; rows: i64 [n_rows], the new tokens whose logits are wanted.
    rotation, local_rotation: cos and signed sin, f32 [n_q, *pairs]; caches: per layer keys and
    values, f32 [n_kv, n_kv_heads, head_dim], whose last n_q rows are written by the step.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    rotation: Rotation
    local_rotation: Rotation
    caches: Sequence[tuple[Tensor, Tensor]]


def decoder_step(
    config: DecoderConfig, weights: DecoderWeights, inputs: StepInputs
) -> tuple[Tensor | Update, ...]:
    """Logits f32 [n_rows, vocab], then the keys and values of every layer, updated in place."""
    x = _embedding(weights.embedding, inputs.ids) * config.embedding_scale
    updates: list[Update] = []
    for index, layer in enumerate(weights.layers):
        x, written = _block(config, layer, index, x, inputs)
        updates += written
    x = _rms_norm(x[inputs.rows], weights.output_norm, config.rms_epsilon)
    return linear(x, weights.output), *updates


def _block(
    config: DecoderConfig, layer: Layer, index: int, x: Tensor, inputs: StepInputs
) -> tuple[Tensor, tuple[Update, Update]]:
    epsilon = config.rms_epsilon
    attended, written = _attention(
        config, layer, index, _rms_norm(x, layer["attn_norm.weight"], epsilon), inputs
    )
    if "post_attention_norm.weight" in layer:
        attended = _rms_norm(attended, layer["post_attention_norm.weight"], epsilon)
    x = x + attended
    hidden = _rms_norm(x, layer["ffn_norm.weight"], epsilon)
    gate = _project(layer, "ffn_gate", hidden)
    active = F.gelu(gate, approximate="tanh") if config.gelu else F.silu(gate)
    fed = _project(layer, "ffn_down", active * _project(layer, "ffn_up", hidden))
    if "post_ffw_norm.weight" in layer:
        fed = _rms_norm(fed, layer["post_ffw_norm.weight"], epsilon)
    return x + fed, written


def _attention(
    config: DecoderConfig, layer: Layer, index: int, x: Tensor, inputs: StepInputs
) -> tuple[Tensor, tuple[Update, Update]]:
    n_q, head_dim, heads = x.dims[0], config.head_dim, config.n_kv_heads
    window = config.windows[index]
    rotation = inputs.local_rotation if window else inputs.rotation
    q = _project(layer, "attn_q", x).reshape(n_q, config.n_heads, head_dim)
    k = _project(layer, "attn_k", x).reshape(n_q, heads, head_dim)
    v = _project(layer, "attn_v", x).reshape(n_q, heads, head_dim)
    if "attn_q_norm.weight" in layer:
        q = _rms_norm(q, layer["attn_q_norm.weight"], config.rms_epsilon)
        k = _rms_norm(k, layer["attn_k_norm.weight"], config.rms_epsilon)
    q, k = _rotated(q, rotation, config), _rotated(k, rotation, config)
    key_cache, value_cache = inputs.caches[index]
    keys = _written(key_cache, inputs.positions, k)
    values = _written(value_cache, inputs.positions, v)
    q = (q * head_dim**-0.5).reshape(n_q, heads, config.group, head_dim)
    scores = F.einsum("qhgd,khd->hgqk", q, keys)
    probabilities = F.softmax(_masked(scores, inputs.positions, window), -1)
    mixed = F.einsum("hgqk,khd->qhgd", probabilities, values)
    out = _project(layer, "attn_output", mixed.reshape(n_q, config.n_heads * head_dim))
    return out, (update(key_cache, keys), update(value_cache, values))


def _masked(scores: Tensor, positions: Tensor, window: int) -> Tensor:
    """Scores [.., n_q, n_kv] with -inf where a query may not see a key."""
    key = F.arange(scores.dims[-1])[None, :]
    query = positions[:, None]
    visible = key <= query
    if window:
        visible = visible & (key > query - window)
    return F.where(visible, scores, float("-inf"))


def _written(cache: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """The cache with the rows `positions` replaced by `new`."""
    index = positions[:, None, None].expand(*new.dims)
    return cache.scatter(0, index, new)


def _rotated(x: Tensor, rotation: Rotation, config: DecoderConfig) -> Tensor:
    """x [n_q, heads, head_dim] with pairs of its first dims turned by the angle of its row.

    Each pair (a, b) becomes (a·cos - b·sin, b·cos + a·sin); the sign is in the sine table.
    """
    dims, interleaved = config.rope.dims, config.rope.interleaved
    n_q, heads, _ = x.dims
    turned = x if dims == config.head_dim else x[..., :dims]
    pairs = (dims // 2, 2) if interleaved else (2, dims // 2)
    paired = turned.reshape(n_q, heads, *pairs)
    partner = paired.flip(-1 if interleaved else -2)
    cosines, sines = (table[:, None] for table in rotation)
    turned = (paired * cosines + partner * sines).reshape(n_q, heads, dims)
    return turned if dims == config.head_dim else F.cat([turned, x[..., dims:]], -1)


def _rms_norm(x: Tensor, weight: Matrix | np.ndarray, epsilon: float) -> Tensor:
    return x * F.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * tensor(weight)


def _project(layer: Layer, name: str, x: Tensor) -> Tensor:
    """x through one matrix of a layer, and its bias where there is one."""
    matrix = layer[name + ".weight"]
    if not isinstance(matrix, Matrix):
        raise TypeError(f"{name} is not a matrix")
    out = linear(x, matrix)
    bias = layer.get(name + ".bias")
    return out if bias is None else out + tensor(bias)


def linear(x: Tensor, matrix: Matrix) -> Tensor:
    """x [.., columns] times the transposed matrix [rows, columns], in f32."""
    blocks = _blocks(matrix)
    split = [d.value for d in blocks.dims[1:]]
    x = x.reshape(*x.dims[:-1], 1, *split)
    product = x * blocks
    return product.sum(tuple(range(product.ndim - len(split), product.ndim)))


def _embedding(matrix: Matrix, ids: Tensor) -> Tensor:
    """The rows `ids` of a table, f32 [n_q, columns]."""
    return _blocks(matrix)[ids].reshape(ids.dims[0], matrix.shape[1])


def _blocks(matrix: Matrix) -> Tensor:
    """The decoded weights f32 [rows, *split], columns split so that each scale has one axis."""
    planes, (rows, columns) = matrix.planes, matrix.shape
    quants = _constant(planes.quants, matrix.name)
    if planes.scale is None:
        return quants
    blocks = planes.scale.shape[-1]
    groups = 1 if planes.sub_scale is None else planes.sub_scale.shape[-1] // blocks
    scale = _scale(planes.scale, planes.sub_scale, groups, matrix.name + ".scale")
    weights = quants.reshape(rows, blocks, groups, columns // blocks // groups) * scale
    if planes.minimum is not None:
        weights = weights + _scale(
            planes.minimum, planes.sub_minimum, groups, matrix.name + ".minimum"
        )
    return weights if groups > 1 else weights.reshape(rows, blocks, columns // blocks)


def _scale(block: Plane, group: Plane | None, groups: int, name: str) -> Tensor:
    rows, blocks = block.shape
    scale = _constant(block, name).reshape(rows, blocks, 1, 1)
    if group is None:
        return scale
    return scale * _constant(group, name + ".sub").reshape(rows, blocks, groups, 1)


def _constant(plane: Plane, name: str) -> Tensor:
    """A plane as f32, cast where it is used."""
    return tensor_from_bits(plane.data, by_name(plane.dtype), name).cast("f32")
