"""What machine this is: the Target of the host CPU and how many threads to use.

In: the operating system's description of the CPU. Out: a Target, counts of cores and cache
sizes. Measures nothing slowly and compiles nothing."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from luminal.errors import ArgumentError, DeviceError
from luminal.ir.target import Target
from luminal.runtime.cpu import llvm

_AVX2 = ("avx", "avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_LEVELS = {
    "avx2": ("x86-64-v3", _AVX2),
    "avx512": ("x86-64-v4", (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}


def _available_cores() -> int:
    """Cores this process may run on (its affinity mask, and the cgroup's quota on Linux)."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, -(-int(quota) // int(period)))
    return max(1, count)


def thread_count(threads: int | None) -> int:
    """Number of threads for the setting `threads`; None or 0 means every available core."""
    if not 0 <= (threads or 0) <= 1024:
        raise ArgumentError(
            f"[threads] not a number of threads. Got {threads}; expected 0 (all cores) to 1024. "
            "Try threads=0."
        )
    return threads or _available_cores()


def _caches() -> Iterator[tuple[int, str]]:
    """(level, size as text) of the data caches."""
    if platform.system() == "Darwin":
        for level, name in enumerate(("hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize"), 1):
            command = ["sysctl", "-n", name]
            yield level, subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            yield int((index / "level").read_text()), (index / "size").read_text()


def _cache_sizes() -> tuple[int, int, int]:
    """Bytes of the L1 data, L2 and L3 cache of one core (L3 is shared); guesses if unknown."""
    sizes = [32 << 10, 1 << 20, 8 << 20]
    with suppress(OSError, LookupError, ValueError, subprocess.SubprocessError):
        for level, text in _caches():
            number = text.strip().rstrip("KM")
            sizes[level - 1] = int(number) << {"K": 10, "M": 20}.get(text.strip()[-1], 0)
    return sizes[0], sizes[1], max(sizes[1:])


def _target(triple: str, cpu: str, features: Mapping[str, bool], cores: int) -> Target:
    flags = {name for name, on in features.items() if on}
    text = ",".join(f"{'+' if on else '-'}{name}" for name, on in features.items())
    if not triple.startswith("x86_64"):
        bits, registers, fma, dot = 128, 32, True, "dotprod" if "dotprod" in flags else ""
    else:
        bits, registers = (256, 16) if "avx2" in flags else (128, 16)
        if flags.issuperset(_AVX512):
            bits, registers = 512, 32
        fma, dot = "fma" in flags, "maddubs" if "avx2" in flags else ""
        if flags.issuperset(("avx512vnni", "avx512vl")) or "avxvnni" in flags:
            dot = "vnni"
    l1_bytes, l2_bytes, l3_bytes = _cache_sizes()
    lanes = bits // 32 * (2 if fma else 1)
    return Target(
        triple=triple, cpu=cpu, features=text, vector_bits=bits, vector_registers=registers,
        fma=fma, int8_dot=dot, l1_bytes=l1_bytes, l2_bytes=l2_bytes, l3_bytes=l3_bytes,
        cores=cores, gflops=2.8 * 2 * lanes, bandwidth_gbs=12.0, launch_us=1.0,
    )  # fmt: skip


@cache
def host_target() -> Target:
    """The CPU of this machine. DeviceError on a processor that has no backend."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        raise DeviceError(
            f"[device] no CPU backend for this processor. Got {platform.machine()}; "
            "expected x86-64 or aarch64. Try another machine."
        )
    host = llvm()
    features = dict(sorted(host.get_host_cpu_features().items()))
    return _target(
        host.get_process_triple(), host.get_host_cpu_name(), features, _available_cores()
    )


def select_target(isa: str) -> Target:
    """The host limited to an instruction set level ('native' for no limit).

    DeviceError if the host lacks the level. Levels are x86-64's; elsewhere only 'baseline' differs.
    """
    host = host_target()
    if isa == "native":
        return host
    _, wanted = _LEVELS.get(isa, ("", ()))
    missing = [flag for flag in wanted if f"+{flag}" not in host.features.split(",")]
    if missing:
        raise DeviceError(
            f"[device] this CPU lacks {', '.join(missing)}. Got isa={isa!r}; expected a level that "
            "it has. Try isa='native'."
        )
    return replace(baseline_target(host.triple, isa), cores=host.cores)


def baseline_target(triple: str, isa: str = "baseline") -> Target:
    """The least CPU of `triple` that has a level of x86-64: SSE2 by default, NEON on aarch64. For
    cross compiling and tests."""
    if isa in _LEVELS:
        return _target(triple, _LEVELS[isa][0], dict.fromkeys(_LEVELS[isa][1], True), 1)
    if triple.startswith("x86_64"):
        return _target(triple, "x86-64", {"sse2": True}, 1)
    return _target(triple, "apple-m1" if "apple" in triple else "generic", {"neon": True}, 1)
