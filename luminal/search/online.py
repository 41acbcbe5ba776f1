"""Schedules of rescalable reductions whose values depend on further axes.

In: `Facts` and the whole kernel as a `Nest`. Out: `Option`s with an Online loop, or none where the
kernel has no such reduction. Structure: x(rows, j) weighs v(j, columns) over the summed axis j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luminal.ir.expr import Var
from luminal.ir.plan import Item, Loop, Online, Reg, Schedule, Stage
from luminal.ir.term import REDUCTIONS, Term
from luminal.search.facts import Facts
from luminal.search.nest import Nest, Option, assign_grid, serial_loops, vector_regs

__all__ = ["rescalables"]

BLOCKS = {True: ((64, 96, 48, 32, 128), (64, 128, 96, 256)),
          False: ((48, 96, 64, 32), (48, 96, 64, 128))}  # fmt: skip
"""Rows and keys of a block, with 32 vector registers or with 16."""
FEW_ROWS = 8
FEW_ROWS_KEYS = (256, 128, 64, 512)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Axes of an online kernel: batches, rows of x (the last is tiled), columns of v, summed.

    `shared` is a batch axis of which so many neighbours read the same keys and values.
    """

    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    summed: Var
    logits: Term
    inner: tuple[Var, ...]
    lanes: int
    masked: bool
    shared: tuple[Var, int] | None


def rescalables(facts: Facts, nest: Nest, limit: int | None = None) -> list[Option]:
    """The `limit` best options for kernels with an rsum of values that have axes of their own."""
    roles = _roles(facts, nest)
    if roles is None:
        return []
    row_extent = facts.extent(roles.rows[-1]) if roles.rows else 1
    options: list[Option] = []
    if row_extent > FEW_ROWS:
        row_blocks, key_blocks = BLOCKS[facts.target.vector_registers >= 32]
        sizes = [(b, k) for b in row_blocks for k in key_blocks
                 if b <= max(2 * roles.lanes, 2 * row_extent)]  # fmt: skip
        for cost, (block, keys) in enumerate(sizes[:limit]):
            options.append(_many_rows(facts, nest, roles, block, keys, 1 + 0.01 * cost))
    if limit is None or len(options) < limit:
        for cost, keys in enumerate(FEW_ROWS_KEYS[:limit]):
            options.append(_few_rows(facts, nest, roles, keys, 1 + bool(options) + 0.01 * cost))
    return options


def _roles(facts: Facts, nest: Nest) -> _Roles | None:
    found = [t for t in facts.tops(*nest.values) if t.op == "rsum" and len(t.axes) == 1]
    main = [t for t in found if t.args[1].free & set(nest.free) - t.args[0].free]
    if not main:
        return None
    x, v, j = main[0].args[0], main[0].args[1], main[0].axes[0]
    free = nest.free
    columns = tuple(a for a in free if a in v.free and a not in x.free)
    batch = tuple(a for a in free if a in v.free and a in x.free)
    rows = tuple(a for a in free if a in x.free and a not in v.free)
    rows = tuple(sorted(rows, key=facts.extent))  # the longest is tiled
    unused = tuple(a for a in free if a not in x.free and a not in v.free)
    masked = any(j in e.variables() for e in facts.masks(x))
    lanes = facts.lanes(x.dtype)
    shared = _shared(facts, batch, x, v, j)
    return _Roles((*unused, *batch), rows, columns, j, x, facts.bound(x), lanes, masked, shared)


def _shared(
    facts: Facts, batch: tuple[Var, ...], x: Term, v: Term, j: Var
) -> tuple[Var, int] | None:
    """A batch axis that keys and values see only divided by a constant, and that constant."""
    loads = [a for a in facts.loads(x, v) if j in a.axes]
    for axis in batch:
        mine = [a for a in loads if axis in a.axes]
        sizes = [min(facts.breaks(a, axis), default=1) for a in mine]
        size = min(sizes, default=1)
        if size > 1 and all(facts.stride(a, axis, size) == 0 for a in mine):
            return axis, size
    return None


def _head(
    facts: Facts, nest: Nest, roles: _Roles, tiles: dict[Var, int]
) -> tuple[list[Item], Facts]:
    """Grid and serial loops around one block of rows."""
    order = [(a, tiles.get(a, 1)) for a in (*roles.batch, *roles.rows)]
    grid, left = assign_grid(facts, nest, order)
    items: list[Item] = [*grid, *serial_loops(facts, order, left, frozenset(), None)]
    limits = dict(order)
    return items, facts.within(limits)


def _column_loops(roles: _Roles, facts: Facts) -> tuple[tuple[Item, ...], list[Reg]]:
    """Lanes over the last column axis, the others one by one."""
    last = roles.columns[-1]
    vectors = max(1, min(4, facts.extent(last) // roles.lanes))
    loops = (*(Loop(a.name, 1) for a in roles.columns[:-1]), Loop(last.name, roles.lanes * vectors))
    return loops, vector_regs(last, roles.lanes, vectors)


def _output(
    facts: Facts, roles: _Roles, rows: tuple[Var, ...]
) -> tuple[tuple[Item, ...], tuple[Reg, ...]]:
    loops, regs = _column_loops(roles, facts)
    return (*(Loop(a.name, 1) for a in rows), *loops), tuple(regs)


def _many_rows(
    facts: Facts, nest: Nest, roles: _Roles, block: int, keys: int, cost: float
) -> Option:
    """Lanes along the rows of x: maxima, exponentials and sums need no shuffles."""
    rows, j = roles.rows[-1], roles.summed
    lanes = roles.lanes
    head, inside = _head(facts, nest, roles, {rows: block})
    vectors, key_rows = _tile(facts, block // lanes, keys)
    stage = _row_stage(inside, roles, vectors, head)
    deep = tuple(Loop(d.name, 4) for d in roles.inner)
    logits = Schedule(
        (Loop(rows.name, vectors * lanes), Loop(j.name, key_rows), *deep),
        (*(Reg(d.name, 1, "unroll") for d in roles.inner), Reg(j.name, 1, "unroll"),
         *vector_regs(rows, lanes, vectors)),
    )  # fmt: skip
    weights = Schedule(
        (Loop(rows.name, 2 * lanes), Loop(j.name, 4)),
        (Reg(j.name, 1, "unroll"), *vector_regs(rows, lanes, 2)),
    )
    values = _values(inside, roles, (rows,), block)
    loop = Online(j.name, keys, logits, weights, values, split=roles.masked)
    tail, regs = _output(inside, roles, (rows,))
    return Option((*head, *stage, loop, *tail), regs, cost)


def _row_stage(facts: Facts, roles: _Roles, vectors: int, around: Sequence[Item]) -> list[Item]:
    """The row operand with the rows innermost, if it is not read so already."""
    rows = roles.rows[-1]
    for t in _row_operands(facts, roles):
        deep = [d for d in roles.inner if d in t.free]
        if len(deep) != 1 or (t.op == "load" and _stride(facts, t, rows, roles) in (0, 1)):
            continue
        width = vectors * roles.lanes
        loops = (Loop(rows.name, roles.lanes), Loop(deep[0].name, roles.lanes))
        regs = (Reg(deep[0].name, 1, "unroll"), Reg(rows.name, 1, "vector"))
        layout = facts.local_layout(t, around, ((rows, width), (deep[0], 1), (rows, 1)))
        return [Stage(facts.subterm(t), loops, regs, layout)]
    return []


def _row_operands(facts: Facts, roles: _Roles) -> list[Term]:
    """The largest factors of x without the summed axis and without reductions of their own."""
    found: list[Term] = []
    stack = [roles.logits]
    while stack:
        t = stack.pop()
        if roles.summed in t.free or (t.op not in REDUCTIONS and facts.tops(t)):
            stack.extend(reversed(t.args))
        elif t not in found and set(roles.rows) & t.free and set(roles.inner) & t.free:
            found.append(t)
    return [t for t in found if t.op not in REDUCTIONS]


def _stride(facts: Facts, t: Term, axis: Var, roles: _Roles) -> int | None:
    return facts.stride(facts.access(t.buffer, t.indices, t), axis, roles.lanes)


def _tile(facts: Facts, vectors: int, rows: int) -> tuple[int, int]:
    """Vectors (at most those given) and rows (a divisor of those given) of a register tile."""
    registers = facts.target.vector_registers
    width = max(1, min(vectors, 4 if registers >= 32 else 2))
    most = registers // 2 if registers >= 32 else registers - width - 2
    return width, max(
        n for n in range(1, rows + 1) if (rows % n == 0 and n * width <= most) or n == 1
    )


def _values(facts: Facts, roles: _Roles, rows: tuple[Var, ...], block: int) -> Schedule:
    """Σ p·v: lanes along the columns, rows in registers, keys unrolled."""
    last, lanes = roles.columns[-1], roles.lanes
    vectors, count = _tile(facts, -(-facts.extent(last) // lanes), block)
    loops = (
        *(Loop(a.name, 1) for a in roles.columns[:-1]),
        Loop(last.name, vectors * lanes),
        *(Loop(a.name, count) for a in rows),
        Loop(roles.summed.name, 4),
    )
    regs = (
        Reg(roles.summed.name, 1, "unroll"),
        *(Reg(a.name, 1, "unroll") for a in rows),
        *vector_regs(last, lanes, vectors),
    )
    return Schedule(loops, regs)


def _few_rows(facts: Facts, nest: Nest, roles: _Roles, keys: int, cost: float) -> Option:
    """Lanes along the inner axis of x (summed across) and along the columns of v."""
    j, lanes = roles.summed, roles.lanes
    rows, count = _short_rows(facts, roles)
    across = [Loop(a.name, count) for a in rows]
    unrolled = [Reg(a.name, 1, "unroll") for a in rows]
    head, inside = _head(facts, nest, roles, dict.fromkeys(rows, count))
    stage, inside = _few_stage(inside, roles, rows)
    dense = [d for d in roles.inner if all(
        inside.stride(a, d, lanes) == 1 for a in inside.loads(roles.logits) if d in a.axes
    )]  # fmt: skip
    if dense:
        d = dense[-1]
        vectors = max(1, min(4, inside.extent(d) // lanes))
        others = tuple(Loop(k.name, 1) for k in roles.inner if k is not d)
        logits = Schedule(
            (*across, Loop(j.name, 8 // count or 1), *others, Loop(d.name, lanes * vectors)),
            (Reg(j.name, 1, "unroll"), *unrolled, *vector_regs(d, lanes, vectors)),
        )
    else:
        logits = Schedule((*across, Loop(j.name, lanes)), (*unrolled, Reg(j.name, 1, "vector")))
    weights = Schedule((*across, Loop(j.name, 2 * lanes)),
                       (*unrolled, *vector_regs(j, lanes, 2)))  # fmt: skip
    values = _values(inside, roles, rows, count)
    loop = Online(j.name, keys, logits, weights, values, split=roles.masked)
    tail, regs = _output(inside, roles, rows)
    return Option((*head, *stage, loop, *tail), regs, cost)


def _short_rows(facts: Facts, roles: _Roles) -> tuple[tuple[Var, ...], int]:
    """What shares the keys and values that are read: rows, or batches that see the same ones."""
    most = FEW_ROWS // 2
    if roles.rows and facts.is_static(roles.rows[-1]) and facts.extent(roles.rows[-1]) > 1:
        return roles.rows[-1:], min(most, facts.extent(roles.rows[-1]))
    if roles.shared is not None:
        axis, size = roles.shared
        return (axis,), max(n for n in range(1, most + 1) if size % n == 0)
    return (), 1


def _few_stage(facts: Facts, roles: _Roles, rows: tuple[Var, ...]) -> tuple[list[Item], Facts]:
    """A row operand that is computed: once, not again for every key."""
    for t in _row_operands(facts, roles):
        deep = [d for d in roles.inner if d in t.free]
        if t.op != "load" and len(deep) == 1:
            vectors = max(1, min(4, facts.extent(deep[0]) // roles.lanes))
            loops = (*(Loop(a.name, 1) for a in rows if a in t.free),
                     Loop(deep[0].name, vectors * roles.lanes))  # fmt: skip
            regs = vector_regs(deep[0], roles.lanes, vectors)
            return [Stage(facts.subterm(t), loops, tuple(regs))], facts.after(t)
    return [], facts
