"""Results in the structure of the model that was exported, and arguments as a flat list.

In: the JSON that structure.py wrote; arrays. Out: a function that puts results in their places.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Record", "flatten", "restorer"]


class Record(dict[str, Any]):
    """A dict whose items are attributes too, in place of a model's own class of results."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def restorer(structure: Any) -> Callable[[Sequence[Any]], Any]:
    """The function that puts results into the structure."""
    if isinstance(structure, int):
        return lambda results: results[structure]
    if "constant" in structure:
        return lambda results: structure["constant"]
    for kind, make in (("dict", dict), ("record", Record)):
        if kind in structure:
            parts = [(k, restorer(v)) for k, v in structure[kind]]
            return lambda results: make((k, part(results)) for k, part in parts)
    if "named" in structure:
        make_named = namedtuple(structure["named"], structure["fields"])  # type: ignore[misc]
        items = [restorer(v) for v in structure["items"]]
        return lambda results: make_named(*(item(results) for item in items))
    sequence = list if "list" in structure else tuple
    items = [restorer(v) for v in structure["list" if sequence is list else "tuple"]]
    return lambda results: sequence(item(results) for item in items)


def flatten(values: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return [values]
    return [leaf for value in values for leaf in flatten(value)]
