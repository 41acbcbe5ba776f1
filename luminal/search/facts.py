"""Facts about a kernel that schedules rest on: sizes, strides, masks, reductions.

In: a Kernel, its buffers, a Target and typical values of symbolic dimensions. Out: `Facts`, which
answers questions about structure. Knows no operator: only axes, index coefficients and layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from luminal.ir.dtype import DType, accumulator
from luminal.ir.expr import Atom, Binary, Expr, Var, axis_var, to_expr
from luminal.ir.layout import Layout, flatten
from luminal.ir.plan import Buffer, Item, Kernel, Loop, Store
from luminal.ir.target import Target
from luminal.ir.term import REDUCTIONS, Term, data_atoms

__all__ = ["Access", "Facts", "has_data"]

TYPICAL = 128
"""Assumed value of a symbolic dimension without a hint."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: its buffer, index expressions and offset in elements."""

    buffer: str
    index: tuple[Expr, ...]
    flat: Expr
    term: Term | None = None

    @property
    def axes(self) -> frozenset[Var]:
        """Variables that the address depends on."""
        return self.flat.variables()


def _divisors(atoms: Iterator[Atom], axis: Var) -> Iterator[int]:
    for atom in atoms:
        if isinstance(atom, Binary) and atom.op in ("div", "mod"):
            if axis in atom.a.variables():
                slope, size = atom.a.coefficient(axis), atom.b.value
                step = slope.value if slope is not None else None
                if step and size and size % step == 0:
                    yield size // step
            yield from _divisors(atom.a.atoms(), axis)


@dataclass(slots=True)
class Facts:
    """A kernel in the eyes of the scheduler; `layouts` override those of `buffers`.

    `free_layout` names the buffers whose layout may still be chosen. `limits` bounds the extent of
    axes of which an enclosing loop leaves only a tile. `staged` terms are in local memory.
    """

    kernel: Kernel
    buffers: Mapping[str, Buffer]
    target: Target
    hints: Mapping[str, int] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    free_layout: frozenset[str] = frozenset()
    limits: dict[Var, int] = field(default_factory=dict)
    staged: frozenset[Term] = frozenset()
    _memo: dict[object, int | None] = field(default_factory=dict)
    _flat: dict[object, Expr] = field(default_factory=dict)

    def with_layouts(self, layouts: Mapping[str, Layout]) -> Facts:
        """The same kernel with more layouts decided."""
        return replace(
            self, layouts={**self.layouts, **layouts}, free_layout=self.free_layout - set(layouts)
        )  # fmt: skip

    def within(self, limits: Mapping[Var, int]) -> Facts:
        """The same kernel inside loops that leave tiles of some axes."""
        return replace(self, limits={**self.limits, **limits})

    def after(self, *staged: Term) -> Facts:
        """The same kernel where these terms are read from local memory."""
        return replace(self, staged=self.staged | set(staged))

    def walk(self, *terms: Term, inside: bool = True) -> Iterator[Term]:
        """Distinct subterms, arguments first, without what is staged or in index data; what
        reductions are over only if `inside`."""
        seen: set[Term] = set(self.staged)

        def visit(t: Term) -> Iterator[Term]:
            if t not in seen:
                seen.add(t)
                for a in t.args if inside or t.op not in REDUCTIONS else ():
                    yield from visit(a)
                yield t

        for term in terms:
            yield from visit(term)

    def tops(self, *terms: Term) -> tuple[Term, ...]:
        """Reductions that are not inside another one, in order of first use."""
        return tuple(t for t in self.walk(*terms, inside=False) if t.op in REDUCTIONS)

    def bound(self, *terms: Term) -> tuple[Var, ...]:
        """Axes bound by reductions in terms, outer reductions first, without those of extent 1."""
        tops = self.tops(*terms)
        own = [a for r in tops for a in r.axes if self.largest(a) > 1]
        within = self.bound(*(a for r in tops for a in r.args)) if tops else ()
        return tuple(dict.fromkeys((*own, *within)))

    def number(self, e: Expr) -> int | None:
        """The typical value of an expression over symbolic dimensions; None if it has axes."""
        if e.value is not None:
            return e.value
        env: dict[str, int] = {}
        for var in e.variables():
            env[var.name] = self.hints.get(var.name, min(var.hi, max(var.lo, TYPICAL)))
        try:
            return e.evaluate(env)
        except KeyError:
            return None

    def extent(self, axis: Var) -> int:
        """The typical number of values of an axis."""
        found = self.number(axis.extent)
        size = max(1, found if found is not None else axis.hi + 1)
        return min(size, self.limits.get(axis, size))

    def largest(self, axis: Var) -> int:
        """The greatest number of values that an axis can have."""
        return min(axis.hi + 1, self.limits.get(axis, axis.hi + 1))

    def is_static(self, axis: Var) -> bool:
        """True if the number of values of the axis is known."""
        return axis.bound is None

    def layout(self, buffer: str) -> Layout:
        """The layout of a buffer, decided or given."""
        return self.layouts.get(buffer) or self.buffers[buffer].layout

    def access(self, buffer: str, index: tuple[Expr, ...], term: Term | None = None) -> Access:
        """A load or store with its offset."""
        layout = self.layout(buffer)
        key = (buffer, index, layout)
        if key not in self._flat:
            self._flat[key] = flatten(index, self.buffers[buffer].shape, layout)
        return Access(buffer, index, self._flat[key], term)

    def loads(self, *terms: Term) -> tuple[Access, ...]:
        """The loads in terms, without those staged or inside index data."""
        return tuple(
            self.access(t.buffer, t.indices, t) for t in self.walk(*terms) if t.op == "load"
        )

    def store(self, store: Store) -> Access:
        """The access of a store."""
        return self.access(store.buffer, store.index)

    def masks(self, *terms: Term) -> tuple[Expr, ...]:
        """Conditions over indices in terms."""
        return tuple(t.expr for t in self.walk(*terms) if t.op == "cond")

    def stride(self, access: Access, axis: Var, tile: int = 1) -> int | None:
        """Elements between neighbours along `axis` inside an aligned tile; 0 if independent, None
        if they are not evenly spaced."""
        if axis not in access.axes:
            return 0
        key = (access.flat, axis, tile)
        if key not in self._memo:
            inner = axis_var("inner'", max(2, tile))
            place = to_expr(inner)
            if tile > 1:
                place = to_expr(Var("outer'", 0, max(0, axis.hi // tile))) * tile + inner
            slope = access.flat.substitute({axis: place}).coefficient(inner)
            self._memo[key] = None if slope is None else self.number(slope)
        return self._memo[key]

    def breaks(self, access: Access, axis: Var) -> set[int]:
        """Tiles of `axis` inside which the address is linear: from divisions by constants."""
        return set(_divisors(access.flat.atoms(), axis))

    def lanes(self, dtype: DType) -> int:
        """Elements of a vector when computing with `dtype`."""
        return max(2, self.target.vector_bits // max(32, accumulator(dtype).bits))

    def subterm(self, term: Term) -> int:
        """The number of a subterm, as `Stage.term` counts."""
        for number, t in enumerate(self.kernel.subterms()):
            if t is term:
                return number
        raise KeyError(repr(term))

    def local_layout(
        self, term: Term, around: Sequence[Item], wanted: Sequence[tuple[Var, int]]
    ) -> Layout:
        """The layout of a stage of `term` inside loops: `wanted` (axis, tile) levels innermost.

        Its dimensions are the axes of the term without an enclosing loop of tile 1: free ones as
        in the kernel, then bound ones.
        """
        closed = {i.axis for i in around if isinstance(i, Loop) and i.tile == 1}
        known = dict.fromkeys(self.kernel.axes)
        for t in self.kernel.subterms():
            known.update(dict.fromkeys(t.axes))
        place = [a for a in known if a in term.free and a.name not in closed]
        inner = {a for a, _ in wanted}
        rest = tuple((n, 1) for n, a in enumerate(place) if a not in inner)
        return rest + tuple((place.index(a), tile) for a, tile in wanted)


def has_data(e: Expr) -> bool:
    """True if a gather decides the value of an index expression."""
    return any(True for _ in data_atoms(e))
