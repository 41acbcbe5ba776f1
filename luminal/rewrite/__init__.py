"""Rewriting: from a Graph to the Space of equal programs.

In: `rewrite(graph, numerics=...)`. Out: `ir.space.Space`. Knows no target, cost or schedule."""

from luminal.rewrite.space import rewrite

__all__ = ["rewrite"]
