"""The LLVM side of the CPU: text to object bytes, object bytes to addresses in this process.

In: LLVM text, a Target. Out: object code (cacheable bytes) and linked libraries. llvmlite is
loaded on first use and only here. Knows nothing of plans, kernels or threads."""

import ctypes
import itertools
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from luminal.errors import InternalError
from luminal.ir.target import Target

_LIBRARY_NUMBER = itertools.count()


def keep_forever(value: object) -> None:
    """Give `value` a reference that is never dropped: parked workers outlive the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


@cache
def llvm() -> ModuleType:
    """llvmlite.binding, loaded (about 0.3 s) and initialised once."""
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()
    return binding


def _features(target: Target) -> str:
    """Features of `target`, with LLVM's own preference for narrow vectors overruled."""
    if not target.triple.startswith("x86_64") or "avx512f" not in target.features:
        return target.features
    sign = "-" if target.vector_bits >= 512 else "+"
    return ",".join(filter(None, (target.features, f"{sign}prefer-256-bit")))


def _emit(llvm_text: str, target: Target, how: str) -> Any:
    """Machine code of verified text by a fresh target machine: they are not thread-safe."""
    binding = llvm()
    try:
        machine = binding.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=_features(target), opt=2, reloc="pic", codemodel="small"
        )
        module = binding.parse_assembly(llvm_text, binding.create_context())
        module.triple, module.data_layout = target.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"[codegen] malformed LLVM text: {str(error).strip()}") from None
    return getattr(machine, how)(module)


def compile_object(llvm_text: str, target: Target) -> bytes:
    """Object code (ELF or Mach-O) of `llvm_text`: verified, no middle-end passes, codegen O2.

    InternalError if the text is malformed. Text that LLVM cannot select aborts the process, so
    untrusted candidates are compiled in a worker."""
    return _emit(llvm_text, target, "emit_object")


def assembly(llvm_text: str, target: Target) -> str:
    """Assembly text of `llvm_text`, to look at."""
    return _emit(llvm_text, target, "emit_assembly")


@cache
def _jit() -> Any:
    """The linker of this process. Never freed: threads may be parked in its code."""
    native = llvm().Target.from_triple(llvm().get_process_triple())
    machine = native.create_target_machine(reloc="pic", codemodel="small", jit=True)
    jit = llvm().create_lljit_compiler(machine, use_jit_link=True)
    keep_forever(jit)
    return jit


def link(
    objects: Iterable[bytes], names: Iterable[str], imports: Mapping[str, int] | None = None
) -> Mapping[str, int]:
    """Link object code for this machine: the addresses of the symbols `names`, whose code is
    unloaded when the last reference to them goes.

    Undefined symbols are looked up in `imports`, then in the process (libc, libm, Python).
    InternalError if a symbol is missing (LLVM names it on standard error)."""
    builder = llvm().JITLibraryBuilder()
    for data in objects:
        builder.add_object_img(data)
    for name in names:
        builder.export_symbol(name)
    for name, address in (imports or {}).items():
        builder.import_symbol(name, address)
    builder.add_current_process()
    try:
        return builder.link(_jit(), f"luminal{next(_LIBRARY_NUMBER)}")
    except RuntimeError as error:
        raise InternalError(f"[link] {str(error).strip()}") from None
