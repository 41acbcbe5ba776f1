"""Assembly: from the picked kernels of every region to one Plan with buffers.

In: a Space and, per region, its kernels. Out: a Plan in the graph's order. Decides where memory
is reused in place (scatter into a dead buffer, update of an input) and adds the copies that are
needed where it may not be."""

from dataclasses import dataclass, field, replace

from luminal.ir import Buffer, Kernel, Plan, Result, Space, Store, axis_var, to_expr
from luminal.ir.term import Renaming, Term, load
from luminal.search.pieces import pieces
from luminal.search.roofline import Machine


@dataclass(frozen=True, slots=True)
class Picked:
    """The kernels of one region: (cut number, time in us, stored term) in order; their time."""

    kernels: tuple[tuple[int, float, Term], ...]
    cost_us: float


@dataclass(slots=True, eq=False)
class _Step:
    """A kernel at its place; `dest` is the buffer that a scatter updates a copy of."""

    kernel: Kernel
    dest: str
    cost_us: float
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.reads = self.kernel.reads()


def assemble(space: Space, picked: list[Picked], machine: Machine) -> Plan:
    """The plan of these kernels; `machine` tells what copies cost."""
    found = _Assembly(space, picked, machine)
    found.scatters()
    found.updates()
    return Plan(
        tuple(replace(step.kernel, name=f"k{i}") for i, step in enumerate(found.steps)),
        tuple(found.buffers.values()),
        tuple(s.name for s in space.inputs),
        tuple(found.outputs),
        space.dims,
        tuple(step.cost_us for step in found.steps),
        tuple(dict.fromkeys(n for r in space.regions for n in r.notes)),
    )


class _Assembly:
    """All kernels in the graph's order with real names; then aliases and copies are added."""

    def __init__(self, space: Space, picked: list[Picked], machine: Machine) -> None:
        self.space, self.machine = space, machine
        self.outputs = [r.buffer for r in space.results]
        self.buffers = {s.name: Buffer(s.name, s.shape, s.dtype, "input") for s in space.inputs}
        for s, data in space.constants:
            self.buffers[s.name] = Buffer(s.name, s.shape, s.dtype, "constant", data=data)
        placed: list[tuple[int, _Step]] = []
        for call in space.calls:
            region = space.regions[call.region]
            names = {c.name: n for c, n in zip(region.cuts, call.cuts, strict=True)}
            names |= {s.name: n for s, n in zip(region.sources, call.sources, strict=True)}
            for i, us, term in picked[call.region].kernels:
                cut, new, name = region.cuts[i], Renaming({}, names), call.cuts[i]
                store = Store(name, tuple(map(new.expr, cut.index)), new.term(term))
                parts = pieces(Kernel("", cut.axes, (store,), None, cut.ordered))
                dest = names.get(cut.dest, "")
                placed += [(call.order[i], _Step(k, dest, us / len(parts))) for k in parts]
                kind = "output" if name in self.outputs else "temp"
                self.buffers[name] = Buffer(name, cut.shape, cut.dtype, kind)
        self.steps = [step for _, step in sorted(placed, key=lambda p: p[0])]
        for r in space.results:  # an empty tensor: no kernel writes it
            self.buffers.setdefault(r.buffer, Buffer(r.buffer, r.shape, r.dtype, "output"))

    def _last_reader(self, name: str) -> int:
        """Position of the last kernel that needs the present contents of a buffer, or -1."""
        readers = [p for p, s in enumerate(self.steps) if name == s.dest or name in s.reads]
        return max(readers, default=-1)

    def scatters(self) -> None:
        """Every scatter writes into its dest if that dies here, else into a copy of it."""
        updated = {r.updates: r.buffer for r in self.space.results if r.updates}
        for step in [s for s in self.steps if s.dest]:
            position = self.steps.index(step)
            out, dest = step.kernel.stores[0].buffer, self.buffers[step.dest]
            dies = dest.kind == "temp" or (
                dest.kind == "input" and self._ends_in(out, updated.get(step.dest, ""))
            )
            last = self._last_reader(step.dest) <= position
            if dies and last and step.dest not in step.reads:
                self.buffers[out] = replace(self.buffers[out], alias=step.dest)
            else:
                self.steps.insert(position, self._copy(step.dest, out))

    def _ends_in(self, name: str, target: str) -> bool:
        """`name`, or what further scatters make of it, is `target`."""
        while name != target:
            following = [s for s in self.steps if s.dest == name]
            if len(following) != 1:
                return False
            name = following[0].kernel.stores[0].buffer
        return True

    def _copy(self, source: str, target: str) -> _Step:
        b = self.buffers[source]
        axes = [axis_var(f"x{d}", e) if e.value != 1 else None for d, e in enumerate(b.shape)]
        index = tuple(to_expr(0 if a is None else a) for a in axes)
        store = Store(target, index, load(source, index, b.dtype))
        kernel = Kernel("", tuple(a for a in axes if a is not None), (store,))
        moved = 2 * self.machine.points(kernel.axes) * b.dtype.bits / 8
        return _Step(kernel, "", self.machine.kernel_us(0.0, moved))

    def _root(self, name: str) -> str:
        while self.buffers[name].alias:
            name = self.buffers[name].alias
        return name

    def updates(self) -> None:
        """Outputs that overwrite an input take over its memory, in place if no one is hurt."""
        for slot, r in enumerate(self.space.results):
            held = self.buffers[r.buffer]
            if not r.updates or self._root(r.buffer) == r.updates:
                continue
            if self._in_place(r):
                self.buffers[r.buffer] = replace(held, alias=r.updates)
                continue
            name = r.name
            while name in self.buffers:
                name += "_"
            self.buffers[r.buffer] = replace(held, kind="temp")
            self.buffers[name] = replace(held, name=name, kind="output", alias=r.updates)
            self.steps.append(self._copy(r.buffer, name))
            self.outputs[slot] = name

    def _in_place(self, r: Result) -> bool:
        """The one kernel that writes this output comes after every other reader of the input and
        reads it only where it writes."""
        writers = [p for p, s in enumerate(self.steps) if r.buffer in s.kernel.writes()]
        taken = any(b.alias == r.updates for b in self.buffers.values())
        if taken or len(writers) != 1 or self.outputs.count(r.buffer) > 1:
            return False
        step = self.steps[writers[0]]
        if step.dest or self.buffers[r.buffer].alias or self._last_reader(r.updates) > writers[0]:
            return False
        loads = (t for t in step.kernel.subterms() if t.op == "load" and t.buffer == r.updates)
        return all(t.indices == step.kernel.stores[0].index for t in loads)
