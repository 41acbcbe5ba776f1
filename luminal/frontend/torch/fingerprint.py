"""The fingerprint of a graph from Dynamo: equal only if PyTorch would trace to the same program.

In: Dynamo's graph, its example inputs, options. Out: a key, or None where not everything that the
result depends on is known: foreign functions, subclasses of tensors, modes, sizes without value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch._dynamo.symbolic_convert import TensorifyState
from torch.fx import GraphModule, Node

from luminal.config import Config
from luminal.frontend.torch.positions import at, put
from luminal.frontend.torch.prepass import interpolate
from luminal.programs import digest, versions

__all__ = ["Unknown", "fingerprint", "shape_environment", "text_of", "token"]

_SPACES = (torch, torch.nn.functional, torch._C._nn, torch._C._linalg, torch._C._fft,
           torch._C._special, operator, math)  # fmt: skip
_PLAIN = (bool, int, str, complex, type(None), type(Ellipsis), torch.dtype, torch.device,
          torch.layout, torch.memory_format)  # fmt: skip
_LISTS = {list: "list", tuple: "tuple", torch.Size: "Size",
          torch.fx.immutable_collections.immutable_list: "list"}  # fmt: skip
_DICTS = (dict, torch.fx.immutable_collections.immutable_dict)
_ATTRIBUTES = ("T", "mT", "H", "mH", "shape")
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Unknown(Exception):
    """Something that a key cannot tell."""


def fingerprint(
    gm: GraphModule, inputs: Sequence[object], config: Config, *options: object
) -> str | None:
    """The key under which what became of this graph is stored, or None."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None
    try:
        graph = [_node(n, gm) for n in gm.graph.nodes]
        given = [_input(x) for x in inputs]
        sizes = _sizes()
    except Unknown:
        return None
    settings = (config.search, config.numerics, config.threads, config.seed, config.isa)
    return digest(versions(), torch.__version__, torch.version.git_version, graph, given, sizes,
                  _state(), settings, options)  # fmt: skip


def _node(node: Node, gm: GraphModule) -> tuple[object, ...]:
    static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
    if node.op == "placeholder":
        return node.op, node.name, str(static), *_traced(node.meta.get("example_value"))
    return node.op, node.name, token(node), text_of(node.args), text_of(node.kwargs)


def token(node: Node) -> str:
    """What a node calls, the same in any process; Unknown if that is not known."""
    if node.target is getattr and node.args[1] in _ATTRIBUTES:
        return "getattr"
    if node.op == "call_function":
        return _function(node.target)
    if node.op in ("call_method", "output"):
        return str(node.target)
    raise Unknown


def _function(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        return str(target)
    if isinstance(target, (BuiltinFunctionType, FunctionType, type(torch.add))):
        ours = isinstance(target, FunctionType) and not target.__module__.startswith("torch")
        for space in () if ours else _SPACES:
            if getattr(space, target.__name__, None) is target:
                return f"{space.__name__}.{target.__name__}"
    if target in (interpolate, at, put):
        return f"luminal.{target.__name__}"
    raise Unknown


def text_of(value: object, name: Callable[[Node], str] = lambda n: f"%{n.name}") -> str:
    """The value as text; kinds are told apart. Nodes are called what `name` says."""

    def text(value: object) -> str:
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is Node:
            return name(value)  # type: ignore[arg-type]
        if kind is float:
            return value.hex()  # type: ignore[attr-defined]
        if kind in _LISTS:
            return f"{_LISTS[kind]}({','.join(map(text, value))})"  # type: ignore[call-overload]
        if kind in _DICTS:
            pairs = (f"{text(k)}:{text(v)}" for k, v in value.items())  # type: ignore[attr-defined]
            return f"dict({','.join(pairs)})"
        if kind is slice:
            return f"slice{text((value.start, value.stop, value.step))}"  # type: ignore[attr-defined]
        raise Unknown

    return text(value)


def _traced(fake: object) -> tuple[str, ...]:
    """Sizes and strides as Dynamo knows them: numbers or symbols."""
    if isinstance(fake, torch.Tensor):
        return str(fake.shape), str(fake.stride()), str(fake.storage_offset())
    return (str(fake),)


def _input(x: object) -> tuple[object, ...]:
    if isinstance(x, torch.SymInt) or type(x) is int:
        return "size", str(x)
    if not isinstance(x, torch.Tensor) or type(x) not in _TENSORS or x.layout != torch.strided:
        raise Unknown
    if x.is_conj() or x.is_neg() or x.is_nested:
        raise Unknown
    return type(x).__name__, str(x.dtype), str(x.device), x.requires_grad, x.is_inference()


def _sizes() -> list[str]:
    """What is known of symbolic sizes: their ranges, values, equalities and guards so far."""
    environment = shape_environment()
    if environment is None:
        raise Unknown
    values = environment.backed_var_to_val
    if not environment.var_to_range.keys() <= values.keys() or environment.deferred_runtime_asserts:
        raise Unknown
    parts = [values, environment.var_to_range, environment.replacements]
    known = [str(sorted(p.items(), key=str)) for p in parts]
    fixed = sorted(TensorifyState.force_specializations)
    return known + [str(g.expr) for g in environment.guards] + fixed


def shape_environment() -> Any:
    """The shape environment of the graph that Dynamo is compiling, or None."""
    context = torch._guards.TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    return mode.shape_env if mode is not None else None


def _state() -> tuple[object, ...]:
    """What tracing reads from PyTorch's global state."""
    devices = ("cpu", "cuda")
    autocast = [torch.is_autocast_enabled(d) and torch.get_autocast_dtype(d) for d in devices]
    backends = torch.backends
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast,
        torch.get_default_dtype(), str(torch.get_default_device()),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.get_float32_matmul_precision(), backends.mha.get_fastpath_enabled(),
        torch._C._get_mkldnn_enabled(), torch._C._get_flash_sdp_enabled(),
        torch._C._get_math_sdp_enabled(), torch._C._get_mem_efficient_sdp_enabled(),
        torch._functorch.config.get_hash(), torch.fx.experimental._config.get_hash(),
    )  # fmt: skip
