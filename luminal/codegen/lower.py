"""The generic lowering: a kernel and its schedule become one loop IR function.

In: Kernel, Target, the buffers it names. Out: `loopir.Function`, or `IllegalSchedule`. No operator
has code here or below: terms, loop lists and layouts decide everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from luminal.codegen.arith import Arithmetic
from luminal.codegen.emitter import Emitter
from luminal.codegen.evaluate import Evaluator
from luminal.codegen.integers import Integers
from luminal.codegen.loopir import Block, Function, Operand, Value
from luminal.codegen.loops import LoopBuilder
from luminal.codegen.memory import Place
from luminal.codegen.nest import Out, State, Walker
from luminal.codegen.online import lower_online
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import expand, guarded, use_counts
from luminal.codegen.tile import Extent, extent_of
from luminal.ir.dtype import f32, i64
from luminal.ir.expr import ONE, ZERO, Expr, Var, ceil_div, const, maximum, minimum, prod
from luminal.ir.layout import size
from luminal.ir.plan import Buffer, Item, Kernel, Loop, Online, Schedule, Stage
from luminal.ir.target import Target
from luminal.ir.term import Term, postorder

__all__ = ["lower"]


@dataclass(slots=True)
class _Parts:
    """The emitters of one block, connected."""

    emitter: Emitter
    integers: Integers
    loops: LoopBuilder
    evaluator: Evaluator


def lower(kernel: Kernel, target: Target, buffers: Mapping[str, Buffer], name: str) -> Function:
    """The loop IR of a kernel; IllegalSchedule if its schedule breaks a rule."""
    schedule = kernel.schedule or Schedule()
    axes = {a.name: a for a in kernel.all_axes()}
    places = {
        b: Place(b, buffers[b].dtype, buffers[b].shape, buffers[b].layout,
                 written=b in kernel.writes(), ahead_bytes=dict(schedule.prefetch).get(b, 0))
        for b in kernel.arguments()
    }  # fmt: skip
    parts = _parts(kernel, places)
    emitter = parts.emitter
    lo, hi = emitter.fresh(i64, name="lo"), emitter.fresh(i64, name="hi")
    grid = _grid_loops(kernel, schedule)
    counts = [ceil_div(axes[g.axis].extent, g.tile) for g in grid]
    keep = _online_nodes(kernel, schedule)
    prepared = {t: _prepare(t, buffers, keep) for t in kernel.subterms()}
    outs = tuple(
        Out(places[s.buffer], tuple(s.index), prepared.get(s.value, s.value)) for s in kernel.stores
    )
    parts.evaluator.uses = use_counts(*(o.value for o in outs))
    subterms = [prepared[t] for t in kernel.subterms()]
    walker = Walker(parts.evaluator, parts.loops, axes.values(), subterms, lower_online)
    left: dict[Var, Extent] = {a: extent_of(a.extent) for a in axes.values()}
    state = State(outs, dict.fromkeys(axes.values(), ZERO), left)
    chunks = (
        parts.loops.bind("chunk_lo", lo, 0, 1 << 40),
        parts.loops.bind("chunk_hi", hi, 0, 1 << 40),
    )

    def chunk(number: Expr, _: list[Operand]) -> list[Operand]:
        rest = number
        for loop, count in reversed(list(zip(grid, counts, strict=True))):
            walker.grid[id(loop)] = rest % count if loop is not grid[0] else rest
            rest = rest // count
        walker.run(state, schedule)
        return []

    if all(c.value != 0 for c in counts):
        parts.loops.run(*chunks, [], chunk, "chunk")
    grid_block, grid_value = _number(kernel, counts)
    cost_block, cost_value = _cost(kernel, outs, buffers, target)
    return Function(
        name, kernel.arguments(), tuple(v.name for v in kernel.dims()), tuple(walker.scratch),
        walker.total, lo, hi, emitter.scopes[0].block, grid_block, grid_value, cost_block,
        cost_value,
    )  # fmt: skip


def _parts(kernel: Kernel, places: dict[str, Place]) -> _Parts:
    emitter = Emitter()
    arith = Arithmetic(emitter)
    integers = Integers(arith)
    for v in kernel.dims():
        value = Value(v.name, i64)
        emitter.home[v.name] = (0, emitter.scopes[0])
        integers.variables[v] = value
    loops = LoopBuilder(emitter, integers)
    return _Parts(emitter, integers, loops, Evaluator(arith, integers, places))


def _prepare(t: Term, buffers: Mapping[str, Buffer], keep: frozenset[Term]) -> Term:
    shapes = {name: b.shape for name, b in buffers.items()}
    return guarded(expand(t, keep), shapes)


def _online_nodes(kernel: Kernel, schedule: Schedule) -> frozenset[Term]:
    """The reductions that online loops of the schedule carry."""
    axes = set(_online_axes(schedule.items))
    return frozenset(
        t for t in kernel.subterms()
        if t.op == "rsum" and len(t.axes) == 1 and t.axes[0].name in axes
    )  # fmt: skip


def _online_axes(items: tuple[Item, ...]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Online):
            yield item.axis
        elif isinstance(item, Stage):
            yield from _online_axes(item.items)


def _grid_loops(kernel: Kernel, schedule: Schedule) -> list[Loop]:
    """The leading grid loops: over distinct free axes, none of them ordered."""
    found: list[Loop] = []
    for item in schedule.items:
        if not isinstance(item, Loop) or not item.grid:
            break
        found.append(item)
    names = [g.axis for g in found]
    free = {a.name for a in kernel.axes} - set(kernel.ordered)
    if len(set(names)) < len(names) or not set(names) <= free:
        raise IllegalSchedule("[schedule] grid loops need distinct free axes that are not ordered.")
    if any(isinstance(i, Loop) and i.grid for i in schedule.items[len(found) :]):
        raise IllegalSchedule("[schedule] grid loops come first.")
    return found


def _number(kernel: Kernel, counts: list[Expr]) -> tuple[Block, Operand]:
    """The block that computes the number of chunks: 0 where an axis is empty."""
    parts = _parts(kernel, {})
    total = ONE
    for count in counts:
        total = total * count
    for axis in kernel.axes:
        extent = axis.extent
        if extent.value == 0:
            total = ZERO
        elif extent.lo <= 0 and total.terms:
            total = total * _at_most_one(extent)
    value = parts.integers.operand(total)
    return parts.emitter.scopes[0].block, value


def _at_most_one(extent: Expr) -> Expr:
    return minimum(maximum(extent, 0), 1)


def _cost(
    kernel: Kernel, outs: tuple[Out, ...], buffers: Mapping[str, Buffer], target: Target
) -> tuple[Block, Operand]:
    """The block that estimates the time on one thread in ns: operations and memory traffic."""
    parts = _parts(kernel, {})
    work, traffic = ZERO, ZERO
    axes = set(kernel.all_axes())
    reads: dict[str, Expr] = {}
    for t in postorder(*(o.value for o in outs)):
        if t.op in ("const", "index", "cond"):
            continue
        points = _points(t.free.union(t.axes) & axes)
        work = work + points * (8 if t.op in ("exp2", "log2", "sin") else 1)
        if t.op == "load":
            reads[t.buffer] = maximum(reads.get(t.buffer, ZERO), points)
    for out in outs:
        reads[out.place.name] = maximum(reads.get(out.place.name, ZERO), _points(out.axes() & axes))
    for name, points in reads.items():
        b = buffers[name]
        traffic = traffic + minimum(points, size(b.shape, b.layout)) * b.dtype.bits
    lanes = 1 if kernel.schedule is None else target.lanes(f32)
    rate = max(1, int(target.gflops * 0.7 * lanes / target.lanes(f32)))
    total = work // const(rate) + traffic // const(max(8, int(8 * target.bandwidth_gbs)))
    return parts.emitter.scopes[0].block, parts.integers.operand(total)


def _points(axes: Iterable[Var]) -> Expr:
    return prod(tuple(maximum(a.extent, 0) for a in sorted(axes, key=lambda v: v.name)))
