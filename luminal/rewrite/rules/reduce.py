"""Rules about reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from luminal.rewrite.egraph import EGraph, ENode

__all__ = ["RULES"]

Rule = Callable[[EGraph, int, ENode], Iterator[int]]
RULES: dict[str, tuple[Rule, ...]] = {}
