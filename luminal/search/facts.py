"""Facts about a kernel that schedules rest on: sizes, strides, masks, reductions.

In: a Kernel, its buffers, a Target and typical values of symbolic dimensions. Out: `Facts`, which
answers questions about structure. Knows no operator: only axes, index coefficients and layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from luminal.ir import Buffer, DType, Kernel, Layout, Store, Target, accumulator, depth_first
from luminal.ir.expr import Binary, Expr, Var, axis_var, to_expr
from luminal.ir.layout import flatten
from luminal.ir.term import REDUCTIONS, Term, data_atoms

TYPICAL = 128
"""Assumed value of a symbolic dimension without a hint."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: its buffer, index expressions and offset in elements."""

    buffer: Buffer
    index: tuple[Expr, ...]
    flat: Expr
    term: Term | None = None

    @property
    def axes(self) -> frozenset[Var]:
        return self.flat.variables()

    def dimension(self, axis: Var) -> int | None:
        """The only dimension that `axis` walks through, in steps of 1."""
        places = [d for d, e in enumerate(self.index) if axis in e.variables()]
        slope = self.index[places[0]].coefficient(axis) if len(places) == 1 else None
        return places[0] if slope is not None and slope.value == 1 else None

    def breaks(self, axis: Var) -> set[int]:
        """Tiles of `axis` inside which the address is linear: from divisions by constants."""
        found: set[int] = set()
        for atom in self.flat.all_atoms():
            if isinstance(atom, Binary) and atom.op in ("div", "mod"):
                slope, size = atom.a.coefficient(axis), atom.b.value
                step = slope.value if slope is not None else None
                found |= {size // step} if step and size and size % step == 0 else set()
        return found


_flatten = lru_cache(maxsize=1 << 14)(flatten)


@lru_cache(maxsize=1 << 14)
def _slope(flat: Expr, axis: Var, tile: int) -> Expr | None:
    inner = axis_var("inner'", max(2, tile))
    place = to_expr(inner)
    if tile > 1:
        place = to_expr(Var("outer'", 0, max(0, axis.hi // tile))) * tile + inner
    return flat.substitute({axis: place}).coefficient(inner)


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel in the eyes of the scheduler.

    `free_layout` names the buffers whose layout may still be chosen. `limits` bounds the extent of
    axes of which an enclosing loop leaves only a tile. `staged` terms are in local memory."""

    kernel: Kernel
    buffers: Mapping[str, Buffer]
    target: Target
    hints: Mapping[str, int] = field(default_factory=dict)
    free_layout: frozenset[str] = frozenset()
    limits: Mapping[Var, int] = field(default_factory=dict)
    staged: frozenset[Term] = frozenset()

    def with_layouts(self, layouts: Mapping[str, Layout]) -> Facts:
        new = {n: replace(self.buffers[n], layout=x) for n, x in layouts.items()}
        left = self.free_layout - set(new)
        return replace(self, buffers={**self.buffers, **new}, free_layout=left) if new else self

    def within(self, limits: Mapping[Var, int]) -> Facts:
        """The same kernel inside loops that leave tiles of some axes."""
        return replace(self, limits={**self.limits, **limits})

    def after(self, *staged: Term) -> Facts:
        """The same kernel where these terms are read from local memory."""
        return replace(self, staged=self.staged | set(staged))

    def walk(self, *terms: Term, inside: bool = True) -> Iterator[Term]:
        """Distinct subterms, arguments first, without what is staged or in index data; what
        reductions are over only if `inside`."""

        def below(t: Term) -> Iterator[Term]:
            args = t.args if inside or t.op not in REDUCTIONS else ()
            return (a for a in args if a not in self.staged)

        return depth_first((t for t in terms if t not in self.staged), below)

    def tops(self, *terms: Term) -> tuple[Term, ...]:
        """Reductions that are not inside another one, in order of first use."""
        return tuple(t for t in self.walk(*terms, inside=False) if t.op in REDUCTIONS)

    def bound(self, *terms: Term) -> tuple[Var, ...]:
        """Axes bound by reductions in terms, outer reductions first, without those of extent 1."""
        tops = self.tops(*terms)
        own = [a for r in tops for a in r.axes if self.largest(a) > 1]
        within = self.bound(*(a for r in tops for a in r.args)) if tops else ()
        return tuple(dict.fromkeys((*own, *within)))

    def number(self, e: Expr) -> int:
        return e.typical(self.hints, TYPICAL)

    def extent(self, axis: Var) -> int:
        return min(max(1, self.number(axis.extent)), self.limits.get(axis, 1 << 62))

    def largest(self, axis: Var) -> int:
        """The greatest number of values that an axis can have."""
        return min(axis.hi + 1, self.limits.get(axis, axis.hi + 1))

    def is_static(self, axis: Var) -> bool:
        """True if the number of values of the axis is known."""
        return axis.bound is None

    def loads(self, *terms: Term) -> tuple[Access, ...]:
        """The loads in terms, without those staged or inside index data."""
        found = [t for t in self.walk(*terms) if t.op == "load"]
        return tuple(self._access(t.buffer, t.indices, t) for t in found)

    def store(self, store: Store) -> Access:
        return self._access(store.buffer, store.index)

    def _access(self, name: str, index: tuple[Expr, ...], term: Term | None = None) -> Access:
        buffer = self.buffers[name]
        return Access(buffer, index, _flatten(index, buffer.shape, buffer.layout), term)

    def masks(self, *terms: Term) -> tuple[Expr, ...]:
        return tuple(t.expr for t in self.walk(*terms) if t.op == "cond")

    def stride(self, access: Access, axis: Var, tile: int = 1) -> int | None:
        """Elements between neighbours along `axis` inside an aligned tile; 0 if independent, None
        if they are not evenly spaced."""
        if axis not in access.axes:
            return 0
        slope = _slope(access.flat, axis, tile)
        return None if slope is None or any(data_atoms(slope)) else self.number(slope)

    def lanes(self, dtype: DType) -> int:
        """Elements of a vector when computing with `dtype`."""
        return max(2, self.target.vector_bits // max(32, accumulator(dtype).bits))
