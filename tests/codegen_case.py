"""Runs a kernel through lowering and the loop IR interpreter, and through the oracle."""

from __future__ import annotations

import numpy as np

from luminal.codegen.generate import lower
from luminal.codegen.loopir import Function
from luminal.ir.dtype import DType, f32
from luminal.ir.expr import ExprLike, axis_var, to_expr
from luminal.ir.interp import run_kernel
from luminal.ir.layout import pack, size
from luminal.ir.numeric import decode
from luminal.ir.plan import Buffer, Kernel, Loop, Reg, Schedule, Store
from luminal.ir.target import Target
from luminal.ir.term import Term, load
from luminal.runtime.device import host_target
from luminal.runtime.memory import constant_array
from tests.loopir_interp import Interpreter
from tests.native_case import run_native

TARGET = Target(vector_bits=256, vector_registers=16, fma=True)
HOST = host_target()
ROLES = {"u": "unroll", "v": "vector", "a": "acc", "d": "dot"}


def parse(text: str) -> Schedule:
    """'g:n:64 m:6 k:4s / k:1u n:8u n:1v': loops (g: grid, s: split) and registers; 'm:4l32' deals
    steps of 4 to 32 lanes, 'm:4+1' looks one step ahead."""
    head, _, tail = text.partition("/")
    loops = []
    for word in head.split():
        grid = word.startswith("g:")
        axis, tile = word.removeprefix("g:").split(":")
        tile, _, ahead = tile.partition("+")
        tile, _, lanes = tile.partition("l")
        split, size = tile.endswith("s"), int(tile.rstrip("s"))
        loops.append(Loop(axis, size, split, grid, int(lanes or 0), int(ahead or 0)))
    regs = [(w.split(":")[0], w.split(":")[1]) for w in tail.split()]
    return Schedule(tuple(loops), tuple(Reg(a, int(t[:-1]), ROLES[t[-1]]) for a, t in regs))


class Case:
    """A kernel under construction: buffers with random or given contents."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.buffers: dict[str, Buffer] = {}
        self.bits: dict[str, np.ndarray] = {}
        self.dims: dict[str, int] = {}

    def axis(self, name: str, extent: ExprLike):
        """An axis variable."""
        return axis_var(name, extent)

    def buffer(
        self, name: str, shape: tuple[ExprLike, ...], dtype: DType = f32, data: object = None,
        layout: tuple[tuple[int, int], ...] = (),
    ) -> None:  # fmt: skip
        """Declares a buffer; floats are normal, integers small, unless data is given."""
        dims = tuple(to_expr(n) for n in shape)
        self.buffers[name] = Buffer(name, dims, dtype, "input", layout)
        sizes = [n.evaluate(self.dims) for n in dims]
        if data is None:
            data = self._random(sizes, dtype)
        self.bits[name] = np.asarray(data, dtype.np)

    def _random(self, sizes: list[int], dtype: DType) -> np.ndarray:
        if dtype.bits == 4:
            return self.rng.integers(0, 255, [*sizes[:-1], sizes[-1] // 2])
        if dtype.name in ("f64", "f32", "f16"):
            return self.rng.standard_normal(sizes)
        if dtype.name == "bf16":
            raw = self.rng.standard_normal(sizes).astype(np.float32)
            return (np.atleast_1d(raw).view(np.uint32) >> 16).reshape(sizes)
        if dtype.name == "bool":
            return self.rng.integers(0, 2, sizes).astype(bool)
        if dtype.storage:
            return self.rng.integers(0, 120, sizes)
        return self.rng.integers(0 if dtype.kind == "u" else -9, 9, sizes)

    def load(self, name: str, *index: ExprLike) -> Term:
        """A load of a declared buffer."""
        return load(name, tuple(to_expr(i) for i in index), self.buffers[name].dtype)

    def kernel(
        self, axes: tuple, out: str, index: tuple, value: Term, schedule: Schedule | None = None,
        ordered: tuple[str, ...] = (),
    ) -> Kernel:  # fmt: skip
        """A kernel with one store."""
        store = Store(out, tuple(to_expr(i) for i in index), value)
        return Kernel("k", axes, (store,), schedule, ordered)

    def expected(self, kernel: Kernel) -> dict[str, np.ndarray]:
        """Buffers after the oracle ran the kernel."""
        values = {n: decode(b, self.buffers[n].dtype).copy() for n, b in self.bits.items()}
        run_kernel(kernel, values, self.dims)
        return values

    def lowered(self, kernel: Kernel) -> Function:
        """The loop IR."""
        return lower(kernel, TARGET, self.buffers, "k")

    def check(
        self, kernel: Kernel, rtol: float = 2e-5, atol: float = 1e-5, native: bool = False
    ) -> Function:
        """Interprets (or compiles) the lowered kernel and compares every written buffer."""
        function = lower(kernel, HOST, self.buffers, "k") if native else self.lowered(kernel)
        memory = {n: _memory(self.buffers[n], b) for n, b in self.bits.items()}
        if native:
            failed = run_native(function, HOST, memory, self.dims)
        else:
            failed = Interpreter(function, memory, self.dims).run()
        assert not failed
        expected = self.expected(kernel)
        for name in kernel.writes():
            b = self.buffers[name]
            got = decode(memory[name], b.dtype).astype(expected[name].dtype)
            want = pack(expected[name], b.layout)
            assert len(got) == size(b.shape, b.layout).evaluate(self.dims)
            np.testing.assert_allclose(got, want, rtol, atol, err_msg=repr(kernel.schedule))
        return function


def _memory(buffer: Buffer, bits: np.ndarray) -> np.ndarray:
    """The bits as they lie in memory, a fresh flat array."""
    if buffer.dtype.bits < 8:
        return constant_array(buffer, bits).copy().reshape(-1)
    return pack(bits, buffer.layout).copy()
