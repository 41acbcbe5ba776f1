"""Builds the callable of one ATen graph: split, translate, compile, assemble.

In: a graph from AOTAutograd and options. Out: a boxed callable, and a `Report` on record. What
cannot be translated or compiled runs in eager, with its reason in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch.fx import GraphModule, Node

from luminal.config import from_environment
from luminal.errors import UnsupportedError
from luminal.frontend.torch.assemble import assemble
from luminal.frontend.torch.effects import unwrap_effects
from luminal.frontend.torch.layout import DTYPES
from luminal.frontend.torch.nodes import is_scalar_math, name_of, root_of, value_of, view_base
from luminal.frontend.torch.options import Options
from luminal.frontend.torch.part import Part
from luminal.frontend.torch.phases import Split, split
from luminal.frontend.torch.recipe import Function, bind
from luminal.frontend.torch.reports import Report, record, warn_once
from luminal.frontend.torch.runner import compile_part
from luminal.frontend.torch.sizes import convert_as_usual
from luminal.frontend.torch.symbols import Symbols
from luminal.frontend.torch.translate import Translator, refusal

__all__ = ["build"]

_ATTEMPTS = 24
_FREE = {"_operator.getitem", "aten._conj.default"}  # which compute nothing


@dataclass(slots=True)
class _Builder:
    gm: GraphModule
    kind: str
    options: Options
    report: Report
    symbols: Symbols
    statics: dict[Node, torch.Tensor]
    hints: dict[str, int]
    refused: dict[Node, str] = field(default_factory=dict)

    def run(self) -> Function:
        for _ in range(_ATTEMPTS):
            found = split(self.gm.graph, self.symbols, self._supports, set(self.refused))
            parts = self._parts_or_none(found)
            if parts is not None and self._compile(found, parts):
                break
            if self.kind != "backward":  # whose frame is converted already
                convert_as_usual()
        else:
            self._refuse_all("too many attempts")
            found = split(self.gm.graph, self.symbols, self._supports, set(self.refused))
            parts = {}
        self._account(found, parts)
        if self.options.fallback == "warn":
            warn_once(self.report)
        recipe = assemble(self.gm, self.symbols, found, parts, self.statics)
        if all(p.recipe is not None for p in parts.values()):
            recipe.parts = {n: p.recipe for n, p in parts.items() if p.recipe is not None}
        bound = {n: p.bound for n, p in parts.items() if p.bound is not None}
        inputs = self.gm.graph.find_nodes(op="placeholder")
        gradients = [i for i, n in enumerate(inputs) if n.name.startswith("tangents")]
        return bind(recipe, bound, self.gm.forward, gradients if self.kind == "backward" else ())

    def _supports(self, node: Node) -> bool:
        if node in self.refused:
            return False
        reason = refusal(node, self.symbols)
        if reason is not None:
            self.report.reasons.setdefault(name_of(node.target), reason)
        return reason is None

    def _refuse_all(self, reason: str) -> None:
        for node in self.gm.graph.nodes:
            if node.op == "call_function" and node not in self.refused:
                self.refused[node] = reason

    def _parts_or_none(self, found: Split) -> dict[int, Part] | None:
        """`_parts`; whatever else goes wrong there refuses the whole graph."""
        try:
            return self._parts(found)
        except Exception as error:  # a fault of ours must never reach the user's program
            if self.options.strict:
                raise
            self._refuse_all(f"{type(error).__name__}: {error}"[:300])
            return None

    def _parts(self, found: Split) -> dict[int, Part] | None:
        """The part of every compiled phase; None if a node was refused on the way."""
        needed, updates = self._needs(found)
        parts: dict[int, Part] = {}
        before = len(self.refused)
        views = set(self.refused)
        for position, phase in enumerate(found.phases):
            if not phase.compiled:
                continue
            translator = Translator(self.gm, self.symbols, phase, views)
            part = translator.part(needed[position], updates[position])
            self.refused |= translator.refused
            if part is not None:
                parts[position] = part
        return parts if len(self.refused) == before else None

    def _needs(self, found: Split) -> tuple[list[list[Node]], list[dict[Node, Node]]]:
        """For each phase: the nodes whose values are read outside, and the inputs it updates."""
        home = found.phase_of()
        needed: list[dict[Node, None]] = [{} for _ in found.phases]
        updates: list[dict[Node, Node]] = [{} for _ in found.phases]
        for user in self.gm.graph.nodes:
            if user.op not in ("call_function", "output") or user in found.copies:
                continue
            if view_base(user, found.refused) is not None:
                continue
            for node in user.all_input_nodes:
                root = root_of(node, found.refused)
                if root in home and home[root] != home.get(user, -1):
                    needed[home[root]][root] = None
        for copy in found.copies:
            target, node = copy.args
            place = self._update_place(found, home, target, node)  # type: ignore[arg-type]
            root = root_of(node, found.refused)  # type: ignore[arg-type]
            if place is not None:
                updates[place][node] = target  # type: ignore[index,assignment]
            elif root in home:
                needed[home[root]][root] = None
        return [[*n] for n in needed], updates

    def _update_place(
        self, found: Split, home: dict[Node, int], target: Node, node: Node
    ) -> int | None:
        """The compiled phase that may write `node` into the input `target`, or None."""
        a, b = value_of(target), value_of(node)
        root = root_of(node, found.refused)
        place = home.get(root)
        if place is None or not found.phases[place].compiled or a.dtype != b.dtype:  # type: ignore[attr-defined]
            return None
        if a.is_complex():  # type: ignore[attr-defined]
            return None
        if self.symbols.exprs(a.shape) != self.symbols.exprs(b.shape):  # type: ignore[attr-defined]
            return None
        readers = _readers(target, found)
        if any(home.get(r, len(found.phases)) > place for r in readers):
            return None
        return place if a.is_contiguous() else None  # type: ignore[attr-defined]

    def _compile(self, found: Split, parts: dict[int, Part]) -> bool:
        """Compiles all parts; on failure refuses the nodes of that part."""
        for position, part in parts.items():
            try:
                compile_part(part, self.options, self.report, self.statics, self.hints)
            except Exception as error:  # any failure of the compiler means eager, never a crash
                if self.options.strict:
                    raise
                reason = f"{type(error).__name__}: {error}"[:300]
                for node in found.phases[position].nodes:
                    self.refused[node] = reason
                return False
        return True

    def _account(self, found: Split, parts: dict[int, Part]) -> None:
        report = self.report
        report.parts = len(parts)
        for phase in found.phases:
            counts = report.compiled if phase.compiled else report.fallback
            for node in phase.nodes:
                name = name_of(node.target)
                if name in _FREE or is_scalar_math(node):
                    continue
                counts[name] += 1
                if node in self.refused:
                    report.reasons[name] = self.refused[node]
        report.reasons = {k: v for k, v in report.reasons.items() if k in report.fallback}
        if self.options.strict and report.fallback:
            listed = "; ".join(f"{k} ({report.reasons.get(k, '')})" for k in report.fallback)
            raise UnsupportedError(
                f"[torch] operators that run in eager. Got {listed}; expected none. "
                "Try without options={'fallback': 'error'}."
            )


def _readers(node: Node, found: Split) -> Sequence[Node]:
    """Nodes outside views and epilogue copies that read `node` or a view of it."""
    out: list[Node] = []
    for user in node.users:
        if user in found.copies and user.args[0] is node:
            continue
        if view_base(user, found.refused) is not None:
            out.extend(_readers(user, found))
        else:
            out.append(user)
    return out


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill their memory without gaps, in any order of dimensions."""
    expected = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(p for p in pairs if p[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


def build(
    gm: GraphModule, kind: str, options: Options, parameters: Mapping[int, torch.Tensor]
) -> Function:
    """The callable of an ATen graph; `kind` is 'inference', 'forward' or 'backward'.

    `parameters` are the real tensors of inputs that seldom change, by position.
    """
    unwrap_effects(gm)
    count = sum(n.op == "call_function" for n in gm.graph.nodes)
    report = record(Report(kind, nodes=count))
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    statics = {inputs[i]: t for i, t in parameters.items() if _may_bind(t)}
    symbols = Symbols(gm.graph)
    options, place = _placed(options, symbols.device)
    with place:
        return _Builder(gm, kind, options, report, symbols, statics, symbols.hints()).run()


def _placed(
    options: Options, device: torch.device
) -> tuple[Options, AbstractContextManager[object]]:
    """The options for tensors of a device, whatever the settings say, and what makes it current."""
    if device.type == "cuda":
        return _with(options, device="cuda"), torch.cuda.device(device)
    host = from_environment().override(**dict(options.config)).device in ("cuda", "metal")
    return _with(options, device="cpu") if host else options, nullcontext()


def _with(options: Options, **config: object) -> Options:
    return replace(options, config=tuple({**dict(options.config), **config}.items()))


def _may_bind(tensor: torch.Tensor) -> bool:
    """True for a dense tensor of several elements."""
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return plain and tensor.dtype in DTYPES and tensor.numel() > 1 and is_dense(tensor)
