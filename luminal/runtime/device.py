"""What machine this is: the Target of the host CPU and how many threads to use.

In: the operating system's description of the CPU. Out: a Target, counts of cores and cache
sizes. Measures nothing slowly and compiles nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path

from luminal.errors import ArgumentError, DeviceError
from luminal.ir.target import Target
from luminal.runtime.cpu import llvm

__all__ = [
    "available_cores", "baseline_target", "cache_sizes", "describe", "host_target",
    "select_target", "thread_count",
]  # fmt: skip

_LEVELS = {
    "baseline": ("x86-64", ("sse2",)),
    "avx2": ("x86-64-v3", ("avx", "avx2", "fma", "f16c", "bmi", "bmi2")),
    "avx512": ("x86-64-v4", ("avx", "avx2", "fma", "f16c", "bmi", "bmi2", "avx512f", "avx512bw",
                             "avx512cd", "avx512dq", "avx512vl")),
}  # fmt: skip
_DEFAULT_CACHES = (32 << 10, 1 << 20, 8 << 20)
_FLAGS = ("avx2", "fma", "avx512f", "avx512vnni", "avxvnni", "f16c", "avx512bf16", "amx-int8",
          "neon", "dotprod", "i8mm", "bf16", "fullfp16")  # fmt: skip


def available_cores() -> int:
    """Cores this process may run on (its affinity mask, and the cgroup's quota on Linux)."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return max(1, count)


def thread_count(threads: int | None) -> int:
    """Number of threads for the setting `threads`; None or 0 means every available core."""
    if threads is None or threads == 0:
        return available_cores()
    if threads < 0 or threads > 1024:
        raise ArgumentError(
            f"[threads] not a number of threads. Got {threads}; expected 0 (all cores) to 1024. "
            "Try threads=0."
        )
    return threads


def cache_sizes() -> tuple[int, int, int]:
    """Bytes of the L1 data, L2 and L3 cache of one core (L3 is shared); guesses if unknown."""
    sizes = list(_DEFAULT_CACHES)
    found = _linux_caches() if platform.system() == "Linux" else _macos_caches()
    for level, size_bytes in found.items():
        sizes[level - 1] = size_bytes
    return sizes[0], sizes[1], max(sizes[1], sizes[2])


def _linux_caches() -> dict[int, int]:
    found: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and 1 <= level <= 3 and text[:-1].isdigit():
            found[level] = int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0)
    return found


def _macos_caches() -> dict[int, int]:
    found: dict[int, int] = {}
    for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize")):
        try:
            done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            break
        if done.stdout.strip().isdigit():
            found[level] = int(done.stdout)
    return found


def _vector_shape(architecture: str, flags: frozenset[str]) -> tuple[int, int]:
    """(bits, number) of the SIMD registers."""
    if architecture != "x86_64":
        return 128, 32
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return 512, 32
    return (256, 16) if "avx2" in flags else (128, 16)


def _int8_dot(architecture: str, flags: frozenset[str]) -> str:
    if architecture != "x86_64":
        return "dotprod" if "dotprod" in flags else ""
    if {"avx512vnni", "avx512vl"} <= flags or "avxvnni" in flags:
        return "vnni"
    return "maddubs" if "avx2" in flags else ""


def _target(triple: str, cpu: str, features: str, cores: int) -> Target:
    architecture = "x86_64" if triple.startswith("x86_64") else "aarch64"
    flags = frozenset(f[1:] for f in features.split(",") if f.startswith("+"))
    bits, registers = _vector_shape(architecture, flags)
    fma = architecture == "aarch64" or "fma" in flags
    l1_bytes, l2_bytes, l3_bytes = cache_sizes()
    lanes = bits // 32 * (2 if fma else 1)
    return Target(
        triple=triple, cpu=cpu, features=features, vector_bits=bits, vector_registers=registers,
        fma=fma, int8_dot=_int8_dot(architecture, flags), l1_bytes=l1_bytes, l2_bytes=l2_bytes,
        l3_bytes=l3_bytes, cores=cores, gflops=2.8 * 2 * lanes, bandwidth_gbs=12.0, launch_us=1.0,
    )  # fmt: skip


@lru_cache(maxsize=1)
def host_target() -> Target:
    """The CPU of this machine. DeviceError on a processor that has no backend."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        raise DeviceError(
            f"[device] no CPU backend for this processor. Got {platform.machine()}; "
            "expected x86-64 or aarch64. Try another machine."
        )
    binding = llvm()
    features = binding.get_host_cpu_features()
    text = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    return _target(
        binding.get_process_triple(), binding.get_host_cpu_name(), text, available_cores()
    )


def select_target(isa: str) -> Target:
    """The host limited to an instruction set level ('native' for no limit).

    DeviceError if the host lacks the level. Levels are x86-64's; elsewhere only 'baseline' differs.
    """
    host = host_target()
    if isa == "native":
        return host
    if not host.triple.startswith("x86_64"):
        if isa == "baseline":
            return baseline_target(host.triple)
        raise DeviceError(f"[device] no such instruction set here. Got {isa}; expected 'native'.")
    cpu, flags = _LEVELS[isa]
    missing = [flag for flag in flags if f"+{flag}" not in host.features.split(",")]
    if missing:
        raise DeviceError(
            f"[device] this CPU lacks {', '.join(missing)}. Got isa={isa!r}; expected a level that "
            "it has. Try isa='native'."
        )
    return _target(host.triple, cpu, ",".join(f"+{f}" for f in flags), host.cores)


def baseline_target(triple: str) -> Target:
    """The least CPU of `triple`: SSE2 on x86-64, NEON on aarch64. For cross compiling and tests."""
    if triple.startswith("x86_64"):
        return _target(triple, "x86-64", "+sse2", 1)
    cpu = "apple-m1" if "apple" in triple else "generic"
    return _target(triple, cpu, "+neon", 1)


def describe(target: Target) -> str:
    """One line for people: cpu, instruction sets, vector width, cores, caches."""
    on = {f[1:] for f in target.features.split(",") if f.startswith("+")}
    flags = " ".join(flag for flag in _FLAGS if flag in on)
    return (
        f"{target.cpu} ({flags}), {target.vector_bits}-bit vectors, {target.cores} cores, "
        f"L1 {target.l1_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB, "
        f"L3 {target.l3_bytes >> 20} MiB"
    )
