"""Tokenizers of model files: text to ids and back.

In: a GGUF path or an open file. Out: a Tokenizer with `encode`, `decode`, `stream` and the ids
that end a text. Must not know the model's weights.
"""

import codecs
from collections.abc import Iterable, Sequence
from pathlib import Path

from luminal.errors import ArgumentError, OutOfRangeError
from luminal.frontend.weights import GGUFFile, open_gguf
from luminal.llm.bpe import BPE
from luminal.llm.spm import SPM
from luminal.llm.template import Message, render_chat
from luminal.llm.vocabulary import CONTROL, Vocabulary, read_vocabulary

__all__ = ["TextStream", "Tokenizer", "load_tokenizer"]

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eom_id|>")


class TextStream:
    """Turns ids into text as they come; never emits half a character."""

    __slots__ = ("_decoder", "_tokenizer")

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete once `token` is known; control tokens add none."""
        if self._tokenizer.is_control(token):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def close(self) -> str:
        """What is left: the replacement character when the text ended inside a character."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """The tokenizer of one model file.

    `eos` and `bos` are ids or None; `stop_ids` end a completion, `turn_ids` also a chat turn.
    """

    __slots__ = ("_engine", "bos", "eos", "stop_ids", "turn_ids", "vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._engine = BPE(vocabulary) if vocabulary.kind == "gpt2" else SPM(vocabulary)
        special = vocabulary.special
        self.bos, self.eos = special.get("bos"), special.get("eos")
        self.stop_ids = frozenset(special[k] for k in ("eos", "eot", "eom") if k in special)
        turns = (i for i in vocabulary.in_text() if vocabulary.tokens[i] in _END_OF_TURN)
        self.turn_ids = self.stop_ids | frozenset(turns)

    def __len__(self) -> int:
        return len(self.vocabulary.tokens)

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        """Ids of a text; BOS comes first when the file says so, or as `add_bos` says."""
        if not isinstance(text, str):
            raise ArgumentError(f"[encode] the text is a {type(text).__name__}. Expected a str")
        wanted = self.vocabulary.add_bos if add_bos is None else add_bos
        start = [self.bos] if wanted and self.bos is not None else []
        return start + self._engine.encode(text.encode("utf-8", "replace").decode("utf-8"))

    def decode(self, ids: Iterable[int], skip_control: bool = False) -> str:
        """The text of some ids; broken characters become U+FFFD."""
        kept = (int(i) for i in ids if not (skip_control and self.is_control(int(i))))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        strip = self.vocabulary.kind == "llama" and self.vocabulary.add_space_prefix
        return text[1:] if strip and text.startswith(" ") else text

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt for a conversation, by the chat template of the file.

        >>> tokenizer.chat([{"role": "user", "content": "Hello"}])  # doctest: +SKIP
        """
        return render_chat(self.vocabulary, messages, add_generation_prompt)

    def stream(self) -> TextStream:
        """A decoder that takes one id at a time."""
        return TextStream(self)

    def is_control(self, token: int) -> bool:
        """True for tokens that are no text, as BOS and EOS."""
        return self.vocabulary.types[self._checked(token)] == CONTROL

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token adds to a text."""
        return self._engine.token_bytes(self._checked(token))

    def _checked(self, token: int) -> int:
        if not 0 <= token < len(self):
            raise OutOfRangeError(
                f"[decode] token id {token} is outside the vocabulary. "
                f"Expected 0 to {len(self) - 1}"
            )
        return token


def load_tokenizer(source: str | Path | GGUFFile) -> Tokenizer:
    """The tokenizer of a GGUF file; raises WeightsError when it has none or a damaged one."""
    file = source if isinstance(source, GGUFFile) else open_gguf(source)
    return Tokenizer(read_vocabulary(file))
