"""Loads, stores, storage formats and casts of the LLVM printer against NumPy."""

from __future__ import annotations

import ctypes
import itertools
import mmap

import numpy as np
import pytest

from luminal.codegen.loopir import Let, Literal, Load, Statement, Store, Value
from luminal.ir import dtype as dt
from tests.llvm_kernels import build, for_range, function, i64, one_op, runnable

COMPUTING = (dt.f32, dt.f64, dt.i64, dt.i32, dt.i16, dt.i8, dt.u8, dt.boolean)
VARIANTS = runnable()


def bf16_value(bits: np.ndarray) -> np.ndarray:
    """f32 of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """bf16 bits of f32, to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (bits >> 16).astype(np.uint16) | 0x40, rounded)


def small_float(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """The value of a small float's bits, infinities and NaN not considered."""
    bias = (1 << (exponent_bits - 1)) - 1
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def storage_table(dtype: dt.DType) -> np.ndarray:
    """What each code of a storage format decodes to."""
    codes = range(1 << dtype.bits)
    match dtype.name:
        case "u4":
            return np.arange(16, dtype=np.int8)
        case "i4":
            return np.array([c - 16 * (c > 7) for c in codes], np.int8)
        case "f4e2m1":
            return np.array([small_float(c, 2, 1) for c in codes], np.float32)
        case "f8e4m3":
            nan = {0x7F, 0xFF}
            return np.array([np.nan if c in nan else small_float(c, 4, 3) for c in codes], "f4")
        case "f8e5m2":
            return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
    return np.array([*(2.0 ** (c - 127) for c in range(255)), np.nan], np.float32)


STORAGE = (dt.u4, dt.i4, dt.f4e2m1, dt.f8e4m3, dt.f8e5m2, dt.e8m0)


def decoded(dtype: dt.DType) -> dt.DType:
    """The dtype in registers."""
    return dt.i8 if dtype.is_int else dt.f32


def numbers(dtype: dt.DType, count: int) -> np.ndarray:
    """Values of `dtype` with corners."""
    rng = np.random.default_rng(1)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        return rng.integers(info.min, info.max, count, dtype=dtype.np, endpoint=True)
    corners = [0.0, -0.0, np.nan, np.inf, -np.inf, 127.5, -128.9, 255.9, 256, -1, 3e9, -3e9, 1e19,
               -1e19, 2147483520.0, 65504, 65519.9, 65520, 6e-8, 2.9e-8, 3.1e-8, 1e-40]  # fmt: skip
    plain = rng.normal(0, 1, count) * 10.0 ** rng.integers(-8, 6, count)
    plain[: len(corners)] = corners
    return plain.astype(dtype.np)


def cast(x: np.ndarray, source: dt.DType, target: dt.DType) -> np.ndarray:
    """Cast as ir/interp.py means it; bf16 as bits."""
    if source is dt.bf16:
        x = bf16_value(x)
    if target is dt.bf16:
        return to_bf16(x.astype(np.float32))
    if target.kind == "b":
        return x != 0
    if x.dtype.kind == "f" and target.is_int:
        info = np.iinfo(target.np)
        whole = np.trunc(np.nan_to_num(x.astype(np.longdouble), nan=0.0, posinf=1e30, neginf=-1e30))
        rows = [min(max(int(v), info.min), info.max) for v in whole]
        return np.array(rows, target.np)
    return x.astype(target.np)


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("source", [*COMPUTING, dt.f16, dt.bf16])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_casts(source: dt.DType, target: str) -> None:
    count = 48
    x = numbers(source, count) if source is not dt.bf16 else to_bf16(numbers(dt.f32, count))
    body: list[Statement] = []
    kinds = (*COMPUTING, dt.f16, dt.bf16)
    for lanes, start in ((1, 0), (1, 1), (3, 2), (16, 0), (16, 16), (16, 32)):
        for to in kinds:
            name = f"{to}_{lanes}_{start}"
            value, result = Value(f"x{name}", source, lanes), Value(f"y{name}", to, lanes)
            body += [
                Load(value, "x", source, i64(start)),
                Let(result, "cast", (value,)),
                Store(f"out{to}", to, i64(start), result),
            ]
    outs = [np.zeros(count, to.np) for to in kinds]
    build(function(body, ("x", *(f"out{to}" for to in kinds))), target)(x, *outs)
    for to, out in zip(kinds, outs):
        wanted = cast(x, source, to)
        if to is dt.bf16:
            out, wanted = bf16_value(out), bf16_value(wanted)
        np.testing.assert_array_equal(out, wanted, f"{source} -> {to} of {x}")


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("dtype", [dt.f16, dt.bf16])
def test_every_half(dtype: dt.DType, target: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    i = Value("i", dt.i64)
    at, half, wide = Value("at", dt.i64), Value("h", dtype, 16), Value("w", dt.f32, 16)
    again = Value("again", dtype, 16)
    body = [
        Let(at, "mul", (i, i64(16))),
        Load(half, "a", dtype, at),
        Let(wide, "cast", (half,)),
        Store("wide", dt.f32, at, wide),
        Let(again, "cast", (wide,)),
        Store("again", dtype, at, again),
    ]
    kernel = build(function([for_range(i, i64(1 << 12), body)], ("a", "wide", "again")), target)
    out, back = np.empty(1 << 16, np.float32), np.empty(1 << 16, np.uint16)
    kernel(bits, out, back)
    exact = bits.view(np.float16).astype(np.float32) if dtype is dt.f16 else bf16_value(bits)
    np.testing.assert_array_equal(out, exact)
    number = ~np.isnan(exact)
    assert np.array_equal(back[number], bits[number])
    assert np.isnan((back.view(np.float16) if dtype is dt.f16 else bf16_value(back))[~number]).all()


def test_f32_to_half_rounds_to_even() -> None:
    x = np.random.default_rng(2).integers(0, 1 << 32, 1 << 14, dtype=np.uint32).view(np.float32)
    ties = np.arange(1 << 13, dtype=np.float32) + np.float32(0.5)
    x = np.concatenate([np.nan_to_num(x), ties, ties * np.float32(2.0**-36)]).astype(np.float32)
    i, at = Value("i", dt.i64), Value("at", dt.i64)
    wide, f16, bf16 = Value("w", dt.f32, 16), Value("h", dt.f16, 16), Value("b", dt.bf16, 16)
    body = [
        Let(at, "mul", (i, i64(16))), Load(wide, "x", dt.f32, at),
        Let(f16, "cast", (wide,)), Let(bf16, "cast", (wide,)),
        Store("f16", dt.f16, at, f16), Store("bf16", dt.bf16, at, bf16),
    ]  # fmt: skip
    for target in VARIANTS:
        a, b = np.empty(len(x), np.float16), np.empty(len(x), np.uint16)
        kernel = function([for_range(i, i64(len(x) // 16), body)], ("x", "f16", "bf16"))
        build(kernel, target)(x, a, b)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(a.view(np.uint16), x.astype(np.float16).view(np.uint16))
        np.testing.assert_array_equal(b, to_bf16(x))


def test_f64_to_f16_rounds_once() -> None:
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-40, 65520 - 1e-9])
    x = np.concatenate([x, -x, [6e-8, np.nan, np.inf, 1e300, 0, -0.0, 2.0**-25, 2.0**-25 + 1e-20]])
    for target in VARIANTS:
        out = np.zeros(16, np.float16)
        build(one_op("cast", [(dt.f64, 16)], (dt.f16, 16)), target)(x, out)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(out, x.astype(np.float16))


def pack(codes: np.ndarray, dtype: dt.DType) -> np.ndarray:
    """Bytes of codes: two to a byte, low nibble first, or one."""
    codes = codes.astype(np.uint8)
    return codes[0::2] | codes[1::2] << 4 if dtype.bits == 4 else codes


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("dtype", STORAGE)
def test_storage_formats(dtype: dt.DType, target: str) -> None:
    codes = np.random.default_rng(3).integers(0, 1 << dtype.bits, 256)
    codes[: 1 << dtype.bits] = np.arange(1 << dtype.bits)
    kind, body, wanted = decoded(dtype), [], []
    mask_bits = np.random.default_rng(4).integers(0, 2, 32).astype(bool)
    offsets = np.random.default_rng(5).integers(0, 256, 32)
    n = Value("n", dt.i64)
    even = Value("even", dt.i64)
    body.append(Let(even, "mul", (n, i64(2))))
    starts = (i64(0), i64(5), i64(64), n, even)
    cases = list(itertools.product((1, 2, 3, 8, 16, 32), starts, (False, True)))
    table = storage_table(dtype)
    for number, (lanes, start, masked) in enumerate(cases):
        at = {"n": 7, "even": 14}[start.name] if isinstance(start, Value) else int(start.value)
        value, mask = Value(f"v{number}", kind, lanes), Value(f"m{number}", dt.boolean, lanes)
        if masked:
            body.append(Load(mask, "mask", dt.boolean, i64(0)))
        body.append(Load(value, "x", dtype, start, mask if masked else None))
        body.append(Store("out", kind, i64(32 * number), value))
        right = table[codes[at : at + lanes]]
        wanted.append(np.where(mask_bits[:lanes], right, 0) if masked else right)
    where, value = Value("where", dt.i64, 32), Value("gathered", kind, 32)
    body += [Load(where, "at", dt.i64, i64(0)), Load(value, "x", dtype, where)]
    body.append(Store("out", kind, i64(32 * len(cases)), value))
    wanted.append(table[codes[offsets]])
    out = np.zeros((len(wanted), 32), kind.np)
    kernel = function(body, ("x", "out", "mask", "at"), ("n",))
    build(kernel, target)(pack(codes, dtype), out, mask_bits, offsets, dims=(7,))
    for row, right in zip(out, wanted):
        np.testing.assert_array_equal(row[: len(right)], right)


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("dtype", COMPUTING)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_gather_scatter_and_masks(dtype: dt.DType, lanes: int, target: str) -> None:
    rng = np.random.default_rng(lanes)
    x = np.nan_to_num(numbers(dtype, 64))
    at, to = rng.integers(0, 64, lanes), rng.integers(0, max(1, lanes // 2), lanes)
    mask = rng.integers(0, 2, lanes).astype(bool)
    names = ("at", "to", "m", "gathered", "masked", "plain")
    kinds = (dt.i64, dt.i64, dt.boolean, dtype, dtype, dtype)
    v = {n: Value(n, k, lanes) for n, k in zip(names, kinds)}
    body: list[Statement] = [Load(v[n], n, v[n].dtype, i64(0)) for n in ("at", "to", "m")]
    body += [
        Load(v["gathered"], "x", dtype, v["at"]), Store("o0", dtype, i64(0), v["gathered"]),
        Load(v["masked"], "x", dtype, v["at"], v["m"]), Store("o1", dtype, i64(0), v["masked"]),
        Load(v["plain"], "x", dtype, i64(3), v["m"]), Store("o2", dtype, i64(0), v["plain"]),
        Store("o3", dtype, i64(1), v["gathered"], v["m"]),
        Store("o4", dtype, v["to"], v["gathered"]),
        Store("o5", dtype, v["to"], v["gathered"], v["m"]),
        Store("o6", dtype, i64(0), v["gathered"]),
    ]  # fmt: skip
    outs = [np.zeros(lanes + 1, dtype.np) for _ in range(7)]
    kernel = function(body, ("x", "at", "to", "m", *(f"o{i}" for i in range(7))))
    build(kernel, target)(x, at, to, mask, *outs)
    wanted = [np.zeros(lanes + 1, dtype.np) for _ in range(7)]
    wanted[0][:lanes] = wanted[6][:lanes] = x[at]
    wanted[1][:lanes] = np.where(mask, x[at], 0)
    wanted[2][:lanes] = np.where(mask, x[3 : 3 + lanes], 0)
    wanted[3][1:] = np.where(mask, x[at], 0)
    for lane in range(lanes):
        wanted[4][to[lane]] = x[at][lane]
        if mask[lane]:
            wanted[5][to[lane]] = x[at][lane]
    for out, right in zip(outs, wanted):
        np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("dtype", [dt.f32, dt.i8, dt.f64, dt.bf16])
@pytest.mark.parametrize("lanes", [4, 16])
def test_strided_access_over_lanes(dtype: dt.DType, lanes: int, target: str) -> None:
    """out[8*lane + i] = x[3*lane + i] for i in 0..2."""
    i, value = Value("i", dt.i64), Value("v", dtype, lanes)
    count, three, spread, at, more, to = (Value(n, dt.i64, lanes) for n in "nhsamt")
    body = [
        Let(count, "lanes", ()),
        Let(three, "mul", (count, Literal(3, dt.i64, lanes))),
        Let(spread, "splat", (i,)),
        Let(at, "add", (spread, three)),
        Load(value, "x", dtype, at),
        Let(more, "mul", (count, Literal(5, dt.i64, lanes))),
        Let(to, "add", (more, at)),
        Store("out", dtype, to, value),
    ]
    x = np.arange(64).astype(dtype.np)
    out = np.zeros(160, dtype.np)
    build(function([for_range(i, i64(3), body)], ("x", "out")), target)(x, out)
    wanted = np.zeros(160, dtype.np)
    for step in range(3):
        for lane in range(lanes):
            wanted[8 * lane + step] = x[3 * lane + step]
    np.testing.assert_array_equal(out, wanted)


def test_masked_lanes_read_and_write_nothing() -> None:
    """A masked load at the very end of a mapped page does not fault."""
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    x = np.frombuffer(page, np.uint8, mmap.PAGESIZE)[-8:]
    for dtype in (dt.f32, dt.i8, dt.f16, dt.u4, dt.f64):
        count = 64 // dtype.bits
        lanes = 2 * count
        mask = np.arange(lanes) < count
        kind = decoded(dtype) if dtype.storage else dtype
        m, value = Value("m", dt.boolean, lanes), Value("v", kind, lanes)
        body: list[Statement] = [
            Load(m, "m", dt.boolean, i64(0)), Load(value, "x", dtype, i64(0), m),
        ]  # fmt: skip
        if not dtype.storage:
            body.append(Store("x", dtype, i64(0), value, m))
        for target in VARIANTS:
            build(function(body, ("x", "m")), target)(x, mask)
    libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 3)


@pytest.mark.parametrize("target", VARIANTS)
@pytest.mark.parametrize("dtype", [dt.i8, dt.i16, dt.f16, dt.f32, dt.boolean, dt.f64])
def test_constant_masks_touch_their_lanes_only(dtype: dt.DType, target: str) -> None:
    """Narrow lanes beside the masked ones stay as they were."""
    body: list[Statement] = []
    x = np.ones(16, dtype.np)
    cases = [(lanes, on) for lanes in (2, 4, 8, 16) for on in range(lanes + 1)]
    for number, (lanes, on) in enumerate(cases):
        count, inside = Value(f"c{number}", dt.i32, lanes), Value(f"m{number}", dt.boolean, lanes)
        value, part = Value(f"v{number}", dtype, lanes), Value(f"p{number}", dtype, lanes)
        wide = Value(f"w{number}", dt.i32, lanes)
        body += [
            Let(count, "lanes", ()),
            Let(inside, "lt", (count, Literal(on, dt.i32, lanes))),
            Load(wide, "ones", dt.i32, i64(0)),
            Let(value, "cast", (wide,)),
            Store("stored", dtype, i64(16 * number), value, inside),
            Load(part, "x", dtype, i64(0), inside),
            Store("loaded", dtype, i64(16 * number), part),
        ]
    stored, loaded = (np.zeros((len(cases), 16), dtype.np) for _ in range(2))
    build(function(body, ("x", "ones", "stored", "loaded")), target)(
        x, np.ones(16, np.int32), stored, loaded
    )
    for number, (lanes, on) in enumerate(cases):
        wanted = (np.arange(16) < on).astype(dtype.np)
        np.testing.assert_array_equal(stored[number], wanted, f"{lanes} {on}")
        np.testing.assert_array_equal(loaded[number], wanted, f"{lanes} {on}")
