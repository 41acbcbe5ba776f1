"""The options that `torch.compile(..., options={...})` accepts.

In: `mode` and `options` of torch.compile. Out: `Options`. ArgumentError on an unknown name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from luminal.errors import ArgumentError

__all__ = ["Options", "parse"]

_CONFIG = ("search", "numerics", "threads", "seed", "debug", "dump", "cache", "isa", "progress")
_CHOICES = {"fallback": ("warn", "silent", "error"), "executor": ("native", "oracle")}


@dataclass(frozen=True, slots=True)
class Options:
    """`fallback`: 'warn' (once for each operator), 'silent' or 'error'. `freeze`: repacked weights
    are never checked again. `verify`: compare every call with the oracle, or hand every part to a
    function that looks at it. `executor`: 'native', or
    'oracle' to interpret graphs in NumPy. `config`: settings of `luminal.config`."""

    fallback: str = "warn"
    freeze: bool = False
    verify: bool | Callable[..., None] = False
    executor: str = "native"
    config: tuple[tuple[str, object], ...] = ()

    @property
    def strict(self) -> bool:
        """True if nothing may run in eager."""
        return self.fallback == "error"


def parse(mode: str | None, options: Mapping[str, object] | None) -> Options:
    """The options of one torch.compile call."""
    given = dict(options or {})
    config = {n: given.pop(n) for n in _CONFIG if n in given}
    if mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        config["search"] = "full"
    fields = {n: given.pop(n) for n in ("fallback", "executor", "freeze", "verify") if n in given}
    for name, values in _CHOICES.items():
        if fields.get(name, values[0]) not in values:
            raise ArgumentError(
                f"[torch] option {name}. Got {fields[name]!r}; expected one of {values}."
            )
    if given:
        raise ArgumentError(f"[torch] unknown options. Got {sorted(given)}; expected {_CONFIG}.")
    return Options(**fields, config=tuple(config.items()))  # type: ignore[arg-type]
