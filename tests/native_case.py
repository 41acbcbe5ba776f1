"""Compiles a kernel for this machine and runs it on arrays."""

from __future__ import annotations

import ctypes

import numpy as np

from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import Function
from luminal.ir.target import Target
from luminal.runtime.cpu import compile_object, link

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
COUNT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


def run_native(
    function: Function, target: Target, arrays: dict[str, np.ndarray], dims: dict[str, int]
) -> bool:
    """Runs all chunks in place, last chunk first; True if an index was out of range."""
    text = print_function(function, target)
    name = function.name
    library = link([compile_object(text, target)], [name, f"{name}_grid", f"{name}_cost"])
    error = np.zeros(1, np.int32)
    scratch = np.full(function.scratch_bytes + 128, 77, np.uint8)
    aligned = scratch.ctypes.data + -scratch.ctypes.data % 64
    words = [arrays[n].ctypes.data for n in function.arguments]
    words += [dims[n] for n in function.dims] + [error.ctypes.data]
    block = np.array(words, np.int64)
    count = COUNT(library[f"{name}_grid"])(block.ctypes.data)
    assert COUNT(library[f"{name}_cost"])(block.ctypes.data) >= 0
    entry = ENTRY(library[name])
    for chunk in reversed(range(count)):
        entry(block.ctypes.data, chunk, chunk + 1, aligned)
    return bool(error[0])
