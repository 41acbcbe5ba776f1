"""Modules: named trees of parameters, compatible with PyTorch's state dicts.

In: parameters set as attributes of `Module` subclasses. Out: `Module` and its containers. The
layers are in `nn_layers`, `nn_attention` and `nn_recurrent`; inference only, nothing is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from luminal.errors import ArgumentError, DTypeError, ShapeError
from luminal.frontend.tensor import Tensor, cast, dtype_of, fail, tensor, tensor_from_bits
from luminal.ir.dtype import DType, bf16, by_name
from luminal.ir.numeric import cast as cast_values
from luminal.ir.numeric import decode, encode

__all__ = [
    "Identity",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "Sequential",
    "array_as_tensor",
    "manual_seed",
]

_random = {"generator": np.random.default_rng(0)}


def manual_seed(seed: int) -> None:
    """Seeds the initial values of parameters that no state dict fills."""
    _random["generator"] = np.random.default_rng(seed)


class Parameter(Tensor):
    """A constant tensor that a `Module` counts among its parameters."""

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        whole = array_as_tensor(data)
        super().__init__(whole.source, whole.index_map)


def uniform(bound: float, *shape: int) -> Parameter:
    """A parameter drawn from [-bound, bound]."""
    drawn = _random["generator"].uniform(-bound, bound, shape)
    return Parameter(np.asarray(drawn, np.float32))


def array_as_tensor(value: Any) -> Tensor:
    """A constant tensor over the memory of a NumPy array, a PyTorch tensor or a bf16 RawArray."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "bits") and hasattr(value, "dtype") and isinstance(value.dtype, str):
        return tensor_from_bits(value.bits, by_name(value.dtype))
    if type(value).__module__.split(".")[0] == "torch":
        torch = sys.modules["torch"]
        value = value.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:
            return tensor_from_bits(value.view(torch.int16).numpy().view(np.uint16), bf16)
        value = value.numpy()
    return tensor(value)


def _converted(x: Tensor, dtype: DType) -> Tensor:
    """A constant in another dtype, converted now."""
    data = getattr(x.source.value, "array", None)
    if data is None or not x.index_map.is_identity:
        return cast(x, dtype)
    return tensor_from_bits(
        encode(cast_values(decode(data, x.dtype), x.dtype, dtype), dtype), dtype
    )


class Module:
    """A function with named parameters; subclasses define `forward`.

    Parameters, buffers and submodules are found by attribute, named as in PyTorch.
    """

    training = False

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor | None] = {}

    def forward(self, *args: Any, **options: Any) -> Any:
        """The computation, on lazy tensors."""
        raise NotImplementedError(f"[nn] {type(self).__name__} has no forward.")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.forward(*args, **options)

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        """A constant that is no parameter; part of the state dict if `persistent`."""
        held = None if value is None else array_as_tensor(value)
        object.__setattr__(self, name, held)
        if persistent:
            self._buffers[name] = held

    def register_parameter(self, name: str, value: Parameter | None) -> None:
        """The same as setting the attribute."""
        setattr(self, name, value)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The submodules by name."""
        return ((n, m) for n, m in vars(self).items() if isinstance(m, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (m for _, m in self.named_modules())

    def _places(self, buffers: bool) -> Iterator[tuple[str, Module, str, Tensor]]:
        """(full name, owner, attribute, value) of all parameters, or of parameters and buffers."""
        for prefix, owner in self.named_modules():
            for name, value in vars(owner).items():
                held = isinstance(value, Parameter) or (
                    buffers and name in owner._buffers and isinstance(value, Tensor)
                )
                if held:
                    yield (f"{prefix}.{name}" if prefix else name), owner, name, value

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters by full name."""
        return ((full, value) for full, _, _, value in self._places(False))

    def parameters(self) -> Iterator[Tensor]:
        """All parameters."""
        return (value for _, value in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """All parameters and buffers by full name."""
        return {full: value for full, _, _, value in self._places(True)}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Takes parameters and buffers from arrays or PyTorch tensors, converted to each's dtype.

        ArgumentError on missing or unknown names (if strict), ShapeError on a wrong shape."""
        places = list(self._places(True))
        missing = [full for full, _, _, _ in places if full not in state]
        unknown = [name for name in state if name not in {p[0] for p in places}]
        unknown = [n for n in unknown if not n.endswith("num_batches_tracked")]
        if strict and (missing or unknown):
            text = f"names do not fit {type(self).__name__}. Missing: {missing[:8]}"
            raise fail(ArgumentError, "load_state_dict", f"{text}; unknown: {unknown[:8]}.")
        for full, owner, name, old in places:
            if full not in state:
                continue
            new = array_as_tensor(state[full])
            if new.dims != old.dims:
                text = f"{full} does not fit. Got {list(new.shape)}; expected {list(old.shape)}."
                raise fail(ShapeError, "load_state_dict", text)
            owner._put(name, _converted(new, old.dtype), isinstance(old, Parameter))

    def _put(self, name: str, value: Tensor, parameter: bool) -> None:
        if parameter:
            object.__setattr__(self, name, Parameter(value))
        else:
            object.__setattr__(self, name, value)
            self._buffers[name] = value

    def to(self, dtype: DType | str) -> Module:
        """This module with its float parameters and buffers converted."""
        want = dtype_of(dtype)
        if not want.is_float or want.storage:
            raise fail(DTypeError, "to", f"parameters are floats. Got {want}.")
        for _, owner, name, value in list(self._places(True)):
            if value.dtype.is_float:
                owner._put(name, _converted(value, want), isinstance(value, Parameter))
        return self

    def apply(self, function: Callable[[Module], object]) -> Module:
        """Calls a function on this module and all below it."""
        for module in list(self.modules()):
            function(module)
        return self

    def eval(self) -> Module:
        """This module: inference is all there is."""
        return self

    def __repr__(self) -> str:
        inner = "".join(f"\n  ({n}): " + repr(m).replace("\n", "\n  ") for n, m in self.children())
        return f"{type(self).__name__}({inner}\n)" if inner else f"{type(self).__name__}()"


class Identity(Module):
    """x itself."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """x."""
        return x


class ModuleList(Module):
    """Modules by number."""

    def __init__(self, modules: Sequence[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def _items(self) -> list[Module]:
        return [m for _, m in self.children()]

    def append(self, module: Module) -> ModuleList:
        """One more module."""
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items())

    def __getitem__(self, key: int | slice) -> Any:
        found = self._items()[key]
        return type(self)._of(found) if isinstance(found, list) else found

    @classmethod
    def _of(cls, modules: list[Module]) -> Module:
        return cls(modules)


class Sequential(ModuleList):
    """Modules applied one after another; also from a dict of names."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else {}
        for name, module in named.items() if named else enumerate(modules):
            setattr(self, str(name), module)

    @classmethod
    def _of(cls, modules: list[Module]) -> Module:
        return cls(*modules)

    def forward(self, x: Any) -> Any:
        """The last module's result."""
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for name, module in (modules or {}).items():
            setattr(self, name, module)

    def __getitem__(self, name: str) -> Module:
        return dict(self.children())[name]

    def __setitem__(self, name: str, module: Module) -> None:
        setattr(self, name, module)

    def __len__(self) -> int:
        return len(list(self.children()))

    def __iter__(self) -> Iterator[str]:
        return (n for n, _ in self.children())
