"""The device that the settings name: its target, its compiler, and executors for it.

In: settings, programs. Out: a Target, object code, an Executor. The only file that knows all
runtimes; a GPU's is opened when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from luminal.config import Config
from luminal.emulator.emulated import EmulatedDevice
from luminal.ir import TF32, Program, Target
from luminal.runtime.cpu import compile_object
from luminal.runtime.cuda import CudaDevice, pytorch
from luminal.runtime.cuda_executor import CudaExecutor
from luminal.runtime.device import select_target
from luminal.runtime.executor import Executor
from luminal.runtime.gpu import H100, M2, Gpu, GpuExecutor
from luminal.runtime.metal import MetalDevice, MetalExecutor
from luminal.runtime.opencl import OpenClDevice

__all__ = ["compiler", "device_target", "loaded"]


OTHERS = {"opencl": OpenClDevice, "metal": MetalDevice}


@cache
def _cuda(ordinal: int) -> CudaDevice:
    return CudaDevice(ordinal)


def _gpu(device: str) -> Gpu | CudaDevice:
    """The device of a name; 'cuda' is PyTorch's current one, else the first."""
    if device != "cuda":
        return _other(device)
    torch = pytorch()
    return _cuda(torch.cuda.current_device() if torch is not None else 0)


@cache
def _other(device: str) -> Gpu:
    if device in OTHERS:
        return OTHERS[device]()
    return EmulatedDevice({"cuda-emulated": H100, "metal-emulated": M2}[device])


def device_target(config: Config) -> Target:
    """What to generate code for, by the numerics that are allowed."""
    if config.device == "cpu":
        return select_target(config.isa)
    target, fast = _gpu(config.device).target, config.numerics == "fast"
    more = (TF32,) if fast and target.kind == "cuda" else ()
    return replace(target, matrix=(*target.matrix, *more))


def compiler(config: Config) -> Callable[[str, Target], bytes]:
    """From the text of a kernel to its object code."""
    if config.device == "cpu":
        return compile_object
    gpu = _gpu(config.device)
    return lambda source, target: gpu.compile(source)


def loaded(program: Program, objects: Sequence[bytes], config: Config) -> Executor:
    """A program that is ready to be called."""
    if config.device == "cpu":
        return Executor(program, objects, config.threads or None)
    gpu = _gpu(config.device)
    if isinstance(gpu, CudaDevice):
        return CudaExecutor(program, objects, gpu)
    if isinstance(gpu, MetalDevice):
        return MetalExecutor(program, objects, gpu)
    return GpuExecutor(program, objects, gpu)
