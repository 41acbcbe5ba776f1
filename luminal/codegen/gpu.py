"""GPU kernels: from a kernel with its schedule to the text of a C dialect.

In: what `generate.py` lowers for CPUs, a Target of another kind. Out: a KernelCode with its launch.
The same terms, loop lists and walk; axes are padded to whole tiles, lanes are the threads of a
block, and barriers stand where the memory that they share asks for them."""

from __future__ import annotations

from dataclasses import replace

from luminal.codegen import cstyle
from luminal.codegen.barriers import with_barriers
from luminal.codegen.dialects import DIALECTS
from luminal.codegen.lanes import Lanes, LaneWalker, block_threads
from luminal.codegen.loopir import Block, Function, Literal
from luminal.codegen.loops import LoopBuilder
from luminal.codegen.matrix import LaneEmitter, LaneEvaluator
from luminal.codegen.memory import Place
from luminal.codegen.nest import Out, State
from luminal.codegen.padding import Padding
from luminal.codegen.schedule_rules import IllegalSchedule, chunk_count, grid_loops
from luminal.codegen.terms import expand, guarded, use_counts
from luminal.codegen.tile import extent_of
from luminal.ir import ZERO, Buffers, Expr, Kernel, Loop, Online, Schedule, Target, ceil_div, i64
from luminal.ir.program import KernelCode, Launch
from luminal.ir.text import kernel_text

PRIVATE_LIMIT = 1 << 15
NOTHING = (Block(), Literal(0, i64))


def kernel_code(kernel: Kernel, target: Target, buffers: Buffers, name: str) -> KernelCode:
    """The code of a canonical kernel and how to launch it; its text holds `name`."""
    function, blocks = lower(kernel, target, buffers, name)
    dialect = DIALECTS[target.kind]
    dtypes = {n: buffers[n].dtype for n in function.arguments}
    note = kernel_text(replace(kernel, name="k"))
    text, shared_bytes = cstyle.print_function(function, dtypes, kernel.writes(), dialect, note)
    if shared_bytes > target.l1_bytes:
        raise IllegalSchedule(f"[schedule] a block has no {shared_bytes} bytes to share.")
    return KernelCode(name, text, 0, Launch(blocks, kernel.dims(), function.threads, shared_bytes))


def lower(
    kernel: Kernel, target: Target, buffers: Buffers, name: str
) -> tuple[Function, Expr]:  # fmt: skip
    """The loop IR of a kernel and the number of its blocks."""
    schedule = kernel.schedule or Schedule()
    places = {
        n: Place(n, b.dtype, b.shape, b.layout, written=n in kernel.writes())
        for n in kernel.arguments() for b in (buffers[n],)
    }  # fmt: skip
    shapes = {b: place.shape for b, place in places.items()}
    padding = Padding(kernel, schedule, shapes)
    online = {i.axis for i in schedule.items if isinstance(i, Online)}
    prepared = [padding.term(guarded(expand(t, online), shapes)) for t in kernel.subterms()]
    values = dict(zip(kernel.subterms(), prepared, strict=True))
    outs = tuple(Out(places[s.buffer], tuple(map(padding.expr, s.index)), values[s.value])
                 for s in kernel.stores)  # fmt: skip
    axes = [padding.known[a] for a in kernel.all_axes()]
    threads = block_threads(schedule, {a.name for a in set(axes) - set(kernel.axes)}, target.warp)
    emit = LaneEmitter(kernel.dims())
    loops = LoopBuilder(emit)
    lanes = Lanes(loops, threads, target.warp)
    evaluator = LaneEvaluator(emit, places, target.matrix, lanes.number)
    evaluator.uses = use_counts(*(o.value for o in outs))
    ends = {a: padding.conditions[a] for a in axes[: len(kernel.axes)] if a in padding.conditions}
    walker = LaneWalker(evaluator, loops, axes, prepared, lanes, ends, schedule)
    grid = grid_loops(kernel, schedule)
    if any(isinstance(i, Loop) and i.lanes and i.axis in kernel.ordered for i in schedule.items):
        raise IllegalSchedule("[schedule] an axis whose order counts is dealt to lanes.")
    counts = [ceil_div(walker.axes[g.axis].extent, g.tile) for g in grid]
    block = emit.fresh(i64, name="block")
    number = loops.bind("block", block, 0, 1 << 40)
    for loop, count in reversed(list(zip(grid, counts, strict=True))):
        walker.grid[id(loop)] = number % count if loop is not grid[0] else number
        number = number // count
    state = State(outs, dict.fromkeys(axes, ZERO), {a: extent_of(a.extent) for a in axes})
    if all(c.value != 0 for c in counts):
        walker.run(state, schedule)
    return _function(kernel, walker, block.name, name, threads), chunk_count(kernel, counts)


def _function(kernel: Kernel, walker: LaneWalker, block: str, name: str, threads: int) -> Function:
    emit, locals_ = walker.emit, tuple(walker.arrays.values())
    private = sum(a.elements * a.dtype.itemsize for a in locals_ if not a.shared)
    if private > PRIVATE_LIMIT:
        raise IllegalSchedule(f"[schedule] a thread has no {private} bytes of its own.")
    body = with_barriers(emit.scopes[0].block, frozenset(a.name for a in locals_ if a.shared))
    dims = tuple(v.name for v in kernel.dims())
    lo, hi = emit.fresh(i64, name=block), emit.fresh(i64)
    return Function(name, kernel.arguments(), dims, (), 0, replace(lo, name=block), hi, body,
                    *NOTHING, *NOTHING, locals_, threads)  # fmt: skip
