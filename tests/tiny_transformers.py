"""Tiny transformers models from configs with random weights, for tests; needs `transformers`.

In: a name. Out: a model in eval mode, and inputs for it. Nothing is downloaded.
"""

from collections.abc import Callable

import torch
import transformers as hf

VOCAB = 97
WINDOW = 16
_DECODER = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip


def _llama() -> torch.nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_DECODER))


def _qwen3() -> torch.nn.Module:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_DECODER, head_dim=8))


def _gemma3() -> torch.nn.Module:
    kinds = ["sliding_attention", "full_attention"]
    return hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**_DECODER, head_dim=8, sliding_window=WINDOW, layer_types=kinds,
                            query_pre_attn_scalar=8)
    )  # fmt: skip


def _mistral() -> torch.nn.Module:
    return hf.MistralForCausalLM(hf.MistralConfig(**_DECODER, sliding_window=WINDOW))


def _mixtral() -> torch.nn.Module:
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(**_DECODER, num_local_experts=4, num_experts_per_tok=2)
    )


def _qwen_moe() -> torch.nn.Module:
    return hf.Qwen3MoeForCausalLM(
        hf.Qwen3MoeConfig(**_DECODER, head_dim=8, num_experts=4, num_experts_per_tok=2,
                          moe_intermediate_size=24)
    )  # fmt: skip


def _bert() -> torch.nn.Module:
    return hf.BertModel(
        hf.BertConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                      num_attention_heads=4, max_position_embeddings=64)
    )  # fmt: skip


def _t5() -> torch.nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                    decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
    )  # fmt: skip


def _whisper() -> torch.nn.Module:
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2,
                         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
                         decoder_ffn_dim=48, num_mel_bins=16, max_source_positions=24,
                         max_target_positions=96, decoder_start_token_id=1, pad_token_id=0,
                         bos_token_id=1, eos_token_id=2, suppress_tokens=None,
                         begin_suppress_tokens=None)
    )  # fmt: skip


def _vit() -> torch.nn.Module:
    return hf.ViTModel(
        hf.ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                     num_attention_heads=4, image_size=32, patch_size=8)
    )  # fmt: skip


DECODERS: dict[str, Callable[[], torch.nn.Module]] = {
    "llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3, "mistral": _mistral,
    "mixtral": _mixtral, "qwen_moe": _qwen_moe,
}  # fmt: skip
ENCODER_DECODERS = {"t5": _t5, "whisper": _whisper}
WINDOWED = ("gemma3", "mistral")
MODELS = {**DECODERS, **ENCODER_DECODERS, "bert": _bert, "vit": _vit}


def model(name: str) -> torch.nn.Module:
    """A model in eval mode, whose weights depend on its name alone; scaled up so that the choice of
    a token depends on the text."""
    torch.manual_seed(7)
    made = MODELS[name]()
    with torch.no_grad():
        for p in made.parameters():
            if p.dim() > 1:
                p.mul_(4)
    return made.eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    """Random ids, without the padding."""
    return torch.randint(1, VOCAB, (batch, length))


def padded(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Ids and mask of texts of different lengths, padded on the left."""
    ids, mask = tokens(batch, length), torch.ones(batch, length, dtype=torch.int64)
    for row in range(1, batch):
        ids[row, : row * 2], mask[row, : row * 2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def prompt(name: str) -> dict[str, torch.Tensor]:
    """Arguments of `generate`."""
    return {"input_features": torch.randn(2, 16, 48)} if name == "whisper" else padded(3, 9)


def inputs(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Arguments of `forward`."""
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 32, 32)}
    if name == "whisper":
        return {"input_features": torch.randn(batch, 16, 48),
                "decoder_input_ids": tokens(batch, length)}  # fmt: skip
    given = padded(batch, length)
    if name == "t5":
        given["decoder_input_ids"] = tokens(batch, length)
    return given
