"""Generation: a plan becomes a program, and each kernel with its schedule one loop IR function.

In: a Plan with schedules, a Target. Out: a Program; kernels that are equal up to names share their
code. Schedules that cannot be lowered raise `IllegalSchedule`; nothing is compiled or run here. No
operator has code here or below: terms, loop lists and layouts decide everything."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from luminal.codegen import gpu
from luminal.codegen.emitter import Emitter
from luminal.codegen.evaluate import Evaluator
from luminal.codegen.llvm import print_function
from luminal.codegen.loopir import Block, Function, Operand
from luminal.codegen.loops import LoopBuilder
from luminal.codegen.memory import Place
from luminal.codegen.nest import Out, State, Walker
from luminal.codegen.online import lower_online
from luminal.codegen.schedule_rules import IllegalSchedule, chunk_count, grid_loops
from luminal.codegen.terms import expand, guarded, use_counts
from luminal.codegen.tile import extent_of
from luminal.errors import InternalError
from luminal.ir import Canonical, KernelCode, Program, Target, canonical, f32, i64, postorder, size
from luminal.ir.expr import ZERO, Expr, Var, ceil_div, maximum, minimum, prod
from luminal.ir.plan import Buffer, Buffers, Kernel, Online, Plan, Schedule

PLACEHOLDER = "luminal.kernel"
MOST_LINES = 16_000
Alternatives = Callable[[Kernel], Iterable[Schedule | None]]
Coder = Callable[[Kernel, tuple[Buffer, ...], Target], KernelCode]


def generate(
    plan: Plan, target: Target, alternatives: Alternatives | None = None, code: Coder | None = None
) -> Program:
    """Source of every distinct kernel of a plan, and which kernel runs which.

    Where a schedule cannot be lowered, the first of `alternatives(kernel)` that can is taken (and
    stands in the plan of the result), else IllegalSchedule is raised; `code` is `kernel_code`."""
    buffers = {b.name: b for b in plan.buffers}
    known: dict[object, tuple[int, Schedule | None]] = {}
    codes: list[KernelCode] = []
    calls: list[int] = []
    kernels: list[Kernel] = []
    for kernel in plan.kernels:
        form = canonical(kernel)
        key = (form.kernel, tuple(_buffers(form, buffers).values()))
        if key not in known:
            schedule, made = _lower(kernel, target, buffers, alternatives, code or kernel_code)
            if made not in codes:
                codes.append(made)
            known[key] = codes.index(made), schedule and form.renamed(schedule)
        call, schedule = known[key]
        kernels.append(replace(kernel, schedule=schedule and form.restored(schedule)))
        calls.append(call)
    return Program(replace(plan, kernels=tuple(kernels)), target, tuple(codes), tuple(calls))


def _lower(
    kernel: Kernel, target: Target, buffers: Buffers, alternatives: Alternatives | None, code: Coder
) -> tuple[Schedule | None, KernelCode]:
    """The code of a kernel by its schedule, or by the first alternative that is legal."""

    def choices() -> Iterator[Schedule | None]:
        yield kernel.schedule
        if alternatives is not None:
            yield from alternatives(kernel)
            yield None

    refused: Exception = InternalError(f"[codegen] {kernel.name} has no schedule.")
    for schedule in choices():
        try:
            form = canonical(replace(kernel, schedule=schedule))
            return schedule, code(form.kernel, tuple(_buffers(form, buffers).values()), target)
        except IllegalSchedule as error:
            refused = error
    raise refused


def lower_canonical(kernel: Kernel, target: Target, buffers: Buffers) -> Function:
    """The loop IR of one kernel under canonical names."""
    form = canonical(kernel)
    arguments = form.kernel, target, _buffers(form, buffers), PLACEHOLDER
    return lower(*arguments) if target.kind == "cpu" else gpu.lower(*arguments)[0]


def kernel_code(kernel: Kernel, buffers: tuple[Buffer, ...], target: Target) -> KernelCode:
    """The code of a canonical kernel, named by what it contains."""
    named = {b.name: b for b in buffers}
    if target.kind == "cpu":
        function = lower(kernel, target, named, PLACEHOLDER)
        code = KernelCode("", print_function(function, target), function.scratch_bytes)
    else:
        code = gpu.kernel_code(kernel, target, named, PLACEHOLDER)
    if (lines := code.source.count("\n")) > MOST_LINES:  # LLVM would take minutes
        raise IllegalSchedule(f"[schedule] {lines} lines of code are too many.")
    name = f"k{hashlib.sha256(code.source.encode()).hexdigest()[:16]}"
    return replace(code, name=name, source=code.source.replace(PLACEHOLDER, name))


def _buffers(form: Canonical, buffers: Buffers) -> dict[str, Buffer]:
    """The buffers of a canonical kernel: shape, dtype and layout only."""
    return {n: replace(b, kind="temp", alias="") for n, b in form.own(buffers).items()}


# ---- one kernel


def lower(kernel: Kernel, target: Target, buffers: Buffers, name: str) -> Function:
    """The loop IR of a kernel; IllegalSchedule if its schedule breaks a rule."""
    schedule = kernel.schedule or Schedule()
    axes = kernel.all_axes()
    places = {
        n: Place(n, b.dtype, b.shape, b.layout, written=n in kernel.writes())
        for n in kernel.arguments() for b in (buffers[n],)
    }  # fmt: skip
    emit = Emitter(kernel.dims())
    loops, evaluator = LoopBuilder(emit), Evaluator(emit, places)
    lo, hi = emit.fresh(i64, name="lo"), emit.fresh(i64, name="hi")
    grid = grid_loops(kernel, schedule)
    extents = {a.name: a.extent for a in kernel.axes}
    counts = [ceil_div(extents[g.axis], g.tile) for g in grid]
    online = {i.axis for i in schedule.items if isinstance(i, Online)}
    shapes = {b: place.shape for b, place in places.items()}
    prepared = {t: guarded(expand(t, online), shapes) for t in kernel.subterms()}
    outs = tuple(Out(places[s.buffer], s.index, prepared[s.value]) for s in kernel.stores)
    evaluator.uses = use_counts(*(o.value for o in outs))
    walker = Walker(evaluator, loops, axes, list(prepared.values()), lower_online)
    state = State(outs, dict.fromkeys(axes, ZERO), {a: extent_of(a.extent) for a in axes})

    def chunk(number: Expr, _: list[Operand]) -> list[Operand]:
        for loop, count in reversed(list(zip(grid, counts, strict=True))):
            walker.grid[id(loop)] = number % count if loop is not grid[0] else number
            number = number // count
        walker.run(state, schedule)
        return []

    if all(c.value != 0 for c in counts):
        first, last = loops.bind("chunk_lo", lo, 0, 1 << 40), loops.bind("chunk_hi", hi, 0, 1 << 40)
        loops.run(first, last, [], chunk, "chunk")
    chunks = _block(kernel, chunk_count(kernel, counts))
    cost = _block(kernel, _cost_ns(kernel, outs, buffers, target))
    dims = tuple(v.name for v in kernel.dims())
    return Function(name, kernel.arguments(), dims, tuple(walker.scratch), walker.total, lo, hi,
                    emit.scopes[0].block, *chunks, *cost)  # fmt: skip


def _block(kernel: Kernel, e: Expr) -> tuple[Block, Operand]:
    """A block that computes an expression over dimensions."""
    emit = Emitter(kernel.dims())
    value = emit.index(e)
    return emit.scopes[0].block, value


def _cost_ns(kernel: Kernel, outs: Iterable[Out], buffers: Buffers, target: Target) -> Expr:
    """The estimated time on one thread in ns: operations and memory traffic."""
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
    return work // rate + traffic // max(8, int(8 * target.bandwidth_gbs))


def _points(axes: Iterable[Var]) -> Expr:
    return prod(tuple(maximum(a.extent, 0) for a in sorted(axes, key=lambda v: v.name)))
