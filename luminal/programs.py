"""Compiled programs on disk: a second process neither searches nor runs LLVM's code generator.

In: a graph's text, its constants, settings. Out: a Program bound to the constants of this
process, and object code. Damaged or foreign entries count as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from luminal.config import Config
from luminal.devices import device_target, loaded
from luminal.ir.graph import ConstantData
from luminal.ir.program import Program
from luminal.ir.target import Target
from luminal.runtime.cpu import compile_object, link
from luminal.runtime.device import select_target
from luminal.runtime.executor import Executor
from luminal.runtime.pool import runtime
from luminal.search.cache import Cache, digest

Compiler = Callable[[str, Target], bytes]


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


def native_functions(
    source: str, names: Sequence[str], imports: Mapping[str, int]
) -> Mapping[str, int]:
    """Functions of LLVM text, linked into this process, as long as the result lives: addresses."""
    return link([compile_object(source, select_target("native"))], names, imports)


def has_builtins() -> bool:
    """True where native code may be the body of builtin functions of Python."""
    return bool(runtime().method)


def _with_data(program: Program, change: Callable[[ConstantData], ConstantData]) -> Program:
    plan = program.plan
    buffers = tuple(replace(b, data=change(b.data)) if b.data else b for b in plan.buffers)
    return replace(program, plan=replace(plan, buffers=buffers))


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
        """The stored program with this process' constants."""
        program = self.store.load("program", key)
        if isinstance(program, Program):
            with suppress(KeyError):
                return _with_data(program, lambda data: constants[data.name])
        self.compiled += 1
        return None

    def save(self, key: str, program: Program) -> None:
        """Store a program; constants go by name only."""
        bare = _with_data(program, lambda d: ConstantData(d.name, np.empty(0, d.array.dtype)))
        self.store.save("program", key, bare)

    def machine_code(
        self, source: str, target: Target, compiler: Compiler = compile_object
    ) -> bytes:  # fmt: skip
        """Object code of LLVM text, or of what `compiler` reads, compiled if it is not in the
        cache."""
        key = digest(versions(), source, target)
        found = self.store.get("object", key)
        if found is None:
            self.compiled += 1
            found = compiler(source, target)
            self.store.put("object", key, found)
        return found

    def keep(self, code: Iterable[tuple[str, bytes]]) -> None:
        """Store object code that was compiled elsewhere, by its source."""
        for source, data in code:
            self.store.put("object", digest(versions(), source, self.target), data)

    def executor(self, program: Program) -> Executor | None:
        """The program ready to be called; None if its code is not in the cache."""
        keys = [digest(versions(), c.source, self.target) for c in program.codes]
        objects = [self.store.get("object", key) for key in keys]
        if None in objects:
            return None
        runtime(self.machine_code)
        return loaded(program, objects, self.config)


def load_executor(
    config: Config, key: str, constants: Mapping[str, ConstantData]
) -> Executor | None:
    """The executor of the program stored under a key, or None if the cache has not all of it."""
    cache = ProgramCache(config, device_target(config))
    program = cache.load(key, constants)
    return None if program is None else cache.executor(program)
