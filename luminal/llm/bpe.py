"""Byte-level BPE ("gpt2" in GGUF), on top of the `tokenizers` library.

In: a Vocabulary. Out: text to ids, and the bytes that each token stands for. The library is
imported only when a tokenizer is made.
"""

import warnings
from collections.abc import Mapping
from types import ModuleType

from luminal.errors import UnsupportedError, WeightsError
from luminal.llm.vocabulary import CONTROL, USER_DEFINED, Vocabulary

__all__ = ["BPE"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Mapping[str, str] = dict.fromkeys(
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), _LLAMA3
) | {
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "hunyuan": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
}
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_GPT2_LIKE = ("default", "gpt-2", "gpt2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "trillion")
_IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken", "gpt-4o", "llama4")


class BPE:
    """Encodes text with the merges of a vocabulary; special tokens in the text become one id."""

    __slots__ = ("_bytes", "_engine", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = {char: byte for byte, char in _byte_letters().items()}
        self._engine = _engine(_library(), vocabulary)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS."""
        return self._engine.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token adds to a text."""
        text = self._vocabulary.tokens[token]
        if self._vocabulary.types[token] in (CONTROL, USER_DEFINED):
            return text.encode("utf-8", "replace")
        try:
            return bytes(self._bytes[char] for char in text)
        except KeyError:
            return text.encode("utf-8", "replace")


def _library() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise UnsupportedError(
            "[load_tokenizer] this tokenizer needs the package tokenizers. "
            "Try `pip install luminal[llm]`"
        ) from error
    return tokenizers


def _engine(library: ModuleType, vocabulary: Vocabulary) -> object:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    broken = next((merge for merge in merges if len(merge) != 2), None)
    if broken is not None:
        raise WeightsError(f"[load_tokenizer] the merge {broken[0]!r} is not a pair of tokens")
    try:
        model = library.models.BPE(
            vocab=ids, merges=merges, ignore_merges=vocabulary.pre in _IGNORE_MERGES
        )
    except Exception as error:
        raise WeightsError(f"[load_tokenizer] the merges do not fit the tokens: {error}") from error
    engine = library.Tokenizer(model)
    engine.pre_tokenizer = _pre_tokenizer(library, vocabulary.pre)
    whole = (vocabulary.tokens[i] for i in vocabulary.in_text())
    engine.add_special_tokens(
        [library.AddedToken(text, normalized=False, special=True) for text in whole if text]
    )
    return engine


def _pre_tokenizer(library: ModuleType, pre: str) -> object:
    steps = library.pre_tokenizers
    if pre in _SPLITS:
        split = steps.Split(library.Regex(_SPLITS[pre]), behavior="isolated")
        letters = steps.ByteLevel(add_prefix_space=False, use_regex=False)
        return steps.Sequence([split, letters])
    gpt2 = steps.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _DIGITS_APART:
        return steps.Sequence([steps.Digits(individual_digits=True), gpt2])
    if pre not in _GPT2_LIKE:
        warnings.warn(
            f"[load_tokenizer] unknown pre-tokenizer {pre!r}, using that of GPT-2: "
            "some words may be split differently than in training",
            stacklevel=2,
        )
    return gpt2


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
