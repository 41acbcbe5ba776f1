"""The ticket pool and the native entry point, with hand-written kernels."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping

import numpy as np
import pytest

from luminal.errors import DeviceError, InternalError
from luminal.runtime import cpu, device, native, pool
from luminal.runtime.pool import UNFIT, Call, launches

# ramp: out[i] = base[i] + 3 for rows lo..hi-1; args: in, out, rows, cost, error word.
KERNELS = """
define i64 @ramp_grid(ptr %a) {
  %p = getelementptr i64, ptr %a, i64 2
  %n = load i64, ptr %p
  ret i64 %n
}
define i64 @ramp_cost(ptr %a) {
  %p = getelementptr i64, ptr %a, i64 3
  %n = load i64, ptr %p
  ret i64 %n
}
define void @ramp(ptr %a, i64 %lo, i64 %hi, ptr %scratch) {
entry:
  %in = load ptr, ptr %a
  %p1 = getelementptr i64, ptr %a, i64 1
  %out = load ptr, ptr %p1
  br label %head
head:
  %i = phi i64 [%lo, %entry], [%i1, %body]
  %c = icmp slt i64 %i, %hi
  br i1 %c, label %body, label %done
body:
  %ip = getelementptr i32, ptr %in, i64 %i
  %x = load i32, ptr %ip
  store i32 %x, ptr %scratch
  %y0 = load volatile i32, ptr %scratch
  %y = add i32 %y0, 3
  %op = getelementptr i32, ptr %out, i64 %i
  store i32 %y, ptr %op
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
define i64 @fail_grid(ptr %a) {
  ret i64 1
}
define i64 @fail_cost(ptr %a) {
  ret i64 10
}
define void @fail(ptr %a, i64 %lo, i64 %hi, ptr %scratch) {
  %p = getelementptr i64, ptr %a, i64 4
  %error = load ptr, ptr %p
  store i32 1, ptr %error
  ret void
}
"""


Library = Mapping[str, int]


@pytest.fixture(scope="module")
def library() -> Library:
    data = cpu.compile_object(KERNELS, device.host_target())
    return cpu.link([data], [n + s for n in ("ramp", "fail") for s in ("", "_grid", "_cost")])


def make_block(
    library: Library, threads: int, names: list[str], rows: int, cost: int
) -> tuple[Call, np.ndarray]:
    """A chain of kernels: values are in, out, rows, cost, then the error word."""
    functions = [tuple(library[n + s] for s in ("", "_grid", "_cost")) for n in names]
    plan = launches(functions, [(0, 1, 2, 3, 4) if i == 0 else (1, 1, 2, 3, 4)
                                for i in range(len(names))])  # fmt: skip
    shared = pool.shared_pool(threads)
    if shared is not None:
        shared.ensure()
    block = Call(native.runtime(), shared, *plan, 4, 2)
    block.values[2:4] = rows, cost
    scratch = np.zeros(64 * threads, np.int64)
    block.set(scratch=scratch.ctypes.data, stride=512)
    return block, scratch


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("cost", [10, 2_000_000])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 1000])
def test_chain_gives_the_right_values(library: Library, threads: int, cost: int, rows: int) -> None:
    block, _scratch = make_block(library, threads, ["ramp"] * 5, rows, cost)
    x = np.arange(rows, dtype=np.int32)
    for _ in range(20):
        out = np.full(rows, -1, np.int32)
        assert block.run(x, out) == 0
        np.testing.assert_array_equal(out, x + 15)


@pytest.mark.parametrize("threads", [2, 4])
def test_phases_of_mixed_cost_stay_in_order(library: Library, threads: int) -> None:
    """Inline, unannounced and announced phases in random order, each on the last one's result."""
    rng = np.random.default_rng(threads)
    functions = [tuple(library["ramp" + s] for s in ("", "_grid", "_cost"))] * 40
    arguments = [(min(k, 1), 1, 2, 3 + k, 43) for k in range(40)]
    shared = pool.shared_pool(threads)
    shared.ensure()
    block = Call(native.runtime(), shared, *launches(functions, arguments), 43, 2)
    scratch = np.zeros(64 * threads, np.int64)
    block.set(scratch=scratch.ctypes.data, stride=512)
    block.values[2] = 500
    x = np.arange(500, dtype=np.int32)
    for _ in range(200):
        block.values[3:43] = rng.choice([0, 10, 5_000, 20_000, 100_000, 5_000_000], 40)
        out = np.zeros(500, np.int32)
        assert block.run(x, out) == 0
        np.testing.assert_array_equal(out, x + 120)


def test_pointers_and_arrays_mix(library: Library) -> None:
    block, _scratch = make_block(library, 1, ["ramp"], 4, 10)
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    assert block.run(x.ctypes.data, out) == 0
    assert out.tolist() == [3, 4, 5, 6]
    assert block.run(x) == -1
    assert block.run(np.arange(8, dtype=np.int32)[::2], out) == UNFIT
    assert block.run(b"text", out) == UNFIT


def test_ctypes_fallback_is_the_same(library: Library) -> None:
    block, _scratch = make_block(library, 2, ["ramp"], 4, 10)
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    assert block._run_by_ctypes(x.ctypes.data, out) == 0
    assert out.tolist() == [3, 4, 5, 6]
    assert block._run_by_ctypes(x) == -1
    assert block._run_by_ctypes(np.arange(8, dtype=np.int32)[::2], out) == UNFIT
    assert block._run_by_ctypes(b"text", out) == UNFIT


def test_error_word_is_reported_and_cleared(library: Library) -> None:
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    block, _scratch = make_block(library, 2, ["ramp", "fail"], 4, 500_000)
    assert block.run(x, out) == 1
    block.select(0, 1)
    assert block.run(x, out) == 0


def test_concurrent_callers(library: Library) -> None:
    bad: list[int] = []

    def work(seed: int) -> None:
        block, _scratch = make_block(library, 2, ["ramp"] * 4, 400, 1_000_000)
        x = np.arange(400, dtype=np.int32) + seed
        for _ in range(150):
            out = np.zeros(400, np.int32)
            if block.run(x, out) != 0 or not np.array_equal(out, x + 12):
                bad.append(seed)

    callers = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
        assert not caller.is_alive()
    assert not bad


def test_ten_thousand_quick_calls(library: Library) -> None:
    block, _scratch = make_block(library, 2, ["ramp"] * 3, 64, 200_000)
    x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    for i in range(10_000):
        x[0] = i
        assert block.run(x, out) == 0
        assert out[0] == i + 9


def test_oversubscribed_with_a_hog(library: Library) -> None:
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        block, _scratch = make_block(library, 4, ["ramp"] * 10, 512, 2_000_000)
        x = np.arange(512, dtype=np.int32)
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            out = np.zeros(512, np.int32)
            assert block.run(x, out) == 0
            np.testing.assert_array_equal(out, x + 30)
    finally:
        hog.kill()
        hog.wait()


def test_fork_gets_new_workers(library: Library) -> None:
    block, _scratch = make_block(library, 3, ["ramp"] * 3, 300, 2_000_000)
    x, out = np.arange(300, dtype=np.int32), np.zeros(300, np.int32)
    assert block.run(x, out) == 0
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            shared = pool.shared_pool(3)
            good = not shared.started
            for n in range(50):
                if n == 10:
                    shared.ensure()
                out[:] = 0
                good &= block.run(x, out) == 0 and np.array_equal(out, x + 9)
            os.write(write, b"1" if good else b"0")
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.waitpid(child, 0)
    assert block.run(x, out) == 0


def test_process_ends_cleanly_with_parked_and_spinning_workers() -> None:
    code = f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from tests.test_runtime_pool import KERNELS, make_block
        from luminal.runtime import cpu, device
        import numpy as np
        data = cpu.compile_object(KERNELS, device.host_target())
        names = [n + s for n in ("ramp", "fail") for s in ("", "_grid", "_cost")]
        library = cpu.link([data], names)
        block, keep = make_block(library, 4, ["ramp"] * 3, 300, 2000000)
        x = np.arange(300, dtype=np.int32)
        for _ in range(20):
            block.run(x, x.copy())
        print("end")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_portable_parking_works_too() -> None:
    """The condition-variable text, which macOS uses, run here in a process of its own."""
    code = f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from luminal.runtime import native
        text = native.runtime_text
        native.runtime_text = lambda triple, python: text(triple, python, "condition")
        from tests import test_runtime_pool as t
        from luminal.runtime import cpu, device
        data = cpu.compile_object(t.KERNELS, device.host_target())
        names = [n + s for n in ("ramp", "fail") for s in ("", "_grid", "_cost")]
        library = cpu.link([data], names)
        for threads in (2, 4):
            t.test_chain_gives_the_right_values(library, threads, 2_000_000, 777)
        t.test_concurrent_callers(library)
        print("end")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


@pytest.mark.parametrize(
    ("triple", "magic"),
    [
        ("x86_64-unknown-linux-gnu", b"\x7fELF"),
        ("aarch64-unknown-linux-gnu", b"\x7fELF"),
        ("arm64-apple-macos", b"\xcf\xfa\xed\xfe"),
    ],
)
def test_cross_compiling(triple: str, magic: bytes) -> None:
    target = device.baseline_target(triple)
    assert cpu.compile_object(native.runtime_text(triple), target)[:4] == magic
    assert cpu.compile_object(KERNELS, target)[:4] == magic


def test_vector_width_is_honoured() -> None:
    target = device.host_target()
    if target.vector_bits < 512:
        pytest.skip("no AVX-512 here")
    text = """
    define void @f(ptr %p) {
      %x = load <16 x float>, ptr %p, align 4
      %y = fadd <16 x float> %x, %x
      store <16 x float> %y, ptr %p, align 4
      ret void
    }
    """
    assert "zmm" in cpu.assembly(text, target)


@pytest.mark.parametrize("isa", ["native", "baseline", "avx2", "avx512"])
def test_instruction_set_levels(isa: str) -> None:
    try:
        target = device.select_target(isa)
    except DeviceError as error:
        assert "lacks" in str(error) or "expected 'native'" in str(error)
        return
    widths = {"baseline": 128, "avx2": 256, "avx512": 512}
    assert target.vector_bits == widths.get(isa, target.vector_bits)
    assert cpu.compile_object(KERNELS, target)


def test_bad_text_and_missing_symbols_are_internal_errors() -> None:
    target = device.host_target()
    with pytest.raises(InternalError, match="malformed"):
        cpu.compile_object("define void @f() { ret i32 0 }", target)
    text = "declare void @luminal_no_such()\ndefine void @f() {\n call void @luminal_no_such()\n"
    data = cpu.compile_object(text + " ret void\n}", target)
    with pytest.raises(InternalError, match="materialize"):
        cpu.link([data], ["f"])


def test_importing_the_runtime_is_light() -> None:
    code = "import luminal.runtime.executor, sys; print('llvmlite' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "False", done.stderr


def test_overhead_is_printed(library: Library) -> None:
    block, _scratch = make_block(library, 1, ["ramp"], 4, 10)
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    start = time.perf_counter_ns()
    for _ in range(10_000):
        block.run(x, out)
    print(f"native entry: {(time.perf_counter_ns() - start) / 10_000:.0f} ns a call")
    assert ctypes.sizeof(ctypes.c_void_p) == 8
