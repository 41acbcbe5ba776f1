"""A fake of just those calls of pyobjc's Metal that the runtime makes, backed by the emulator.

Commands run when somebody waits for them. What Metal's validation would stop at is an error here:
pages that are not whole, encoders after their end, groups that are too large, missing arguments."""

from __future__ import annotations

import ctypes
import re
from contextlib import nullcontext
from types import SimpleNamespace

from luminal.emulator.emulated import EmulatedDevice
from luminal.runtime.gpu import M2
from luminal.runtime.metal import PAGE
from tests.cuda_case import library

BUFFER = re.compile(r"(device|constant) (const )?\w+[*&] \w+ \[\[buffer\((\d+)\)\]\]")


class Error:
    """NSError."""

    def __init__(self, text: str) -> None:
        self.text = text

    def localizedDescription(self):
        return self.text


class Pointer:
    """objc.varlist."""

    def __init__(self, address: int) -> None:
        self.address = address

    def as_buffer(self, count: int) -> memoryview:
        return memoryview((ctypes.c_uint8 * count).from_address(self.address)).cast("B")


class Buffer:
    """MTLBuffer."""

    def __init__(self, address: int, length: int, keep: object) -> None:
        self.address, self._length, self.keep = address, length, keep

    def contents(self):
        return Pointer(self.address)


class CompileOptions:
    """MTLCompileOptions."""

    fast = True

    @classmethod
    def alloc(cls):
        return cls()

    def init(self):
        return self

    def setFastMathEnabled_(self, value):
        self.fast = value


class Library:
    """MTLLibrary."""

    def __init__(self, source: str) -> None:
        self.source = source

    def newFunctionWithName_(self, name):
        return self if f"void {name}(" in self.source else None


class Pipeline:
    """MTLComputePipelineState."""

    def __init__(self, function: Library, most: int) -> None:
        self.kernel = EmulatedDevice(M2).load(library(function.source, M2), "")
        self.kinds = {int(n): (space, bool(const))
                      for space, const, n in BUFFER.findall(function.source)}  # fmt: skip
        self.most = most

    def maxTotalThreadsPerThreadgroup(self):
        return self.most


class Encoder:
    """MTLComputeCommandEncoder."""

    def __init__(self, commands: Commands) -> None:
        self.commands, self.open = commands, True
        self.pipeline, self.arguments, self.shared_bytes, self.dirty = None, {}, 0, False

    def setComputePipelineState_(self, pipeline):
        assert self.open and isinstance(pipeline, Pipeline)
        self.pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer, offset, index):
        assert self.open and isinstance(buffer, Buffer)
        assert offset % 4 == 0 and 0 <= offset < buffer._length and index < 31
        self.arguments[index] = (buffer, offset)

    def setBytes_length_atIndex_(self, data, length, index):
        assert self.open and len(data) == length <= 4096 and index < 31
        self.arguments[index] = int.from_bytes(data, "little", signed=True)

    def setThreadgroupMemoryLength_atIndex_(self, length, index):
        assert self.open and length % 16 == 0 and length <= M2.l1_bytes and index == 0
        self.shared_bytes = length

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups, threads):
        assert self.open and self.pipeline is not None and min(*groups, *threads) >= 1
        assert threads[0] <= self.pipeline.most
        assert not self.dirty, "no barrier after the kernel before"
        kinds, words, ranges = self.pipeline.kinds, [], []
        for n in range(len(kinds)):
            space, const = kinds[n]
            given = self.arguments[n]
            assert isinstance(given, int) == (space == "constant")
            words.append(given if isinstance(given, int) else given[0].address + given[1])
            if not isinstance(given, int):
                last = n == len(kinds) - 1  # the error word, which all threads may write
                ranges.append((given[0].address, given[0]._length, int(not const), int(last)))
        self.dirty = True
        run, shared = self.pipeline.kernel.run, self.shared_bytes
        self.commands.work.append(lambda: run(words, ranges, groups[0], threads[0], shared, 32))

    def memoryBarrierWithScope_(self, scope):
        assert self.open and scope == 1
        self.dirty = False

    def endEncoding(self):
        assert self.open
        self.open = False


class Commands:
    """MTLCommandBuffer."""

    def __init__(self, device: Device) -> None:
        self.device, self.work, self.encoder, self.state = device, [], None, 0

    def computeCommandEncoder(self):
        assert self.state == 0 and (self.encoder is None or not self.encoder.open)
        self.encoder = Encoder(self)
        return self.encoder

    def commit(self):
        assert self.state == 0 and not self.encoder.open
        self.state = 2
        self.device.commits += 1

    def waitUntilCompleted(self):
        assert self.state == 2
        self.state = 5 if self.device.broken else 4
        for work in self.work if self.state == 4 else ():
            work()

    def status(self):
        return self.state

    def error(self):
        return Error(self.device.broken) if self.state == 5 else None


class Device:
    """MTLDevice; `shares` says whether it takes foreign pages, `broken` what its commands say."""

    def __init__(self) -> None:
        self.commits = self.shared = self.copied = 0
        self.broken, self.shares, self.most, self.room = "", True, 1024, 1 << 30

    def name(self):
        return "Fake M2"

    def newCommandQueue(self):
        return SimpleNamespace(commandBuffer=lambda: Commands(self))

    def newLibraryWithSource_options_error_(self, source, options, error):
        assert not options.fast and error is None
        return (Library(source), None) if "kernel void" in source else (None, Error("no kernel"))

    def newComputePipelineStateWithFunction_error_(self, function, error):
        return (Pipeline(function, self.most), None) if function else (None, Error("no function"))

    def newBufferWithLength_options_(self, length, options):
        assert length > 0 and options == 0
        if length > self.room:
            return None
        self.copied += 1
        block = (ctypes.c_uint8 * (length + 256))()
        address = ctypes.addressof(block)
        return Buffer(address + -address % 256, length, block)

    def newBufferWithBytesNoCopy_length_options_deallocator_(self, memory, length, options, free):
        address = ctypes.addressof(ctypes.c_uint8.from_buffer(memory))
        assert len(memory) == length and options == 0 and free is None
        if address % PAGE or length % PAGE or not self.shares:
            return None
        self.shared += 1
        return Buffer(address, length, memory)


def modules(device: Device | None):
    """What `import Metal, objc` would give."""
    metal = SimpleNamespace(
        MTLCreateSystemDefaultDevice=lambda: device, MTLCompileOptions=CompileOptions
    )
    return metal, SimpleNamespace(autorelease_pool=nullcontext)
