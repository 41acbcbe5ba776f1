"""Frontends: what users write, turned into a Graph."""
