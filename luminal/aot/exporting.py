"""`luminal.export`: a model becomes one file of machine code, weights and signature.

In: a PyTorch model or exported program, a `luminal.nn` module or a function of lazy tensors, and
example inputs. Out: a file for `luminal.load` and `luminal.build`. Anything that would need its
frontend again when it is loaded is an error here.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from luminal import __version__
from luminal.aot import features
from luminal.aot.container import write_container
from luminal.aot.elf import link_shared
from luminal.aot.safetensors import matching, write_safetensors
from luminal.aot.stored import program_json
from luminal.aot.structure import structure_json
from luminal.aot.targets import parse_target
from luminal.codegen.generate import generate
from luminal.compiler import alternatives, bind_weights, compile_graph, search_plan
from luminal.config import Config, from_environment
from luminal.errors import ArgumentError
from luminal.frontend.traced import Traced
from luminal.function import trace_function
from luminal.ir.graph import ConstantData
from luminal.ir.plan import Buffer
from luminal.ir.program import Program
from luminal.ir.target import Target
from luminal.ir.text import graph_text, plan_text
from luminal.programs import ProgramCache
from luminal.runtime.memory import constant_array
from luminal.runtime.native import ENTRIES, PYTHON_API, runtime_text

__all__ = ["compiled_for", "export", "write_program"]


def export(
    model: Any, example_inputs: Any, path: str | os.PathLike[str], *, dynamic_shapes: Any = None,
    weights: str | os.PathLike[str] | None = None, target: str | None = None,
    search: str | float | None = None, numerics: str | None = None, threads: int | None = None,
    seed: int | None = None,
) -> Path:  # fmt: skip
    """Compile a model and write it to one file, which `luminal.load` opens without a compiler.

    `model` is a `torch.nn.Module`, a function of torch tensors or a `torch.export.ExportedProgram`
    (then the examples may be None), a `luminal.nn.Module` or a function of lazy tensors.
    `example_inputs` is a list or tuple, or for PyTorch a dict of keyword arguments;
    `dynamic_shapes` as in `luminal.compile` (or torch.export), by position or name. `weights`
    names a safetensors file beside `path` that holds the weights (it is written if there is none);
    by default they are in the file. `target` is another machine: 'aarch64-linux',
    'x86_64-linux:avx2', 'aarch64-macos', ... Other settings as in `luminal.compile`.

    UnsupportedError, naming the operators, where something could not be compiled.

    >>> import luminal, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "double.lum"
    >>> _ = export(lambda x: x * 2, [np.ones(3, np.float32)], path, search="off")
    >>> luminal.load(path)(np.array([1, 2, 3], np.float32)).tolist()
    [2.0, 4.0, 6.0]
    """
    config = from_environment().override(
        search=search, numerics=numerics, threads=threads, seed=seed
    )
    machine = parse_target(target) if target else None
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(f"[export] no such folder. Got {path.parent}. Try making it first.")
    traced = _trace(model, example_inputs, dynamic_shapes)
    structure = structure_json(traced.structure)
    program, graph = compiled_for(traced, config, machine)
    file = Path(weights) if weights else None
    write_program(path, program, config, graph, file, {
        "names": list(traced.names), "structure": structure, "hints": traced.hints,
        "checks": traced.checks,
    })  # fmt: skip
    return path


# ---- frontends


def _trace(model: Any, example_inputs: Any, dynamic_shapes: Any) -> Traced:
    if "torch" in sys.modules:
        frontend = import_module("luminal.frontend.torch.export")
        if frontend.accepts(model, example_inputs):
            return frontend.trace_model(model, example_inputs, dynamic_shapes)
    if not callable(model):
        raise ArgumentError(
            f"[export] not a model. Got {type(model).__name__}; expected a module, an exported "
            "program or a function of tensors."
        )
    traced = trace_function(model, example_inputs, dynamic_shapes)
    names = _parameter_names(model, len(traced.names)) or traced.names
    return replace(traced, names=names, graph=_named_weights(traced, model))


def _parameter_names(model: Any, count: int) -> tuple[str, ...]:
    """The names of the function's parameters, if it takes just `count` plain ones."""
    try:
        parameters = signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):
        return ()
    plain = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in parameters if p.kind in plain)
    return names[:count] if len(names) >= count else ()


def _named_weights(traced: Traced, model: Any) -> Any:
    """The graph whose constants have the names that they have in the model."""
    state = getattr(model, "state_dict", dict)()
    names = {id(t.source.value.array): name for name, t in state.items()
             if isinstance(t.source.value, ConstantData)}  # fmt: skip
    nodes = []
    for node in traced.graph.nodes:
        if isinstance(node.value, ConstantData) and id(node.value.array) in names:
            name = names[id(node.value.array)]
            node = replace(node, name=name, value=ConstantData(name, node.value.array))
        nodes.append(node)
    return replace(traced.graph, nodes=tuple(nodes))


# ---- compiling


def compiled_for(traced: Traced, config: Config, machine: Target | None) -> tuple[Program, str]:
    """The program for this machine (measured, as by `luminal.compile`) or, chosen by the model
    alone, for another one; and the text of its graph."""
    if machine is None:
        compiled = compile_graph(traced.graph, config, hints=traced.hints, weights=traced.weights)
        return compiled.program, graph_text(compiled.graph)
    graph, _ = bind_weights(traced.graph, traced.weights)
    off, hints = config.override(search="off"), dict(traced.hints)
    plan = search_plan(graph, off, machine, ProgramCache(off, machine), hints, _quiet)
    return generate(plan, machine, alternatives(plan, machine, hints)), graph_text(graph)


def _quiet(text: str, share: float) -> None:
    """Progress that nobody sees."""


def write_program(
    path: Path, program: Program, config: Config, graph: str, file: Path | None,
    facts: Mapping[str, Any],
) -> None:  # fmt: skip
    """Writes the container of a program."""
    constants = {b.name: b for b in program.plan.buffers if b.data is not None}
    if file is None:
        places, pieces = _embedded(constants.values())
    else:
        places, pieces = _referred(constants.values(), path, file), lambda: iter(())
    code, objects = _machine_code(program, config)
    header = {
        "luminal": __version__, "target": asdict(program.target), **facts,
        "features": [asdict(row) for row in features.rows(program.target)],
        "code": "objects" if objects else "shared", "objects": objects,
        "program": program_json(program, places),
    }  # fmt: skip
    sources = "\0".join(c.source for c in program.codes)
    write_container(path, header, {
        "code": [code], "plan": [plan_text(program.plan).encode()],
        "graph": [graph.encode()], "sources": [zlib.compress(sources.encode(), 3)],
        "weights": pieces(),
    })  # fmt: skip


def _machine_code(program: Program, config: Config) -> tuple[bytes, list[int]]:
    """A shared library for Linux, with no list; elsewhere objects one after another, and sizes."""
    target = program.target
    cache = ProgramCache(config, target)
    texts = [*(c.source for c in program.codes), runtime_text(target.triple),
             features.check_text(target)]  # fmt: skip
    objects = [cache.machine_code(text, target) for text in texts]
    if "linux" not in target.triple:
        return b"".join(objects), [len(o) for o in objects]
    names = [c.name + s for c in program.codes for s in ("", "_grid", "_cost")]
    shown = [*names, *ENTRIES, "lm_entry", "lm_missing"]
    return link_shared(objects, shown, weak=PYTHON_API), []


# ---- weights


Places = dict[str, dict[str, Any]]


def _embedded(constants: Iterable[Buffer]) -> tuple[Places, Callable[[], Iterator[memoryview]]]:
    """Where each constant lies in the section, and its bytes, padded to 64 between them."""
    places: Places = {}
    known: dict[int, dict[str, Any]] = {}
    arrays: list[tuple[int, np.ndarray]] = []
    end = 0
    for b in constants:
        assert b.data is not None
        array = np.ascontiguousarray(constant_array(b, b.data.array))
        if id(array) not in known:
            offset = end + -end % 64
            known[id(array)] = {"dtype": array.dtype.name, "shape": [*array.shape],
                                "offset": offset}  # fmt: skip
            arrays.append((offset, array))
            end = offset + array.nbytes
        places[b.name] = {"name": b.data.name, "full": [*b.data.array.shape], **known[id(array)]}

    def pieces() -> Iterator[memoryview]:
        place = 0
        for offset, array in arrays:
            yield memoryview(bytes(offset - place))
            yield memoryview(array.reshape(-1).view(np.uint8))
            place = offset + array.nbytes

    return places, pieces


def _referred(constants: Sequence[Buffer] | Iterable[Buffer], path: Path, file: Path) -> Places:
    """The tensors of a safetensors file that hold the constants; it is written if there is none."""
    if file.parent != Path() and file.parent.resolve() != path.parent.resolve():
        raise ArgumentError(
            f"[export] weights must lie beside the exported file. Got {file}; expected a file in "
            f"{path.parent}."
        )
    file = path.parent / file.name
    held = {b.data.name: (b.data.array, b.dtype.name) for b in constants if b.data is not None}
    if not file.exists():
        write_safetensors(file, held)
    tensors = matching(file, held)
    return {b.name: {"name": b.data.name, "file": file.name, "tensor": tensors[b.data.name],
                     "dtype": b.data.array.dtype.name, "shape": [*b.data.array.shape]}
            for b in constants if b.data is not None}  # fmt: skip
