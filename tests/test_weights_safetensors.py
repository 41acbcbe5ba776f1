"""The safetensors reader: every dtype through DLPack, and refusal of every damage."""

import gc
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from luminal.errors import WeightsError
from luminal.weights import RawArray, load_safetensors


def put(tmp_path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack("<Q", len(raw) if length is None else length)
    path = tmp_path / "model.safetensors"
    path.write_bytes(size + raw + data)
    return path


def f32(begin: int, end: int, n: int = 2) -> dict:
    return {"dtype": "F32", "shape": [n], "data_offsets": [begin, end]}


@pytest.mark.parametrize("metadata", [None, {"k": "v" * 13}])
def test_every_dtype_reaches_torch(tmp_path: Path, metadata: dict | None) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 float8_e5m2"
    tensors = {n: torch.arange(6).to(getattr(torch, n)).view(2, 3) for n in names.split()}
    tensors |= {"bool": torch.tensor([True, False]), "empty": torch.zeros(0, 4)}
    tensors |= {"scalar": torch.tensor(3.5), "f8": torch.randn(5).to(torch.float8_e4m3fn)}
    path = tmp_path / "all.safetensors"
    save_file(tensors, path, metadata=metadata)
    arrays = load_safetensors(path)
    assert set(arrays) == set(tensors)
    for name, tensor in tensors.items():
        got = torch.from_dlpack(arrays[name])
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got.float(), tensor.float()), name


def test_bf16_outlives_the_reader(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    header = {"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}
    bits = np.array([0x3F80, 0xC000, 0x0000, 0x7F80], "<u2")
    tensor = torch.from_dlpack(load_safetensors(put(tmp_path, header, bits.tobytes()))["w"])
    gc.collect()
    assert tensor.dtype == torch.bfloat16
    assert tensor.flatten().tolist() == [1.0, -2.0, 0.0, float("inf")]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_all_eight_bit_floats_decode(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours = {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "e8m0"}[name]
    bits = torch.arange(256, dtype=torch.uint8)
    got = np.asarray(RawArray(ours, bits.numpy()))
    np.testing.assert_array_equal(got, bits.view(getattr(torch, name)).float().numpy())


def test_file_without_tensors(tmp_path: Path) -> None:
    assert load_safetensors(put(tmp_path, {"__metadata__": {"only": "this"}})) == {}


GOOD = f32(0, 8)
BROKEN = {
    "header past the end": ({}, b"", 5000),
    "header of 2^64": (b"{}", b"", 2**64 - 1),
    "empty header": (b"", b"", 0),
    "not JSON": (b"{not json", b"\0" * 8, None),
    "list": (b"[]", b"", None),
    "not UTF-8": (b'{"\xff": 1}', b"", None),
    "deep": (b'{"a":' * 100_000, b"", None),
    "number as entry": ({"w": 3}, b"\0" * 8, None),
    "unknown dtype": ({"w": {**GOOD, "dtype": "F99"}}, b"\0" * 8, None),
    "negative shape": ({"w": {**GOOD, "shape": [-2]}}, b"\0" * 8, None),
    "fractional shape": ({"w": {**GOOD, "shape": [2.5]}}, b"\0" * 8, None),
    "no offsets": ({"w": {"dtype": "F32", "shape": [2]}}, b"\0" * 8, None),
    "backward offsets": ({"w": {**GOOD, "data_offsets": [8, 0]}}, b"\0" * 8, None),
    "one offset": ({"w": {**GOOD, "data_offsets": [0]}}, b"\0" * 8, None),
    "size differs": ({"w": {**GOOD, "shape": [3]}}, b"\0" * 8, None),
    "truncated": ({"w": GOOD}, b"\0" * 4, None),
    "trailing": ({"w": GOOD}, b"\0" * 12, None),
    "gap": ({"a": GOOD, "b": f32(12, 20)}, b"\0" * 20, None),
    "overlap": ({"a": GOOD, "b": f32(4, 12)}, b"\0" * 12, None),
    "name twice": (b'{"w":1,"w":2}', b"", None),
    "huge shape": ({"w": {**GOOD, "shape": [1 << 62, 1 << 62]}}, b"\0" * 8, None),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(tmp_path: Path, case: str) -> None:
    header, data, length = BROKEN[case]
    with pytest.raises(WeightsError, match="safetensors") as caught:
        load_safetensors(put(tmp_path, header, data, length))
    assert "\n" not in str(caught.value)


def test_missing_file() -> None:
    with pytest.raises(WeightsError, match=r"no-such\.safetensors"):
        load_safetensors("no-such.safetensors")
