"""Extraction: from a Space to the best few Plans under the roofline model.

In: a Space, a Target, values for symbolic dimensions. Out: Plans without schedules, best first.
Each region is solved once: which cuts are stored, then for every kernel the cheapest choice per
value. Measures nothing and names no operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luminal.ir.expr import Var
from luminal.ir.plan import Plan, with_sizes
from luminal.ir.space import Choice, Region, Space
from luminal.ir.target import Target
from luminal.ir.term import REDUCTIONS, Term, cast, make, postorder
from luminal.search.assemble import Picked, assemble
from luminal.search.naming import rename_apart
from luminal.search.roofline import NEVER, POWER, SMALL_LOOP, WEIGHTS, Machine, kernel_us, value_of

__all__ = ["extract"]

_SWEEPS = 3
_FORBIDDEN = 1e4
_LOOP = 1e-2
_BETTER = 1 - 1e-9


def extract(space: Space, target: Target, *, hints: dict[str, int], k: int) -> list[Plan]:
    """The `k` best plans; `hints` give likely values of dimensions by name."""
    machine = Machine(target, hints)
    solved = [_Solver(region, machine).solve(k) for region in space.regions]
    choices = [[0] * len(space.regions)]
    uses = [sum(c.region == r for c in space.calls) for r in range(len(space.regions))]
    others = [
        ((s[j].cost_us - s[0].cost_us) * uses[r], r, j)
        for r, s in enumerate(solved)
        for j in range(1, len(s))
    ]
    for _, r, j in sorted(others)[: max(0, k - 1)]:
        choices.append([j if r == q else 0 for q in range(len(space.regions))])
    return [
        with_sizes(assemble(space, [solved[r][j] for r, j in enumerate(pick)])) for pick in choices
    ]


@dataclass(frozen=True, slots=True)
class _Best:
    """The cheapest way found for a value: its work in all, and the axes that reductions in it
    depend on (another reduction over one of those would repeat them)."""

    work: float
    choice: Choice
    inside: frozenset[Var]


@dataclass(slots=True)
class _Solver:
    """Chooses the stored cuts of one region by local search over exact kernel costs."""

    region: Region
    machine: Machine
    axes: frozenset[Var] = field(init=False)
    position: dict[str, int] = field(init=False)
    sizes: dict[str, tuple[float, float]] = field(init=False)
    below: list[frozenset[int]] = field(init=False)
    order: list[tuple[int, ...]] = field(init=False)
    kernels: dict[tuple[int, frozenset[int]], tuple[float, Term]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        region = self.region
        found = {a for cut in region.cuts for a in cut.axes}
        for value in region.values:
            for choice in value.choices:
                if choice.op in REDUCTIONS:
                    found |= set(choice.payload)  # type: ignore[arg-type]
        self.axes = frozenset(found)
        self.position = {cut.name: i for i, cut in enumerate(region.cuts)}
        self.sizes = {}
        for held in (*region.cuts, *region.sources):
            elements = 1.0
            for e in held.shape:
                elements *= value_of(e, self.machine.hints)
            self.sizes[held.name] = (elements, max(0.5, held.dtype.bits / 8))
        self.order = [self._postorder(cut.value) for cut in region.cuts]
        self.below = [self._loaded(order) for order in self.order]

    def _postorder(self, root: int) -> tuple[int, ...]:
        """Values that `root` may be computed from, arguments first where possible."""
        out: list[int] = []
        seen: set[int] = set()
        stack = [(root, False)]
        while stack:
            v, ready = stack.pop()
            if ready:
                out.append(v)
            elif v not in seen:
                seen.add(v)
                stack.append((v, True))
                for choice in self.region.values[v].choices:
                    stack += [(a, False) for a in choice.args if a not in seen]
        return tuple(out)

    def _loaded(self, order: tuple[int, ...]) -> frozenset[int]:
        names = {
            c.payload[0]  # type: ignore[index]
            for v in order for c in self.region.values[v].choices if c.op == "load"
        }  # fmt: skip
        return frozenset(self.position[n] for n in names if n in self.position)

    def solve(self, k: int) -> list[Picked]:
        """The best `k` ways to store cuts, best first."""
        required = frozenset(i for i, c in enumerate(self.region.cuts) if c.required)
        soft = [i for i in range(len(self.region.cuts)) if i not in required]
        seen: dict[frozenset[int], float] = {}
        starts = [frozenset(soft)] + ([frozenset()] if soft else [])
        for start in starts:
            self._descend(start, soft, required, seen)
        ranked = sorted(seen.items(), key=lambda item: (item[1], sorted(item[0])))[:k]
        return [self._picked(stored, cost) for stored, cost in ranked]

    def _descend(
        self, start: frozenset[int], soft: list[int], required: frozenset[int],
        seen: dict[frozenset[int], float],
    ) -> None:  # fmt: skip
        current, cost = self._total(start | required, required)
        seen[current] = cost
        for _ in range(_SWEEPS):
            improved = False
            for i in reversed(soft):
                other, other_cost = self._total(current ^ {i}, required)
                seen.setdefault(other, other_cost)
                if other_cost < cost * (1 - 1e-9):
                    current, cost, improved = other, other_cost, True
            if not improved:
                return

    def _total(
        self, stored: frozenset[int], required: frozenset[int]
    ) -> tuple[frozenset[int], float]:
        """The cuts that are really read, and the time of all kernels."""
        needed, total = set(required), 0.0
        for i in range(len(self.region.cuts) - 1, -1, -1):
            if i in needed:
                cost, term = self._kernel(i, stored)
                total += cost
                needed |= {self.position[b] for b in _buffers(term) if b in self.position}
        return frozenset(needed), total

    def _kernel(self, i: int, stored: frozenset[int]) -> tuple[float, Term]:
        """The best kernel for cut i if only `stored` cuts may be loaded, and its time."""
        usable = frozenset(j for j in stored & self.below[i] if j < i)
        key = (i, usable)
        if key not in self.kernels:
            cut = self.region.cuts[i]
            term = rename_apart(self._cheapest(i, usable), cut.axes)
            cost = kernel_us(
                self.machine, cut.axes, term, cut.dtype.bits / 8, self.sizes.__getitem__
            )
            self.kernels[key] = (cost, cast(term, cut.dtype))
        return self.kernels[key]

    def _cheapest(self, i: int, usable: frozenset[int]) -> Term:
        """The term of least total work."""
        best: dict[int, _Best] = {}
        kernel = frozenset(self.region.cuts[i].axes)
        changed = True
        while changed:
            changed = False
            for v in self.order[i]:
                for choice in self.region.values[v].choices:
                    found = self._work(v, choice, best, usable, kernel)
                    if found is not None and (v not in best or found.work < best[v].work * _BETTER):
                        best[v], changed = found, True
        return self._build(self.region.cuts[i].value, best)

    def _work(
        self, v: int, choice: Choice, best: dict[int, _Best], usable: frozenset[int],
        kernel: frozenset[Var],
    ) -> _Best | None:  # fmt: skip
        values = self.region.values
        if choice.op == "load":
            cut = self.position.get(choice.payload[0])  # type: ignore[index]
            if cut is not None and cut not in usable:
                return None
        if any(a not in best for a in choice.args):
            return None
        free = frozenset().union(*(values[a].free for a in choice.args)) if choice.args else (
            values[v].free
        )  # fmt: skip
        inside = frozenset().union(*(best[a].inside for a in choice.args))
        work = sum(best[a].work for a in choice.args)
        work += (WEIGHTS[choice.op] + 0.05) * self.machine.points(free & self.axes)
        if choice.op in REDUCTIONS:
            own = frozenset(choice.payload)  # type: ignore[arg-type]
            work *= 1 + _LOOP * len(own)
            last = best[choice.args[-1]]
            if choice.op == "rsum":
                x = choice.args[0]
                work += POWER * self.machine.points(values[x].free & self.axes)
            if not last.inside.isdisjoint(own):
                work = work * _FORBIDDEN
            result = values[v].free & self.axes
            if self.machine.points(own) > SMALL_LOOP or not kernel <= result:
                inside |= result
            inside -= own
        return _Best(work, choice, inside)

    def _build(self, root: int, best: dict[int, _Best]) -> Term:
        memo: dict[int, Term] = {}

        def visit(v: int) -> Term:
            if v not in memo:
                c = best[v].choice
                memo[v] = make(c.op, tuple(map(visit, c.args)), c.dtype, c.payload)
            return memo[v]

        return visit(root)

    def _picked(self, stored: frozenset[int], cost: float) -> Picked:
        kernels = []
        for i in sorted(stored):
            us, term = self._kernel(i, stored)
            kernels.append((i, term, us))
        return Picked(tuple(kernels), min(cost, NEVER))


def _buffers(term: Term) -> set[str]:
    return {t.buffer for t in postorder(term) if t.op == "load"}
