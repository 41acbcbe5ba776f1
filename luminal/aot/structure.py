"""The structure of a model's results as JSON.

In: a nest of tuples, lists and dicts with the numbers of results as leaves. Out: JSON values, which
restore.py reads. Classes of the model become plain ones: no foreign code is loaded with a file.
"""

from __future__ import annotations

from typing import Any

from luminal.errors import UnsupportedError
from luminal.frontend.traced import Leaf

__all__ = ["structure_json"]


def structure_json(value: Any) -> Any:
    """A structure as JSON; UnsupportedError on classes that have no plain counterpart."""
    match value:
        case Leaf(value=inner):
            return {"constant": inner}
        case bool() | None:
            return {"constant": value}
        case int():
            return value
        case dict():
            if not all(isinstance(k, str | int) for k in value):
                raise UnsupportedError("[export] a dict of results has keys that are no texts.")
            kind = "dict" if type(value).__module__ in ("builtins", "collections") else "record"
            return {kind: [[k, structure_json(v)] for k, v in value.items()]}
        case tuple() if hasattr(value, "_fields"):
            items = [structure_json(v) for v in value]
            return {"named": type(value).__name__, "fields": list(value._fields), "items": items}
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [structure_json(v) for v in value]}
    raise UnsupportedError(
        f"[export] results of type {type(value).__name__}. Expected tensors in tuples, lists and "
        "dicts. Try a wrapper that returns those."
    )
