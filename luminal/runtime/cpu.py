"""The LLVM side of the CPU: text to object bytes, object bytes to addresses in this process.

In: LLVM text, a Target. Out: object code (cacheable bytes) and linked libraries. llvmlite is
loaded on first use and only here. Knows nothing of plans, kernels or threads.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from luminal.errors import InternalError
from luminal.ir.target import Target

__all__ = ["Library", "assembly", "compile_object", "keep_forever", "link", "llvm", "llvm_version"]

_LOCK = threading.RLock()
_LIBRARY_NUMBER = itertools.count()
_STATE: dict[str, Any] = {}


def keep_forever(value: object) -> None:
    """Give `value` a reference that is never dropped: parked workers outlive the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def llvm() -> ModuleType:
    """llvmlite.binding, loaded (about 0.3 s) and initialised once."""
    with _LOCK:
        if "binding" not in _STATE:
            import llvmlite.binding as binding

            binding.initialize_all_targets()
            binding.initialize_all_asmprinters()
            binding.initialize_native_asmparser()
            _STATE["binding"] = binding
        return _STATE["binding"]


def llvm_version() -> str:
    """Version of LLVM, a part of every key of cached machine code."""
    return ".".join(map(str, llvm().llvm_version_info))


def _features(target: Target) -> str:
    """Features of `target`, with LLVM's own preference for narrow vectors overruled."""
    if not target.triple.startswith("x86_64") or "avx512f" not in target.features:
        return target.features
    sign = "-" if target.vector_bits >= 512 else "+"
    return ",".join(filter(None, (target.features, f"{sign}prefer-256-bit")))


def _machine(target: Target) -> Any:
    """A fresh LLVM target machine: they are cheap and not thread-safe."""
    try:
        made = llvm().Target.from_triple(target.triple)
    except RuntimeError as error:
        raise InternalError(f"[codegen] unknown target triple {target.triple!r}: {error}") from None
    return made.create_target_machine(
        cpu=target.cpu, features=_features(target), opt=2, reloc="pic", codemodel="small"
    )


def _parse(text: str, target: Target, machine: Any) -> Any:
    """The verified module of `text`. llvmlite parses without running any pass."""
    binding = llvm()
    try:
        module = binding.parse_assembly(text, binding.create_context())
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"[codegen] malformed LLVM text: {str(error).strip()}") from None
    return module


def compile_object(llvm_text: str, target: Target) -> bytes:
    """Object code (ELF or Mach-O) of `llvm_text`: verified, no middle-end passes, codegen O2.

    InternalError if the text is malformed. Text that LLVM cannot select aborts the process, so
    untrusted candidates are compiled in a worker.
    """
    machine = _machine(target)
    return machine.emit_object(_parse(llvm_text, target, machine))


def assembly(llvm_text: str, target: Target) -> str:
    """Assembly text of `llvm_text`, to look at."""
    machine = _machine(target)
    return machine.emit_assembly(_parse(llvm_text, target, machine))


def _jit() -> Any:
    """The one linker of this process. Never freed: threads may be parked in its code."""
    with _LOCK:
        if "jit" not in _STATE:
            binding = llvm()
            native = binding.Target.from_triple(binding.get_process_triple())
            machine = native.create_target_machine(reloc="pic", codemodel="small", jit=True)
            _STATE["jit"] = binding.create_lljit_compiler(machine, use_jit_link=True)
            keep_forever(_STATE["jit"])
        return _STATE["jit"]


class Library:
    """Machine code linked into this process; unloaded when the last reference goes."""

    __slots__ = ("__weakref__", "_tracker", "names")

    def __init__(self, tracker: Any, names: tuple[str, ...]) -> None:
        self._tracker = tracker
        self.names = names

    def address(self, name: str) -> int:
        """Address of the function or constant `name`; KeyError if it was not asked for."""
        return self._tracker[name]


def link(
    objects: Iterable[bytes], names: Iterable[str], imports: dict[str, int] | None = None
) -> Library:
    """Link object code for this machine; `names` are the symbols whose addresses are wanted.

    Undefined symbols are looked up in `imports`, then in the process (libc, libm, Python).
    InternalError if a symbol is missing (LLVM names it on standard error).
    """
    wanted = tuple(names)
    builder = llvm().JITLibraryBuilder()
    for data in objects:
        builder.add_object_img(data)
    for name in wanted:
        builder.export_symbol(name)
    for name, address in (imports or {}).items():
        builder.import_symbol(name, address)
    builder.add_current_process()
    try:
        tracker = builder.link(_jit(), f"luminal{next(_LIBRARY_NUMBER)}")
    except RuntimeError as error:
        raise InternalError(f"[link] {str(error).strip()}") from None
    return Library(tracker, wanted)
