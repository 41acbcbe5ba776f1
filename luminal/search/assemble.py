"""Assembly: from the picked kernels of every region to one Plan with buffers.

In: a Space and, per region, its kernels. Out: a Plan in the graph's order. Decides where memory
is reused in place (scatter into a dead buffer, update of an input) and adds the copies that are
needed where it may not be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.ir.expr import Var, axis_var, to_expr
from luminal.ir.plan import Buffer, Kernel, Plan, Store
from luminal.ir.space import Result, Source, Space
from luminal.ir.term import Renaming, Term, load
from luminal.ir.view import Shape
from luminal.search.pieces import pieces

__all__ = ["Picked", "assemble"]


@dataclass(frozen=True, slots=True)
class Picked:
    """The kernels of one region: (cut number, stored term, time in us) in order; their time."""

    kernels: tuple[tuple[int, Term, float], ...]
    cost_us: float


@dataclass(slots=True)
class _Step:
    """A kernel at its place; `dest` is the buffer that a scatter updates a copy of."""

    kernel: Kernel
    dest: str
    cost_us: float
    reads: tuple[str, ...]


def assemble(space: Space, picked: list[Picked]) -> Plan:
    """The plan of these kernels."""
    steps, shapes = _instantiate(space, picked)
    sources = [s for s, _ in space.constants] + list(space.inputs)
    kinds: dict[str, Buffer] = {
        s.name: Buffer(s.name, s.shape, s.dtype, "input") for s in space.inputs
    }
    for source, held in space.constants:
        kinds[source.name] = Buffer(source.name, source.shape, source.dtype, "constant", data=held)
    outputs = {r.buffer for r in space.results}
    for name, s in shapes.items():
        kinds[name] = Buffer(name, s.shape, s.dtype, "output" if name in outputs else "temp")
    for r in space.results:
        if r.buffer not in kinds:  # an empty tensor: no kernel writes it
            kinds[r.buffer] = Buffer(r.buffer, r.shape, r.dtype, "output")
    shapes |= {s.name: s for s in sources}
    builder = _Builder(steps, kinds, shapes, space)
    builder.scatters()
    builder.updates()
    kernels = tuple(replace(s.kernel, name=f"k{i}") for i, s in enumerate(builder.steps))
    return Plan(
        kernels,
        tuple(builder.buffers.values()),
        tuple(s.name for s in space.inputs),
        tuple(builder.outputs),
        space.dims,
        tuple(s.cost_us for s in builder.steps),
        tuple(dict.fromkeys(n for r in space.regions for n in r.notes)),
    )


def _instantiate(space: Space, picked: list[Picked]) -> tuple[list[_Step], dict[str, Source]]:
    """All kernels in the graph's order with real names, and what they write."""
    placed: list[tuple[int, _Step]] = []
    shapes: dict[str, Source] = {}
    for call in space.calls:
        region = space.regions[call.region]
        names = {c.name: n for c, n in zip(region.cuts, call.cuts, strict=True)}
        names |= {s.name: n for s, n in zip(region.sources, call.sources, strict=True)}
        for i, term, us in picked[call.region].kernels:
            cut = region.cuts[i]
            new = Renaming({}, names)
            store = Store(names[cut.name], tuple(map(new.expr, cut.index)), new.term(term))
            parts = pieces(Kernel("", cut.axes, (store,), None, cut.ordered))
            for kernel in parts:
                step = _Step(kernel, names.get(cut.dest, ""), us / len(parts), kernel.reads())
                placed.append((call.order[i], step))
            shapes[names[cut.name]] = Source(names[cut.name], cut.shape, cut.dtype)
    placed.sort(key=lambda p: p[0])
    return [s for _, s in placed], shapes


class _Builder:
    """Adds aliases and copies to the steps."""

    def __init__(
        self, steps: list[_Step], buffers: dict[str, Buffer], shapes: dict[str, Source],
        space: Space,
    ) -> None:  # fmt: skip
        self.steps, self.buffers, self.shapes, self.space = steps, buffers, shapes, space
        self.outputs = [r.buffer for r in space.results]

    def _readers(self, name: str) -> list[int]:
        """Positions of kernels that need the present contents of a buffer."""
        return [p for p, s in enumerate(self.steps) if name in s.reads or s.dest == name]

    def scatters(self) -> None:
        """Every scatter writes into its dest if that dies here, else into a copy of it."""
        updated = {r.updates: r.buffer for r in self.space.results if r.updates}
        p = 0
        while p < len(self.steps):
            step = self.steps[p]
            if step.dest:
                out = step.kernel.stores[0].buffer
                held = self.buffers[step.dest]
                last = all(q <= p for q in self._readers(step.dest))
                mine = step.dest not in step.reads
                dies = held.kind == "temp" or (
                    held.kind == "input" and self._ends_in(out, updated.get(step.dest, ""))
                )
                if last and mine and dies:
                    self.buffers[out] = replace(self.buffers[out], alias=step.dest)
                else:
                    self.steps.insert(p, self._copy(step.dest, out))
                    p += 1
            p += 1

    def _ends_in(self, name: str, target: str) -> bool:
        """`name`, or what further scatters make of it, is `target`."""
        while name != target:
            following = [s for s in self.steps if s.dest == name]
            if len(following) != 1:
                return False
            name = following[0].kernel.stores[0].buffer
        return True

    def _copy(self, source: str, target: str) -> _Step:
        s = self.shapes[source]
        axes, index = _axes_of(s.shape)
        kernel = Kernel("", axes, (Store(target, index, load(source, index, s.dtype)),))
        return _Step(kernel, "", 0.0, (source,))

    def _root(self, name: str) -> str:
        while self.buffers[name].alias:
            name = self.buffers[name].alias
        return name

    def updates(self) -> None:
        """Outputs that overwrite an input take over its memory, in place if no one is hurt."""
        for slot, r in enumerate(self.space.results):
            if not r.updates:
                continue
            if r.buffer == r.updates:
                continue
            if self._root(r.buffer) == r.updates:
                continue
            if self._in_place(r):
                self.buffers[r.buffer] = replace(self.buffers[r.buffer], alias=r.updates)
                continue
            held = self.buffers[r.buffer]
            name = r.name
            while name in self.buffers:
                name += "_"
            self.buffers[r.buffer] = replace(held, kind="temp")
            self.shapes[r.buffer] = Source(r.buffer, held.shape, held.dtype)
            self.buffers[name] = replace(held, name=name, kind="output", alias=r.updates)
            self.steps.append(self._copy(r.buffer, name))
            self.outputs[slot] = name

    def _in_place(self, r: Result) -> bool:
        """The one kernel that writes this output comes after every other reader of the input and
        reads it only where it writes."""
        if self.buffers[r.buffer].alias or self._root(r.buffer) != r.buffer:
            return False
        writers = [p for p, s in enumerate(self.steps) if r.buffer in s.kernel.writes()]
        if len(writers) != 1:
            return False
        if any(q > writers[0] for q in self._readers(r.updates)):
            return False
        if sum(b == r.buffer for b in self.outputs) > 1:
            return False
        step = self.steps[writers[0]]
        store = step.kernel.stores[0]
        if step.dest or self._aliased(r.updates):
            return False
        return all(
            t.indices == store.index
            for t in step.kernel.subterms()
            if t.op == "load" and t.buffer == r.updates
        )

    def _aliased(self, name: str) -> bool:
        return any(b.alias == name for b in self.buffers.values())


def _axes_of(shape: Shape) -> tuple[tuple[Var, ...], tuple]:
    axes: list[Var] = []
    index = []
    for d, extent in enumerate(shape):
        if extent.value == 1:
            index.append(to_expr(0))
        else:
            axes.append(axis_var(f"x{d}", extent))
            index.append(to_expr(axes[-1]))
    return tuple(axes), tuple(index)
