"""Translation of one phase: ATen nodes to luminal tensors, by the table in `aten`.

In: a phase, the nodes whose values later code needs. Out: a `Part`. A node that cannot be
translated is put into `refused` with the reason, and the caller splits again.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from luminal.errors import LuminalError, UnsupportedError
from luminal.frontend.tensor import Tensor, broadcast, cast, scalar, to_graph, update
from luminal.frontend.torch.aten import Call, Pair, lookup, relabelled
from luminal.frontend.torch.aten.pairs import joined, parted
from luminal.frontend.torch.layout import DTYPES, PARTS, input_tensor, memory_order
from luminal.frontend.torch.nodes import has_effect, is_scalar_math, tensors_of, value_of, view_base
from luminal.frontend.torch.part import OutputSpec, Part
from luminal.frontend.torch.phases import Phase
from luminal.frontend.torch.scalars import float_of
from luminal.frontend.torch.symbols import SYMBOLIC, Symbols, free_symbols, sympy_of
from luminal.frontend.views import permute
from luminal.ir.expr import Expr
from luminal.ir.view import Shape

__all__ = ["Translator", "refusal"]

_FAILURES = (
    LuminalError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
)


def refusal(node: Node, symbols: Symbols) -> str | None:
    """Why a node cannot be compiled as far as its metadata tells, or None."""
    if node.target is operator.getitem:
        return None
    if lookup(node.target, _has_pairs(node)) is None and not _computes_nothing(node):
        return "not in the table"
    values = [value_of(node), *(value_of(n) for n in node.all_input_nodes)]
    if "unbacked_bindings" in node.meta or not all(symbols.known(v) for v in values):
        return "sizes that depend on data"
    for tensor in tensors_of(values):
        if tensor.device != symbols.device:
            return f"device {tensor.device}"
        if tensor.layout != torch.strided or tensor.dtype not in DTYPES | PARTS:
            return f"{tensor.layout} {tensor.dtype}"
        if tensor.is_neg() or (tensor.is_conj() and node.op == "placeholder"):
            return "a negated or conjugated view"
    return None


@dataclass(slots=True)
class Translator:
    """Translates the nodes of one phase; `refused` collects what fails, with reasons."""

    gm: GraphModule
    symbols: Symbols
    phase: Phase
    views_refused: set[Node]
    refused: dict[Node, str] = field(default_factory=dict)
    _inside: set[Node] = field(default_factory=set)
    _values: dict[Node, object] = field(default_factory=dict)
    _memory: dict[Node, Tensor] = field(default_factory=dict)
    _errors: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def part(self, needed: Sequence[Node], updates: Mapping[Node, Node]) -> Part | None:
        """The part whose results are `needed`; `updates` gives the inputs that nodes overwrite.

        None if something was refused.
        """
        self._inside = set(self.phase.nodes)
        for node in self.phase.nodes:
            self.value(node)
        if self.refused:
            return None
        outputs, specs = [], []
        for node in needed:
            if value_of(node).is_conj():  # type: ignore[attr-defined]
                self.refused[node] = "a conjugated view as a result"
                return None
            tensor, dense = self._stored(node)
            outputs.append(tensor)
            specs.append(OutputSpec(node, dense))
        for node, target in updates.items():
            self.value(target)
            stored = self.value(node).through(self._order(target))  # type: ignore[attr-defined]
            outputs.append(update(self._memory[target], stored))
            specs.append(OutputSpec(node, True, target))
        for error, condition in self._errors.items():
            outputs.append(condition)
            specs.append(OutputSpec(None, error=error))
        if self.refused:
            return None
        inputs = list(self._memory)
        graph = to_graph(outputs, list(self._memory.values()))
        dims = tuple(v.name for v in graph.dims)
        return Part(graph, inputs, specs, dims, names={n: n.name for n in inputs})

    def _order(self, node: Node) -> object:
        fake = value_of(node)
        sizes, strides = self.symbols.exprs(fake.shape), self.symbols.exprs(fake.stride())  # type: ignore[attr-defined]
        order = memory_order(sizes, strides)
        return permute(sizes, order if order is not None else tuple(range(len(sizes))))

    def _stored(self, node: Node) -> tuple[Tensor, bool]:
        """The value as it lies in memory, and whether that has the traced strides."""
        fake, value = value_of(node), self.value(node)
        if isinstance(value, Pair):
            fake, value = torch.view_as_real(fake), joined(value)  # type: ignore[arg-type]
        sizes, strides = self.symbols.exprs(fake.shape), self.symbols.exprs(fake.stride())  # type: ignore[attr-defined]
        order = memory_order(sizes, strides)
        if order is None or order == tuple(range(len(sizes))):
            return value, order is not None  # type: ignore[return-value]
        return value.through(permute(sizes, order)), True  # type: ignore[attr-defined]

    def value(self, node: Node) -> object:
        """The luminal value of a node: a tensor, a tuple of tensors, a number or an Expr."""
        if is_scalar_math(node) or isinstance(value_of(node), SYMBOLIC):
            return self._number(value_of(node))
        if node not in self._values:
            self._values[node] = self._translated(node)
        return self._values[node]

    def _translated(self, node: Node) -> object:
        base = view_base(node, self.views_refused)
        if node not in self._inside and base is None:
            return self._input(node)
        try:
            result = self._call(node)
        except _FAILURES as error:
            self.refused[node] = f"{type(error).__name__}: {error}"[:300]
            result = self._stand_in(value_of(node))
        return result

    def _stand_in(self, fake: object) -> object:
        """Inputs in place of results, so that whatever else must be refused is found as well."""
        if isinstance(fake, (list, tuple)):
            return [self._stand_in(f) for f in fake]
        if isinstance(fake, torch.Tensor) and fake.dtype in PARTS:
            zero = scalar(0, PARTS[fake.dtype])
            return Pair(*[broadcast(zero, self.symbols.exprs(fake.shape))] * 2)
        if isinstance(fake, torch.Tensor) and fake.dtype in DTYPES:
            return input_tensor("stand_in", fake, self.symbols)[1]
        return None

    def _input(self, node: Node) -> object:
        if node.op == "get_attr":
            found = getattr(self.gm, str(node.target))
            if isinstance(found, torch.Tensor) and not found.dim() and found.dtype in DTYPES:
                return scalar(found.item(), DTYPES[found.dtype])
        fake = value_of(node)
        pair = fake.dtype in PARTS  # type: ignore[attr-defined]
        real = torch.view_as_real(fake) if pair else fake  # type: ignore[arg-type]
        memory, seen = input_tensor(node.name, real, self.symbols)  # type: ignore[arg-type]
        self._memory[node] = memory
        return parted(seen) if pair else seen

    def _number(self, value: object) -> object:
        if isinstance(value, torch.SymInt):
            expr = self.symbols.expr(value)
            return expr if expr.value is None else expr.value
        if isinstance(value, SYMBOLIC):
            if free_symbols(value) and isinstance(value, torch.SymFloat):
                return float_of(sympy_of(value), self.symbols)
            if free_symbols(value):
                raise UnsupportedError("[torch] a scalar that is not a size.")
            return float(value) if isinstance(value, torch.SymFloat) else bool(value)
        return value

    def _call(self, node: Node) -> object:
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]  # type: ignore[arg-type,index]
        function = lookup(node.target, _has_pairs(node))
        if _is_nothing(value_of(node)):
            return self._nothing(value_of(node))
        if function is None:
            raise UnsupportedError("[torch] not in the table.")
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        call = Call(node, value_of(node), self.symbols, self._errors)
        return _checked(function(call, *args, **kwargs), call)

    def _nothing(self, fake: object) -> object:
        """Results that have no elements whatever the sizes of others."""
        if isinstance(fake, torch.Tensor) and fake.dtype in PARTS:
            return self._stand_in(fake)
        if isinstance(fake, torch.Tensor):
            return broadcast(scalar(0, DTYPES[fake.dtype]), self.symbols.exprs(fake.shape))
        return [self._nothing(f) for f in fake]  # type: ignore[attr-defined]

    def _argument(self, value: object) -> object:
        match value:
            case Node():
                return self.value(value)
            case list() | tuple():
                return [self._argument(v) for v in value]
            case torch.dtype():
                return DTYPES.get(value)
            case _ if isinstance(value, SYMBOLIC):
                return self._number(value)
            case _:
                return value


def _has_pairs(node: Node) -> bool:
    """True if a tensor among operands and results is complex."""
    values = [value_of(node), *(value_of(n) for n in node.all_input_nodes)]
    return any(t.dtype in PARTS for t in tensors_of(values))


def _is_nothing(value: object) -> bool:
    """True for tensors that have no elements whatever the sizes of others."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_nothing(v) for v in value)
    return isinstance(value, torch.Tensor) and any(
        isinstance(n, int) and n == 0 for n in value.shape
    )


def _computes_nothing(node: Node) -> bool:
    """True for an operator of ATen without effects all of whose results are empty."""
    plain = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"
    return plain and not has_effect(node) and _is_nothing(value_of(node))


def _checked(result: object, call: Call) -> object:
    """The result with the traced dtypes; UnsupportedError if the shapes differ."""
    if isinstance(call.fake, (list, tuple)):
        pairs = zip(result, call.fake, strict=True)  # type: ignore[call-overload]
        return tuple(_checked_one(r, f, call.symbols) for r, f in pairs)
    return _checked_one(result, call.fake, call.symbols)


def _checked_one(result: object, fake: object, symbols: Symbols) -> Tensor | Pair | None:
    if fake is None or result is None:
        return None
    want: tuple[Expr, ...] = symbols.exprs(fake.shape)  # type: ignore[attr-defined]
    if isinstance(result, Pair) and fake.dtype in PARTS:  # type: ignore[attr-defined]
        kind = PARTS[fake.dtype]  # type: ignore[attr-defined]
        parts = (_fitted(p, want, symbols) for p in (result.re, result.im))
        return Pair(*(cast(p, kind) for p in parts))
    if not isinstance(result, Tensor):
        raise UnsupportedError(f"[torch] translated {result!r}, traced {list(want)}.")
    return cast(_fitted(result, want, symbols), DTYPES[fake.dtype])  # type: ignore[attr-defined]


def _fitted(x: Tensor, want: Shape, symbols: Symbols) -> Tensor:
    return x if x.dims == want else _relabelled(x, want, symbols.hints())


def _relabelled(x: Tensor, want: Shape, hints: Mapping[str, int]) -> Tensor:
    """x with its dimensions written as tracing wrote them: equal, though not in form."""
    sizes = [tuple(e.evaluate(hints) for e in dims) for dims in (x.dims, want)]
    if sizes[0] != sizes[1]:
        raise UnsupportedError(f"[torch] translated shape {list(x.dims)}, traced {list(want)}.")
    return relabelled(x, want)
