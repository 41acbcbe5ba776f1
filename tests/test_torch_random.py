"""Random ATen programs: eager == luminal in values, dtypes, strides, writes to inputs, aliasing.

The default run draws programs from fixed seeds; `-m fuzz` with LUMINAL_FUZZ=count is the long
one. Each file of `corpus/aten/` is a program that failed once.
"""

import os
import random
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch._prims_common import check_significant_strides  # noqa: E402

import luminal.torch  # noqa: E402
from tests.random_aten import parse, random_program  # noqa: E402

CORPUS = sorted((Path(__file__).parent / "corpus" / "aten").glob("*.txt"))
OPTIONS = {"search": "off", "fallback": "silent"}
SLOW = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
COUNT = int(os.environ.get("LUMINAL_FUZZ", "1"))


@st.composite
def programs(draw):
    return random_program(lambda lo, hi: draw(st.integers(lo, hi)))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():  # PyTorch's about deprecated forms that programs contain
        warnings.simplefilter("ignore")
        yield


def called(function, inputs):
    with torch.no_grad():
        return function(*inputs)


def shared(inputs, results):
    places = [t.untyped_storage().data_ptr() for t in (*inputs, *results)]
    return [[p == q and p != 0 for q in places] for p in places]


def check(program):
    """Two calls with different values, each compared with eager."""
    torch._dynamo.reset()
    compiled = torch.compile(program.function(), backend=luminal.torch.backend, options=OPTIONS)
    for seed in (0, 1):
        mine, theirs = program.tensors(seed), program.tensors(seed)
        want = called(program.function(), theirs)
        got = called(compiled, mine)
        pairs = [*zip(got, want, strict=True), *zip(mine, theirs, strict=True)]
        for position, (x, y) in enumerate(pairs):
            finite = y.double().nan_to_num(0, 0, 0)  # one seed's values may divide by another's 0
            scale = float(finite.abs().max()) if y.numel() else 0.0
            close = {"rtol": 1e-4, "atol": 1e-5 * max(scale, 1.0)}
            if y.dtype in (torch.bfloat16, torch.float16):
                close = {"rtol": 2e-2, "atol": 1e-2 * max(scale, 1.0)}
            if not y.dtype.is_floating_point:
                close = {"rtol": 0, "atol": 0}
            close["equal_nan"] = True
            torch.testing.assert_close(x, y, msg=lambda m, p=position: f"value {p}: {m}", **close)
            equal, _ = check_significant_strides(x, y, only_cuda=False)
            assert equal, f"strides of value {position}"
        assert shared(mine, got) == shared(theirs, want)


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_what_failed_once(path):
    check(parse(path.read_text()))


@pytest.mark.parametrize("seed", range(200))
def test_programs_equal_eager(seed):
    check(random_program(random.Random(seed).randint))


@pytest.mark.fuzz
@settings(max_examples=COUNT, **SLOW)
@given(programs())
def test_many_programs_equal_eager(program):
    check(program)


def test_text_reads_back():
    program = parse(
        '# [[[2, 3], "float32", "plain"]]\ndef f(x0):\n    v0 = x0 + 1\n    return v0, x0,\n'
    )
    assert str(parse(str(program))) == str(program)
