"""A machine with a fake NVIDIA GPU: `machine(monkeypatch)` installs driver and compiler."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from luminal import devices
from luminal.emulator.emulated import EmulatedDevice
from luminal.ir import Target
from luminal.runtime import cuda, nvrtc
from luminal.runtime.gpu import H100
from luminal.search.cache import Cache, digest
from tests.fake_cuda import FakeDriver, FakeNvrtc, FakeTorch
from tests.gpu_case import CACHE, HEADERS

_STORE = Cache(CACHE)


def library(source: str, target: Target = H100) -> bytes:
    """The library of a kernel, compiled if it is not kept from an earlier run."""
    key = digest(source, target.kind, *(f.read_text() for f in sorted(HEADERS)))
    found = _STORE.get("object", key)
    if found is None:
        found = EmulatedDevice(target).compile(source)
        _STORE.put("object", key, found)
    return found


def machine(monkeypatch, torch: bool = False, **facts: int) -> SimpleNamespace:
    """The fake `driver` and `nvrtc`, and `torch` if wanted."""
    driver, compiler = FakeDriver(**facts), FakeNvrtc(library)
    found = FakeTorch(driver) if torch else None
    monkeypatch.setattr(cuda, "driver_module", lambda: driver)
    monkeypatch.setattr(nvrtc, "nvrtc", compiler)
    if torch:
        monkeypatch.setitem(sys.modules, "torch", found)
    else:
        monkeypatch.setattr(cuda, "pytorch", lambda: None)
        monkeypatch.setattr(devices, "pytorch", lambda: None)
    devices._cuda.cache_clear()
    monkeypatch.setenv("LUMINAL_CACHE", "off")
    return SimpleNamespace(driver=driver, nvrtc=compiler, torch=found)
