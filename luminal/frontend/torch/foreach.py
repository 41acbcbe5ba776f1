"""Operators on lists of tensors (`_foreach_add`, …), as optimisers use them, as decompositions.

In: lists of tensors, and of numbers. Out: a list of what the operator on single tensors gives,
which is what ATen's kernels do on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["table"]

_PREFIX = "aten::_foreach_"
_OTHER_NAMES = {"norm": "linalg_vector_norm"}
_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}
_APART = {"copy", "zero", "mm", "powsum"}


def _each(function: Callable[..., object], schema: torch.FunctionSchema) -> Callable[..., object]:
    """`function` of every element of the arguments that are lists."""
    listed = [str(a.type).startswith("List") for a in schema.arguments]
    value = 3 if "addc" in schema.name else len(listed)

    def decomposition(*args: object, **kwargs: object) -> object:
        count = next(len(a) for a, many in zip(args, listed, strict=False) if many)  # type: ignore[arg-type]
        out = []
        for k in range(count):
            row = [a[k] if many else a for a, many in zip(args, listed, strict=False)]  # type: ignore[index]
            named = {"value": row[value]} if value < len(row) else {}
            out.append(function(*row[:value], **named, **kwargs))
        return out

    return decomposition


def table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """The decompositions, by overload."""
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, kind = full.removeprefix(_PREFIX).partition(".")
        of_tensor = kind == "Tensor" and "addc" in name  # numbers in a tensor
        if not full.startswith(_PREFIX) or name.endswith("_") or kind.endswith("out"):
            continue
        single = _OF_NUMBERS.get(name, name) if kind.startswith("Scalar") else name
        function = getattr(torch.ops.aten, _OTHER_NAMES.get(single, single), None)
        if function is None or name in _APART or of_tensor:
            continue
        overload = getattr(getattr(torch.ops.aten, f"_foreach_{name}"), kind or "default")
        found[overload] = _each(function, overload._schema)
    return found
