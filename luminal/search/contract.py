"""Schedules of reduction nests: contractions, windows and plain sums.

In: `Facts` and a `Nest` whose values contain reductions. Out: `Option`s, the best guess first.
Chooses register tile, unrolling, blocking, and what is copied to local memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from luminal.ir.expr import Var
from luminal.ir.plan import Item, Loop, Reg, Stage
from luminal.ir.term import Term
from luminal.search.contract_shape import Shape, shapes, window_step
from luminal.search.facts import Facts
from luminal.search.nest import Nest, Option, assign_grid, serial_loops, vector_regs
from luminal.search.tiles import Tile, register_tiles

__all__ = ["contractions"]

K_BLOCK = 512
ROW_BLOCK = 256
PANEL_ROWS = 192
COLUMN_BLOCK = 512
LOCAL_SHARE = 0.5
TILES_KEPT = 6
BODY_LIMIT = 224
CACHE_WAYS = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """The parameters of one option.

    `unroll` steps of the innermost sum; `block` of it at a time, partial sums waiting in memory
    (0: all at once); `copies` are operands (loads or terms) that are computed into local memory
    per block of rows, `panels` those per vector tile.
    """

    shape: Shape
    tile: Tile
    unroll: int
    block: int = 0
    copies: tuple[Term, ...] = ()
    panels: tuple[Term, ...] = ()
    extra: float = 0.0

    @property
    def cost(self) -> float:
        """Relative time by the model."""
        return self.shape.penalty * (self.tile.cost + self.extra)

    @property
    def by_rows(self) -> bool:
        """True if blocks of rows are the outer loops."""
        return bool(self.block and self.shape.reuse) or bool(self.copies)

    @property
    def width(self) -> int:
        """Elements of the vector axis in one register tile."""
        return self.tile.vectors * self.shape.lanes


def contractions(facts: Facts, nest: Nest, limit: int | None = None) -> list[Option]:
    """The `limit` best options for a nest with reductions, best guess first."""
    found: list[tuple[float, Facts, Choice]] = []
    for shape in shapes(facts, nest):
        fresh = facts.with_layouts(dict(shape.layouts)) if shape.layouts else facts
        for rank, tile in enumerate(_tiles(facts, shape)):
            for choice in _choices(facts, nest, shape, tile, rank):
                if not _fits(facts, choice):
                    choice = replace(choice, copies=(), panels=(), extra=choice.extra + 4.0)
                found.append((choice.cost, fresh, choice))
    found.sort(key=lambda f: f[0])
    return [_build(fresh, nest, choice) for _, fresh, choice in found[:limit]]


def _tiles(facts: Facts, shape: Shape) -> list[Tile]:
    """Register tiles to try, best first."""
    rows = facts.extent(shape.rows) if shape.rows is not None else 1
    registers, columns = facts.target.vector_registers, facts.extent(shape.vector)
    for a in shape.scalar_loads:  # a group of columns shares it: stay inside one
        columns = min(columns, *facts.breaks(a, shape.vector), columns)
    if shape.horizontal:
        most = 4 if shape.reuse else 1
        return [Tile(r, 1, 1.0 + 0.1 * (4 // r)) for r in (4, 2, 1) if r <= min(rows, most)]
    if not shape.reuse:
        most = max(1, min(8, registers // 3 // shape.sums, -(-columns // shape.lanes)))
        wide = columns >= 4 * facts.target.cores * 8 * shape.lanes
        order = (8, 4, 2, 1) if wide else (4, 2, 1, 8)
        return [Tile(1, v, 1.2 + 0.1 * n) for n, v in enumerate(order) if v <= most]
    found = register_tiles(
        rows, columns, shape.lanes, registers, shape.sums, min(2, len(shape.vector_loads)),
        window_step(facts, shape), max(1, min(2, len(shape.scalar_loads))),
    )  # fmt: skip
    if not shape.scalar_loads:
        taps = window_step(facts, shape)[1]
        found = tuple(
            t for t in found if t.rows * t.vectors + min(taps, 9) * t.vectors <= registers
        )
    tall = 0.10 if _rows_collide(facts, shape) else 0.06
    moved = [replace(t, cost=t.cost + tall * (t.rows > CACHE_WAYS)) for t in found]
    found = tuple(sorted(moved, key=lambda t: t.cost))
    return list(found[:TILES_KEPT]) or [Tile(1, 1, 2.0)]


def _rows_collide(facts: Facts, shape: Shape) -> bool:
    """True if neighbouring rows lie a multiple of a page apart, so that few fit the L1 cache."""
    if shape.rows is None:
        return False
    for a in shape.scalar_loads:
        step = (facts.stride(a, shape.rows) or 0) * facts.buffers[a.buffer].dtype.itemsize
        if step and step % 2048 == 0:
            return True
    return False


def _choices(facts: Facts, nest: Nest, shape: Shape, tile: Tile, rank: int) -> list[Choice]:
    """Parameters to try for a register tile."""
    taps = 1
    for k in shape.unrolled:
        taps *= facts.extent(k)
    body = tile.rows * tile.vectors * shape.sums * taps
    unroll = 4
    while unroll > 1 and unroll * body > BODY_LIMIT:
        unroll //= 2
    copies, made = _producers(facts, nest, shape)
    packed = tuple(a.term for a in shape.packed if a.term is not None)
    many = shape.rows is not None and facts.extent(shape.rows) >= 32
    panels = (*packed, *made) if many else packed
    first = Choice(shape, tile, unroll, 0, copies, panels)
    found = [first]
    if rank == 0:
        found.append(Choice(shape, tile, unroll * 2, 0, copies, panels, 0.02))
        found += [Choice(shape, tile, unroll, 0, (), panels, 0.3)] if copies else []
        found += [Choice(shape, tile, unroll, 0, copies, packed, 0.1)] if panels != packed else []
    found += _blocked_choices(facts, nest, first, rank)
    return found


def _blocked_choices(facts: Facts, nest: Nest, base: Choice, rank: int) -> list[Choice]:
    """Variants whose partial sums wait in the output."""
    shape = base.shape
    if not _can_block(facts, nest, shape):
        return []
    depth = facts.extent(shape.deep[0])
    if not shape.reuse:
        packed = {b for b, _ in shape.layouts}
        strided = all(
            (facts.stride(a, shape.deep[0]) or 0) * 4 >= 1024 and a.buffer not in packed
            for a in shape.vector_loads
        )
        gain = -0.3 if strided and depth >= 64 else 0.3
        return [Choice(shape, base.tile, 8, 8, extra=gain)] if depth > 8 else []
    rows = facts.extent(shape.rows) if shape.rows is not None else 1
    found: list[Choice] = []
    for block in (K_BLOCK, K_BLOCK // 2):
        if depth > block:
            deep_enough = depth >= 4 * K_BLOCK and rows >= 64 and block == K_BLOCK
            extra = -0.06 if deep_enough else 0.03
            found.append(Choice(shape, base.tile, base.unroll, block, base.copies, base.panels,
                                extra))  # fmt: skip
            loads = _row_operands(facts, shape)
            if rows >= 64 and rank < 2 and loads and not base.copies:
                found.append(Choice(shape, base.tile, base.unroll, block, loads, base.panels,
                                    extra + 0.02))  # fmt: skip
    return found


def _can_block(facts: Facts, nest: Nest, shape: Shape) -> bool:
    """True if partial sums may wait in the output: one wide float store of one sum of one axis."""
    if len(nest.stores) != 1 or shape.window or len(shape.deep) != 1 or shape.horizontal:
        return False
    reductions = facts.tops(*nest.values)
    stored = facts.buffers[nest.stores[0].buffer]
    wide = stored.dtype.is_float and stored.dtype.bits >= 32
    alone = len(reductions) == 1 and reductions[0].op == "sum"
    reread = any(a.buffer == stored.name for a in facts.loads(*nest.values))
    return (
        wide and alone and stored.dtype == reductions[0].dtype and not reread and (not stored.alias)
    )


def _row_operands(facts: Facts, shape: Shape) -> tuple[Term, ...]:
    """The first plain load that is broadcast over rows and the summed axis."""
    for a in shape.scalar_loads:
        if a.term is not None and shape.rows in a.axes and shape.deep[0] in a.axes:
            return (a.term,)
    return ()


def _producers(facts: Facts, nest: Nest, shape: Shape) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Computed operands worth keeping in local memory: (of the rows, of the vector axis)."""
    copies: dict[Term, None] = {}
    panels: dict[Term, None] = {}
    if shape.horizontal or shape.window or shape.masked or len(shape.deep) != 1:
        return (), ()
    deep = shape.deep[0]

    def visit(t: Term) -> None:
        if t in facts.staged or deep not in t.free:
            return
        work = sum(x.op not in ("load", "const", "cast", "index") for x in facts.walk(t))
        if shape.vector not in t.free and work >= 1:
            copies[t] = None
        elif shape.rows not in t.free and shape.vector in t.free and work >= 1:
            panels[t] = None
        elif t.op == "mul":
            for a in t.args:
                visit(a)

    for r in facts.tops(*nest.values):
        for a in r.args if not facts.tops(*r.args) else ():
            visit(a)
    return tuple(copies), tuple(panels)


def _fits(facts: Facts, choice: Choice) -> bool:
    """True if the local copies are bounded and small enough for L2."""
    shape, total = choice.shape, 0
    for t, tile in (*((t, ROW_BLOCK) for t in choice.copies),
                    *((t, choice.width) for t in choice.panels)):  # fmt: skip
        size = tile
        for k in (*shape.deep, *shape.window):
            if k in t.free:
                size *= min(facts.largest(k), choice.block or (1 << 40))
        total += size * 4
    return total <= facts.target.l2_bytes * LOCAL_SHARE


def _build(facts: Facts, nest: Nest, choice: Choice) -> Option:
    """Loops and registers for one set of parameters."""
    shape = choice.shape
    steps = _steps(facts, nest, choice)
    grid, left = assign_grid(facts, nest, _coarse_steps(facts, choice, steps))
    items: list[Item] = list(grid)
    vector = None if shape.horizontal else shape.vector
    if choice.by_rows:
        cut = next((n for n, s in enumerate(steps) if s[0] in (vector, shape.rows)), 0)
        items += serial_loops(facts, steps[:cut], left, shape.masked, vector)
        steps = steps[cut:]
    if choice.block:
        items.append(Loop(shape.deep[0].name, choice.block))
    if choice.by_rows:
        items += _row_block(facts, choice, left, items)
    for axis, step in steps:
        items += serial_loops(facts, [(axis, step)], left, shape.masked, vector)
        if axis is vector and choice.panels:
            items += [_panel(facts, choice, t, items) for t in choice.panels]
    items += _reduction_loops(facts, nest, choice)
    return Option(tuple(items), _registers(facts, choice), choice.cost, dict(shape.layouts))


def _registers(facts: Facts, choice: Choice) -> tuple[Reg, ...]:
    shape = choice.shape
    summed = (*shape.deep[-1:], *shape.unrolled)
    regs = [Reg(k.name, 1, "unroll") for k in summed
            if k is not shape.vector and facts.extent(k) > 1]  # fmt: skip
    if shape.rows is not None and choice.tile.rows > 1:
        regs.append(Reg(shape.rows.name, 1, "unroll"))
    if shape.horizontal:
        regs += vector_regs(shape.vector, shape.lanes, choice.unroll, "acc")
    else:
        regs += vector_regs(shape.vector, shape.lanes, choice.tile.vectors)
    return tuple(regs)


def _steps(facts: Facts, nest: Nest, choice: Choice) -> list[tuple[Var, int]]:
    """Free axes with their register steps, outermost first: batches, vector, others, rows."""
    shape = choice.shape
    batch = [a for a in shape.free if a is not shape.rows and shape.vector_loads
             and all(a in x.axes for x in shape.vector_loads)]  # fmt: skip
    rest = [a for a in shape.free if a not in batch and a is not shape.rows]
    order = [(a, 1) for a in batch]
    columns = [] if shape.horizontal else [(shape.vector, choice.width)]
    others = [(a, 1) for a in rest]
    order += [*others, *columns] if choice.by_rows else [*columns, *others]
    if shape.rows is not None:
        order.append((shape.rows, choice.tile.rows))
    return order


def _coarse_steps(
    facts: Facts, choice: Choice, steps: list[tuple[Var, int]]
) -> list[tuple[Var, int]]:
    """What grid loops may cut: blocks of rows and columns; masked axes are cut by serial loops."""
    shape = choice.shape
    coarse = [(a, s) for a, s in steps if a not in shape.masked or s == 1]
    if not choice.by_rows:
        rare = PANEL_ROWS if choice.panels else 1  # every block of rows makes the panels again
        return [(a, max(s, rare // s * s)) if a is shape.rows else (a, s) for a, s in coarse]
    blocks = {shape.rows: ROW_BLOCK, shape.vector: COLUMN_BLOCK}
    while True:  # smaller blocks until every core has some
        sizes = [(a, max(s, blocks[a] // s * s) if a in blocks else s) for a, s in coarse]
        chunks = 1
        for axis, size in sizes:
            chunks *= -(-facts.extent(axis) // size)
        if chunks >= 4 * facts.target.cores or blocks[shape.vector] < 2 * choice.width:
            return sorted(sizes, key=lambda s: s[0] is shape.vector)
        blocks[shape.vector] //= 2


def _row_block(
    facts: Facts, choice: Choice, left: dict[Var, int], around: Sequence[Item]
) -> list[Item]:
    """A block of rows that stays in L2, and copies of row operands for it."""
    shape, tile = choice.shape, choice.tile
    items: list[Item] = []
    deep = shape.deep[0].name
    if shape.rows is not None:
        size = max(1, ROW_BLOCK // tile.rows) * tile.rows
        if left[shape.rows] > size:
            items.append(Loop(shape.rows.name, size))
            left[shape.rows] = size
    for t in choice.copies:
        if t.op == "load" and shape.rows is not None:
            rows = shape.rows.name
            nest = (Loop(rows, tile.rows), Loop(deep, 8))
            regs = (Reg(deep, 1, "unroll"), Reg(rows, 1, "unroll"))
            layout = facts.local_layout(
                t, around, ((shape.rows, tile.rows), (shape.deep[0], 1), (shape.rows, 1))
            )
            items.append(Stage(facts.subterm(t), nest, regs, layout))
            continue
        loops = [Loop(a.name, 1) for a in shape.free if a in t.free and facts.extent(a) > 1]
        regs = tuple(vector_regs(shape.deep[0], shape.lanes, 4))
        items.append(Stage(facts.subterm(t), (*loops, Loop(deep, shape.lanes * 4)), regs))
    return items


def _panel(facts: Facts, choice: Choice, t: Term, around: Sequence[Item]) -> Stage:
    """A vector operand in local memory, contiguous along the lanes."""
    shape = choice.shape
    axes = [k for k in (*shape.deep, *shape.window) if k in t.free]
    found = facts.loads(t)
    dense = next((k for k in axes if any(facts.stride(a, k) == 1 for a in found)), None)
    if all(facts.stride(a, shape.vector, shape.lanes) in (0, 1) for a in found):
        dense = None
    nest: list[Item] = [Loop(k.name, 1) for k in axes if k is not dense]
    nest.append(Loop(shape.vector.name, shape.lanes))
    regs = [Reg(shape.vector.name, 1, "vector")]
    if dense is None and axes:
        dense = axes[-1]
        nest = [i for i in nest if not (isinstance(i, Loop) and i.axis == dense.name)]
        nest += [Loop(dense.name, c) for c in sorted(
            {c for a in found for c in facts.breaks(a, dense)}, reverse=True) if c > 4]  # fmt: skip
        nest.append(Loop(dense.name, 4))
        regs.insert(0, Reg(dense.name, 1, "unroll"))
    elif dense is not None:
        nest.append(Loop(dense.name, shape.lanes))
        regs.insert(0, Reg(dense.name, 1, "unroll"))
    levels = ((shape.vector, choice.width), *((k, 1) for k in axes), (shape.vector, 1))
    layout = facts.local_layout(t, around, levels)
    return Stage(facts.subterm(t), tuple(nest), tuple(regs), layout)


def _reduction_loops(facts: Facts, nest: Nest, choice: Choice) -> list[Item]:
    """Loops over what is summed: blocks of divided axes, windows, then the unrolled axis."""
    shape = choice.shape
    loads = facts.loads(*facts.tops(*nest.values))
    blocks: list[Loop] = []
    last: list[Loop] = []
    for k in shape.deep:
        span = min(facts.extent(k), choice.block or (1 << 40))
        cuts = sorted({c for a in loads for c in facts.breaks(a, k)}, reverse=True)
        cuts = [c for c in cuts if 1 < c < span]
        step = choice.unroll if k is shape.deep[-1] else 1
        if k is shape.vector:
            step = shape.lanes * choice.unroll
        while step > 1 and any(c % step for c in cuts) and k is not shape.vector:
            step //= 2
        chain = [c for i, c in enumerate(cuts) if c != step and (i == 0 or cuts[i - 1] % c == 0)]
        blocks += [Loop(k.name, c) for c in chain]
        whole = facts.is_static(k) and span <= step and k is not shape.vector
        if not whole:
            last.append(Loop(k.name, step, split=k in shape.masked and step == 1))
    windows = [Loop(k.name, 1, split=k in shape.masked)
               for k in shape.window if k not in shape.unrolled]  # fmt: skip
    if windows:
        return [*blocks, *windows, *last]
    items: list[Item] = []
    for loop in last:
        items += [*(b for b in blocks if b.axis == loop.axis), loop]
    return [*(b for b in blocks if all(b.axis != x.axis for x in last)), *items]
