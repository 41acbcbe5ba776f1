"""Tokenizers from GGUF metadata: ids, text, streaming, chat templates and damage."""

from pathlib import Path
from typing import Any

import pytest

from luminal.errors import LuminalError, UnsupportedError, WeightsError
from luminal.llm import Tokenizer, load_tokenizer
from tests import gguf_writer as gw

BYTES = [f"<0x{i:02X}>" for i in range(256)]
PIECES = ["▁", "a", "b", "c", "ab", "▁a", "bc", "abc", "<|x|>"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
TYPES = [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 1), 4]


def ids(*pieces: str) -> list[int]:
    return [TOKENS.index(piece) for piece in pieces]


def spm(tmp_path: Path, **changes: Any) -> Tokenizer:
    path = tmp_path / "model.gguf"
    path.write_bytes(gw.build(gw.spm_entries(TOKENS, TYPES, **changes)))
    return load_tokenizer(path)


def bpe_entries(**changes: Any) -> list[bytes]:
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    letters += [chr(256 + i) for i in range(68)]
    tokens = ["<|eot|>", *letters, "he", "ll", "hell", "Ġt", "hello"]
    merges = ["h e", "l l", "he ll", "Ġ t", "hell o"]
    table: dict[str, Any] = {
        "model": (gw.STRING, "gpt2"),
        "pre": (gw.STRING, "gpt-2"),
        "tokens": (gw.ARRAY, (gw.STRING, tokens)),
        "token_type": (gw.ARRAY, (gw.I32, [3] + [1] * (len(tokens) - 1))),
        "merges": (gw.ARRAY, (gw.STRING, merges)),
        "eos_token_id": (gw.U32, 0),
    }
    table |= changes
    return [gw.entry(f"tokenizer.ggml.{k}", *v) for k, v in table.items() if v is not None]


def bpe(tmp_path: Path, **changes: Any) -> Tokenizer:
    pytest.importorskip("tokenizers")
    path = tmp_path / "model.gguf"
    path.write_bytes(gw.build(bpe_entries(**changes)))
    return load_tokenizer(path)


def test_spm_merges_by_score(tmp_path: Path) -> None:
    tokenizer = spm(tmp_path)
    assert tokenizer.encode("abc") == ids("<s>", "▁", "abc")
    assert tokenizer.encode("abc", add_bos=False) == ids("▁", "abc")
    assert tokenizer.decode(tokenizer.encode("abc ab")) == "abc ab"


def test_spm_bytes_special_tokens_and_empty_text(tmp_path: Path) -> None:
    tokenizer = spm(tmp_path, add_space_prefix=(gw.BOOL, 0), add_bos_token=(gw.BOOL, 0))
    assert tokenizer.encode("é") == ids("<0xC3>", "<0xA9>")
    assert tokenizer.encode("a<|x|></s>b") == ids("a", "<|x|>", "</s>", "b")
    assert tokenizer.encode("") == []
    assert tokenizer.decode(tokenizer.encode("日 é🦙")) == "日 é🦙"


def test_bpe_merges_and_round_trip(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path)
    assert tokenizer.encode("hello")[0] == len(tokenizer) - 1
    assert tokenizer.encode("hell<|eot|>")[-1] == 0
    for text in ("hello the 123", "naïve 日本 🦙", "\n\n\t x", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_split_apart_for_smollm(tmp_path: Path) -> None:
    tokens = bpe(tmp_path, pre=(gw.STRING, "smollm")).encode("1 2")
    assert len(tokens) == 3


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_other_pre_tokenizers_round_trip(tmp_path: Path, pre: str) -> None:
    tokenizer = bpe(tmp_path, pre=(gw.STRING, pre))
    text = "I'm  hello\r\n\n 12345 naïve—日本"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_pre_tokenizer_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="odd"):
        bpe(tmp_path, pre=(gw.STRING, "odd"))


def test_stream_never_breaks_a_character(tmp_path: Path) -> None:
    for tokenizer in (spm(tmp_path), bpe(tmp_path)):
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in tokenizer.encode("日本é", add_bos=False)]
        assert "".join(pieces).strip() == "日本é"
        assert all("\ufffd" not in piece for piece in pieces)
        stream.push(tokenizer.encode("日", add_bos=False)[-1])
        assert stream.close() in ("", "\ufffd")


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = spm(tmp_path)
    for bad in (-1, len(tokenizer)):
        with pytest.raises(LuminalError, match="outside the vocabulary"):
            tokenizer.decode([bad])


BROKEN = {
    "no tokens": {"tokens": None},
    "no kind": {"model": None},
    "scores as bytes": {"scores": (gw.ARRAY, (gw.U8, [0] * len(TOKENS)))},
    "scores too short": {"scores": (gw.ARRAY, (gw.F32, [0.0]))},
    "types as floats": {"token_type": (gw.ARRAY, (gw.F32, [1.0] * len(TOKENS)))},
    "eos as text": {"eos_token_id": (gw.STRING, "2")},
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tokenizers_are_refused(tmp_path: Path, case: str) -> None:
    key = next(iter(BROKEN[case]))
    with pytest.raises(WeightsError, match=key):
        spm(tmp_path, **BROKEN[case])


def test_broken_merges_are_refused(tmp_path: Path) -> None:
    for merges in (["nonsense"], ["Q ZZZ"]):
        with pytest.raises(WeightsError, match="merge"):
            bpe(tmp_path, merges=(gw.ARRAY, (gw.STRING, merges)))


def test_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'bert'"):
        spm(tmp_path, model=(gw.STRING, "bert"))


def chat(tmp_path: Path, template: str | None) -> Tokenizer:
    pytest.importorskip("jinja2")
    entries = gw.spm_entries(TOKENS, TYPES)
    if template is not None:
        entries.append(gw.entry("tokenizer.chat_template", gw.STRING, template))
    path = tmp_path / "model.gguf"
    path.write_bytes(gw.build(entries))
    return load_tokenizer(path)


def test_chat_template(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert chat(tmp_path, template).chat(messages) == "<s>[system]s[user]hi>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ raise_exception('no') }}",
        "{{ messages[7].content.x }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ range(10**9) }}",
    ],
)
def test_bad_templates_fail_cleanly(tmp_path: Path, template: str) -> None:
    with pytest.raises(LuminalError, match="template"):
        chat(tmp_path, template).chat([{"role": "user", "content": "hi"}])


def test_no_template(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="luminal run"):
        chat(tmp_path, None).chat([{"role": "user", "content": "hi"}])
