"""luminal: a search-based inference compiler."""
