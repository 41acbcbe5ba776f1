"""Decoder models of the Llama family (Llama, Mistral, Qwen 2 and 3, Gemma 3) in the tensor API.

In: a DecoderConfig, its weights and the inputs of one step. Out: logits and the updated key/value
caches, as lazy tensors. Weights stay quantised: they are decoded where they are used. Must not
compile or hold state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, Update, update
from luminal.models.decoder_weights import DecoderWeights, Weight
from luminal.models.hyperparameters import DecoderConfig
from luminal.models.quantised import WeightInputs

__all__ = ["StepInputs", "decoder_step"]

Layer = Mapping[str, Weight]
Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one step reads: n_q new tokens after n_kv - n_q that the caches already hold.

    ids: i64 [n_q]; positions: their places i64 [n_q], from n_kv - n_q on; rows: i64 [n_rows], the
    new tokens whose logits are wanted.
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
    config: DecoderConfig, weights: DecoderWeights, declared: WeightInputs, inputs: StepInputs
) -> tuple[Tensor | Update, ...]:
    """Logits f32 [n_rows, vocab], then the keys and values of every layer, updated in place."""
    step = _Step(config, declared, inputs)
    x = declared.rows(weights.embedding, inputs.ids) * config.embedding_scale
    updates: list[Update] = []
    for index, layer in enumerate(weights.layers):
        attended, written = step.attention(layer, index, step.norm(layer, "attn_norm", x))
        x = x + step.norm(layer, "post_attention_norm", attended)
        fed = step.feed_forward(layer, step.norm(layer, "ffn_norm", x))
        x = x + step.norm(layer, "post_ffw_norm", fed)
        updates += written
    x = step.normalised(F.embedding(inputs.rows, x), weights.output_norm)
    return declared.linear(x, weights.output), *updates


@dataclass(frozen=True, slots=True)
class _Step:
    """The parts of a layer, for the weights and inputs of one step."""

    config: DecoderConfig
    declared: WeightInputs
    inputs: StepInputs

    def norm(self, layer: Layer, name: str, x: Tensor) -> Tensor:
        """x through a norm of the layer, where the layer has it."""
        weight = layer.get(name + ".weight")
        return x if weight is None else self.normalised(x, weight)

    def normalised(self, x: Tensor, weight: Weight) -> Tensor:
        """x over its root mean square, times a weight."""
        square = (x * x).mean(-1, keepdim=True)
        return x * F.rsqrt(square + self.config.rms_epsilon) * self.declared.vector(weight)

    def project(self, layer: Layer, name: str, x: Tensor) -> Tensor:
        """x through a matrix of the layer, and its bias where there is one."""
        out = self.declared.linear(x, layer[name + ".weight"])
        bias = layer.get(name + ".bias")
        return out if bias is None else out + self.declared.vector(bias)

    def feed_forward(self, layer: Layer, x: Tensor) -> Tensor:
        """The gated network of a layer."""
        gate = self.project(layer, "ffn_gate", x)
        active = F.gelu(gate, approximate="tanh") if self.config.gelu else F.silu(gate)
        return self.project(layer, "ffn_down", active * self.project(layer, "ffn_up", x))

    def attention(
        self, layer: Layer, index: int, x: Tensor
    ) -> tuple[Tensor, tuple[Update, Update]]:
        """Attention of the new tokens to all so far; query heads share keys in groups."""
        config, n_q = self.config, x.dims[0]
        head_dim, heads, window = config.head_dim, config.n_kv_heads, config.windows[index]
        q = self.project(layer, "attn_q", x).reshape(n_q, config.n_heads, head_dim)
        k = self.project(layer, "attn_k", x).reshape(n_q, heads, head_dim)
        v = self.project(layer, "attn_v", x).reshape(n_q, heads, head_dim)
        q = self.rotated(self.norm(layer, "attn_q_norm", q), window)
        k = self.rotated(self.norm(layer, "attn_k_norm", k), window)
        key_cache, value_cache = self.inputs.caches[index]
        keys, values = self.written(key_cache, k), self.written(value_cache, v)
        q = (q * head_dim**-0.5).reshape(n_q, heads, config.group, head_dim)
        scores = self.masked(F.einsum("qhgd,khd->hgqk", q, keys), window)
        mixed = F.einsum("hgqk,khd->qhgd", F.softmax(scores, -1), values)
        out = self.project(layer, "attn_output", mixed.reshape(n_q, config.n_heads * head_dim))
        return out, (update(key_cache, keys), update(value_cache, values))

    def masked(self, scores: Tensor, window: int) -> Tensor:
        """Scores [.., n_q, n_kv] with -inf where a query may not see a key."""
        key, query = F.arange(scores.dims[-1])[None, :], self.inputs.positions[:, None]
        visible = key <= query
        if window:
            visible = visible & (key > query - window)
        return F.where(visible, scores, float("-inf"))

    def written(self, cache: Tensor, new: Tensor) -> Tensor:
        """The cache with the rows of the new tokens replaced."""
        index = self.inputs.positions[:, None, None].expand(*new.dims)
        return cache.scatter(0, index, new)

    def rotated(self, x: Tensor, window: int) -> Tensor:
        """x [n_q, heads, head_dim] with pairs of its first dims turned by the angle of its row.

        Each pair (a, b) becomes (a·cos - b·sin, b·cos + a·sin); the sign is in the sine table.
        """
        rotation = self.inputs.local_rotation if window else self.inputs.rotation
        dims, interleaved = self.config.rope.dims, self.config.rope.interleaved
        n_q, heads, head_dim = x.dims[0], x.dims[1], self.config.head_dim
        turned = x if dims == head_dim else x[..., :dims]
        pairs = (dims // 2, 2) if interleaved else (2, dims // 2)
        paired = turned.reshape(n_q, heads, *pairs)
        partner = paired.flip(-1 if interleaved else -2)
        cosines, sines = (table[:, None] for table in rotation)
        turned = (paired * cosines + partner * sines).reshape(n_q, heads, dims)
        return turned if dims == head_dim else F.cat([turned, x[..., dims:]], -1)
