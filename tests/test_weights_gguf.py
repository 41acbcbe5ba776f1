"""The GGUF reader: every good value and block type, and refusal of every damage."""

import struct
from pathlib import Path

import numpy as np
import pytest

from luminal.errors import WeightsError
from luminal.frontend.weights.blocks import BLOCK_TYPES, REFUSED_TYPES
from luminal.frontend.weights.quant import Plane, QuantTensor
from luminal.weights import load_gguf, open_gguf
from tests import gguf_writer as gw

QUANTISED = [block for block in BLOCK_TYPES.values() if block.plain is None]
UNPACKED = [block for block in QUANTISED if block.unpack is not None]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_tensor(code: int, rows: int = 5, blocks: int = 2) -> QuantTensor:
    block = BLOCK_TYPES[code]
    rng = np.random.default_rng(code)
    raw = rng.integers(0, 256, (rows, blocks * block.size_bytes), dtype=np.uint8)
    return QuantTensor("t", block, (rows, blocks * block.elements), raw.reshape(-1))


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


def test_metadata_of_every_type(tmp_path: Path) -> None:
    items = [
        ("u8", gw.U8, 255),
        ("i8", gw.I8, -128),
        ("u16", gw.U16, 65535),
        ("i16", gw.I16, -7),
        ("u32", gw.U32, 2**32 - 1),
        ("i32", gw.I32, -5),
        ("u64", gw.U64, 2**63),
        ("i64", gw.I64, -(2**62)),
        ("f32", gw.F32, 0.5),
        ("f64", gw.F64, 1e300),
        ("text", gw.STRING, "grüße ▁ 日本"),
        ("empty", gw.STRING, ""),
    ]
    arrays = [
        ("ints", gw.ARRAY, (gw.I32, [1, -2, 3])),
        ("texts", gw.ARRAY, (gw.STRING, ["x", "", "ü"])),
        ("none", gw.ARRAY, (gw.F32, [])),
    ]
    path = put(tmp_path, gw.build([gw.entry(*i) for i in items + arrays]))
    metadata, tensors = load_gguf(path)
    assert metadata == {k: v for k, _, v in items} | {k: v[1] for k, _, v in arrays}
    assert not tensors
    assert open_gguf(path).kinds["texts"] == "array of string"


def test_bools_are_bools(tmp_path: Path) -> None:
    entries = [gw.entry("yes", gw.BOOL, 1), gw.entry("both", gw.ARRAY, (gw.BOOL, [1, 0]))]
    metadata, _ = load_gguf(put(tmp_path, gw.build(entries)))
    assert metadata["yes"] is True
    assert metadata["both"] == [True, False]


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensor_shapes_and_alignment(tmp_path: Path, alignment: int) -> None:
    arrays = {"one": weights(7), "two": weights(3, 5, seed=1), "four": weights(2, 1, 3, 2, seed=3)}
    data = gw.build(
        [gw.entry("general.alignment", gw.U32, alignment)],
        [gw.f32_tensor(name, array) for name, array in arrays.items()],
        version=2,
        alignment=alignment,
    )
    _, tensors = load_gguf(put(tmp_path, data))
    assert list(tensors) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name], array)


def test_half_precision_and_integer_tensors(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 0.0, 3.0], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    tensors = [
        gw.Tensor("half", (2, 2), values.astype("<f2").tobytes(), 1),
        gw.Tensor("brain", (4,), bf16, 30),
        gw.Tensor("double", (4,), values.astype("<f8").tobytes(), 28),
        gw.Tensor("ints", (2,), np.array([-1, 7], "<i8").tobytes(), 27),
    ]
    _, got = load_gguf(put(tmp_path, gw.build([], tensors)))
    np.testing.assert_array_equal(got["half"], values.reshape(2, 2))
    np.testing.assert_array_equal(got["brain"], values)
    assert (got["double"].dtype, got["ints"].dtype) == (np.float64, np.int64)
    assert got["ints"].tolist() == [-1, 7]


@pytest.mark.parametrize("block", QUANTISED, ids=lambda b: b.name)
def test_dequantisation_equals_that_of_gguf(block) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType(block.code)
    assert gguf.GGML_QUANT_SIZES[kind] == (block.elements, block.size_bytes)
    tensor = random_tensor(block.code)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(tensor.raw.reshape(tensor.shape[0], -1), kind)
        np.testing.assert_array_equal(tensor.dequantise(), want)


def plane_values(plane: Plane | None, default: float) -> np.ndarray:
    if plane is None:
        return np.float32(default)
    if plane.dtype in ("u4", "i4"):
        pairs = np.stack((plane.data & 15, plane.data >> 4), axis=-1).reshape(plane.shape)
        values = pairs.astype(np.float32)
        return values - 16 * (values > 7) if plane.dtype == "i4" else values
    return plane.data.astype(np.float32).reshape(plane.shape)


@pytest.mark.parametrize("block", UNPACKED, ids=lambda b: b.name)
def test_planes_hold_the_same_weights(block) -> None:
    tensor = random_tensor(block.code)
    planes = tensor.planes()
    columns = tensor.shape[-1]

    def spread(plane: Plane | None, default: float) -> np.ndarray:
        values = plane_values(plane, default)
        return np.repeat(values, columns // values.shape[-1], axis=-1) if plane else values

    with np.errstate(all="ignore"):
        scale = spread(planes.scale, 1) * spread(planes.sub_scale, 1)
        minimum = spread(planes.minimum, 0) * spread(planes.sub_minimum, 1)
        got = scale * plane_values(planes.quants, 0) + minimum
        np.testing.assert_array_equal(got, tensor.dequantise())


@pytest.mark.parametrize("block", UNPACKED, ids=lambda b: b.name)
def test_deferred_planes_are_the_same_whenever_they_are_read(tmp_path: Path, block) -> None:
    source = random_tensor(block.code, rows=64, blocks=64)
    path = put(
        tmp_path, gw.build([], [gw.Tensor("w", source.shape, source.raw.tobytes(), block.code)])
    )
    tensor = open_gguf(path).tensors["w"]
    want, deferred = source.planes().present(), tensor.deferred().present()
    assert list(want) == list(deferred)
    for name in [*want, *reversed(want)]:  # the second time from pages that were given back
        plane, got = want[name], deferred[name]
        assert (got.dtype, got.shape) == (plane.dtype, plane.shape)
        assert (got.data.shape, got.data.dtype) == (plane.data.shape, plane.data.dtype)
        assert got.data.nbytes == plane.data.nbytes
        np.testing.assert_array_equal(np.asarray(got.data), plane.data)
    np.testing.assert_array_equal(tensor.raw, source.raw.reshape(-1))


def test_common_planes_stay_near_the_file_size() -> None:
    for code, limit in ((2, 1.0), (3, 1.0), (8, 1.0), (12, 1.03)):
        tensor = random_tensor(code, rows=4)
        assert tensor.planes().size_bytes <= limit * tensor.raw.nbytes, tensor.type_name


def base(**changes) -> bytes:
    entries = [gw.entry("general.architecture", gw.STRING, "llama")]
    tensors = [gw.f32_tensor("a", weights(4, 32)), gw.f32_tensor("b", weights(2, 64))]
    return gw.build(entries, tensors, **changes)


def key_of(kind: int, raw: bytes) -> bytes:
    return gw.build([gw.string("k") + struct.pack("<I", kind) + raw])


def deep_array() -> bytes:
    return key_of(gw.ARRAY, struct.pack("<IQ", gw.ARRAY, 1) * 5000 + struct.pack("<IQ", 0, 0))


def one_tensor(**changes) -> bytes:
    fields = {"name": "w", "shape": (32,), "raw": weights(32).tobytes()} | changes
    return gw.build([], [gw.Tensor(**fields)])


BROKEN = {
    "empty file": (b"", "empty"),
    "wrong magic": (base(magic=b"GGML"), "magic"),
    "version 1": (base(version=1), "version 1"),
    "big endian": (base(version=3 << 24), "big-endian"),
    "many tensors": (base(n_tensors=1 << 61), "cannot fit"),
    "many keys": (base(n_keys=2**64 - 1), "cannot fit"),
    "one tensor too many": (base(n_tensors=3), "tensor"),
    "one key too many": (base(n_keys=2), "ends inside"),
    "three bytes": (b"abc", "not a GGUF file"),
    "truncated header": (base()[:90], "ends inside its header"),
    "truncated data": (base()[:-4], "'b'"),
    "long string": (key_of(gw.STRING, struct.pack("<Q", 1 << 60)), "ends inside"),
    "long array": (key_of(gw.ARRAY, struct.pack("<IQ", gw.F64, (1 << 61) + 1)), "cannot fit"),
    "unknown value type": (key_of(77, b"\0" * 8), "value type 77"),
    "unknown element type": (key_of(gw.ARRAY, struct.pack("<IQ", 55, 2)), "value type 55"),
    "deep arrays": (deep_array(), "nests"),
    "key not UTF-8": (gw.build([gw.entry(b"\xff\xfe", gw.U32, 1)]), "UTF-8"),
    "long key": (gw.build([gw.entry("k" * 9000, gw.U32, i) for i in (1, 2)]), "appears twice"),
    "key twice": (gw.build([gw.entry("x.y", gw.U32, i) for i in (1, 2)]), "x.y"),
    "alignment 12": (gw.build([gw.entry("general.alignment", gw.U32, 12)]), "alignment"),
    "alignment as text": (gw.build([gw.entry("general.alignment", gw.STRING, "32")]), "u32"),
    "tensor twice": (gw.build([], [gw.f32_tensor("w", weights(4))] * 2), "'w' appears twice"),
    "offset past the end": (one_tensor(offset=1 << 40), "past the end"),
    "offset wraps": (one_tensor(offset=2**64 - 32), "past the end"),
    "offset misaligned": (one_tensor(offset=33), "alignment"),
    "five dims": (one_tensor(shape=(1, 2, 2, 2, 4)), "5 dims"),
    "huge dim": (one_tensor(shape=(1 << 62, 32)), "absurd"),
    "product wraps": (one_tensor(shape=(1 << 33, 1 << 33)), "absurd"),
    "unknown quant type": (one_tensor(code=250), "quant type 250"),
    "half a block": (one_tensor(code=12, shape=(2, 100)), "Q4_K"),
    "no name": (one_tensor(name=""), "no name"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(tmp_path: Path, case: str) -> None:
    data, hint = BROKEN[case]
    with pytest.raises(WeightsError, match=r"\[load_gguf\]") as caught:
        load_gguf(put(tmp_path, data))
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("code", REFUSED_TYPES)
def test_removed_types_say_why(tmp_path: Path, code: int) -> None:
    with pytest.raises(WeightsError, match=REFUSED_TYPES[code]):
        load_gguf(put(tmp_path, one_tensor(code=code)))


def test_overlap_names_both_tensors(tmp_path: Path) -> None:
    tensors = [gw.f32_tensor("p", weights(64)), gw.f32_tensor("q", weights(64), offset=32)]
    with pytest.raises(WeightsError, match="'p' and 'q'"):
        load_gguf(put(tmp_path, gw.build([], tensors)))


@pytest.mark.parametrize("name", ["missing.gguf", ".", "\0", "fifo"])
def test_paths_that_are_no_file(tmp_path: Path, name: str) -> None:
    if name == "fifo":
        import os

        os.mkfifo(tmp_path / name)
    with pytest.raises(WeightsError):
        load_gguf(tmp_path / name)


def test_every_truncation_is_refused_or_complete(tmp_path: Path) -> None:
    data = base()
    for length in range(0, len(data), 7):
        with pytest.raises(WeightsError):
            load_gguf(put(tmp_path, data[:length]))


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    good = np.frombuffer(base(), np.uint8)
    for _ in range(200):
        damaged = good.copy()
        damaged[rng.integers(0, 200, 3)] = rng.integers(0, 256, 3)
        try:
            load_gguf(put(tmp_path, damaged.tobytes()))
        except WeightsError as error:
            assert str(error)
