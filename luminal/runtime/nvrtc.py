"""NVRTC: CUDA C++ to machine code, in this process; no GPU is needed.

In: text, an architecture. Out: a cubin, and how many registers and bytes it takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from luminal.errors import DeviceError, InternalError

try:
    from cuda.bindings import nvrtc  # type: ignore[import-not-found]
except ImportError:
    nvrtc: Any = None
OPTIONS = ("--std=c++17", "-default-device", "--ptxas-options=-v")
STRICT = ("-Werror=all-warnings",)


@dataclass(frozen=True, slots=True)
class Usage:
    """What `ptxas` says of a kernel: registers of a thread, bytes spilled, bytes shared."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def available() -> bool:
    """Whether NVRTC is installed, and its library found."""
    if nvrtc is None:
        return False
    try:
        return _value(nvrtc.nvrtcVersion()) is not None
    except (RuntimeError, InternalError):
        return False


def version() -> str:
    """As '13.0'; '' if NVRTC is missing."""
    return "{}.{}".format(*_values(nvrtc.nvrtcVersion())) if available() else ""


def compile_cubin(
    source: str, architecture: str, extra: Sequence[str] = STRICT
) -> tuple[bytes, str]:
    """The cubin of a text for 'sm_90a' or the like, and the compiler's log."""
    if nvrtc is None:
        raise DeviceError("[cuda] NVRTC is missing. Got no cuda-bindings; expected it. Try "
                          "pip install 'luminal[cuda]'.")  # fmt: skip
    program = _value(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [o.encode() for o in (*OPTIONS, *extra, f"--gpu-architecture={architecture}")]
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * _value(nvrtc.nvrtcGetProgramLogSize(program))
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace").rstrip("\0 ")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise InternalError(f"[cuda] {status}: {text}\n{source}")
    cubin = b" " * _value(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin, text


def _values(result: tuple[Any, ...]) -> list[Any]:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise InternalError(f"[cuda] {status}")
    return values


def _value(result: tuple[Any, ...]) -> Any:
    return _values(result)[0]


def usage(log: str) -> Usage:
    """Read from the log of `ptxas -v`."""

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    return Usage(number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"),
                 number(r"(\d+) bytes smem"))  # fmt: skip
