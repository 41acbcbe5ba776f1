"""Memory planning, input checks and the executor, with plans whose kernels are hand-written."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from luminal.errors import ArgumentError, DTypeError, InternalError, OutOfRangeError, ShapeError
from luminal.ir.dtype import DType, bf16, f32, i32, i64
from luminal.ir.expr import ExprLike, Var, axis_var, const, to_expr
from luminal.ir.graph import ConstantData
from luminal.ir.layout import pack
from luminal.ir.plan import Buffer, Kernel, Plan, Store
from luminal.ir.program import KernelCode, Program
from luminal.ir.term import binary, data, load
from luminal.runtime import cpu, device
from luminal.runtime.executor import Executor
from luminal.runtime.memory import constant_array, memory_plan

N = Var("n", 1, 4096)


def buffer(name: str, kind: str, *shape: ExprLike, dtype: DType = f32, **more: object) -> Buffer:
    return Buffer(name, tuple(to_expr(s) for s in shape), dtype, kind, **more)


def add(name: str, a: str, b: str, out: str, extent: ExprLike = N) -> Kernel:
    """out[i] = a[i] + b[i]."""
    axis = axis_var("i", extent)
    i = (to_expr(axis),)
    return Kernel(name, (axis,), (Store(out, i, binary("add", load(a, i, f32), load(b, i, f32))),))


def add_code(name: str, buffers: int, dims: int, extent: str = "") -> str:
    """LLVM text of `add` for kernels with 2 or 3 distinct buffers; `extent` if it is static."""
    second = 0 if buffers == 2 else 1
    size = f"add i64 0, {extent}" if extent else "load i64, ptr %np"
    return f"""
define i64 @{name}_grid(ptr %a) {{
  %np = getelementptr i64, ptr %a, i64 {buffers}
  %n = {size}
  ret i64 %n
}}
define i64 @{name}_cost(ptr %a) {{
  %np = getelementptr i64, ptr %a, i64 {buffers}
  %n = {size}
  %c = mul i64 %n, 100
  ret i64 %c
}}
define void @{name}(ptr %a, i64 %lo, i64 %hi, ptr %scratch) {{
entry:
  %x = load ptr, ptr %a
  %yp = getelementptr i64, ptr %a, i64 {second}
  %y = load ptr, ptr %yp
  %zp = getelementptr i64, ptr %a, i64 {buffers - 1}
  %z = load ptr, ptr %zp
  br label %head
head:
  %i = phi i64 [%lo, %entry], [%i1, %body]
  %c = icmp slt i64 %i, %hi
  br i1 %c, label %body, label %done
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %u = load float, ptr %xi
  %yi = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %yi
  %w = fadd float %u, %v
  %zi = getelementptr float, ptr %z, i64 %i
  store float %w, ptr %zi
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


GATHER_CODE = """
define i64 @gather_grid(ptr %a) {
  ret i64 1
}
define i64 @gather_cost(ptr %a) {
  ret i64 50
}
define void @gather(ptr %a, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %index = load ptr, ptr %a
  %p1 = getelementptr i64, ptr %a, i64 1
  %x = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %a, i64 2
  %out = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %a, i64 3
  %error = load ptr, ptr %p3
  %i = load i64, ptr %index
  %ok = icmp ult i64 %i, 4
  br i1 %ok, label %good, label %bad
good:
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi
  store float %v, ptr %out
  ret void
bad:
  store i32 1, ptr %error
  ret void
}
"""
_OBJECTS: dict[str, bytes] = {}


def executor(plan: Plan, codes: dict[str, str], calls: tuple[int, ...], threads: int) -> Executor:
    """Compiles each text once in this module."""
    for text in codes.values():
        if text not in _OBJECTS:
            _OBJECTS[text] = cpu.compile_object(text, device.host_target())
    program = Program(
        plan, device.host_target(), tuple(KernelCode(n, t, 100) for n, t in codes.items()), calls
    )
    return Executor(program, [_OBJECTS[t] for t in codes.values()], threads)


def chain_plan() -> Plan:
    """y = 8x by three kernels that share one code."""
    buffers = (
        buffer("x", "input", N), buffer("t0", "temp", N), buffer("t1", "temp", N),
        buffer("y", "output", N),
    )  # fmt: skip
    kernels = (add("k0", "x", "x", "t0"), add("k1", "t0", "t0", "t1"), add("k2", "t1", "t1", "y"))
    return Plan(kernels, buffers, ("x",), ("y",), (N,))


def chain(threads: int = 1) -> Executor:
    return executor(chain_plan(), {"twice": add_code("twice", 2, 1)}, (0, 0, 0), threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_symbolic_chain(threads: int) -> None:
    run = chain(threads)
    for n in (1, 5, 4096, 64, 5):
        x = np.arange(n, dtype=np.float32)
        (y,) = run(x)
        np.testing.assert_array_equal(y, 8 * x)
    assert run.arena_bytes == 2 * 4096 * 4


def test_slots_are_reused_by_lifetime() -> None:
    axis = axis_var("i", N)
    i = (to_expr(axis),)
    shifted = (to_expr(N) - to_expr(axis) - 1,)
    names = [f"t{k}" for k in range(6)]
    kernels = [add("k0", "x", "x", "t0")]
    for a, b in zip(names, names[1:]):
        value = binary("add", load(a, i, f32), load(a, shifted, f32))
        kernels.append(Kernel(b, (axis,), (Store(b, i, value),)))
    buffers = [buffer("x", "input", N), *(buffer(t, "temp", N) for t in names[:-1])]
    buffers.append(buffer("t5", "output", N))
    plan = Plan(tuple(kernels), tuple(buffers), ("x",), ("t5",), (N,))
    memory = memory_plan(plan)
    assert set(memory.slot.values()) == {0, 1}
    assert memory.offsets((100,)) == ([0, 448], 896)
    assert memory.offsets((1,)) == ([0, 64], 128)


def test_what_a_kernel_reads_and_writes_never_shares_a_slot() -> None:
    memory = memory_plan(chain_plan())
    assert memory.slot == {"t0": 0, "t1": 1}


def test_alias_cycles_are_internal_errors() -> None:
    buffers = (buffer("a", "temp", 4, alias="b"), buffer("b", "temp", 4, alias="a"))
    with pytest.raises(InternalError, match="cycle"):
        memory_plan(Plan((), buffers, (), ()))


def two_inputs() -> Executor:
    buffers = (
        buffer("x", "input", N), buffer("y", "input", to_expr(N) * 2), buffer("z", "output", N),
    )  # fmt: skip
    plan = Plan((add("k", "x", "y", "z"),), buffers, ("x", "y"), ("z", "z", "x"), (N,))
    return executor(plan, {"plus": add_code("plus", 3, 1)}, (0,), 1)


def test_outputs_repeat_and_pass_inputs_through() -> None:
    x, y = np.ones(3, np.float32), np.arange(6, dtype=np.float32)
    first, second, third = two_inputs()(x, y)
    assert first is second and third is x
    assert first.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ((np.ones(3, np.float32),), ArgumentError, "Got 1; expected 2: x, y"),
        ((np.ones(3), np.ones(6, np.float32)), DTypeError, "Got float64; expected f32"),
        ((np.ones((3, 1), np.float32), np.ones(6, np.float32)), ShapeError, "wrong rank"),
        ((np.ones(3, np.float32), np.ones(7, np.float32)), ShapeError, "(6,) with n=3"),
        ((np.ones(0, np.float32), np.ones(0, np.float32)), ShapeError, "expected 1 to 4096"),
        (("text", np.ones(0, np.float32)), ArgumentError, "Got str"),
        ((np.ones(3, ">f4"), np.ones(6, np.float32)), DTypeError, "dtype"),
    ],
)
def test_bad_inputs(inputs: tuple[object, ...], error: type, text: str) -> None:
    with pytest.raises(error) as caught:
        two_inputs()(*inputs)
    assert text in str(caught.value)


def test_strided_and_foreign_inputs() -> None:
    class Foreign:
        def __init__(self, array: np.ndarray):
            self.array = array

        @property
        def __array_interface__(self) -> dict[str, object]:
            return self.array.__array_interface__

    x, y = np.arange(8, dtype=np.float32)[::2], np.arange(8, dtype=np.float32)[::-1]
    run = two_inputs()
    for _ in range(3):
        assert run(x, y)[0].tolist() == [7, 8, 9, 10]
    assert run(Foreign(x), memoryview(y.copy()))[0].tolist() == [7, 8, 9, 10]


def test_pointers() -> None:
    x, y, z = np.ones(3, np.float32), np.arange(6, dtype=np.float32), np.zeros(3, np.float32)
    run = two_inputs()
    assert run.fresh == (0,)
    assert run.signature.accept([x, y])[1] == (3,)
    run.run_pointers([x.ctypes.data, y.ctypes.data], [z.ctypes.data], (3,))
    assert z.tolist() == [1, 2, 3]


def test_in_place_update_of_an_input() -> None:
    buffers = (
        buffer("cache", "input", 8), buffer("x", "input", 8),
        buffer("new", "output", 8, alias="cache"),
    )  # fmt: skip
    kernel = add("k", "cache", "x", "new", 8)
    plan = Plan((kernel,), buffers, ("cache", "x"), ("new",))
    run = executor(plan, {"static": add_code("static", 3, 0, "8")}, (0,), 1)
    cache, x = np.ones(8, np.float32), np.arange(8, dtype=np.float32)
    (new,) = run(cache, x)
    assert new is cache and cache.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    wide = np.ones(16, np.float32)
    for _ in range(2):  # the second time its shape is known
        wide[:] = 1
        run(wide[::2], x)
    assert wide[::2].tolist() == [1, 2, 3, 4, 5, 6, 7, 8] and wide[1::2].tolist() == [1] * 8
    cache.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        run(cache, x)
    assert run.arena_bytes == 0


def test_constants_are_packed_into_their_layout() -> None:
    values = np.arange(8, dtype=np.float32)
    buffers = (
        buffer("x", "input", 8), buffer("z", "output", 8),
        buffer("c", "constant", 2, 4, layout=((1, 1), (0, 1)),
               data=ConstantData("c", values.reshape(2, 4))),
    )  # fmt: skip
    plan = Plan((add("k", "x", "c", "z", 8),), buffers, ("x",), ("z",))
    run = executor(plan, {"static": add_code("static", 3, 0, "8")}, (0,), 1)
    assert run(np.zeros(8, np.float32))[0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    values += 1
    run.rebind({"c": values.reshape(2, 4)})
    assert run(np.zeros(8, np.float32))[0].tolist() == [1, 5, 2, 6, 3, 7, 4, 8]
    with pytest.raises(ShapeError, match="rebind"):
        run.rebind({"c": values})


def gather() -> Executor:
    place = (data(load("i", (), i64), const(4)),)
    kernel = Kernel("k", (), (Store("z", (), load("x", place, f32)),))
    buffers = (buffer("i", "input", dtype=i64), buffer("x", "input", 4), buffer("z", "output"))
    assert kernel.arguments() == ("i", "x", "z")
    plan = Plan((kernel,), buffers, ("i", "x"), ("z",))
    return executor(plan, {"gather": GATHER_CODE}, (0,), 1)


def test_out_of_range_index_is_an_error() -> None:
    run, x = gather(), np.arange(4, dtype=np.float32)
    assert run(np.int64(2), x)[0].shape == () and run(2, x)[0] == 2
    for bad in (4, -1):
        with pytest.raises(OutOfRangeError, match="index"):
            run(np.array(bad), x)
    assert run(np.array(3), x)[0] == 3


def test_dims_that_no_shape_shows() -> None:
    m = Var("m", 0, 4)
    buffers = (buffer("x", "input", 4), buffer("z", "output", m))
    plan = Plan((add("k", "x", "x", "z", m),), buffers, ("x",), ("z",), (m,))
    run = executor(plan, {"twice": add_code("twice", 2, 1)}, (0,), 1)
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(ArgumentError, match="dims="):
        run(x)
    assert run(x, dims={"m": 3})[0].tolist() == [0, 2, 4]
    assert run(x, dims={"m": 0})[0].shape == (0,)
    with pytest.raises(ShapeError):
        run(x, dims={"m": 5})


def test_bf16_arrays_are_their_bits() -> None:
    buffers = (buffer("x", "input", 4, dtype=bf16), buffer("k", "input", 4, dtype=i32))
    run = executor(Plan((), buffers, ("x", "k"), ("x",)), {}, (), 1)
    x = np.zeros(4, np.uint16)
    assert run(x, np.zeros(4, np.int32))[0] is x


def test_large_outputs_reuse_storage_only_when_nobody_holds_them() -> None:
    size = 3 << 20
    buffers = (buffer("x", "input", size), buffer("z", "output", size))
    plan = Plan((add("k", "x", "x", "z", size),), buffers, ("x",), ("z",))
    run = executor(plan, {"big": add_code("big", 2, 0, str(size))}, (0,), 2)
    x = np.ones(size, np.float32)
    first = run(x)[0]
    view, place = first[5:], first.ctypes.data
    assert run(x)[0].ctypes.data != place
    del first
    second = run(x)[0]
    assert second.ctypes.data != place
    del view, second
    third = run(x)[0]
    fourth = run(x)[0]
    assert third.ctypes.data != fourth.ctypes.data
    place = fourth.ctypes.data
    del fourth
    assert run(x)[0].ctypes.data == place


def test_concurrent_calls_of_one_executor() -> None:
    run, bad = chain(2), []

    def work(seed: int) -> None:
        for n in range(1, 150):
            x = np.full(n * (seed + 1), seed, np.float32)
            if not np.array_equal(run(x)[0], 8 * x):
                bad.append(n)

    callers = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not bad


def test_kernel_times() -> None:
    run = chain(1)
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    times = run.time_us([x.ctypes.data], [y.ctypes.data], (4096,))
    assert len(times) == 3 and all(t > 0 for t in times)
    assert y[0] == 8


def test_call_overhead_is_printed() -> None:
    run, x = two_inputs(), np.ones(3, np.float32)
    y, z = np.ones(6, np.float32), np.ones(3, np.float32)
    ins, outs = [x.ctypes.data, y.ctypes.data], [z.ctypes.data]
    for name, call in (("arrays", lambda: run(x, y)),
                       ("pointers", lambda: run.run_pointers(ins, outs, (3,)))):  # fmt: skip
        start = time.perf_counter_ns()
        for _ in range(5000):
            call()
        print(f"executor, {name}: {(time.perf_counter_ns() - start) / 5e6:.2f} us a call")


class Made:
    """An array that is made when NumPy asks for it."""

    shape, dtype, times = (2, 4), np.dtype(np.float32), 0

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        self.times += 1
        return np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("layout", [(), ((1, 1), (0, 1))])
def test_a_constant_made_on_demand_is_made_once_for_all_programs(layout: object) -> None:
    made, spec = Made(), buffer("c", "constant", 2, 4, layout=layout)
    first, second = (constant_array(spec, made) for _ in range(2))  # type: ignore[arg-type]
    assert first is second and made.times == 1
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(first, values.T.reshape(-1) if layout else values)
    del first, second
    constant_array(spec, made)  # type: ignore[arg-type]
    assert made.times == 2  # nothing kept it


def test_small_constants_lie_side_by_side() -> None:
    layout = ((0, 16), (1, 1), (0, 1))
    spec = Buffer("w", (const(32), const(8)), f32, "constant", layout)
    arrays = [np.random.default_rng(n).random((32, 8), np.float32) for n in range(3)]
    packed = [constant_array(spec, a) for a in arrays]
    starts = sorted(p.ctypes.data for p in packed)
    assert all(b - a >= 32 * 8 * 4 and a % 64 == 0 for a, b in pairwise(starts))
    for a, p in zip(arrays, packed, strict=True):
        np.testing.assert_array_equal(p, pack(a, layout))
