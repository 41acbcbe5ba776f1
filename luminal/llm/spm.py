"""SentencePiece-like tokenizer ("llama" in GGUF): merges by score, unknown characters as bytes.

In: a Vocabulary. Out: text to ids, and the bytes that each token stands for. Pure Python.
"""

import heapq
import re

from luminal.errors import WeightsError
from luminal.llm.vocabulary import BYTE, CONTROL, Vocabulary

__all__ = ["SPM"]

_SPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class SPM:
    """Encodes text by joining the neighbours whose union scores highest, leftmost first."""

    __slots__ = ("_byte_ids", "_ids", "_split", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        self._byte_ids = {
            int(match[1], 16): index
            for index, token in enumerate(vocabulary.tokens)
            if (match := _BYTE_TOKEN.fullmatch(token))
        }
        whole = sorted((vocabulary.tokens[i] for i in vocabulary.in_text()), key=len, reverse=True)
        choices = "|".join(re.escape(token) for token in whole if token)
        self._split = re.compile(f"({choices})") if choices else None

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS."""
        parts = self._split.split(text) if self._split else [text]
        ids: list[int] = []
        for index, part in enumerate(parts):
            if index % 2:
                ids.append(self._ids[part])
            elif part:
                prefix = _SPACE if self._vocabulary.add_space_prefix else ""
                ids += self._pieces(prefix + part.replace(" ", _SPACE))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token adds to a text; control tokens add none."""
        kind, text = self._vocabulary.types[token], self._vocabulary.tokens[token]
        if kind == CONTROL:
            return b""
        match = _BYTE_TOKEN.fullmatch(text) if kind == BYTE else None
        if match:
            return bytes([int(match[1], 16)])
        return text.replace(_SPACE, " ").encode("utf-8", "replace")

    def _pieces(self, text: str) -> list[int]:
        """Joins symbols over a linked list; `following[i]` is -1 for the last one."""
        symbols: list[str] = list(text)
        count = len(symbols)
        previous, following = list(range(-1, count - 1)), [*range(1, count), -1]
        queue: list[tuple[float, int, str]] = []

        def offer(left: int) -> None:
            if left >= 0 and following[left] >= 0:
                joined = symbols[left] + symbols[following[left]]
                token = self._ids.get(joined)
                if token is not None and self._vocabulary.types[token] != CONTROL:
                    heapq.heappush(queue, (-self._vocabulary.scores[token], left, joined))

        for left in range(count - 1):
            offer(left)
        while queue:
            _, left, joined = heapq.heappop(queue)
            right = following[left]
            if not symbols[left] or right < 0 or symbols[left] + symbols[right] != joined:
                continue
            symbols[left], symbols[right] = joined, ""
            following[left] = following[right]
            if following[right] >= 0:
                previous[following[right]] = left
            offer(previous[left])
            offer(left)
        return [token for symbol in symbols if symbol for token in self._symbol_ids(symbol)]

    def _symbol_ids(self, symbol: str) -> list[int]:
        if symbol in self._ids:
            return [self._ids[symbol]]
        raw = symbol.encode("utf-8", "replace")
        if all(byte in self._byte_ids for byte in raw):
            return [self._byte_ids[byte] for byte in raw]
        if "unknown" in self._vocabulary.special:
            return [self._vocabulary.special["unknown"]]
        raise WeightsError(
            f"[encode] the vocabulary has no token for {symbol!r}, no bytes and no unknown one"
        )
