"""Schedules of rescalable reductions whose values depend on further axes.

In: `Facts` and the whole kernel as a `Nest`. Out: `Candidate`s with an Online loop, or none where
the kernel has no such reduction. Structure: x(rows, j) weighs v(j, columns) over the summed axis j.
"""

from dataclasses import dataclass

from luminal.ir import REDUCTIONS, Online, Schedule, Term, Var
from luminal.search.facts import Facts
from luminal.search.nest import Candidate, Keep, Nest, Point, Step, local

BLOCKS = {True: ((64, 96, 48, 32, 128), (64, 128, 96, 256)),
          False: ((48, 96, 64, 32), (48, 96, 64, 128))}  # fmt: skip
"""Rows and keys of a block, with 32 vector registers or with 16."""
FEW_ROWS = 8
FEW_ROWS_KEYS = (256, 128, 64, 512)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Axes of an online kernel: batches, rows of x (the last is tiled), columns of v, summed `j`;
    `inner` are summed inside x, of whose operands `operands` depend on no key."""

    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    j: Var
    x: Term
    v: Term
    inner: tuple[Var, ...]
    operands: tuple[Term, ...]
    lanes: int


def rescalables(facts: Facts, nest: Nest, limit: int | None = None) -> list[Candidate]:
    """The `limit` best candidates for kernels with an rsum of values that have own axes."""
    found = [t for t in facts.tops(*nest.values) if t.op == "rsum" and len(t.axes) == 1]
    main = [t for t in found if t.args[-1].free & set(nest.free) - t.args[0].free]
    if not main:
        return []
    roles = _roles(facts, nest, main[0])
    extent = facts.extent(roles.rows[-1]) if roles.rows else 1
    points: list[tuple[Point, float]] = []
    if extent > FEW_ROWS:
        blocks, keys = BLOCKS[facts.target.vector_registers >= 32]
        sizes = [(b, k) for b in blocks for k in keys if b <= max(2 * roles.lanes, 2 * extent)]
        points = [(_many_rows(facts, roles, *s), 1 + 0.01 * n) for n, s in enumerate(sizes)]
    cost = 1.0 + bool(points)
    points += [(_few_rows(facts, roles, k), cost + 0.01 * n) for n, k in enumerate(FEW_ROWS_KEYS)]
    return [Candidate(p.schedule(facts, nest), {}, cost) for p, cost in points[:limit]]


def _roles(facts: Facts, nest: Nest, main: Term) -> _Roles:
    x, v, free = main.args[0], main.args[-1], nest.free
    rows = [a for a in free if a in x.free and a not in v.free]
    unused = [a for a in free if a not in x.free and a not in v.free]
    batch = [a for a in free if a in v.free and a in x.free]
    columns = tuple(a for a in free if a in v.free and a not in x.free)
    longest = tuple(sorted(rows, key=facts.extent))  # the longest is tiled
    inner, operands, stack = facts.bound(x), dict[Term, None](), [x]
    while stack:  # the largest factors of x without the summed axis
        t = stack.pop()
        if main.axes[0] in t.free or (t.op not in REDUCTIONS and facts.tops(t)):
            stack.extend(reversed(t.args))
        elif set(rows) & t.free and t.op not in REDUCTIONS:
            operands.update({t: None} if sum(d in t.free for d in inner) == 1 else {})
    return _Roles((*unused, *batch), longest, columns, main.axes[0], x, v, inner, tuple(operands),
                  facts.lanes(x.dtype))  # fmt: skip


def _tile(facts: Facts, vectors: int, rows: int) -> tuple[int, int]:
    """Vectors (at most those given) and rows (a divisor of those given) of a register tile."""
    registers = facts.target.vector_registers
    width = max(1, min(vectors, 4 if registers >= 32 else 2))
    most = registers // 2 if registers >= 32 else registers - width - 2
    fit = (n for n in range(1, rows + 1) if rows % n == 0 and n * width <= most)
    return width, max(fit, default=1)


def _vectors(facts: Facts, roles: _Roles, axis: Var) -> Step:
    """As many lanes of an axis as go into four registers."""
    return axis, max(1, min(4, facts.extent(axis) // roles.lanes)) * roles.lanes


def _point(
    facts: Facts, roles: _Roles, rows: dict[Var, int], keys: int, keep: Keep | None,
    logits: Schedule, weights: Schedule,
) -> Point:  # fmt: skip
    """Blocks of rows around the online loop, then the result. Σ p·v has its lanes along the
    columns, the `rows` of a block in registers and keys unrolled."""
    *others, last = roles.columns
    most = max(rows.values(), default=1)
    vectors, count = _tile(facts, -(-facts.extent(last) // roles.lanes), most)
    columns = [(a, 1) for a in others]
    tile = [(last, vectors * roles.lanes), *((a, count) for a in rows), (roles.j, 4)]
    values = local([*columns, *tile], last, roles.lanes)
    masked = any(roles.j in e.variables() for e in facts.masks(roles.x))
    head = [(a, rows.get(a, 1)) for a in (*roles.batch, *roles.rows)]
    online = Online(roles.j.name, keys, logits, weights, values, masked)
    tail = [*((a, 1) for a in rows), *columns, _vectors(facts, roles, last)]
    steps = (*head, *([keep] if keep is not None else []), online, *tail)
    return Point(steps, tuple(head), last, roles.lanes)


def _many_rows(facts: Facts, roles: _Roles, block: int, keys: int) -> Point:
    """Lanes along the rows of x: maxima, exponentials and sums need no shuffles."""
    rows, j, lanes = roles.rows[-1], roles.j, roles.lanes
    vectors, count = _tile(facts, block // lanes, keys)
    keep = None
    for t in roles.operands[:1]:  # with the rows innermost, if it is not read so already
        (d,) = (d for d in roles.inner if d in t.free)
        if t.op != "load" or facts.stride(facts.loads(t)[0], rows, lanes) not in (0, 1):
            levels = ((rows, vectors * lanes), (d, 1), (rows, 1))
            keep = Keep(t, ((rows, lanes), (d, lanes)), rows, lanes, levels)
    tile = [(rows, vectors * lanes), (j, count), *((d, 4) for d in roles.inner)]
    logits = local(tile, rows, lanes)
    weights = local([(rows, 2 * lanes), (j, 4)], rows, lanes, (j,))
    return _point(facts, roles, {rows: block}, keys, keep, logits, weights)


def _few_rows(facts: Facts, roles: _Roles, keys: int) -> Point:
    """Lanes along the inner axis of x (summed across) and along the columns of v."""
    j, lanes = roles.j, roles.lanes
    rows = _short_rows(facts, roles)
    inside, keep = facts.within(rows), None
    for t in [t for t in roles.operands if t.op != "load"][:1]:  # once, not again for every key
        around = tuple((a, 1) for a in rows if a in t.free)
        (d,) = (d for d in roles.inner if d in t.free)
        keep, inside = Keep(t, (*around, _vectors(facts, roles, d)), d, lanes), inside.after(t)
    dense = [d for d in roles.inner if all(
        inside.stride(a, d, lanes) == 1 for a in inside.loads(roles.x) if d in a.axes
    )]  # fmt: skip
    across, count = list(rows.items()), max(rows.values(), default=1)
    logits = local([*across, (j, lanes)], j, lanes)
    if dense:
        others = [(k, 1) for k in roles.inner if k != dense[-1]]
        tile = [*across, (j, 8 // count or 1), *others, _vectors(facts, roles, dense[-1])]
        logits = local(tile, dense[-1], lanes)
    weights = local([*across, (j, 2 * lanes)], j, lanes, (j,))
    return _point(facts, roles, rows, keys, keep, logits, weights)


def _short_rows(facts: Facts, roles: _Roles) -> dict[Var, int]:
    """What shares the keys and values that are read, and how much of it: rows, or neighbours of a
    batch axis that keys and values see only divided by a constant."""
    most = FEW_ROWS // 2
    if roles.rows and facts.is_static(roles.rows[-1]) and facts.extent(roles.rows[-1]) > 1:
        return {roles.rows[-1]: min(most, facts.extent(roles.rows[-1]))}
    loads = [a for a in facts.loads(roles.x, roles.v) if roles.j in a.axes]
    for axis in roles.batch:
        mine = [a for a in loads if axis in a.axes]
        size = min((min(a.breaks(axis), default=1) for a in mine), default=1)
        if size > 1 and all(facts.stride(a, axis, size) == 0 for a in mine):
            return {axis: max(n for n in range(1, most + 1) if size % n == 0)}
    return {}
