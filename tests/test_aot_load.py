"""Files of `luminal.export`: equal results when loaded, without a compiler; damage is reported."""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import luminal
from luminal.aot import container as files
from luminal.aot.features import check_text, rows
from luminal.aot.stored import unpacked
from luminal.errors import (
    ArgumentError,
    DeviceError,
    OutOfRangeError,
    ShapeError,
    UnsupportedError,
    WeightsError,
)
from luminal.ir.layout import pack
from luminal.runtime.cpu import compile_object
from luminal.runtime.device import baseline_target, host_target, select_target
from luminal.runtime.native import runtime_text

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((64, 96)).astype(np.float32)
Pair = namedtuple("Pair", "left right")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def network(x, w, rows):
    """A repacked constant, several kernels, a gather, an input that is returned."""
    hidden = (x @ luminal.tensor(WEIGHT, name="weight")).gelu()
    y = (hidden @ w).softmax(-1)
    return {"y": y, "parts": [(y % 0.3).sum(-1), y[rows]], "pair": Pair(x, hidden[0, :2])}


MARKS = {0: {0: luminal.Dim("n", 1, 64)}}
INPUTS = (floats(30, 64), floats(96, 128), np.arange(5))


def change(data: dict, path: str, value) -> None:
    *folders, last = path.split(".")
    for name in folders:
        data = data[name]
    data[last] = value


def rewritten(path: Path, **changes) -> None:
    """The file with another header, whole in every other respect."""
    opened = files.read_container(path)
    header = {k: v for k, v in opened.header.items() if k != "sections"}
    for place, value in changes.items():
        change(header, place.replace("__", "."), value)
    parts = {name: [bytes(data)] for name, data in opened.sections.items()}
    files.write_container(path, header, parts)


@pytest.fixture(scope="module")
def compiled():
    return luminal.compile(network, INPUTS, dynamic_shapes=MARKS, search="off")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("aot") / "network.lum"
    return luminal.export(network, INPUTS, path, dynamic_shapes=MARKS, search="off")


@pytest.fixture
def copy(exported, tmp_path):
    path = tmp_path / "copy.lum"
    path.write_bytes(exported.read_bytes())
    return path


@pytest.mark.parametrize("n", [30, 1, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_those_of_the_compiled_function(exported, compiled, n, threads):
    x, chosen = floats(n, 64), np.arange(5) % n
    got = luminal.load(exported, threads=threads)(x, INPUTS[1], chosen)
    want = compiled(x, INPUTS[1], chosen)
    assert list(got) == ["y", "parts", "pair"] and isinstance(got["parts"], list)
    np.testing.assert_array_equal(got["y"], want["y"])
    for a, b in zip(got["parts"], want["parts"], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(got["pair"].left, x)
    np.testing.assert_array_equal(got["pair"].right, want["pair"].right)


def test_names_and_nests_of_arguments(exported):
    model = luminal.load(exported)
    assert model.inputs == ("x", "w", "rows") and model.dims == {"n": (1, 64)}
    x, w, chosen = INPUTS
    want = model(x, w, chosen)["y"]
    np.testing.assert_array_equal(model(x, rows=chosen, w=w)["y"], want)
    np.testing.assert_array_equal(model([x, {"w": w}], chosen)["y"], want)
    for bad in ({"rows": chosen}, {"w": w, "rows": chosen, "x": x}, {"q": w, "rows": chosen}):
        with pytest.raises(ArgumentError, match="arguments do not fit"):
            model(x, **bad)


def test_misfits_are_reported(exported):
    model = luminal.load(exported)
    x, w, chosen = INPUTS
    with pytest.raises(ShapeError, match="n is out of its range"):
        model(floats(65, 64), w, chosen)
    with pytest.raises(OutOfRangeError):
        model(x, w, chosen + 26)
    with pytest.raises(ArgumentError, match="wrong number of inputs"):
        model(x, w)


def test_weights_are_in_the_mapped_file(exported):
    """No copy: the arrays are read-only views of the file's pages."""
    model = luminal.load(exported)
    (array,) = model.weights.values()
    assert not array.flags.writeable and not array.flags.owndata
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines()
            if line.endswith(exported.name)]  # fmt: skip
    spans = [[int(n, 16) for n in line.split()[0].split("-")] for line in maps]
    assert any(a <= array.ctypes.data < b for a, b in spans)


def test_a_process_without_torch_and_llvmlite(exported, compiled, tmp_path):
    """Everything but NumPy and the standard library is kept from it."""
    code = (
        "import sys\n"
        "for name in ('torch', 'llvmlite', 'safetensors'): sys.modules[name] = None\n"
        "import numpy as np, luminal\n"
        f"x, w, rows = (np.load({str(tmp_path / 'in.npz')!r})[n] for n in 'xwr')\n"
        f"model = luminal.load({str(exported)!r})\n"
        f"np.save({str(tmp_path / 'out.npy')!r}, model(x, w, rows)['y'])\n"
        "print(*{m.split('.')[1] for m in sys.modules if m.startswith('luminal.')})\n"
    )
    np.savez(tmp_path / "in.npz", x=INPUTS[0], w=INPUTS[1], r=INPUTS[2])
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()).isdisjoint(("compiler", "codegen", "search", "rewrite"))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), compiled(*INPUTS)["y"])


def test_the_code_in_the_file_is_enough_for_a_later_compilation(exported):
    """A process whose native runtime came from a file compiles like any other."""
    code = (
        "import numpy as np, luminal\n"
        f"luminal.load({str(exported)!r}, threads=2)\n"
        "f = luminal.compile(lambda x: x @ x, [np.ones((400, 400), np.float32)], search='off')\n"
        "print(f(np.ones((400, 400), np.float32))[0, 0])\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "400.0", done.stderr


def test_updates_in_place(tmp_path):
    def step(total, x):
        return luminal.update(total, total + x), x * 2

    path = luminal.export(step, [floats(4), floats(4)], tmp_path / "step.lum", search="off")
    total, x = np.zeros(4, np.float32), np.arange(4, dtype=np.float32)
    model = luminal.load(path)
    model(total, x)
    model(total, x)
    np.testing.assert_array_equal(total, 2 * x)
    total.flags.writeable = False
    with pytest.raises(ArgumentError, match="cannot be written"):
        model(total, x)


def test_results_that_are_constants_or_repeated(tmp_path):
    held = luminal.tensor(floats(3), name="held")
    path = luminal.export(lambda x: (held, x + 1, held), [floats(3)], tmp_path / "a", search="off")
    first, second, third = luminal.load(path)(np.zeros(3, np.float32))
    np.testing.assert_array_equal(first, third)
    np.testing.assert_array_equal(first, held.numpy())
    np.testing.assert_array_equal(second, 1)


def test_modules_of_luminal_and_their_names(tmp_path):
    luminal.nn.manual_seed(0)
    module = luminal.nn.Sequential(luminal.nn.Linear(8, 16), luminal.nn.Linear(16, 4))
    x = floats(5, 8)
    path = luminal.export(module, [x], tmp_path / "m.lum", search="off")
    model = luminal.load(path)
    np.testing.assert_array_equal(model(x), luminal.compile(module, [x], search="off")(x))
    assert {*model.weights} <= {*module.state_dict()} and len(model.weights) == 4


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_precision(tmp_path, dtype):
    kind = getattr(luminal, dtype)
    path = luminal.export(lambda x: (x.to(kind) * 3).to(luminal.f32), [floats(9)],
                          tmp_path / "h.lum", search="off")  # fmt: skip
    x = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(luminal.load(path)(x), 3 * x)


def test_a_safetensors_file_holds_the_weights(tmp_path, compiled):
    path, weights = tmp_path / "n.lum", tmp_path / "n.safetensors"
    settings = {"dynamic_shapes": MARKS, "search": "off", "weights": weights}
    luminal.export(network, INPUTS, path, **settings)
    assert path.stat().st_size < weights.stat().st_size + 64 * 96 * 4 + 200_000
    assert "weight" in luminal.weights.load_safetensors(weights)
    np.testing.assert_array_equal(luminal.load(path)(*INPUTS)["y"], compiled(*INPUTS)["y"])
    luminal.export(network, INPUTS, path, **settings)  # the file is there and holds the same
    data = bytearray(weights.read_bytes())
    data[-1] ^= 64
    weights.write_bytes(data)
    with pytest.raises(ArgumentError, match="does not hold the weight 'weight'"):
        luminal.export(network, INPUTS, path, **settings)
    weights.unlink()
    with pytest.raises(WeightsError):
        luminal.load(path)
    with pytest.raises(ArgumentError, match="beside"):
        luminal.export(network, INPUTS, path, weights="/elsewhere/x.safetensors")


def test_objects_instead_of_a_library(copy, compiled):
    """What a file holds for systems whose libraries luminal does not link itself."""
    opened = files.read_container(copy)
    sources = zlib.decompress(opened.sections["sources"]).decode().split("\0")
    target = host_target()
    texts = [*sources, runtime_text(target.triple), check_text(select_target("native"))]
    objects = [compile_object(text, target) for text in texts]
    header = {**opened.header, "code": "objects", "objects": [len(o) for o in objects]}
    del header["sections"]
    parts = {name: [bytes(data)] for name, data in opened.sections.items()}
    files.write_container(copy, header, {**parts, "code": objects})
    np.testing.assert_array_equal(luminal.load(copy)(*INPUTS)["y"], compiled(*INPUTS)["y"])


def test_files_are_not_left_open(exported):
    luminal.load(exported)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        luminal.load(exported)(*INPUTS)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_file_may_be_written_anew_while_it_is_open(copy, compiled):
    model = luminal.load(copy)
    luminal.export(lambda x: x + 1, [floats(3)], copy, search="off")
    assert luminal.load(copy)(np.zeros(3, np.float32)).tolist() == [1, 1, 1]
    np.testing.assert_array_equal(model(*INPUTS)["y"], compiled(*INPUTS)["y"])


# ---- damage


def test_truncated_anywhere(copy):
    data = copy.read_bytes()
    for size in (0, 1, 7, 8, 31, 32, 33, 400, 4096, len(data) // 2, len(data) - 1):
        copy.write_bytes(data[:size])
        with pytest.raises(WeightsError):
            luminal.load(copy)
    copy.write_bytes(data + b"more")
    with pytest.raises(WeightsError, match="truncated"):
        luminal.load(copy)


def test_damaged_bits_of_head_header_and_code(copy):
    data = copy.read_bytes()
    start, size, _ = files.read_container(copy).header["sections"]["code"]
    places = [*range(33), 60, 200, start, start + size // 2, start + size - 1]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 4
        copy.write_bytes(changed)
        with pytest.raises(WeightsError):
            luminal.load(copy)


def test_damaged_weights_are_found_if_asked(copy):
    data = bytearray(copy.read_bytes())
    data[-5] ^= 1
    copy.write_bytes(data)
    luminal.load(copy)
    with pytest.raises(WeightsError, match="damaged"):
        luminal.load(copy, verify=True)


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"luminal": "9.9"}, WeightsError, "written by luminal 9.9"),
        ({"target__triple": "aarch64-unknown-linux-gnu"}, DeviceError, "aarch64-linux"),
        ({"target__triple": "x86_64-apple-macosx11.0.0"}, DeviceError, "another system"),
        ({"target__triple": "wasm"}, DeviceError, "another system"),
        ({"program__buffers": []}, WeightsError, "header cannot be read"),
        ({"program__outputs": ["nothing"]}, WeightsError, "header cannot be read"),
        ({"program__dims": [["n", 1, 64], ["n"]]}, WeightsError, "header cannot be read"),
        ({"program": 7}, WeightsError, "header cannot be read"),
        ({"structure": {"strange": []}}, WeightsError, "header cannot be read"),
    ],
)
def test_headers_that_do_not_fit(copy, changes, error, text):
    rewritten(copy, **changes)
    with pytest.raises(error, match=text):
        luminal.load(copy)


def test_another_format(copy):
    data = bytearray(copy.read_bytes())
    data[8:12] = struct.pack("<I", 2)
    copy.write_bytes(data)
    with pytest.raises(WeightsError, match="format 2"):
        luminal.load(copy)


def test_sizes_are_never_evaluated(copy):
    """An expression in the header is read by a small evaluator of arithmetic."""
    header = files.read_container(copy).header
    buffers = json.loads(json.dumps(header["program"]["buffers"]))
    buffers[0]["shape"][0] = "__import__('os').abort()"
    rewritten(copy, program__buffers=buffers)
    with pytest.raises(WeightsError, match="header cannot be read"):
        luminal.load(copy)


def test_weights_outside_their_section(copy):
    header = files.read_container(copy).header
    buffers = json.loads(json.dumps(header["program"]["buffers"]))
    for row in buffers:
        if "data" in row:
            row["data"]["offset"] = 1 << 40
    rewritten(copy, program__buffers=buffers)
    with pytest.raises(WeightsError, match="outside its section"):
        luminal.load(copy)


def test_no_file_and_no_model(tmp_path):
    with pytest.raises(WeightsError, match="cannot read"):
        luminal.load(tmp_path / "none.lum")
    (tmp_path / "zip.lum").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(WeightsError, match="no exported model"):
        luminal.load(tmp_path / "zip.lum")
    with pytest.raises(ArgumentError, match="not a model"):
        luminal.export(3, [floats(3)], tmp_path / "x.lum")
    with pytest.raises(ArgumentError, match="no such folder"):
        luminal.export(lambda x: x, [floats(3)], tmp_path / "none" / "x.lum")
    with pytest.raises(UnsupportedError, match="keys"):
        luminal.export(lambda x: {(1, 2): x}, [floats(3)], tmp_path / "x.lum", search="off")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["zip.lum"]


# ---- the processor


def test_a_missing_feature_is_named(copy):
    """A bit that no processor has: the code is refused before any of it runs."""
    found = files.read_container(copy).header["features"]
    place = [1, 0, 2] if "x86" in host_target().triple else [16, 0, 0]
    lacking = {"name": "flying", "place": place, "mask": 0xFFFFFFFF}
    rewritten(copy, features=[*found, lacking])
    with pytest.raises(DeviceError, match="this processor lacks flying"):
        luminal.load(copy)


def test_features_that_the_code_needs():
    levels = {isa: {r.name for r in rows(baseline_target("x86_64-unknown-linux-gnu", isa))}
              for isa in ("baseline", "avx2", "avx512")}  # fmt: skip
    assert levels["baseline"] == set()
    assert {"avx2", "fma", "f16c", "lzcnt", "avx (saved by the system)"} <= levels["avx2"]
    assert levels["avx2"] < levels["avx512"] and "avx512vl" in levels["avx512"]
    assert {r.name for r in rows(baseline_target("aarch64-unknown-linux-gnu"))} == {"neon"}
    assert rows(baseline_target("arm64-apple-macosx11.0.0")) == []
    assert "ret i32 -1" in check_text(baseline_target("arm64-apple-macosx11.0.0"))


@pytest.mark.parametrize("layout", [((0, 1), (1, 1)), ((1, 4), (0, 2), (1, 1), (0, 1)),
                                    ((0, 8), (1, 1), (0, 4), (0, 1))])  # fmt: skip
def test_unpacking_undoes_packing(layout):
    a = np.arange(7 * 10).reshape(7, 10)
    np.testing.assert_array_equal(unpacked(pack(a, layout), a.shape, layout), a)


def test_the_format_is_as_documented(exported):
    """What docs/aot.md says, read by hand."""
    data = exported.read_bytes()
    magic, version, checksum, length, size = struct.unpack_from("<8sIIQQ", data)
    assert (magic, version, size) == (b"\x89LUM\r\n\x1a\n", 1, len(data))
    text = data[32 : 32 + length]
    assert zlib.crc32(text) == checksum
    header = json.loads(text)
    for start, count, check in header["sections"].values():
        assert start % 4096 == 0 and zlib.crc32(data[start : start + count]) == check
    assert b"pickle" not in data and data[header["sections"]["code"][0] :][:4] == b"\x7fELF"
    assert "sum_" in luminal.load(exported).explain()
