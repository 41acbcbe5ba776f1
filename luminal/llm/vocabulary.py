"""The vocabulary of a model file: tokens, their kinds, scores, merges and special ids.

In: the metadata of a GGUF file. Out: a checked `Vocabulary`. Must not encode or decode text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luminal.errors import UnsupportedError, WeightsError
from luminal.frontend.weights import GGUFFile

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "USER_DEFINED",
    "Vocabulary",
    "check_types",
    "read_vocabulary",
]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_PREFIX = "tokenizer.ggml."
_ARRAYS: Mapping[str, str] = {
    "tokens": "array of string",
    "merges": "array of string",
    "scores": "array of f32",
    "token_type": "array of i32",
}
_TEXTS = ("model", "pre")
_IDS = ("bos", "eos", "eot", "eom", "unknown", "padding")
_FLAGS = ("add_bos_token", "add_space_prefix")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a tokenizer needs; ids are positions in `tokens`, `special` maps "eos" and so on."""

    kind: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    special: Mapping[str, int]
    add_bos: bool
    add_space_prefix: bool
    chat_template: str | None

    def in_text(self) -> list[int]:
        """Ids of the tokens that are recognised inside text as a whole."""
        return [i for i, kind in enumerate(self.types) if kind in (CONTROL, USER_DEFINED)]


def check_types(file: GGUFFile) -> None:
    """Refuses tokenizer entries that are stored as another type than the format says."""
    expected = {_PREFIX + key: kind for key, kind in _ARRAYS.items()}
    expected |= {_PREFIX + key: "string" for key in _TEXTS}
    expected |= {_PREFIX + key: "bool" for key in _FLAGS}
    for key, kind in expected.items():
        if key in file.metadata and file.kinds[key] != kind:
            raise _fail(file, f"{key} is stored as {file.kinds[key]}. Expected {kind}")
    for name in _IDS:
        key = f"{_PREFIX}{name}_token_id"
        if key in file.metadata and type(file.metadata[key]) is not int:
            raise _fail(file, f"{key} is stored as {file.kinds[key]}. Expected a whole number")


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """Reads and checks the tokenizer entries of a model file.

    Raises WeightsError when they are missing or damaged, UnsupportedError for an unknown kind.
    """
    check_types(file)
    kind = _get(file, "model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"[load_tokenizer] {file.path.name}: the tokenizer kind {kind!r} is not supported. "
            "Expected 'gpt2' (byte-level BPE) or 'llama' (SentencePiece)"
        )
    tokens = _get(file, "tokens")
    types = _column(file, "token_type", len(tokens), NORMAL)
    scores = _column(file, "scores", len(tokens), 0.0)
    merges = file.metadata.get(_PREFIX + "merges", [])
    if kind == "gpt2" and not merges and len(tokens) > 256 + types.count(CONTROL):
        raise _fail(file, f"{_PREFIX}merges is missing. Expected the merges of a BPE tokenizer")
    template = file.metadata.get("tokenizer.chat_template")
    return Vocabulary(
        kind=kind,
        pre=file.metadata.get(_PREFIX + "pre", "default"),
        tokens=tokens,
        types=types,
        scores=scores,
        merges=merges,
        special=_special_ids(file, len(tokens)),
        add_bos=file.metadata.get(_PREFIX + "add_bos_token", kind == "llama"),
        add_space_prefix=file.metadata.get(_PREFIX + "add_space_prefix", kind == "llama"),
        chat_template=template if isinstance(template, str) else None,
    )


def _fail(file: GGUFFile, problem: str) -> WeightsError:
    return WeightsError(f"[load_tokenizer] {file.path.name}: {problem}")


def _get(file: GGUFFile, key: str) -> Any:
    value = file.metadata.get(_PREFIX + key)
    if not value:
        raise _fail(file, f"{_PREFIX + key} is missing: this file has no usable tokenizer")
    return value


def _column(file: GGUFFile, key: str, count: int, default: float) -> list[Any]:
    values = file.metadata.get(_PREFIX + key)
    if values is None:
        return [default] * count
    if len(values) != count:
        raise _fail(file, f"{_PREFIX + key} has {len(values)} entries. Expected {count}, as tokens")
    return values


def _special_ids(file: GGUFFile, count: int) -> dict[str, int]:
    ids: dict[str, int] = {}
    for name in _IDS:
        value = file.metadata.get(f"{_PREFIX}{name}_token_id")
        if value is not None and 0 <= value < count:
            ids[name] = value
    return ids
