"""`luminal.build`: an exported model as an object and a shared library with a C interface.

In: a file that `luminal.export` wrote. Out: objects, a library, a C header and an example, none of
which needs Python. Linux libraries are linked here, others by the system's `cc`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from luminal import __version__
from luminal.aot import c_text
from luminal.aot.container import Container, fail, read_container
from luminal.aot.elf import link_shared
from luminal.aot.elf_object import data_object, read_object
from luminal.aot.exporting import compiled_for
from luminal.aot.library import Interface, functions, stamp
from luminal.aot.loading import stored_program, system_of, this_system
from luminal.aot.stored import unpacked
from luminal.aot.targets import parse_target
from luminal.config import from_environment
from luminal.errors import ArgumentError, DeviceError, UnsupportedError
from luminal.frontend.traced import Traced
from luminal.ir.dtype import by_name
from luminal.ir.graph import ConstantData
from luminal.ir.program import Program
from luminal.ir.target import Target
from luminal.ir.text import parse_graph
from luminal.runtime.cpu import compile_object, llvm
from luminal.runtime.executor import Executor

__all__ = ["build"]

_SUFFIX = {"linux": ".so", "macos": ".dylib", "windows": ".dll"}
_MATHS = {"fmod", "fmodf", "sin", "sinf"}


def build(
    model: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *,
    shared_library: bool = False, name: str | None = None, weights: str = "embed",
    target: str | None = None,
) -> list[Path]:  # fmt: skip
    """Write the files of a C library for an exported model; returns their paths.

    There is always an object, a header and an example beside `output`; `shared_library` links it
    too. `name` is the prefix of the C functions (by default from the file's name). `weights` is
    'embed' or 'file': a file that is mapped when the model is loaded. `target` compiles for
    another machine, as in `luminal.export`.

    >>> import luminal, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> example = [np.ones(3, np.float32)]
    >>> file = luminal.export(lambda x: x * 2, example, folder / "double.lum", search="off")
    >>> [p.name for p in build(file, folder / "double.o", target="aarch64-linux")]
    ['double.o', 'double_weights.o', 'double.h', 'double_example.c']
    """
    if weights not in ("embed", "file"):
        raise ArgumentError(f"[build] weights. Got {weights!r}; expected 'embed' or 'file'.")
    container = read_container(Path(model))
    if container.header["luminal"] != __version__:
        raise fail(container.path, f"written by luminal {container.header['luminal']}, this is "
                   f"{__version__}")  # fmt: skip
    name = _identifier(name or container.path.stem)
    program, sources = _program(container, parse_target(target) if target else None)
    system = system_of(program.target.triple)
    suffix = _SUFFIX[system.split("-")[1]] if shared_library else ".o"
    output = (
        Path(output) if output else Path(f"lib{name}{suffix}" if shared_library else f"{name}.o")
    )
    made = _Library(container, program, sources, name, weights == "embed")
    try:
        return made.write(output, shared_library)
    except OSError as error:
        raise ArgumentError(
            f"[build] cannot write {error.filename or output}. Got {error.strerror}; expected a "
            f"writeable folder. Try another output with -o."
        ) from None


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if not plain[:1].isdigit() else f"m{plain}"


def _program(container: Container, machine: Target | None) -> tuple[Program, list[str]]:
    """The stored program and the text of its kernels, or those for another machine."""
    if machine is None:
        text = zlib.decompress(container.checked("sources")).decode()
        program = stored_program(container)
        return program, text.split("\0") if program.codes else []
    data = _constants(container)
    try:
        graph = parse_graph(bytes(container.checked("graph")).decode(), data)
    except ValueError as error:
        raise UnsupportedError(
            f"[build] the model's constants are packed for the machine it was exported on "
            f"({error}). Try luminal.export(..., target=...)."
        ) from None
    traced = Traced(graph, 0, dict(container.header["hints"]), ())
    program, _ = compiled_for(traced, from_environment(), machine)
    return program, [code.source for code in program.codes]


def _constants(container: Container) -> dict[str, ConstantData]:
    """The model's constants as they were, by name."""
    held = stored_program(container).plan
    found: dict[str, ConstantData] = {}
    for row in container.header["program"]["buffers"]:
        data = held.buffer(row["name"]).data
        if data is None or row["data"]["name"] in found:
            continue
        array, layout = data.array, tuple((d, t) for d, t in row.get("layout", ()))
        if layout and "offset" in row["data"]:
            if by_name(row["dtype"]).bits == 4:
                continue
            array = unpacked(array, row["data"]["full"], layout)
        found[row["data"]["name"]] = ConstantData(row["data"]["name"], array)
    return found


class _Library:
    """The pieces of one library."""

    def __init__(
        self, container: Container, program: Program, sources: Sequence[str], name: str, embed: bool
    ) -> None:
        self.container, self.program, self.sources, self.name = container, program, sources, name
        symbols = [code.name + s for code in program.codes for s in ("", "_grid", "_cost")]
        executor = Executor(program, dict.fromkeys(symbols, 0), 1)
        self.arrays = [*executor.constants.values()]
        self.offsets, self.size_bytes = _offsets(self.arrays)
        self.checksum = 0
        for piece in self.pieces():
            self.checksum = zlib.crc32(piece, self.checksum)
        self.interface = Interface(
            name, executor, tuple(self.offsets), self.size_bytes, self.checksum, embed,
            len(container.header["checks"]),
        )  # fmt: skip

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes of the weights."""
        place = 0
        for offset, array in zip(self.offsets, self.arrays, strict=True):
            if offset < place:  # shared with an earlier one
                continue
            yield bytes(offset - place)
            yield memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            place = offset + array.nbytes
        yield bytes(self.size_bytes - place)

    def write(self, output: Path, shared: bool) -> list[Path]:
        """Writes all files."""
        folder, system = output.parent, system_of(self.program.target.triple)
        if not folder.is_dir():
            raise ArgumentError(f"[build] no such folder. Got {folder}. Try making it first.")
        if output.is_dir():
            raise ArgumentError(f"[build] the output is a folder. Got {output}; expected a file. "
                                f"Try -o {output / output.name}.so.")  # fmt: skip
        code = compile_object(self._joined(), self.program.target)
        written = [output.with_suffix(".o")]
        written[0].write_bytes(code)
        own_linker = shared and system.endswith("linux")
        if self.interface.embedded and not own_linker:
            written.append(folder / f"{written[0].stem}_weights.o")
            self._weights_object(written[1])
        if own_linker:
            self._link(code, output)
        elif shared:
            _link_by_system(output, written, system)
        written += [output] * shared
        if not self.interface.embedded:
            written.append(folder / f"{self.name}.weights")
            self._weights_file(written[-1])
        header, example = folder / f"{self.name}.h", folder / f"{self.name}_example.c"
        header.write_text(c_text.header(self.interface, self.container.header["names"]))
        example.write_text(c_text.example(self.interface, self.container.header["names"]))
        return [*written, header, example]

    def _joined(self) -> str:
        """One module in which only the interface can be seen from outside."""
        binding = llvm()
        context = binding.create_context()
        try:
            module = binding.parse_assembly(self.interface.text(), context)
            for source in self.sources:
                module.link_in(binding.parse_assembly(source, context))
        except RuntimeError as error:
            raise UnsupportedError(f"[build] LLVM does not join the kernels: {error}") from None
        shown = functions(self.name)
        for function in module.functions:
            if not function.is_declaration and function.name not in shown:
                function.linkage = "internal"
        return str(module)

    def _link(self, code: bytes, output: Path) -> None:
        used = {s.name for s in read_object(code).symbols if s.is_global and s.section is None}
        tail = (self.interface.weights, self.size_bytes) if self.interface.embedded else None
        image = link_shared(
            [code], functions(self.name), soname=output.name, tail=tail,
            needed=["libm.so.6"] if used & _MATHS else [],
        )  # fmt: skip
        with output.open("wb") as file:
            file.write(image)
            for piece in self.pieces() if tail else ():
                file.write(piece)

    def _weights_object(self, path: Path) -> None:
        """Writes an object with nothing but the weights."""
        triple = self.program.target.triple
        if "linux" in triple:
            machine = 62 if triple.startswith("x86_64") else 183
            before, after = data_object(machine, self.interface.weights, self.size_bytes)
            with path.open("wb") as file:
                file.writelines([before, *self.pieces(), after])
            return
        data = b"".join(self.pieces()).hex("\\")
        text = (f"@{self.interface.weights} = hidden constant [{self.size_bytes} x i8] "
                f'c"{chr(92) * bool(data)}{data}", align 64\n')  # fmt: skip
        path.write_bytes(compile_object(text, self.program.target))

    def _weights_file(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(stamp(self.size_bytes, self.checksum) + bytes(32))
            for piece in self.pieces():
                file.write(piece)


def _offsets(arrays: Sequence[np.ndarray]) -> tuple[list[int], int]:
    """Where each array lies, aligned, each once; and the bytes of all."""
    known: dict[int, int] = {}
    found, end = [], 0
    for array in arrays:
        key = array.ctypes.data if array.nbytes else -1
        if key not in known:
            known[key] = end + -end % 64
            end = known[key] + array.nbytes
        found.append(known[key])
    return found, max(end, 1)


def _link_by_system(output: Path, objects: Sequence[Path], system: str) -> None:
    """By `cc`, where it links for that system."""
    listed = [str(o) for o in objects]
    flag = "-dynamiclib" if system.endswith("macos") else "-shared"
    command = ["cc", flag, "-o", str(output), *listed]
    if system != this_system() or shutil.which("cc") is None:
        raise DeviceError(
            f"[build] this machine does not link for {system}. Got the objects {listed}; expected "
            f"cc there. Try '{' '.join(command)}' on a machine with that system."
        )
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise DeviceError(f"[build] {' '.join(command)} failed: {done.stderr.strip()[-500:]}")
