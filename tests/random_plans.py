"""Random plans: from a Space any legal choice of stored cuts and of a term for every value.

In: a Space, a target, sizes of the dims, a seeded generator. Out: a Plan without schedules. What
would cost the oracle too much gets more cuts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import prod

from luminal.ir.plan import Plan, with_sizes
from luminal.ir.space import Choice, Region, Space
from luminal.ir.target import Target
from luminal.ir.term import Term, cast, make, postorder
from luminal.search.assemble import Picked, assemble
from luminal.search.extract import rename_apart
from luminal.search.roofline import Machine

__all__ = ["random_plan"]

POINTS = 50_000
TERMS = 300


def random_plan(space: Space, target: Target, sizes: Mapping[str, int], rng: random.Random) -> Plan:
    """One of all plans that the space holds, by random choices at every level."""
    machine = Machine(target, dict(sizes))
    picked = [_pick(region, machine, rng) for region in space.regions]
    return with_sizes(assemble(space, picked, machine))


def _pick(region: Region, machine: Machine, rng: random.Random) -> Picked:
    """Random cuts of one region and the kernels that they need."""
    share = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
    stored = {i for i, cut in enumerate(region.cuts) if cut.required or rng.random() < share}
    position = {cut.name: i for i, cut in enumerate(region.cuts)}
    while True:
        needed = {i for i, cut in enumerate(region.cuts) if cut.required}
        kernels: dict[int, Term] = {}
        for i in reversed(range(len(region.cuts))):
            if i in needed:
                usable = {region.cuts[j].name for j in stored if j < i}
                kernels[i] = _term(region, i, usable, rng)
                read = {t.buffer for t in postorder(kernels[i]) if t.op == "load"}
                needed |= {position[name] for name in read & position.keys()}
        rest = [i for i in range(len(region.cuts)) if i not in stored]
        if not rest or all(_is_small(t, region, i, machine) for i, t in kernels.items()):
            return Picked(tuple((i, 1.0, t) for i, t in sorted(kernels.items())), 1.0)
        stored |= set(rng.sample(rest, (len(rest) + 1) // 2))


def _term(region: Region, i: int, usable: set[str], rng: random.Random) -> Term:
    """A random term for cut i that loads no cut but the usable ones."""
    hidden = {cut.name for cut in region.cuts} - usable
    cost: dict[int, float] = {}
    chosen: dict[int, Choice] = {}
    weight = {c: 10 ** rng.uniform(-3, 3) for value in region.values for c in value.choices}
    changed = True
    while changed:  # the deepest weight is a cost that grows with every step, so no term is a loop
        changed = False
        for v, value in enumerate(region.values):
            for c in value.choices:
                if c.op == "load" and c.payload[0] in hidden or any(a not in cost for a in c.args):
                    continue
                total = weight[c] + max((cost[a] for a in c.args), default=0.0)
                if total < cost.get(v, float("inf")):
                    cost[v], chosen[v], changed = total, c, True
    memo: dict[int, Term] = {}

    def build(v: int) -> Term:
        if v not in memo:
            c = chosen[v]
            memo[v] = make(c.op, tuple(map(build, c.args)), c.dtype, c.payload)
        return memo[v]

    return cast(rename_apart(build(region.cuts[i].value)), region.cuts[i].dtype)


def _is_small(term: Term, region: Region, i: int, machine: Machine) -> bool:
    """True if the oracle can evaluate a kernel in little time and memory."""
    axes = set(region.cuts[i].axes)
    parts = list(postorder(term))
    bound = axes.union(*(t.axes for t in parts))
    return len(parts) <= TERMS and all(
        prod((machine.points([a]) for a in (t.free | axes) & bound), start=1.0) <= POINTS
        for t in parts
    )
