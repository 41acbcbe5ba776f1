"""C libraries of exported models: run from C and by address, with the results of `luminal.load`;
objects for other machines are read and inspected."""

import ctypes
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import luminal
from luminal.aot.elf import link_shared
from luminal.aot.elf_object import data_object, read_object
from luminal.aot.library import ERRORS, functions
from luminal.aot.targets import TRIPLES
from luminal.errors import ArgumentError, DeviceError, InternalError, WeightsError
from luminal.runtime.cpu import compile_object
from luminal.runtime.device import baseline_target, host_target
from luminal.runtime.native import runtime_text

ROOT = Path(__file__).parent.parent
CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="links for Linux")
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((64, 96)).astype(np.float32)
FIXED = RNG.standard_normal((3, 5)).astype(np.float32)
CODES = {name: code for code, (name, _) in enumerate(ERRORS)}


def network(x, w, rows):
    """A repacked constant, a gather, fmod, a result that is an input, one that is a constant and
    one that is returned twice."""
    y = ((x @ luminal.tensor(WEIGHT)) @ w).softmax(-1)
    chosen = y[rows]
    return y, (y % 0.01).sum(-1), chosen, x, luminal.tensor(FIXED), chosen


def inputs(n: int) -> tuple[np.ndarray, ...]:
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((n, 64), (96, 128)))
    return x, w, np.arange(5) % n


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("aot") / "net.lum"
    return luminal.export(network, inputs(30), path, search="off",
                          dynamic_shapes={0: {0: luminal.Dim("n", 1, 900)}})  # fmt: skip


@pytest.fixture(scope="module", params=["embed", "file"])
def built(request, exported, tmp_path_factory):
    """The folder of a library, and the path of its weights (None: inside)."""
    folder = tmp_path_factory.mktemp(request.param)
    paths = luminal.build(
        exported, folder / "libnet.so", shared_library=True, weights=request.param
    )
    expected = ["libnet.o", "libnet.so", "net.h", "net_example.c"]
    expected[2:2] = ["net.weights"] * (request.param == "file")
    assert [p.name for p in paths] == expected and all(p.exists() for p in paths)
    return folder, folder / "net.weights" if request.param == "file" else None


# ---- from C


def run_example(folder: Path, program: str, weights: Path | None, n: int, exported: Path) -> None:
    arrays = inputs(n)
    names = []
    for number, array in enumerate(arrays):
        names.append(f"in{number}.bin")
        array.tofile(folder / names[-1])
    command = [f"./{program}", *(["-w", str(weights)] if weights else []), str(n), *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number, want in enumerate(luminal.load(exported)(*arrays)):
        got = np.fromfile(folder / f"output{number}.bin", want.dtype).reshape(want.shape)
        np.testing.assert_array_equal(got, want)


@needs_cc
@on_linux
@pytest.mark.parametrize("n", [30, 1, 900])
def test_a_c_program_has_the_same_results(built, exported, n):
    folder, weights = built
    command = [CC, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-o", "example",
               "net_example.c", "-L.", "-lnet", "-Wl,-rpath,$ORIGIN"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    run_example(folder, "example", weights, n, exported)


@needs_cc
@on_linux
def test_the_objects_alone_are_enough(exported, tmp_path):
    luminal.build(exported, tmp_path / "net.o")
    command = [CC, "-o", "static", "net_example.c", "net.o", "net_weights.o", "-lm", "-lpthread"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert not done.stderr
    run_example(tmp_path, "static", None, 12, exported)


@needs_cc
@on_linux
def test_two_models_in_one_program(exported, tmp_path):
    """No symbol but the interface, whose prefix differs, is visible."""
    for name in ("first", "second"):
        luminal.build(exported, tmp_path / f"{name}.o", name=name)
    (tmp_path / "main.c").write_text(
        '#include "first.h"\n#include "second.h"\n#include <stddef.h>\n'
        "int main(void) { first_model *a; second_model *b;\n"
        "  if (first_load(NULL, 2, &a) || second_load(NULL, 2, &b)) return 1;\n"
        "  first_free(a); second_free(b); return 0; }\n"
    )
    objects = [f"{n}{part}.o" for n in ("first", "second") for part in ("", "_weights")]
    subprocess.run([CC, "-o", "two", "main.c", *objects, "-lm"], cwd=tmp_path, check=True)
    assert subprocess.run(["./two"], cwd=tmp_path).returncode == 0


@needs_cc
@on_linux
def test_the_header_is_c_plus_plus_too(built):
    folder, _ = built
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (folder / "main.cc").write_text('#include "net.h"\nint main() { return NET_DIMS - 1; }\n')
    subprocess.run([compiler, "-Wall", "-Werror", "-o", "cc", "main.cc"], cwd=folder, check=True)


# ---- by address


class Library:
    """A built library, called through ctypes."""

    def __init__(self, folder: Path) -> None:
        self.c = ctypes.CDLL(str(folder / "libnet.so"))
        self.c.net_error.restype = ctypes.c_char_p
        for name in ("net_input_bytes", "net_output_bytes"):
            getattr(self.c, name).restype = ctypes.c_int64

    def load(self, weights: Path | None, threads: int = 1) -> ctypes.c_void_p:
        model = ctypes.c_void_p()
        code = self.c.net_load(str(weights).encode() if weights else None, threads,
                               ctypes.byref(model))  # fmt: skip
        assert code == 0, self.c.net_error(code)
        return model

    def run(self, model, arrays, n, wanted=(True,) * 6) -> tuple[int, list[np.ndarray]]:
        dims = (ctypes.c_int64 * 1)(n)
        sizes = [self.c.net_output_bytes(i, dims) for i in range(6)]
        results = [np.zeros(max(0, size), np.uint8) for size in sizes]
        given = (ctypes.c_void_p * 3)(*(a.ctypes.data for a in arrays))
        places = [r.ctypes.data if w else None for r, w in zip(results, wanted, strict=True)]
        return self.c.net_run(model, dims, given, (ctypes.c_void_p * 6)(*places)), results


@on_linux
def test_sizes_and_errors(built, tmp_path):
    folder, weights = built
    library = Library(folder)
    model = library.load(weights)
    dims, wide = (ctypes.c_int64 * 1)(7), (ctypes.c_int64 * 1)(901)
    sizes = [library.c.net_input_bytes(i, dims) for i in range(-1, 4)]
    assert sizes == [-1, 7 * 64 * 4, 96 * 128 * 4, 5 * 8, -1]
    sizes = [library.c.net_output_bytes(i, dims) for i in range(-1, 7)]
    assert sizes == [-1, 7 * 128 * 4, 7 * 4, 5 * 128 * 4, 7 * 64 * 4, 60, 5 * 128 * 4, -1]
    assert library.c.net_input_bytes(0, wide) == library.c.net_input_bytes(0, None) == -1
    assert library.run(model, inputs(7), 901)[0] == CODES["DIMS"]
    assert library.run(model, inputs(7), 0)[0] == CODES["DIMS"]
    assert library.run(None, inputs(7), 7)[0] == CODES["ARGUMENT"]
    x, w, rows = inputs(7)
    assert library.run(model, (x, w, rows + 7), 7)[0] == CODES["INDEX"]
    assert library.run(model, (x, w, rows), 7)[0] == CODES["OK"]
    assert library.c.net_load(None, 1, None) == CODES["ARGUMENT"]
    assert [library.c.net_error(i).decode() for i in range(len(ERRORS))] == [t for _, t in ERRORS]
    assert library.c.net_error(99) == b"no error"
    library.c.net_free(model)
    library.c.net_free(None)


@on_linux
def test_a_wrong_file_of_weights(built, tmp_path):
    folder, weights = built
    library, model = Library(folder), ctypes.c_void_p()
    data = weights.read_bytes() if weights else bytes(100)
    bad = [b"", data[:-1], data + b"x", data[:20] + b"x" + data[21:]]
    paths = [tmp_path / "none", folder]
    for number, content in enumerate(bad):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(content)
    for path in [*paths, *([None] if weights else [])]:
        given = str(path).encode() if path else None
        assert library.c.net_load(given, 1, ctypes.byref(model)) == CODES["WEIGHTS"]
        assert not model.value


@on_linux
def test_handles_in_several_threads(built, exported):
    """Handles share the pool: whoever finds it taken works alone."""
    folder, weights = built
    library, problems = Library(folder), []
    arrays = {n: inputs(n) for n in (900, 37)}
    want = {n: luminal.load(exported, threads=1)(*a) for n, a in arrays.items()}

    def work(n: int) -> None:
        model = library.load(weights, threads=3)
        for _ in range(20):
            code, results = library.run(model, arrays[n], n)
            same = [np.array_equal(r, w.reshape(-1).view(np.uint8))
                    for r, w in zip(results, want[n], strict=True)]  # fmt: skip
            if code or not all(same):
                problems.append((n, code, same))
        library.c.net_free(model)

    threads = [threading.Thread(target=work, args=(n,)) for n in (900, 37, 900)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@on_linux
def test_every_tensor_needs_an_address(built):
    folder, weights = built
    library = Library(folder)
    model, arrays = library.load(weights), inputs(9)
    for missing in range(6):
        wanted = tuple(n != missing for n in range(6))
        assert library.run(model, arrays, 9, wanted)[0] == CODES["ARGUMENT"]
    given = (ctypes.c_void_p * 3)(arrays[0].ctypes.data, None, arrays[2].ctypes.data)
    places = (ctypes.c_void_p * 6)(*[arrays[0].ctypes.data] * 6)
    dims = (ctypes.c_int64 * 1)(9)
    assert library.c.net_run(model, dims, given, places) == CODES["ARGUMENT"]
    library.c.net_free(model)


@on_linux
def test_checks_of_data_are_an_error_in_c(tmp_path):
    torch = pytest.importorskip("torch")
    ones = torch.ones(3, dtype=torch.int64)
    path = luminal.export(lambda a, b: (a // b, a), (ones, ones.clone()), tmp_path / "net.lum",
                          search="off")  # fmt: skip
    luminal.build(path, tmp_path / "libnet.so", shared_library=True)
    library = Library(tmp_path)
    model = library.load(None)
    out = np.zeros((2, 3), np.int64)
    places = (ctypes.c_void_p * 2)(*(row.ctypes.data for row in out))
    for divisor, code in ((2, "OK"), (0, "DATA"), (3, "OK")):
        a, b = np.array([7, -7, 9]), np.array([1, 1, divisor])
        given = (ctypes.c_void_p * 2)(a.ctypes.data, b.ctypes.data)
        assert library.c.net_run(model, None, given, places) == CODES[code]
    assert out.tolist() == [[7, -7, 3], [7, -7, 9]]


# ---- objects for other machines


def text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def elf(data: bytes) -> tuple[int, dict[str, bool]]:
    """(machine, {global symbol: defined})."""
    item = read_object(data)
    return item.machine, {s.name: s.section is not None for s in item.symbols if s.is_global}


def mach_o(data: bytes) -> tuple[int, dict[str, bool]]:
    magic, cpu, _, kind, count = struct.unpack_from("<IIIII", data)
    assert (magic, kind) == (0xFEEDFACF, 1)
    place, found = 32, {}
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, place)
        if command == 2:
            symbols, number, strings, _ = struct.unpack_from("<IIII", data, place + 8)
            for n in range(number):
                name, flags = struct.unpack_from("<IB", data, symbols + 16 * n)
                if flags & 1:
                    found[text(data, strings + name).removeprefix("_")] = flags & 14 == 14
        place += size
    return cpu, found


def coff(data: bytes) -> tuple[int, dict[str, bool]]:
    machine, _, _, symbols, count = struct.unpack_from("<HHIII", data)
    strings, found, n = data[symbols + 18 * count :], {}, 0
    while n < count:
        name, _, section, _, storage, more = struct.unpack_from("<8sIhHBB", data, symbols + 18 * n)
        far = name[:4] == bytes(4)
        called = text(strings, struct.unpack_from("<I", name, 4)[0]) if far else (
            name.rstrip(b"\0").decode())  # fmt: skip
        if storage == 2:
            found[called] = section > 0
        n += 1 + more
    return machine, found


READERS = {"linux": elf, "macos": mach_o, "windows": coff}
MACHINES = {
    "x86_64-linux": 62, "aarch64-linux": 183, "x86_64-macos": 0x01000007,
    "aarch64-macos": 0x0100000C, "x86_64-windows": 0x8664, "aarch64-windows": 0xAA64,
}  # fmt: skip
PARKING = {"linux": "syscall", "macos": "pthread_cond_wait", "windows": "WaitOnAddress"}


@pytest.mark.parametrize("target", [*TRIPLES, "x86_64-linux:avx2", "x86_64-windows:avx512"])
def test_objects_for_other_machines(exported, tmp_path, target):
    """The right kind of file for the right processor; the interface is all that it defines."""
    machine = target.split(":")[0]
    system = machine.split("-")[1]
    code, weights, *_ = luminal.build(exported, tmp_path / "net.o", target=target)
    number, symbols = READERS[system](code.read_bytes())
    assert number == MACHINES[machine]
    shown = {name for name, defined in symbols.items() if defined and "@" not in name}
    assert shown == {*functions("net")}  # those with @ are constants of COFF, merged by linkers
    missing = {name for name, defined in symbols.items() if not defined}
    assert {"net_weights", PARKING[system], "malloc"} <= missing
    assert not any(name.startswith(("k", "lm_", "Py")) for name in missing)
    number, symbols = READERS[system](weights.read_bytes())
    assert number == MACHINES[machine] and symbols["net_weights"]
    assert (
        WEIGHT[:1].tobytes()[:8] in weights.read_bytes() or weights.stat().st_size > WEIGHT.nbytes
    )


def test_a_library_for_another_linux_is_linked_here(exported, tmp_path):
    for target, machine in (("aarch64-linux", 183), ("x86_64-linux:avx512", 62)):
        luminal.build(exported, tmp_path / "libnet.so", target=target, shared_library=True)
        data = (tmp_path / "libnet.so").read_bytes()
        assert data[:4] == b"\x7fELF" and struct.unpack_from("<HH", data, 16) == (3, machine)


def test_exporting_for_another_machine(tmp_path):
    path = luminal.export(network, inputs(30), tmp_path / "far.lum", target="aarch64-linux")
    with pytest.raises(DeviceError, match="code for another system. Got aarch64-linux"):
        luminal.load(path)
    assert luminal.build(path, tmp_path / "far.o")[0].exists()


@on_linux
def test_a_lesser_processor_of_this_kind(tmp_path, exported):
    """Recompiled from the graph in the file: the same results, and it loads here."""
    machine = "x86_64-linux" if "x86_64" in host_target().triple else "aarch64-linux"
    path = luminal.export(network, inputs(30), tmp_path / "least.lum", target=machine,
                          dynamic_shapes={0: {0: luminal.Dim("n", 1, 900)}})  # fmt: skip
    luminal.build(exported, tmp_path / "libnet.so", target=machine, shared_library=True)
    library, arrays = Library(tmp_path), inputs(33)
    code, results = library.run(library.load(None), arrays, 33)
    assert code == 0
    wanted = luminal.load(exported)(*arrays)
    for got, raw, want in zip(luminal.load(path)(*arrays), results, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        raw = raw.view(want.dtype).reshape(want.shape)
        np.testing.assert_allclose(raw, want, rtol=1e-4, atol=1e-5)


# ---- problems and the command line


def test_problems(exported, tmp_path):
    with pytest.raises(ArgumentError, match="no such machine. Got 'sparc'"):
        luminal.build(exported, tmp_path / "a.o", target="sparc")
    with pytest.raises(ArgumentError, match="no such machine"):
        luminal.build(exported, tmp_path / "a.o", target="aarch64-linux:avx2")
    with pytest.raises(ArgumentError, match="expected 'embed' or 'file'"):
        luminal.build(exported, tmp_path / "a.o", weights="inside")
    with pytest.raises(ArgumentError, match="no such folder"):
        luminal.build(exported, tmp_path / "none" / "a.o")
    with pytest.raises(ArgumentError, match="cannot write .*taken.o"):
        (tmp_path / "taken.o").mkdir()
        luminal.build(exported, tmp_path / "taken.so", shared_library=True)
    with pytest.raises(ArgumentError, match=r"output is a folder. Got .*taken.o; .* Try -o .*so\."):
        luminal.build(exported, tmp_path / "taken.o")
    with pytest.raises(WeightsError, match="no exported model"):
        (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
        luminal.build(tmp_path / "x.gguf", tmp_path / "a.o")
    other = "aarch64-macos" if sys.platform != "darwin" else "x86_64-windows"
    with pytest.raises(DeviceError, match="does not link for") as problem:
        luminal.build(exported, tmp_path / "liba.dylib", target=other, shared_library=True)
    assert str(tmp_path / "liba.o") in str(problem.value) and (tmp_path / "liba.o").exists()


def test_the_command(exported, tmp_path):
    command = [sys.executable, "-m", "luminal.cli", "build", str(exported), "-o"]
    output = tmp_path / "libm.so"
    run = [*command, str(output), "--shared-library", "--name", "2 much", "--weights", "file"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == ["libm.o", "libm.so", "m2_much.weights", "m2_much.h", "m2_much_example.c"]
    done = subprocess.run([*command, str(output), "--target", "vax"], capture_output=True,
                          text=True, cwd=ROOT)  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("luminal: [target] no such machine")


# ---- the linker


def dynamic_table(image: bytes) -> dict[int, int]:
    place, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    rows = [struct.unpack_from("<IIQQQQQQ", image, place + 56 * n) for n in range(count)]
    start, size = next((r[2], r[5]) for r in rows if r[0] == 2)
    return dict(struct.iter_unpack("<qQ", image[start : start + size]))


def test_stubs_of_aarch64_lead_to_their_slots():
    """adrp, ldr and br of every imported function, computed back to the slot that the dynamic
    linker fills with its address."""
    target = baseline_target("aarch64-unknown-linux-gnu")
    image = link_shared([compile_object(runtime_text(target.triple), target)], ["lm_call"])
    table = dynamic_table(image)
    rows = struct.iter_unpack("<QQq", image[table[7] : table[7] + table[8]])
    slots = {place for place, info, _ in rows if info & 0xFFFFFFFF == 1025}
    found = set()
    for place in range(0, len(image) - 12, 4):
        page, load, jump = struct.unpack_from("<III", image, place)
        if jump == 0xD61F0220 and page & 0x9F00001F == 0x90000010:
            offset = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
            offset -= (offset & 1 << 20) << 1
            found.add(((place >> 12) + offset << 12) + (load >> 10 & 0xFFF) * 8)
    assert slots and found == slots


@on_linux
@pytest.mark.skipif("x86_64" not in host_target().triple, reason="x86-64")
def test_a_linked_library_opens(tmp_path):
    """Data, zeroed memory, tables of addresses, functions of libc, a tail."""
    source = (
        "@zeros = internal global [100 x i64] zeroinitializer\n"
        "@table = internal constant [2 x ptr] [ptr @one, ptr @two]\n"
        "@tail = external hidden constant [0 x i8]\n@at = internal constant ptr @tail\n"
        "declare i64 @labs(i64)\n"
        "define internal i64 @one() {\n  ret i64 1\n}\n"
        "define internal i64 @two() {\n  %v = call i64 @labs(i64 -2)\n  ret i64 %v\n}\n"
        "define i64 @pick(i64 %n) {\n  %p = getelementptr ptr, ptr @table, i64 %n\n"
        "  %f = load ptr, ptr %p\n  %v = call i64 %f()\n"
        "  %z = getelementptr i64, ptr @zeros, i64 99\n  %old = load i64, ptr %z\n"
        "  %new = add i64 %old, %v\n  store i64 %new, ptr %z\n  ret i64 %new\n}\n"
        "define ptr @place() {\n  %t = load ptr, ptr @at\n  ret ptr %t\n}\n"
    )
    image = link_shared([compile_object(source, host_target())], ["pick", "place"],
                        tail=("tail", 6))  # fmt: skip
    (tmp_path / "lib.so").write_bytes(image + b"hello\0")
    library = ctypes.CDLL(str(tmp_path / "lib.so"))
    library.place.restype = ctypes.c_char_p
    assert [library.pick(ctypes.c_int64(n)) for n in (0, 1, 1)] == [1, 3, 5]
    assert library.place() == b"hello"


def test_the_linker_refuses_what_it_does_not_know():
    target = host_target()
    one = compile_object("define void @f() {\n  ret void\n}\n", target)
    with pytest.raises(InternalError, match="defined twice"):
        link_shared([one, one], ["f"])
    with pytest.raises(InternalError, match="undefined: "):
        link_shared([one], ["g"])
    with pytest.raises(InternalError, match="not a 64-bit"):
        link_shared([b"MZ" + bytes(100)], ["g"])
    far = baseline_target(next(t for t in TRIPLES.values()
                               if "linux" in t and t[:3] != target.triple[:3]))  # fmt: skip
    with pytest.raises(InternalError, match="machines"):
        link_shared([one, compile_object("define void @g() {\n  ret void\n}\n", far)], ["f"])


@pytest.mark.parametrize("size", [1, 7, 8, 4096])
def test_an_object_of_data_reads_back(size):
    before, after = data_object(62, "blob", size)
    item = read_object(before + b"x" * size + after)
    (symbol,) = [s for s in item.symbols if s.is_global]
    assert symbol.name == "blob" and symbol.section.data == b"x" * size
