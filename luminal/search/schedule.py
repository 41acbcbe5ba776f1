"""Schedules of a kernel: those that are worth measuring; the first is used without.

In: a Kernel, its buffers, a Target, hints for symbolic dimensions and the buffers whose layout is
still free. Out: `Candidate`s, best guess first. Structure alone decides: which axes occur where,
with which strides, under which masks and reductions. Knows no operator, measures nothing."""

from collections.abc import Mapping
from dataclasses import replace

from luminal.ir import Buffers, Item, Kernel, Loop, Schedule, Stage, Target, Var, to_expr
from luminal.ir.term import REDUCTIONS, Term, substitute
from luminal.search.facts import Facts
from luminal.search.lanes import lane_candidates
from luminal.search.nest import Candidate, Keep, Nest
from luminal.search.online import rescalables
from luminal.search.points import options

LOCAL_ROW_LIMIT = 1 << 16
MAIN_ROWS = 64
LANE_VECTORS = 2

_Placed = tuple[Stage, frozenset[Var]]
"""A stage and the axes inside whose loops it belongs."""


def candidates(
    kernel: Kernel, buffers: Buffers, target: Target,
    hints: Mapping[str, int] | None = None, free_layout: frozenset[str] = frozenset(),
    limit: int | None = None,
) -> list[Candidate]:  # fmt: skip
    """Distinct schedules in a fixed order, best guess first; the plain loop nest is the last.

    With `limit` only about so many of the best are made."""
    facts = Facts(kernel, buffers, target, hints or {}, free_layout)
    free = tuple(a for a in kernel.axes if facts.largest(a) > 1)
    stores = tuple(facts.store(s) for s in kernel.stores)
    nest = Nest(free, tuple(s.value for s in kernel.stores), stores, not kernel.ordered,
                kernel.ordered)  # fmt: skip
    if target.kind != "cpu":
        return lane_candidates(facts, nest)
    found: dict[Schedule, Candidate] = {}
    made = rescalables(facts, nest, limit) or _after_statistics(facts, nest, limit)
    for c in (*made, Candidate(Schedule(), {}, 50.0)):
        layouts = {b: x for b, x in c.layouts.items() if x != buffers[b].layout}
        found.setdefault(c.schedule, replace(c, layouts=layouts))
    return list(found.values())


def _after_statistics(facts: Facts, nest: Nest, limit: int | None) -> list[Candidate]:
    """Candidates in which the statistics of rows go to local memory as soon as their rows are
    fixed: reductions over fewer axes than the kernel has, or inside others."""
    known = {*facts.kernel.axes, *facts.kernel.dims()}
    wide = [r for r in facts.tops(*nest.values) if set(nest.free) <= r.free]
    statistics = [t for t in facts.walk(*nest.values)
                  if t.op in REDUCTIONS and t not in wide and t.free <= known]  # fmt: skip
    rows = [a for a in nest.free if any(a in r.free for r in statistics)]
    main = facts.after(*statistics).tops(*nest.values)
    lanes = facts.lanes(nest.values[0].dtype)
    lane = _lane_of_rows(facts, nest, rows, lanes) if not main else None
    tiles = {a: MAIN_ROWS if main else LANE_VECTORS * lanes if a == lane else 1 for a in rows}
    after, stages = facts, list[_Placed]()
    for r in statistics:
        if r not in after.staged:
            stage, after = _statistic(after, nest, r, tiles)
            stages.append((stage, r.free & set(nest.free)))
    if statistics and not main:
        if lane is None:
            stages, after = _shared_rows(after, nest, rows, statistics, stages)
        nest = replace(nest, rows=tuple(tiles.items()), parallel=nest.parallel and bool(rows))
    found = options(after, nest, limit)
    return [replace(c, schedule=_insert(facts, c.schedule, stages)) for c in found]


def _lane_of_rows(facts: Facts, nest: Nest, rows: list[Var], lanes: int) -> Var | None:
    """The axis of the rows along which the result is contiguous, if the row itself is not."""
    able = [a for a in rows if facts.extent(a) >= lanes // 2 and a.name not in nest.ordered]
    return next((a for a in able if facts.stride(nest.stores[0], a, lanes) == 1), None)


def _statistic(facts: Facts, nest: Nest, r: Term, tiles: Mapping[Var, int]) -> tuple[Stage, Facts]:
    """The stage that computes one statistic for a tile of rows, and the facts behind it.

    It keeps the biggest term around it that needs no further axis and no other statistic."""
    inside, whole = set(facts.walk(r)), r
    for t in facts.walk(*nest.values):
        within = set(facts.walk(t))
        others = any(x.op in REDUCTIONS and x not in inside for x in within)
        same = t.free <= r.free and t.dtype == r.dtype and t not in nest.values
        whole = t if r in within and not others and same else whole
    rows = tuple(a for a in nest.free if a in r.free)
    wide = tuple(a for a in rows if tiles[a] > 1)
    body = options(facts.within(tiles), Nest(wide, (r,), (), False), 1)[0].schedule
    items = (*(Loop(a.name, 1) for a in rows if a not in wide), *body.items)
    return Stage(facts.kernel.subterms().index(whole), items, body.regs), facts.after(whole, r)


def _insert(facts: Facts, schedule: Schedule, stages: list[_Placed]) -> Schedule:
    """Stages placed after the last loop over their axes, but before what needs them."""
    subterms = facts.kernel.subterms()
    out: list[Item] = list(schedule.items)
    place = 0
    for stage, axes in stages:
        names = {a.name for a in axes}
        mine = set(facts.walk(subterms[stage.term]))
        summed = {a.name for t in mine for a in t.axes}
        loops = [(n, i) for n, i in enumerate(out) if isinstance(i, Loop)]
        users = [n for n, i in enumerate(out) if isinstance(i, Stage)
                 and subterms[stage.term] in set(facts.walk(subterms[i.term]))]  # fmt: skip
        parted = [n for n, i in loops if i.axis in summed]  # inside, a part would be summed
        place = max([place, *(n + 1 for n, i in loops if i.axis in names or i.grid)])
        place = min([place, *users, *parted])
        out.insert(place, stage)
        place += 1
    return replace(schedule, items=tuple(out))


def _shared_rows(
    facts: Facts, nest: Nest, rows: list[Var], statistics: list[Term], stages: list[_Placed]
) -> tuple[list[_Placed], Facts]:
    """Keep costly values that both a statistic and the result need, instead of making them twice:
    the largest such terms of each statistic, in the order in which the statistics are made."""
    rest = [a for a in nest.free if a not in rows]
    if len(rest) != 1 or facts.largest(rest[0]) > LOCAL_ROW_LIMIT:
        return stages, facts
    (j,), subterms, placed = rest, facts.kernel.subterms(), list[_Placed]()
    along = [r.axes[0] for r in statistics if [k.extent for k in r.axes] == [j.extent]]
    for r, made in zip(statistics, stages, strict=True):
        for t in reversed([*facts.walk(*r.args)] if r.axes[0] in along else ()):
            twins = [substitute(t, {r.axes[0]: to_expr(a)}) for a in (j, *along)]
            costly = any(x.op in ("exp2", "log2", "sin") for x in facts.walk(t))
            if costly and j not in t.free and twins[0] in {*facts.walk(*nest.values)}:
                lanes = facts.lanes(t.dtype)
                stage = Keep(twins[0], ((j, lanes * 4),), j, lanes).stage(facts, ())
                same = (subterms.index(x) for x in dict.fromkeys(twins[1:]) if x in subterms)
                placed.append((replace(stage, same=(*same,)), frozenset(rows)))
                facts = facts.after(*twins)
        placed.append(made)
    return placed, facts
