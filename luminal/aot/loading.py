"""`luminal.load`: a file that `luminal.export` wrote becomes a callable, without a compiler.

In: a path. Out: a `Loaded` that takes arrays and returns them in the structure of the model's
results. Weights stay in the file, mapped. One LuminalError says why a file cannot be used here.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from luminal import __version__
from luminal.aot.container import Container, fail, read_container
from luminal.aot.restore import flatten, restorer
from luminal.aot.stored import restored
from luminal.errors import ArgumentError, DeviceError, LuminalError, OutOfRangeError, WeightsError
from luminal.ir.program import Program
from luminal.ir.target import Target
from luminal.runtime import cpu
from luminal.runtime.executor import Executor
from luminal.runtime.native import ENTRIES, PYTHON_API, address, adopt, has_fastcall

__all__ = ["Loaded", "load", "stored_program", "this_system"]

_LIBRARIES: dict[bytes, ctypes.CDLL] = {}


class Loaded:
    """A model from a file. Call it with arrays (NumPy, DLPack), in the model's order or by name.

    `inputs` are the names of the arguments, `dims` the sizes that may differ from call to call
    with their ranges, `executor` what runs, `weights` the arrays in the mapped file by name.
    """

    def __init__(self, container: Container, executor: Executor) -> None:
        header = container.header
        self.path, self.executor = container.path, executor
        self.inputs: tuple[str, ...] = tuple(header["names"])
        self.dims = {v.name: (v.lo, v.hi) for v in executor.program.plan.dims}
        self._text, self._checks = container.sections["plan"], header["checks"]
        self._restore = restorer(header["structure"])
        data = {row["name"]: row["data"] for row in header["program"]["buffers"] if "data" in row}
        self.weights = {data[name]["name"]: a for name, a in executor.constants.items()}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The results for these inputs; LuminalError if they do not fit."""
        if named:
            inputs = self._ordered(inputs, named)
        elif len(inputs) != len(self.inputs):
            inputs = tuple(flatten(inputs))
        results = self.executor(*inputs)
        for (kind, text), bad in zip(self._checks, results[len(results) - len(self._checks) :]):
            if bad:
                raise (OutOfRangeError if kind == "IndexError" else LuminalError)(f"[call] {text}")
        return self._restore(results)

    def _ordered(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        given = {**dict(zip(self.inputs, inputs, strict=False)), **named}
        if len(given) != len(inputs) + len(named) or {*given} != {*self.inputs}:
            raise ArgumentError(
                f"[call] the arguments do not fit. Got {len(inputs)} by position and "
                f"{sorted(named)}; expected each of {list(self.inputs)} once."
            )
        return tuple(given[name] for name in self.inputs)

    def explain(self) -> str:
        """The plan with its schedules, as text."""
        return bytes(self._text).decode()

    def __repr__(self) -> str:
        return f"<luminal.Loaded {self.path.name} ({', '.join(self.inputs)})>"


def load(
    path: str | os.PathLike[str], *, threads: int | None = None, verify: bool = False
) -> Loaded:
    """Open a file that `luminal.export` wrote. `threads` as in `luminal.compile`; `verify` also
    reads all weights to compare their checksum.

    WeightsError if the file is damaged, missing or of another version, DeviceError if its code is
    for another processor.
    """
    container = read_container(Path(path))
    try:
        return _loaded(container, threads, verify)
    except LuminalError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"the header cannot be read ({type(error).__name__}: {error})"
        raise fail(container.path, problem) from error


def _loaded(container: Container, threads: int | None, verify: bool) -> Loaded:
    header = container.header
    if header["luminal"] != __version__:
        raise fail(container.path, f"written by luminal {header['luminal']}, this is {__version__}")
    _check_system(container)
    if verify:
        container.checked("weights")
    program = stored_program(container)
    names = [c.name + s for c in program.codes for s in ("", "_grid", "_cost")]
    library = _link(container, names)
    adopt(library, _python_entry() and "lm_entry" in library)
    executor = Executor(program, library, threads)
    return Loaded(container, executor)


def _python_entry() -> bool:
    """True if native code may enter Python, and finds its functions in this process."""
    return has_fastcall() and all(hasattr(ctypes.pythonapi, name) for name in PYTHON_API)


def stored_program(container: Container) -> Program:
    """The program of a file, with its weights in the mapped file (or in the one it refers to)."""
    weights, files = container.sections["weights"], dict[Path, Any]()

    def array(place: Mapping[str, Any]) -> np.ndarray:
        if "file" in place:
            path = container.path.parent / place["file"]
            if path not in files:
                reader = import_module("luminal.frontend.weights.safetensors")
                files[path] = reader.load_safetensors(path)
            return _from_file(container, files[path], place)
        dtype = np.dtype(place["dtype"])
        shape = tuple(place["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if not 0 <= place["offset"] <= len(weights) - count * dtype.itemsize:
            raise fail(container.path, f"the weight {place['name']!r} lies outside its section")
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(weights, dtype, count, place["offset"]).reshape(shape)

    target = Target(**container.header["target"])
    return restored(container.header["program"], target, array)


def _from_file(
    container: Container, tensors: Mapping[str, Any], place: Mapping[str, Any]
) -> np.ndarray:
    found = tensors.get(place["tensor"])
    array = getattr(found, "bits", found)
    wanted = f"{place['tensor']} {place['dtype']}{place['shape']}"
    if array is None or [*array.shape] != place["shape"] or array.dtype.name != place["dtype"]:
        raise fail(container.path, f"{place['file']} lacks the tensor {wanted}",
                   "Try the file that was there at export")  # fmt: skip
    return array


# ---- machine code


def this_system() -> str:
    """What a triple must name to run here: instruction set and system, as in x86_64-linux."""
    machine = os.uname().machine if hasattr(os, "uname") else os.environ["PROCESSOR_ARCHITECTURE"]
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    return f"{machine}-{system}"


def system_of(triple: str) -> str:
    """The same of a triple."""
    machine = "x86_64" if triple.startswith("x86_64") else "aarch64"
    systems = {"linux": "linux", "apple": "macos", "darwin": "macos", "windows": "windows"}
    return f"{machine}-{next((v for k, v in systems.items() if k in triple), 'unknown')}"


def _check_system(container: Container) -> None:
    wanted = system_of(container.header["target"]["triple"])
    if wanted != this_system():
        raise DeviceError(
            f"[load] {container.path.name} holds code for another system. Got {wanted}; expected "
            f"{this_system()}. Try luminal.export(..., target={this_system()!r})."
        )


def _check_processor(container: Container, library: Mapping[str, int]) -> None:
    """DeviceError if the processor lacks what the code needs. Runs code for the least processor."""
    found = container.header["features"]
    table = np.array([[*row["place"], row["mask"]] for row in found], np.uint32)
    missing = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
    number = missing(library["lm_missing"])(table.ctypes.data, len(found)) if found else -1
    if number >= 0:
        raise DeviceError(
            f"[load] this processor lacks {found[number]['name']}. Got the code of "
            f"{container.path.name} for {container.header['target']['cpu']}. "
            "Try exporting on this machine, or with LUMINAL_ISA=baseline."
        )


def _link(container: Container, names: Sequence[str]) -> Mapping[str, int]:
    """Addresses of the code's functions in this process."""
    code = container.checked("code")
    wanted = [*names, *ENTRIES, "lm_missing"]
    if container.header["code"] == "objects":
        sizes, objects, start = container.header["objects"], [], 0
        for size in sizes:
            objects.append(bytes(code[start : start + size]))
            start += size
        python = PYTHON_API if _python_entry() else ()
        imports = {name: address(ctypes.pythonapi, name) for name in python}
        linked = cpu.link(objects, [*wanted, *(["lm_entry"] if python else [])], imports)
        library = {name: linked[name] for name in wanted}
        cpu.keep_forever(linked)
    else:
        opened = _open_library(bytes(code))
        library = {name: address(opened, name) for name in [*wanted, "lm_entry"]}
    _check_processor(container, library)
    return library


def _open_library(code: bytes) -> ctypes.CDLL:
    """The library with these bytes. It stays open: threads may be parked in it."""
    key = sha256(code).digest()
    if key not in _LIBRARIES:
        _LIBRARIES[key] = _from_memory(code) or _from_temporary_file(code)
    return _LIBRARIES[key]


def _from_memory(code: bytes) -> ctypes.CDLL | None:
    """Opened from an anonymous file, whose number is kept: the dynamic linker goes by names."""
    handle = -1
    try:
        handle = os.memfd_create("luminal")
        with open(handle, "wb", closefd=False) as file:
            file.write(code)
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    except (OSError, AttributeError):
        if handle >= 0:
            os.close(handle)
        return None


def _from_temporary_file(code: bytes) -> ctypes.CDLL:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        try:
            return ctypes.CDLL(file.name)
        except OSError as error:
            raise WeightsError(
                f"[load] the system does not open the machine code: {error}"
            ) from None
