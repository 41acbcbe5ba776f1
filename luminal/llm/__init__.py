"""Language models from GGUF files: load, tokenise, generate, chat.

In: a model file. Out: an `LLM` or a `Tokenizer`. Loading a tokenizer compiles nothing.
"""

from luminal.llm.commands import measure
from luminal.llm.engine import LLM, load
from luminal.llm.sampling import Sampler, Sampling
from luminal.llm.tokenizer import TextStream, Tokenizer, load_tokenizer

__all__ = [
    "LLM",
    "Sampler",
    "Sampling",
    "TextStream",
    "Tokenizer",
    "load",
    "load_tokenizer",
    "measure",
]
