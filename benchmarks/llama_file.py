"""Writes GGUF files of the llama architecture with random weights, and runs llama.cpp on them.

`write(path, SHAPES["1B"], {"Q4_K"})` streams a file of any size. As a script it is the process in
which llama.cpp runs, so that its spinning threads disturb nobody: one JSON request a line.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
HALF = "<f2"


@dataclass(frozen=True)
class Shape:
    """Hyperparameters of a llama."""

    width: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int


SHAPES = {"8B": Shape(4096, 32, 14336, 32, 8, 128256), "1B": Shape(2048, 16, 5632, 32, 8, 32000)}
TYPES = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
"""Code, weights and bytes of a block."""
_HALVES = {"Q8_0": {0: 1 / 75}, "Q4_K": {0: 1 / 900, 2: 1 / 120}, "Q6_K": {208: 1 / 1400}}
"""Offsets of the f16 numbers in a block, for weights of about unit variance."""


def tensors(s: Shape, kind: str) -> Iterator[tuple[str, tuple[int, int], str]]:
    """Name, shape and type of every tensor; vectors have one row."""
    keys = s.width // s.heads * s.kv_heads
    yield "token_embd.weight", (s.vocab, s.width), kind
    for n in range(s.layers):
        yield f"blk.{n}.attn_norm.weight", (1, s.width), "F32"
        yield f"blk.{n}.attn_q.weight", (s.width, s.width), kind
        yield f"blk.{n}.attn_k.weight", (keys, s.width), kind
        yield f"blk.{n}.attn_v.weight", (keys, s.width), kind
        yield f"blk.{n}.attn_output.weight", (s.width, s.width), kind
        yield f"blk.{n}.ffn_norm.weight", (1, s.width), "F32"
        yield f"blk.{n}.ffn_gate.weight", (s.hidden, s.width), kind
        yield f"blk.{n}.ffn_up.weight", (s.hidden, s.width), kind
        yield f"blk.{n}.ffn_down.weight", (s.width, s.hidden), kind
    yield "output_norm.weight", (1, s.width), "F32"
    yield "output.weight", (s.vocab, s.width), kind


def size_bytes(shape: tuple[int, int], kind: str) -> int:
    _, elements, block = TYPES[kind]
    return shape[0] * shape[1] // elements * block


def read_per_token(s: Shape, kind: str) -> int:
    """Bytes of the file that one token needs: all but the embedding table."""
    return sum(size_bytes(shape, k) for n, shape, k in tensors(s, kind) if n[:5] != "token")


def write(path: Path, s: Shape, kind: str, empty: bool = False) -> None:
    """Writes the file, tensor by tensor; an `empty` one has holes in place of weights."""
    names = list(tensors(s, kind))
    entries = [*_metadata(s)]
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(names), len(entries)) + b"".join(entries))
        offset = 0
        for name, shape, k in names:
            dims = shape[::-1] if shape[0] > 1 else shape[1:]
            file.write(_text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
            file.write(struct.pack("<IQ", TYPES[k][0], offset))
            offset += -(-size_bytes(shape, k) // 32) * 32
        for number, (_, shape, k) in enumerate(names):
            file.write(b"\0" * (-file.tell() % 32))
            if empty:
                file.truncate(file.seek(size_bytes(shape, k), 1))
                continue
            for part in _content(shape, k, np.random.default_rng(number)):
                file.write(part.tobytes())


def _content(shape: tuple[int, int], kind: str, rng: np.random.Generator) -> Iterator[np.ndarray]:
    if kind == "F32":
        yield np.ones(shape[1], np.float32)
        return
    _, elements, block = TYPES[kind]
    left, most = shape[0] * shape[1] // elements, 1 << 18
    while left:
        raw = rng.integers(0, 256, (min(left, most), block), np.uint8)
        for at, scale in _HALVES[kind].items():
            half = np.full(len(raw), scale * shape[1] ** -0.5, HALF)
            raw[:, at : at + 2] = half.view(np.uint8).reshape(-1, 2)
        left -= len(raw)
        yield raw


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _metadata(s: Shape) -> Iterator[bytes]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (s.vocab - 259)]
    tokens += [f"t{n}" for n in range(s.vocab - 259)]
    numbers = {"context_length": 4096, "embedding_length": s.width, "block_count": s.layers,
               "feed_forward_length": s.hidden, "attention.head_count": s.heads,
               "attention.head_count_kv": s.kv_heads, "vocab_size": s.vocab,
               "rope.dimension_count": s.width // s.heads}  # fmt: skip
    yield _text("general.architecture") + struct.pack("<I", STRING) + _text("llama")
    for key, number in numbers.items():
        yield _text(f"llama.{key}") + struct.pack("<II", U32, number)
    for key, real in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 5e5)):
        yield _text(f"llama.{key}") + struct.pack("<If", F32, real)
    yield _text("tokenizer.ggml.model") + struct.pack("<I", STRING) + _text("llama")
    head = struct.pack("<IIQ", ARRAY, STRING, s.vocab)
    yield _text("tokenizer.ggml.tokens") + head + b"".join(map(_text, tokens))
    scores = -np.arange(s.vocab, dtype="<f4")
    yield _text("tokenizer.ggml.scores") + struct.pack("<IIQ", ARRAY, F32, s.vocab) + bytes(scores)
    types = np.array(kinds, "<i4")
    head = struct.pack("<IIQ", ARRAY, I32, s.vocab)
    yield _text("tokenizer.ggml.token_type") + head + types.tobytes()
    for key, number in (("bos", 1), ("eos", 2), ("unknown", 0)):
        yield _text(f"tokenizer.ggml.{key}_token_id") + struct.pack("<II", U32, number)


class LlamaCpp:
    """llama.cpp (xllamacpp) in a process of its own; `run(prompt, n)` gives its timings."""

    def __init__(self, path: str, threads: int, n_ctx: int) -> None:
        command = [sys.executable, __file__, path, str(threads), str(n_ctx)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True,
                                         stderr=subprocess.DEVNULL)  # fmt: skip

    def run(self, prompt: str | list[int], n: int) -> dict[str, float]:
        """Timings of one prompt and `n` tokens after it, as llama.cpp reports them."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([prompt, n]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith('{"timings"'):
                return json.loads(line)["timings"]
        raise RuntimeError(f"[benchmark] llama.cpp ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _serve(path: str, threads: int, n_ctx: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = path, n_ctx, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = False
    server = xllamacpp.Server(params)
    for line in sys.stdin:
        prompt, n = json.loads(line)
        request = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True,
                   "cache_prompt": False}  # fmt: skip
        answer = server.handle_completions(request)
        print(json.dumps({"timings": answer["timings"]}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
