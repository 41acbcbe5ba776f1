"""A tiny decoder model as GGUF bytes, for tests.

In: changes to its metadata and tensors. Out: the bytes of a file with a vocabulary of 64.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests import gguf_writer as gw

VOCAB, D_MODEL, HEADS, KV_HEADS, HEAD_DIM, D_FF, LAYERS = 64, 32, 4, 2, 8, 64, 2
TOKENS = ["<unk>", "<s>", "</s>", *[f"<0x{i:02X}>" for i in range(32, 93)]]
_HEAD_NORMS = {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
_EXTRA: dict[str, dict[str, tuple[int, ...]]] = {
    "qwen2": {
        "attn_q.bias": (HEADS * HEAD_DIM,),
        "attn_k.bias": (KV_HEADS * HEAD_DIM,),
        "attn_v.bias": (KV_HEADS * HEAD_DIM,),
    },
    "qwen3": _HEAD_NORMS,
    "gemma3": _HEAD_NORMS
    | {"post_attention_norm.weight": (D_MODEL,), "post_ffw_norm.weight": (D_MODEL,)},
}
TYPES = [2, 3, 3, *[6] * 61]


def decoder_bytes(
    architecture: str | None = "llama",
    keys: Mapping[str, tuple[int, Any] | None] | None = None,
    without: Sequence[str] = (),
    tokenizer: bool = True,
    template: str | None = None,
    tokenizer_changes: Mapping[str, tuple[int, Any] | None] | None = None,
    seed: int = 0,
) -> bytes:
    """A decoder file; `keys` replace entries below the architecture's prefix, None drops one."""
    table: dict[str, tuple[int, Any] | None] = {
        "context_length": (gw.U32, 64),
        "embedding_length": (gw.U32, D_MODEL),
        "block_count": (gw.U32, LAYERS),
        "feed_forward_length": (gw.U32, D_FF),
        "attention.head_count": (gw.U32, HEADS),
        "attention.head_count_kv": (gw.U32, KV_HEADS),
        "attention.layer_norm_rms_epsilon": (gw.F32, 1e-5),
        "rope.freq_base": (gw.F32, 10000.0),
    }
    table |= keys or {}
    name = architecture or "llama"
    entries = [gw.entry(f"{name}.{k}", *v) for k, v in table.items() if v is not None]
    if architecture is not None:
        entries.insert(0, gw.entry("general.architecture", gw.STRING, architecture))
    if tokenizer:
        changes = {"add_space_prefix": (gw.BOOL, 0)} | dict(tokenizer_changes or {})
        entries += gw.spm_entries(TOKENS, TYPES, **changes)
    if template is not None:
        entries.append(gw.entry("tokenizer.chat_template", gw.STRING, template))
    rng = np.random.default_rng(seed)
    tensors = [
        gw.f32_tensor(tensor, _values(rng, shape))
        for tensor, shape in _shapes(name).items()
        if tensor not in without
    ]
    return gw.build(entries, tensors)


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return 1.0 + 0.1 * rng.standard_normal(shape)
    return rng.standard_normal(shape) * 1.2 / shape[-1] ** 0.5


def _shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, D_MODEL),
        "output.weight": (VOCAB, D_MODEL),
        "output_norm.weight": (D_MODEL,),
    }
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        shapes |= {
            blk + "attn_norm.weight": (D_MODEL,),
            blk + "attn_q.weight": (HEADS * HEAD_DIM, D_MODEL),
            blk + "attn_k.weight": (KV_HEADS * HEAD_DIM, D_MODEL),
            blk + "attn_v.weight": (KV_HEADS * HEAD_DIM, D_MODEL),
            blk + "attn_output.weight": (D_MODEL, HEADS * HEAD_DIM),
            blk + "ffn_norm.weight": (D_MODEL,),
            blk + "ffn_gate.weight": (D_FF, D_MODEL),
            blk + "ffn_up.weight": (D_FF, D_MODEL),
            blk + "ffn_down.weight": (D_MODEL, D_FF),
        }
        shapes |= {blk + k: v for k, v in _EXTRA.get(architecture, {}).items()}
    return shapes
