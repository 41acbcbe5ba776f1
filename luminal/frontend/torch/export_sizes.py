"""Whether a program that was traced as if no size were 1 is right where one is.

In: an exported program. Out: True if every operator, run at size 1 on tensors without data, has the
shape that was traced. `squeeze` is what differs most often.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

__all__ = ["right_at_one"]

_MOST = 4
_OTHER = (5, 7, 11, 13)


def right_at_one(program: ExportedProgram) -> bool:
    """True if the program may be used for all sizes of its ranges, 1 among them."""
    ranges = {s: r for s, r in program.range_constraints.items() if r.lower <= 1 <= r.upper}
    if len(ranges) > _MOST:
        return False
    others = {s: r for s, r in program.range_constraints.items() if s not in ranges}
    fixed = {s: sympy.Integer(max(2, r.lower)) for s, r in others.items()}
    for ones in itertools.product((False, True), repeat=len(ranges)):
        sizes = {s: sympy.Integer(1) if one else min(sympy.Integer(other), r.upper)
                 for (s, r), one, other in zip(ranges.items(), ones, _OTHER)}  # fmt: skip
        if any(ones) and not _Replay(program.graph_module, {**fixed, **sizes}).agrees():
            return False
    return True


class _Differs(Exception):
    """An operator has another shape than was traced."""


class _Replay(Interpreter):
    """Runs a graph at given sizes and compares every shape with what was traced."""

    def __init__(self, gm: GraphModule, sizes: Mapping[Any, Any]) -> None:
        super().__init__(gm)
        self._sizes = sizes

    def agrees(self) -> bool:
        """True if all shapes are those that were traced."""
        inputs = self.module.graph.find_nodes(op="placeholder")
        with FakeTensorMode(allow_non_fake_inputs=True):
            try:
                self.run(*(self._input(n.meta.get("val")) for n in inputs))
            except (_Differs, RuntimeError, ValueError, TypeError, IndexError):
                return False
        return True

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            pairs = zip(_tensors(result), _tensors(n.meta.get("val")), strict=True)
            if any(tuple(r.shape) != self._ints(t.shape) for r, t in pairs):
                raise _Differs
        return result

    def _int(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        found = value.node.expr.subs(self._sizes)
        if not found.is_Integer:
            raise _Differs
        return int(found)

    def _ints(self, values: Any) -> tuple[Any, ...]:
        return tuple(self._int(v) for v in values)

    def _input(self, traced: Any) -> Any:
        if not isinstance(traced, torch.Tensor):
            return self._int(traced)
        sizes, strides = self._ints(traced.shape), self._ints(traced.stride())
        return torch.empty_strided(sizes, strides, dtype=traced.dtype, device=traced.device)


def _tensors(value: object) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
