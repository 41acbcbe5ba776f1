"""Chat templates: messages to the text that a chat model was trained on.

In: a Jinja template from a model file (untrusted: it runs in a sandbox) and messages. Out: a
prompt. Must not tokenise.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from luminal.errors import UnsupportedError, WeightsError
from luminal.llm.vocabulary import Vocabulary

__all__ = ["Message", "render_chat"]

Message = Mapping[str, str]


def render_chat(
    vocabulary: Vocabulary, messages: Sequence[Message], add_generation_prompt: bool = True
) -> str:
    """The prompt for some messages, each {"role": "system" | "user" | "assistant", "content": …}.

    Raises UnsupportedError when the file has no template, WeightsError when the template fails.
    """
    source = vocabulary.chat_template
    if source is None:
        raise UnsupportedError(
            "[chat] this model file has no chat template. Try `luminal run` for plain completion"
        )
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise UnsupportedError(
            "[chat] chat templates need the package jinja2. Try `pip install luminal[llm]`"
        ) from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    try:
        return environment.from_string(source).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            bos_token=_token_text(vocabulary, "bos"),
            eos_token=_token_text(vocabulary, "eos"),
        )
    except (
        TemplateError,
        TypeError,
        ValueError,
        LookupError,
        OverflowError,
        RecursionError,
    ) as error:
        raise WeightsError(f"[chat] the chat template of the file failed: {error}") from error


def _token_text(vocabulary: Vocabulary, name: str) -> str:
    token = vocabulary.special.get(name)
    return "" if token is None else vocabulary.tokens[token]


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(pattern: str) -> str:
    return datetime.now(UTC).strftime(pattern)


def _raise(message: str) -> None:
    raise ValueError(message)
