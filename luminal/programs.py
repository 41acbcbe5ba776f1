"""Compiled programs on disk: a second process neither searches nor runs LLVM's code generator.

In: a graph's text, its constants, settings. Out: a Program without data or source, bound to the
constants of this process, and object code. Damaged or foreign entries count as missing.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from luminal.config import Config
from luminal.ir.graph import ConstantData
from luminal.ir.program import KernelCode, Program
from luminal.ir.target import Target
from luminal.runtime.cpu import Library, compile_object, link
from luminal.runtime.device import select_target
from luminal.search.cache import Cache, digest

__all__ = ["ProgramCache", "native_function", "versions"]


@cache
def versions() -> str:
    """Everything of this installation that generated code depends on."""
    package = Path(__file__).parent
    files = sorted([*package.rglob("*.py"), *package.rglob("*.ll")])
    stamps = [(str(f.relative_to(package)), f.stat().st_mtime_ns, f.stat().st_size) for f in files]
    try:
        llvm = version("llvmlite")
    except PackageNotFoundError:
        llvm = "unknown"
    return digest(llvm, *stamps)


def native_function(source: str, name: str) -> tuple[Library, int]:
    """A function of LLVM text, linked into this process: what keeps it alive, and its address."""
    library = link([compile_object(source, select_target("native"))], [name])
    return library, library.address(name)


class ProgramCache:
    """Programs and object code of one target. `compiled` counts what was not found."""

    def __init__(self, config: Config, target: Target) -> None:
        self.store = Cache(config.cache_dir)
        self.config, self.target = config, target
        self.compiled = 0

    def key(
        self, text: str, constants: Mapping[str, ConstantData], hints: Mapping[str, int]
    ) -> str:
        """The key of a graph: all that its program depends on, but not the values of constants."""
        shapes = [(n, c.array.shape, c.array.dtype.str) for n, c in constants.items()]
        c = self.config
        return digest(versions(), text, shapes, sorted(hints.items()), self.target, c.numerics,
                      c.search, c.threads, c.seed)  # fmt: skip

    def load(self, key: str, constants: Mapping[str, ConstantData]) -> Program | None:
        """The stored program with this process' constants; its codes have no source."""
        data = self.store.get("program", key)
        if data is None:
            self.compiled += 1
            return None
        try:
            program, sources = pickle.loads(data)
            buffers = tuple(
                replace(b, data=constants[b.data.name]) if b.data is not None else b
                for b in program.plan.buffers
            )
        except Exception:  # another version of Python, or not ours
            self.compiled += 1
            return None
        codes = tuple(replace(c, source=s) for c, s in zip(program.codes, sources, strict=True))
        return replace(program, plan=replace(program.plan, buffers=buffers), codes=codes)

    def save(self, key: str, program: Program) -> None:
        """Store a program; constants go by name only, small scalars included."""
        if self.store.directory is None:
            return
        buffers = tuple(
            replace(b, data=ConstantData(b.data.name, b.data.array[:0]))
            if b.data is not None and b.data.array.ndim else b
            for b in program.plan.buffers
        )  # fmt: skip
        bare = replace(program, plan=replace(program.plan, buffers=buffers))
        codes = tuple(KernelCode(c.name, "", c.scratch_bytes) for c in program.codes)
        sources = [c.source for c in program.codes]
        self.store.put("program", key, pickle.dumps((replace(bare, codes=codes), sources)))

    def machine_code(self, source: str, target: Target) -> bytes:
        """Object code of LLVM text, compiled if it is not in the cache."""
        key = digest(versions(), source, target)
        found = self.store.get("object", key)
        if found is None:
            self.compiled += 1
            found = compile_object(source, target)
            self.store.put("object", key, found)
        return found
