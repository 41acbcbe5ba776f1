"""luminal: a search-based inference compiler."""

from luminal.errors import LuminalError

__all__ = ["LuminalError"]
