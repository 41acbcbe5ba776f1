"""Names of machines to compile for.

In: a name such as aarch64-linux or x86_64-linux:avx2. Out: a Target; ArgumentError on another.
"""

from __future__ import annotations

from luminal.errors import ArgumentError, DeviceError
from luminal.ir.target import Target
from luminal.runtime.cpu import llvm
from luminal.runtime.device import baseline_target

__all__ = ["TRIPLES", "parse_target"]

TRIPLES = {
    "x86_64-linux": "x86_64-unknown-linux-gnu", "aarch64-linux": "aarch64-unknown-linux-gnu",
    "x86_64-macos": "x86_64-apple-macosx11.0.0", "aarch64-macos": "arm64-apple-macosx11.0.0",
    "x86_64-windows": "x86_64-pc-windows-msvc", "aarch64-windows": "aarch64-pc-windows-msvc",
}  # fmt: skip


def parse_target(name: str) -> Target:
    """The least processor of a machine, or a level of x86-64: x86_64-linux:avx2.

    >>> parse_target("aarch64-macos").cpu
    'apple-m1'
    """
    machine, _, level = name.partition(":")
    good = machine in TRIPLES and (not level or machine.startswith("x86_64"))
    if not good or level not in ("", "baseline", "avx2", "avx512"):
        raise ArgumentError(
            f"[target] no such machine. Got {name!r}; expected one of {[*TRIPLES]}, for x86-64 "
            "perhaps with :avx2 or :avx512."
        )
    target = baseline_target(TRIPLES[machine], level or "baseline")
    try:
        llvm().Target.from_triple(target.triple)
    except RuntimeError as error:
        raise DeviceError(f"[target] this build of LLVM lacks {name}: {error}") from None
    return target
