"""Every setting of luminal: its type, default, meaning and environment variable.

In: the environment and keyword arguments of `luminal.compile`. Out: a frozen `Config`. Nothing
else in the package reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from luminal.errors import ArgumentError

__all__ = ["Config", "SETTINGS", "from_environment"]

SETTINGS: dict[str, tuple[str, str]] = {
    "debug": (
        "LUMINAL_DEBUG",
        "0 quiet, 1 summary, 2 kernels, 3 candidates, 4 plan, 5 loop IR, 6 LLVM, 7 assembly",
    ),
    "dump": (
        "LUMINAL_DUMP",
        "directory that receives every stage as text, a folder for each graph; empty: none",
    ),
    "cache": ("LUMINAL_CACHE", "directory of winners and machine code; 'off' disables it"),
    "threads": ("LUMINAL_THREADS", "threads of a call; 0: the cores this process may use"),
    "search": ("LUMINAL_SEARCH", "'off', 'fast', 'full', or a time budget in seconds"),
    "numerics": ("LUMINAL_NUMERICS", "'exact', 'relaxed' or 'fast'"),
    "device": ("LUMINAL_DEVICE", "'cpu'"),
    "isa": ("LUMINAL_ISA", "'native', or a lower level: 'baseline', 'avx2', 'avx512'"),
    "seed": ("LUMINAL_SEED", "seed of every random choice of the search"),
    "progress": ("LUMINAL_PROGRESS", "'auto' (on a terminal), 'on' or 'off'"),
}
_CHOICES = {
    "numerics": ("exact", "relaxed", "fast"),
    "device": ("cpu",),
    "isa": ("native", "baseline", "avx2", "avx512"),
    "progress": ("auto", "on", "off"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one compilation; `SETTINGS` says what each means.

    >>> Config().override(search="off").search
    'off'
    """

    debug: int = 0
    dump: str = ""
    cache: str = ""
    threads: int = 0
    search: str = "fast"
    numerics: str = "exact"
    device: str = "cpu"
    isa: str = "native"
    seed: int = 0
    progress: str = "auto"

    def override(self, **changes: object) -> Config:
        """A copy with the given settings; None keeps one. ArgumentError on a bad value."""
        known = {f.name for f in fields(self)}
        given: dict[str, object] = {}
        for name, value in changes.items():
            if name not in known:
                raise ArgumentError(f"[config] no such setting. Got {name!r}; expected {known}.")
            if value is not None:
                given[name] = _checked(name, value)
        return replace(self, **given)  # type: ignore[arg-type]

    @property
    def cache_dir(self) -> Path | None:
        """The cache directory (not created), or None if it is off."""
        if self.cache == "off":
            return None
        if self.cache:
            return Path(self.cache)
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "luminal"


def _checked(name: str, value: object) -> object:
    variable = SETTINGS[name][0]
    if name in ("debug", "threads", "seed"):
        try:
            number = int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            number = -1
        if number < 0:
            raise ArgumentError(
                f"[config] {name} must be a whole number >= 0. Got {value!r} (see {variable})."
            )
        return number
    text = str(value)
    if name == "search" and text not in ("off", "fast", "full") and not _is_seconds(text):
        raise ArgumentError(
            f"[config] search must be 'off', 'fast', 'full' or seconds. Got {value!r}."
        )
    if name in _CHOICES and text not in _CHOICES[name]:
        raise ArgumentError(f"[config] {name} must be one of {_CHOICES[name]}. Got {value!r}.")
    return text


def _is_seconds(text: str) -> bool:
    try:
        return 0 < float(text) < 1e6
    except ValueError:
        return False


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """The settings that the environment gives; ArgumentError on a bad one."""
    found = {n: environ[v] for n, (v, _) in SETTINGS.items() if environ.get(v)}
    return Config().override(**found)
