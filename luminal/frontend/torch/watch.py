"""A native look at many tensors at once: have their addresses, versions or sampled words changed?

In: tensors, and which of them were copied. Out: `Watch.changed()`, about 30 ns a tensor. Made of a
few lines of LLVM text over two functions of PyTorch; `Watch.create` gives None where this version
of PyTorch lacks one of them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

import numpy as np
import torch

from luminal.errors import LuminalError
from luminal.programs import native_function

__all__ = ["SAMPLES", "Watch", "sampled"]

SAMPLES = 16
_FIELDS = 7  # handle, address, version or -1, first and step of the samples, their number, hash
_TEXT = """
define i64 @luminal_watch(ptr %table, i64 %count, i64 %write, ptr %data_of, ptr %version_of) {
entry:
  %slot = alloca ptr
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %one, label %same
one:
  %i = phi i64 [0, %entry], [%i2, %next]
  %at = mul i64 %i, 7
  %row = getelementptr i64, ptr %table, i64 %at
  %handle = load ptr, ptr %row
  %e = call i32 %data_of(ptr %handle, ptr %slot)
  %place = load i64, ptr %slot
  %p1 = getelementptr i64, ptr %row, i64 1
  %old1 = load i64, ptr %p1
  %d1 = icmp ne i64 %place, %old1
  %p2 = getelementptr i64, ptr %row, i64 2
  %old2 = load i64, ptr %p2
  %versioned = icmp ne i64 %old2, -1
  br i1 %versioned, label %ask, label %asked
ask:
  %v = call i64 %version_of(ptr %handle)
  br label %asked
asked:
  %version = phi i64 [-1, %one], [%v, %ask]
  %d2 = icmp ne i64 %version, %old2
  %p3 = getelementptr i64, ptr %row, i64 3
  %first = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %row, i64 4
  %step = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %row, i64 5
  %samples = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %row, i64 6
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
Native = Callable[[int, int, int], int]


def sampled(tensor: torch.Tensor) -> tuple[int, int, int]:
    """(first, step, number) of the 8-byte words to look at, in bytes from the data's address."""
    count = tensor.nbytes // 8
    if not count:
        return 0, 0, 0
    return 0, max(1, count // SAMPLES) * 8, min(count, SAMPLES)


@cache
def _native() -> Native | None:
    try:
        folder = Path(torch.__file__).parent / "lib"
        library = ctypes.CDLL(str(next(folder.glob("libtorch_cpu.*"))))
        functions = (library.aoti_torch_get_data_ptr, library._ZNK2at10TensorBase8_versionEv)
        extra = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
        code, start = native_function(_TEXT, "luminal_watch")
        torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([])
        _ = library.aoti_torch_delete_tensor_object
    except (AttributeError, OSError, StopIteration, LuminalError, TypeError):
        return None
    words = ctypes.c_int64
    call = ctypes.CFUNCTYPE(words, *[words] * 5)(start)

    def run(table: int, count: int, write: int) -> int:
        return call(table, count, write, *extra)

    run.code = code  # type: ignore[attr-defined]
    run.free = library.aoti_torch_delete_tensor_object  # type: ignore[attr-defined]
    run.free.argtypes = [ctypes.c_void_p]  # type: ignore[attr-defined]
    return run


class Watch:
    """Tensors under watch: `changed()` is the number of the first that changed, or -1."""

    def __init__(
        self, tensors: Collection[torch.Tensor], copied: Collection[int], native: Native
    ) -> None:
        self._native = native
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
        weakref.finalize(self, _release, native, handles)
        self._table = np.zeros((len(handles), _FIELDS), np.int64)
        for number, (tensor, handle) in enumerate(zip(tensors, handles, strict=True)):
            version = 0 if number in copied and not tensor.is_inference() else -1
            samples = sampled(tensor) if number in copied else (0, 0, 0)
            self._table[number, :6] = [_address(handle), 0, version, *samples]
        self._place, self._count = self._table.ctypes.data, len(handles)
        native(self._place, self._count, 1)

    @classmethod
    def create(cls, tensors: Collection[torch.Tensor], copied: Collection[int]) -> Watch | None:
        """A watch on these tensors, or None where PyTorch does not offer what it needs."""
        native = _native()
        return None if native is None else cls(tensors, copied, native)

    def changed(self) -> int:
        """The number of the first tensor that is no longer as it was, or -1."""
        return self._native(self._place, self._count, 0)


def _address(handle: object) -> int:
    if isinstance(handle, int):
        return handle
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(handle, None)


def _release(native: Native, handles: Collection[object]) -> None:
    for handle in handles:
        native.free(_address(handle))  # type: ignore[attr-defined]
