"""Extraction: from a Space to the best few Plans under the roofline model.

In: a Space, a Target, values for symbolic dimensions. Out: Plans without schedules, best first.
Each region is solved once: which cuts are stored, then for every kernel the cheapest choice per
value. Measures nothing and names no operator."""

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from math import prod

from luminal.ir import Choice, Plan, Region, Space, Target, Var, depth_first, to_expr, with_sizes
from luminal.ir.term import REDUCTIONS, Term, cast, make, postorder, rebuild, substitute
from luminal.search import roofline
from luminal.search.assemble import Picked, assemble

_NONE: frozenset[Var] = frozenset()
_SWEEPS = 3
_FORBIDDEN = 1e4
_LOOP = 1e-2
_BETTER = 1 - 1e-9


def extract(space: Space, target: Target, *, hints: dict[str, int], k: int) -> list[Plan]:
    """The `k` best plans; `hints` give likely values of dimensions by name."""
    machine = roofline.Machine(target, hints)
    solved = [_Solver(region, machine).solve(k) for region in space.regions]
    uses = Counter(call.region for call in space.calls)
    others = sorted(
        ((other.cost_us - ways[0].cost_us) * uses[r], r, j)
        for r, ways in enumerate(solved) for j, other in enumerate(ways) if j
    )  # fmt: skip
    picks: list[dict[int, int]] = [{}, *({r: j} for _, r, j in others[: max(0, k - 1)])]
    return [
        with_sizes(assemble(space, [s[pick.get(r, 0)] for r, s in enumerate(solved)], machine))
        for pick in picks
    ]


@dataclass(frozen=True, slots=True)
class _Best:
    """The cheapest way found for a value: its work in all, and the axes that reductions in it
    depend on (another reduction over one of those would repeat them)."""

    work: float
    choice: Choice
    inside: frozenset[Var]


class _Solver:
    """Chooses the stored cuts of one region by local search over exact kernel costs."""

    def __init__(self, region: Region, machine: roofline.Machine) -> None:
        self.region, self.machine = region, machine
        choices = [c for value in region.values for c in value.choices]
        self.axes = frozenset(chain(*(x.axes for x in (*region.cuts, *choices))))
        self.position = {cut.name: i for i, cut in enumerate(region.cuts)}
        self.required = frozenset(i for i, cut in enumerate(region.cuts) if cut.required)
        self.sizes = {
            b.name: (prod((machine.size(e) for e in b.shape), start=1.0), b.dtype.bits / 8)
            for b in (*region.cuts, *region.sources)
        }
        self.orders = [[*depth_first((cut.value,), self._below)] for cut in region.cuts]
        self.below = [self._loaded(order) for order in self.orders]
        self.kernels: dict[tuple[int, frozenset[int]], tuple[float, Term]] = {}

    def _below(self, v: int) -> list[int]:
        return [a for c in self.region.values[v].choices for a in c.args]

    def _loaded(self, order: list[int]) -> frozenset[int]:
        choices = (c for v in order for c in self.region.values[v].choices)
        names = {c.payload[0] for c in choices if c.op == "load"}
        return frozenset(self.position[name] for name in names & self.position.keys())

    def solve(self, k: int) -> list[Picked]:
        soft = [i for i in range(len(self.region.cuts)) if i not in self.required]
        seen: dict[frozenset[int], float] = {}
        for start in dict.fromkeys((frozenset(soft), frozenset[int]())):
            current, cost = self._total(start | self.required)
            seen[current] = cost
            for _ in range(_SWEEPS):
                before = cost
                for i in reversed(soft):
                    other, other_cost = self._total(current ^ {i})
                    seen.setdefault(other, other_cost)
                    if other_cost < cost * _BETTER:
                        current, cost = other, other_cost
                if cost == before:
                    break
        ranked = sorted(seen.items(), key=lambda item: (item[1], sorted(item[0])))[:k]
        return [
            Picked(tuple((i, *self._kernel(i, stored)) for i in sorted(stored)),
                   min(cost, roofline.NEVER))
            for stored, cost in ranked
        ]  # fmt: skip

    def _total(self, stored: frozenset[int]) -> tuple[frozenset[int], float]:
        """The cuts that are really read, and the time of all kernels."""
        needed, total = set(self.required), 0.0
        for i in reversed(range(len(self.region.cuts))):
            if i in needed:
                cost, term = self._kernel(i, stored)
                total += cost
                read = {t.buffer for t in postorder(term) if t.op == "load"}
                needed |= {self.position[b] for b in read & self.position.keys()}
        return frozenset(needed), total

    def _kernel(self, i: int, stored: frozenset[int]) -> tuple[float, Term]:
        """The time of the best kernel for cut i if only `stored` cuts may be loaded, and its
        term."""
        usable = frozenset(j for j in stored & self.below[i] if j < i)
        if (i, usable) not in self.kernels:
            cut = self.region.cuts[i]
            term = rename_apart(self._cheapest(i, usable))
            cost = roofline.kernel_us(self.machine, cut.axes, term, cut.dtype.bits / 8, self.sizes)
            self.kernels[i, usable] = cost, cast(term, cut.dtype)
        return self.kernels[i, usable]

    def _cheapest(self, i: int, usable: frozenset[int]) -> Term:
        best: dict[int, _Best] = {}
        kernel = frozenset(self.region.cuts[i].axes)
        hidden = self.position.keys() - {self.region.cuts[j].name for j in usable}
        changed = True
        while changed:
            changed = False
            for v in self.orders[i]:
                for choice in self.region.values[v].choices:
                    if choice.op == "load" and choice.payload[0] in hidden:
                        continue
                    if any(a not in best for a in choice.args):
                        continue
                    found = self._work(v, choice, best, kernel)
                    if v not in best or found.work < best[v].work * _BETTER:
                        best[v], changed = found, True
        memo: dict[int, Term] = {}

        def build(v: int) -> Term:
            if v not in memo:
                c = best[v].choice
                memo[v] = make(c.op, tuple(map(build, c.args)), c.dtype, c.payload)
            return memo[v]

        return build(self.region.cuts[i].value)

    def _work(
        self, v: int, choice: Choice, best: dict[int, _Best], kernel: frozenset[Var]
    ) -> _Best:
        values, points, args = self.region.values, self.machine.points, choice.args
        free = _NONE.union(*(values[a].free for a in args)) if args else values[v].free
        inside = _NONE.union(*(best[a].inside for a in args))
        work = sum(best[a].work for a in args)
        work += (roofline.WEIGHTS[choice.op] + 0.05) * points(free & self.axes)
        if choice.op in REDUCTIONS:
            own = frozenset(choice.axes)
            work *= 1 + _LOOP * len(own)
            if choice.op == "rsum":
                work += roofline.POWER * points(values[args[0]].free & self.axes)
            if not best[args[-1]].inside.isdisjoint(own):
                work *= _FORBIDDEN
            result = values[v].free & self.axes
            if self.machine.repeats(choice, result, kernel):
                inside |= result
            inside -= own
        return _Best(work, choice, inside)


def rename_apart(term: Term) -> Term:
    """The term with new names k0, k1, ... for its bound axes, so that none is bound inside its own
    scope.

    Nested loops get different names; loops beside each other keep a common one, so that they can
    still run as one loop."""
    made: list[Var] = []
    memo: dict[Term, tuple[Term, frozenset[Var]]] = {}

    def fresh(axis: Var, used: frozenset[Var]) -> Var:
        for v in made:
            if v not in used and (v.lo, v.hi, v.bound) == (axis.lo, axis.hi, axis.bound):
                return v
        made.append(Var(f"k{len(made)}", axis.lo, axis.hi, axis.bound))
        return made[-1]

    def visit(t: Term) -> tuple[Term, frozenset[Var]]:
        """The renamed term and the new names bound inside it."""
        if t not in memo:
            pairs = [visit(a) for a in t.args]
            args, inside = [a for a, _ in pairs], _NONE.union(*(b for _, b in pairs))
            new: list[Var] = []
            for axis in t.axes:
                new.append(fresh(axis, inside.union(new)))
            if new:
                env = {old: to_expr(v) for old, v in zip(t.axes, new, strict=True)}
                args = [substitute(a, env) for a in args]
                memo[t] = make(t.op, tuple(args), t.dtype, tuple(new)), inside.union(new)
            else:
                memo[t] = rebuild(t, tuple(args)), inside
        return memo[t]

    return visit(term)[0]
