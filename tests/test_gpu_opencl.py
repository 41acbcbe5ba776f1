"""OpenCL C through a real driver (PoCL runs it on CPUs): the same programs as the emulator's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from luminal.errors import DeviceError
from luminal.ir import dtype as dt
from tests import test_gpu_programs as programs
from tests import test_gpu_terms as terms
from tests.gpu_case import opencl

needs_driver = pytest.mark.skipif(opencl() is None, reason="needs pyopencl and a driver: PoCL")
DEVICE = "opencl"


@needs_driver
@pytest.mark.parametrize("dtype", [dt.f32, dt.f16, dt.i64], ids=lambda d: d.name)
def test_operations(dtype):
    terms.test_operations(dtype, DEVICE)


@needs_driver
@pytest.mark.parametrize("dtype", [dt.f64, dt.bf16, dt.f8e4m3, dt.i4], ids=lambda d: d.name)
def test_casts(dtype):
    terms.test_casts(dtype, DEVICE)


@needs_driver
@pytest.mark.parametrize("name", ["matmul", "vector", "norm", "causal", "cumsum", "gather"])
def test_programs(name):
    programs.test_programs(name, DEVICE)


@needs_driver
def test_index_errors_and_scatters():
    programs.test_an_index_out_of_range(DEVICE)
    programs.test_a_scatter_keeps_the_last(DEVICE)


@needs_driver
@pytest.mark.nightly
@pytest.mark.parametrize("number", range(300))
def test_random_graphs(number):
    programs.agree(number, DEVICE)


@needs_driver
@pytest.mark.nightly
@pytest.mark.parametrize("dtype", terms.COMPUTING, ids=lambda d: d.name)
def test_every_dtype(dtype):
    terms.test_operations(dtype, DEVICE)
    terms.test_casts(dtype, DEVICE)
    terms.test_reductions_over_lanes(dtype, DEVICE)


def test_no_device_is_a_clear_error():
    code = "import sys; sys.modules['pyopencl'] = None\n" + (
        "from luminal.runtime.opencl import OpenClDevice\nOpenClDevice()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"{DeviceError.__name__}: [opencl] no OpenCL device. Got no pyopencl" in done.stderr
