"""A native look at many tensors at once: are they the same objects, and have their addresses,
versions or sampled words changed?

In: tensors, and which of them were copied. Out: `Watch.changed(*tensors)`, about 10 ns a tensor.
Made of a few lines of LLVM text over two functions of PyTorch; `Watch.create` gives None where this
version of PyTorch lacks one of them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from luminal.errors import LuminalError
from luminal.programs import has_builtins, native_functions

__all__ = ["SAMPLES", "Watch", "sampled"]

SAMPLES = 16
_METH_FASTCALL = 0x80
_FIELDS = 8  # object, handle, address, version or -1, first and step of the samples, number, hash
_TEXT = """
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare i64 @_ZNK2at10TensorBase8_versionEv(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)

define ptr @luminal_watch(ptr %self, ptr %objects, i64 %count) {
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %first = call i64 @luminal_look(ptr %table, ptr %objects, i64 %count, i64 0)
  %result = call ptr @PyLong_FromLong(i64 %first)
  ret ptr %result
}

define i64 @luminal_look(ptr %table, ptr %objects, i64 %count, i64 %write) {
entry:
  %slot = alloca ptr
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %one, label %same
one:
  %i = phi i64 [0, %entry], [%i2, %next]
  %row = getelementptr [8 x i64], ptr %table, i64 %i
  %op = getelementptr i64, ptr %objects, i64 %i
  %object = load i64, ptr %op
  %known = load i64, ptr %row
  %other = icmp ne i64 %object, %known
  br i1 %other, label %differs, label %look
look:
  %p0 = getelementptr i64, ptr %row, i64 1
  %handle = load ptr, ptr %p0
  %e = call i32 @aoti_torch_get_data_ptr(ptr %handle, ptr %slot)
  %place = load i64, ptr %slot
  %p1 = getelementptr i64, ptr %row, i64 2
  %old1 = load i64, ptr %p1
  %d1 = icmp ne i64 %place, %old1
  %p2 = getelementptr i64, ptr %row, i64 3
  %old2 = load i64, ptr %p2
  %versioned = icmp ne i64 %old2, -1
  br i1 %versioned, label %ask, label %asked
ask:
  %v = call i64 @_ZNK2at10TensorBase8_versionEv(ptr %handle)
  br label %asked
asked:
  %version = phi i64 [-1, %look], [%v, %ask]
  %d2 = icmp ne i64 %version, %old2
  %p3 = getelementptr i64, ptr %row, i64 4
  %first = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %row, i64 5
  %step = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %row, i64 6
  %samples = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %row, i64 7
  %old6 = load i64, ptr %p6
  %moved = or i1 %d1, %d2
  %reads = icmp sgt i64 %samples, 0
  %keep = icmp eq i64 %write, 0
  %skip = and i1 %keep, %moved
  br i1 %skip, label %differs, label %start
start:
  %from = add i64 %place, %first
  br i1 %reads, label %word, label %hashed
word:
  %k = phi i64 [0, %start], [%k2, %word]
  %h = phi i64 [0, %start], [%h2, %word]
  %off = mul i64 %k, %step
  %where = add i64 %from, %off
  %ptr = inttoptr i64 %where to ptr
  %w = load i64, ptr %ptr, align 1
  %hx = xor i64 %h, %w
  %h2 = mul i64 %hx, 6364136223846793005
  %k2 = add i64 %k, 1
  %more = icmp slt i64 %k2, %samples
  br i1 %more, label %word, label %hashed
hashed:
  %hash = phi i64 [0, %start], [%h2, %word]
  br i1 %keep, label %compare, label %note
note:
  store i64 %place, ptr %p1
  store i64 %version, ptr %p2
  store i64 %hash, ptr %p6
  br label %next
compare:
  %d6 = icmp ne i64 %hash, %old6
  br i1 %d6, label %differs, label %next
differs:
  ret i64 %i
next:
  %i2 = add i64 %i, 1
  %again = icmp slt i64 %i2, %count
  br i1 %again, label %one, label %same
same:
  ret i64 -1
}
"""


@dataclass(frozen=True, slots=True)
class _Native:
    """`look(table, objects, count, write)`; the words of the PyMethodDef of a builtin function that
    looks at the table whose address is its self, if there may be one; how to free a handle."""

    code: object
    look: Callable[[int, int, int, int], int]
    method: object
    free: Callable[[int], object]


def sampled(tensor: torch.Tensor) -> tuple[int, int, int]:
    """(first, step, number) of the 8-byte words to look at, in bytes from the data's address."""
    count = tensor.nbytes // 8
    if not count:
        return 0, 0, 0
    return 0, max(1, count // SAMPLES) * 8, min(count, SAMPLES)


@cache
def _native() -> _Native | None:
    try:
        folder = Path(torch.__file__).parent / "lib"
        library = ctypes.CDLL(str(next(folder.glob("libtorch_cpu.*"))))
        functions = ("aoti_torch_get_data_ptr", "_ZNK2at10TensorBase8_versionEv")
        found = {n: library[n] for n in functions}
        found |= {n: ctypes.pythonapi[n] for n in ("PyLong_AsVoidPtr", "PyLong_FromLong")}
        imports = {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in found.items()}
        code = native_functions(_TEXT, ("luminal_watch", "luminal_look"), imports)
        torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([])
        free = library.aoti_torch_delete_tensor_object
    except (AttributeError, OSError, StopIteration, LuminalError, TypeError):
        return None
    free.argtypes = [ctypes.c_void_p]
    word = ctypes.c_int64
    look = ctypes.PYFUNCTYPE(word, *[word] * 4)(code["luminal_look"])
    name = ctypes.cast(ctypes.c_char_p(b"changed"), ctypes.c_void_p).value
    method = (ctypes.c_void_p * 4)(name, code["luminal_watch"], _METH_FASTCALL, None)
    return _Native(code, look, method if has_builtins() else None, free)


class Watch:
    """Tensors under watch. `changed(*tensors)` is the number of the first that is another object or
    no longer as it was, or -1; `remember` puts others under watch."""

    __slots__ = ("__weakref__", "_handles", "_native", "_objects", "_table", "changed")

    def __init__(
        self, tensors: Collection[torch.Tensor], copied: Collection[int], native: _Native
    ) -> None:
        self._native = native
        self._handles: list[object] = []
        weakref.finalize(self, _release, native, self._handles)
        self._table = np.zeros((len(tensors), _FIELDS), np.int64)
        self.remember(tensors, copied)
        self.changed: Callable[..., int] = self._by_ctypes
        if native.method is not None:
            create = ctypes.pythonapi.PyCFunction_NewEx
            create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
            create.restype = ctypes.py_object
            self.changed = create(ctypes.addressof(native.method), self._table.ctypes.data, None)

    @classmethod
    def create(cls, tensors: Collection[torch.Tensor], copied: Collection[int]) -> Watch | None:
        """A watch on these tensors, or None where PyTorch does not offer what it needs."""
        native = _native()
        return None if native is None else cls(tensors, copied, native)

    def remember(self, tensors: Collection[torch.Tensor], copied: Collection[int]) -> None:
        """Watches these, as many as before, as they are now. Another thread may ask meanwhile."""
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
        table = np.zeros_like(self._table)
        for number, (tensor, handle) in enumerate(zip(tensors, handles, strict=True)):
            version = 0 if number in copied and not tensor.is_inference() else -1
            samples = sampled(tensor) if number in copied else (0, 0, 0)
            table[number, :7] = [id(tensor), _address(handle), 0, version, *samples]
        objects = np.ascontiguousarray(table[:, 0])
        self._native.look(table.ctypes.data, objects.ctypes.data, len(table), 1)
        self._objects = tuple(tensors)  # as long as their ids are in the table
        self._table[:] = table
        old, self._handles[:] = [*self._handles], handles
        _release(self._native, old)

    def _by_ctypes(self, *tensors: torch.Tensor) -> int:
        objects = np.array([id(t) for t in tensors], np.int64)
        return self._native.look(self._table.ctypes.data, objects.ctypes.data, len(objects), 0)


def _address(handle: object) -> int:
    if isinstance(handle, int):
        return handle
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(handle, None)


def _release(native: _Native, handles: Collection[object]) -> None:
    for handle in handles:
        native.free(_address(handle))
