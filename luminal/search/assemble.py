"""Assembly: from the picked kernels of every region to one Plan with buffers.

In: a Space and, per region, its kernels. Out: a Plan in the graph's order. A kernel whose value
selects by ranges of an axis (parts laid end to end) becomes one for each part, so that none pays
for the others. Decides where memory is reused in place (scatter into a dead buffer, update of an
input) and adds the copies that are needed where it may not be."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from luminal.ir import Buffer, Expr, Kernel, Plan, Result, Space, Store, Var
from luminal.ir.expr import axis_var, is_nonnegative, maximum, minimum, to_expr
from luminal.ir.term import Renaming, Term, cast, load, substitute
from luminal.search.roofline import Machine

_FEWEST = 3
"""Fewer different parts than this stay one kernel."""
_Range = tuple[Expr, Expr]


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
        tuple(b.name for b in space.inputs),
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
        self.buffers = {b.name: b for b in (*space.inputs, *space.constants)}
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


# ---- pieces of a kernel


def pieces(kernel: Kernel) -> list[Kernel]:
    """The kernels that together do what `kernel` does; itself if it has few parts."""
    value = kernel.stores[0].value
    value = value.args[0] if value.op == "cast" else value
    for axis in kernel.axes if len(kernel.stores) == 1 and not kernel.ordered else ():
        whole = (to_expr(0), axis.extent)
        ranges = list(_ranges(value, axis, whole, frozenset(kernel.dims())))
        if len({part for _, part in ranges}) >= _FEWEST:
            return [_piece(kernel, axis, *r) for r in ranges]
    return [kernel]


def _ranges(
    value: Term, axis: Var, whole: _Range, dims: frozenset[Var]
) -> Iterator[tuple[_Range, Term]]:
    """The ranges of `axis` in which a selection is decided, and its value there."""
    inside = _interval(value.args[0], axis, whole, dims) if value.op == "select" else None
    if inside is None:
        yield whole, value
        return
    for part, r in ((2, (whole[0], inside[0])), (1, inside), (2, (inside[1], whole[1]))):
        if part == 1 or r[0] != r[1]:
            yield from _ranges(value.args[part], axis, r, dims)


def _interval(condition: Term, axis: Var, whole: _Range, dims: frozenset[Var]) -> _Range | None:
    """The range of `axis` in which a condition holds, if its bounds are known to be in order."""
    low, high = whole
    if condition.op == "and":
        first = _interval(condition.args[0], axis, whole, dims)
        return _interval(condition.args[1], axis, first, dims) if first is not None else None
    slope = condition.expr.coefficient(axis) if condition.op == "cond" else None
    if slope is None or slope.value not in (1, -1):
        return None
    rest = condition.expr - to_expr(axis) * slope
    if slope.value == 1:
        low = maximum(low, -rest)
    else:
        high = minimum(high, rest + 1)
    known = dims.issuperset(rest.atoms()) and {low, high} <= {*whole, -rest, rest + 1}
    return (low, high) if known and is_nonnegative(high - low) else None


def _piece(kernel: Kernel, axis: Var, between: _Range, value: Term) -> Kernel:
    low, high = between
    part = axis_var(axis.name, high - low)
    env = {axis: to_expr(part) + low}
    store = kernel.stores[0]
    index = tuple(e.substitute(env) for e in store.index)
    new = Store(store.buffer, index, cast(substitute(value, env), store.value.dtype))
    return replace(kernel, axes=tuple(part if a == axis else a for a in kernel.axes), stores=(new,))
