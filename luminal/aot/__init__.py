"""Ahead of time: models exported to one file, loaded without a compiler, or built as a C library.

`export` writes a file, `load` opens it, `build` makes an object and a shared library of it. What
each needs is loaded on first use: opening a file needs NumPy alone.
"""
