"""A decoder written plainly in NumPy (f64), to compare the compiled one with.

In: metadata and dequantised tensors of a GGUF file, and token ids. Out: logits [len(ids), vocab].
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]


def reference_logits(
    metadata: Mapping[str, Any], tensors: Tensors, ids: Sequence[int]
) -> np.ndarray:
    """Logits for every prefix of `ids`."""
    arch = metadata["general.architecture"]
    keys = {k.removeprefix(arch + "."): v for k, v in metadata.items()}
    t = {k: v.astype(np.float64) for k, v in tensors.items()}
    x = t["token_embd.weight"][list(ids)]
    x = x * np.sqrt(x.shape[-1]) if arch == "gemma3" else x
    for layer in range(keys["block_count"]):
        w = {k.removeprefix(f"blk.{layer}."): v for k, v in t.items()}
        x = _layer(arch, keys, w, layer, x)
    x = _norm(x, t["output_norm.weight"], keys)
    return x @ t.get("output.weight", t["token_embd.weight"]).T


def _layer(arch: str, keys: dict, w: Tensors, layer: int, x: np.ndarray) -> np.ndarray:
    attended = _attention(arch, keys, w, layer, _norm(x, w["attn_norm.weight"], keys))
    if arch == "gemma3":
        attended = _norm(attended, w["post_attention_norm.weight"], keys)
    x = x + attended
    h = _norm(x, w["ffn_norm.weight"], keys)
    gate, up = h @ w["ffn_gate.weight"].T, h @ w["ffn_up.weight"].T
    if arch == "gemma3":
        act = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    else:
        act = gate / (1 + np.exp(-gate))
    fed = (act * up) @ w["ffn_down.weight"].T
    if arch == "gemma3":
        fed = _norm(fed, w["post_ffw_norm.weight"], keys)
    return x + fed


def _attention(arch: str, keys: dict, w: Tensors, layer: int, x: np.ndarray) -> np.ndarray:
    n = len(x)
    heads, kv_heads = keys["attention.head_count"], keys["attention.head_count_kv"]
    q, k, v = (x @ w[f"attn_{c}.weight"].T + w.get(f"attn_{c}.bias", 0) for c in "qkv")
    q, k, v = q.reshape(n, heads, -1), k.reshape(n, kv_heads, -1), v.reshape(n, kv_heads, -1)
    if "attn_q_norm.weight" in w:
        q = _norm(q, w["attn_q_norm.weight"], keys)
        k = _norm(k, w["attn_k_norm.weight"], keys)
    local = arch == "gemma3" and (layer + 1) % 6 != 0
    base = 10000.0 if local else keys["rope.freq_base"]
    q, k = _rotate(q, base, arch == "llama"), _rotate(k, base, arch == "llama")
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = distance < 0
    if local:
        hidden |= distance >= keys["attention.sliding_window"]
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", p, v).reshape(n, -1) @ w["attn_output.weight"].T


def _rotate(x: np.ndarray, base: float, interleaved: bool) -> np.ndarray:
    n, _, d = x.shape
    angle = np.arange(n)[:, None] * base ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first = (..., slice(0, d, 2)) if interleaved else (..., slice(0, d // 2))
    second = (..., slice(1, d, 2)) if interleaved else (..., slice(d // 2, d))
    out = np.empty_like(x)
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[second] * cos + x[first] * sin
    return out


def _norm(x: np.ndarray, weight: np.ndarray, keys: dict) -> np.ndarray:
    epsilon = keys["attention.layer_norm_rms_epsilon"]
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight
