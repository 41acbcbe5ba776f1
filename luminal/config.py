"""Every setting of luminal: its type, default, meaning and environment variable.

In: the environment and keyword arguments of `luminal.compile`. Out: a frozen `Config`. Nothing
else in the package reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from luminal.errors import ArgumentError


def _setting(default: int | str, variable: str, text: str, *choices: str) -> Any:
    found = {"variable": variable, "text": text, "choices": choices}
    return field(default=default, metadata=found)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one compilation.

    >>> Config().override(search="off").search
    'off'
    """

    debug: int = _setting(
        0, "LUMINAL_DEBUG",
        "0 quiet, 1 summary, 2 kernels, 3 candidates, 4 plan, 5 loop IR, 6 LLVM, 7 assembly",
    )  # fmt: skip
    dump: str = _setting(
        "", "LUMINAL_DUMP",
        "directory that receives every stage as text, a folder for each graph; empty: none",
    )  # fmt: skip
    cache: str = _setting(
        "", "LUMINAL_CACHE", "directory of winners and machine code; 'off' disables it"
    )
    threads: int = _setting(
        0, "LUMINAL_THREADS", "threads of a call; 0: the cores this process may use"
    )
    search: str = _setting(
        "fast", "LUMINAL_SEARCH", "'off', 'fast', 'full', or a time budget in seconds",
        "off", "fast", "full",
    )  # fmt: skip
    numerics: str = _setting(
        "exact", "LUMINAL_NUMERICS", "'exact', 'relaxed' or 'fast'", "exact", "relaxed", "fast"
    )
    device: str = _setting("cpu", "LUMINAL_DEVICE", "'cpu', 'cuda', 'metal', 'opencl' or emulated",
        "cpu", "cuda", "metal", "opencl", "cuda-emulated", "metal-emulated")  # fmt: skip
    isa: str = _setting(
        "native", "LUMINAL_ISA", "'native', or a lower level: 'baseline', 'avx2', 'avx512'",
        "native", "baseline", "avx2", "avx512",
    )  # fmt: skip
    seed: int = _setting(0, "LUMINAL_SEED", "seed of every random choice of the search")
    progress: str = _setting(
        "auto", "LUMINAL_PROGRESS", "'auto' (on a terminal), 'on' or 'off'", "auto", "on", "off"
    )

    def override(self, **changes: object) -> Config:
        """A copy with the given settings; None keeps one. ArgumentError on a bad value."""
        for name in changes.keys() - SETTINGS.keys():
            raise ArgumentError(f"[config] no such setting. Got {name!r}; expected {[*SETTINGS]}.")
        given = {name: _checked(name, v) for name, v in changes.items() if v is not None}
        return replace(self, **given)

    @property
    def cache_dir(self) -> Path | None:
        """The cache directory (not created), or None if it is off."""
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        found = Path(self.cache) if self.cache else Path(base).expanduser() / "luminal"
        return None if self.cache == "off" else found


_FIELDS = {f.name: f for f in fields(Config)}
SETTINGS = {n: (f.metadata["variable"], f.metadata["text"]) for n, f in _FIELDS.items()}
"""The environment variable and the meaning of every setting."""


def _checked(name: str, value: Any) -> Any:
    default, choices = _FIELDS[name].default, _FIELDS[name].metadata["choices"]
    if isinstance(default, int):
        good, expected = _number(value, int) >= 0, "a whole number >= 0"
    else:
        good = not choices or value in choices
        expected = f"one of {choices}"
        if name == "search":
            good = good or 0 < _number(value, float) < 1e6
            expected += " or seconds"
    if not good:
        variable = SETTINGS[name][0]
        raise ArgumentError(f"[config] {name} must be {expected}. Got {value!r} (see {variable}).")
    return type(default)(value)


def _number(value: Any, kind: type[int] | type[float]) -> float:
    try:
        found = kind(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return -1 if isinstance(value, float) and found != value else found


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """The settings that the environment gives; ArgumentError on a bad one."""
    return Config().override(**{n: environ.get(v) or None for n, (v, _) in SETTINGS.items()})
