"""Reductions at the register level: loops with accumulators, nested groups, lanes combined.

In: the values a tile needs, the loops over reduction axes, the register list. Out: every reduction
of those values in the tile's memo. Reductions over the same axes that do not need one another
share one loop; those that depend on no enclosing reduction axis are computed before its loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from luminal.codegen.evaluate import Evaluator
from luminal.codegen.loopir import Literal, Operand
from luminal.codegen.loops import LoopBuilder, conditions, pieces
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import Facts, fold, outer_reductions
from luminal.codegen.tile import Ahead, Extent, Nest, Replica, Tile
from luminal.ir import Expr, Loop, Reg, Term, Var, accumulator, boolean, i32, postorder, u8
from luminal.ir.numeric import lowest

Slot = tuple[Term, Replica, int]
"""One accumulator: which reduction, which replica, which of its own copies."""


class Reductions:
    """Computes reductions through an evaluator."""

    def __init__(self, evaluator: Evaluator, loops: LoopBuilder) -> None:
        self.eval, self.loops, self.emit = evaluator, loops, evaluator.emit
        self.group = Group

    def compute(self, values: Iterable[Term], tile: Tile, nest: Nest) -> None:
        """Puts every reduction in `values` into the tile's memo, what others need first."""
        first = (0,) * len(tile.registers)
        nodes = [r for r in outer_reductions(*values) if not self.eval.knows(r, tile, first)]
        if any(r.op not in ("sum", "rmax") for r in nodes):
            raise IllegalSchedule("[schedule] an rsum is not reached by its online loop.")
        ranks: dict[Term, int] = {}
        groups: dict[tuple[int, frozenset[Var]], list[Term]] = {}
        for r in nodes:
            within = set(postorder(*r.args))
            ranks[r] = 1 + max((ranks[s] for s in nodes if s in within and s in ranks), default=0)
            groups.setdefault((ranks[r], frozenset(r.axes)), []).append(r)
        for key in sorted(groups, key=lambda k: k[0]):
            self._group(groups[key], tile, nest)

    def _group(self, nodes: list[Term], tile: Tile, nest: Nest) -> None:
        axes = dict.fromkeys(a for r in nodes for a in r.axes)
        names = {a.name for a in axes}
        own = [loop for loop in nest.inner if loop.axis in names]
        own += [loop for a in axes for loop in nest.missing(a, tile.left[a], own)]
        rest = tuple(loop for loop in nest.inner if loop.axis not in names)
        regs = tuple(r for r in nest.regs if r.axis in names)
        across = any(r.role == "vector" for r in regs)
        copies = 1
        for n, reg in enumerate(regs):
            if reg.role == "acc":
                around = [r.tile for r in regs[:n] if r.axis == reg.axis]
                around = around or [loop.tile for loop in own if loop.axis == reg.axis]
                whole = around[-1] if around else tile.left[nest.axes[reg.axis]].most or 1
                copies *= -(-whole // reg.tile)
        slots: dict[Slot, Operand] = {}
        for r in nodes:
            lanes = nest.width if across or tile.lane_axis in r.free else 1
            for u in tile.replicas(tile.positions(r)):
                for copy in range(copies):
                    slots[r, u, copy] = Literal(identity(r), accumulator(r.dtype), lanes)
        group = self.group(self, nodes, tile, replace(nest, inner=rest), regs, tuple(slots), across)
        results = group.descend(tuple(own), list(slots.values()), {}, {}, {})
        found: dict[tuple[Term, Replica], list[Operand]] = {}
        for (r, u, _), value in zip(slots, results, strict=True):
            found.setdefault((r, u), []).append(value)
        for (r, u), parts in found.items():
            while len(parts) > 1:
                pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
                parts = [self.combine(r, *p) if len(p) == 2 else p[0] for p in pairs]
            value = self.joined(r, self.emit.across(r.op, parts[0]) if across else parts[0], own)
            tile.memo[self.eval.key(r, tile, u)] = self.emit.rounded(value, r.dtype)

    def joined(self, r: Term, value: Operand, own: Sequence[Loop]) -> Operand:
        """The result, where `value` came out of the loops `own`."""
        return value

    def combine(self, r: Term, a: Operand, b: Operand) -> Operand:
        """Two partial results of a reduction as one."""
        return self.emit.apply("max" if r.op == "rmax" else "add", a, b)

    def advance(self, r: Term, body: Term, acc: Operand, tile: Tile, u: Replica) -> Operand:
        """The accumulator after one more value."""
        if r.op == "sum" and body.op == "const" and not body.value:
            return acc
        if any(g.role == "dot" and g.axis in r.axes for g in tile.registers):
            return self._dot(r, body, acc, tile, u)
        wide = accumulator(r.dtype) == r.dtype and r.dtype.is_float
        if r.op == "sum" and body.op == "mul" and wide:
            a, b = (self.eval.value(x, tile, u) for x in body.args)
            return self.emit.apply("fma", a, b, acc)
        value = self.eval.value(body, tile, u)
        if isinstance(acc, Literal) and r.op == "sum" and acc.value == 0 and r.dtype != boolean:
            return self.emit.splat(value, acc.lanes)
        return self.combine(r, acc, value)

    def _dot(self, r: Term, body: Term, acc: Operand, tile: Tile, u: Replica) -> Operand:
        """Four more products for every lane, of bytes."""
        if r.op != "sum" or body.op != "mul" or r.dtype != i32:
            raise IllegalSchedule("[schedule] a dot product is a sum of i32 products of bytes.")
        (a, small), (b, other) = (self.eval.dot_operand(x, tile, u) for x in body.args)
        if b.dtype == u8 or (other and a.dtype != u8):
            a, b, small = b, a, other
        if b.dtype == u8 or acc.lanes != tile.lanes:
            raise IllegalSchedule("[schedule] a dot product needs lanes and a signed operand.")
        return self.eval.emit.let("dot4", (a, b, acc), i32, acc.lanes, (1,) * small)


def identity(r: Term) -> float | int | bool:
    """What a reduction starts from."""
    wide = accumulator(r.dtype)
    if r.op == "rmax" or wide == boolean:
        return lowest(wide)
    return 0.0 if wide.is_float else 0


@dataclass(frozen=True, slots=True)
class Group:
    """The loops of one group of reductions, down to the register level; `across`: lanes run over
    a reduction axis."""

    owner: Reductions
    nodes: list[Term]
    tile: Tile
    nest: Nest
    regs: tuple[Reg, ...]
    slots: tuple[Slot, ...]
    across: bool

    def descend(
        self, own: tuple[Loop, ...], values: list[Operand], env: Mapping[Var, Expr],
        left: Mapping[Var, Extent], facts: Facts,
    ) -> Sequence[Operand]:  # fmt: skip
        """The loops `own` around the register level; carried values in, carried values out."""
        if not own:
            return self._registers(values, env, left, facts)
        loop, rest = own[0], own[1:]
        axis = self.nest.axes[loop.axis]
        start, around = {**self.tile.base, **env}, {**self.tile.left, **left}
        cuts = None
        if loop.split and loop.tile == 1:
            bodies = {r: fold(r.args[0], facts) for r in self.nodes}
            masks = [c for c in conditions(*bodies.values()) if axis in c.free
                     and all(_vanishes(r, body, c) for r, body in bodies.items())]  # fmt: skip
            found = pieces(masks, axis, 1, around[axis].expr, start, around, exact=True)
            cuts = [p for p in found if all(p.facts.values())]

        def body(offset: Expr, extent: Extent, known: Facts, v: list[Operand]) -> Sequence[Operand]:
            here, most = {**env, axis: start[axis] + offset}, {**left, axis: extent}
            step = Ahead(axis, loop.tile * loop.ahead, {**start, **here}, {**around, **most})
            nest = replace(self.nest, ahead=(*self.nest.ahead, *[step] * (loop.ahead > 0)))
            if not rest:
                self.owner.eval.prefetch(nest, step.env, step.left)
            return replace(self, nest=nest).descend(rest, v, here, most, {**facts, **known})

        return self.owner.loops.tiles(
            around[axis], loop.tile, values, body, loop.axis, cuts=cuts,
            again=any(other.axis == loop.axis for other in rest),
            ragged=any(r.axis == loop.axis and r.role == "vector" for r in self.regs),
        )  # fmt: skip

    def _registers(
        self, values: list[Operand], env: Mapping[Var, Expr], left: Mapping[Var, Extent],
        facts: Facts,
    ) -> list[Operand]:  # fmt: skip
        evaluator, prefix = self.owner.eval, self.owner.loops.unique("r")
        tile = evaluator.extend(self.tile.child(env, left), self.regs, prefix, self.nest)
        bodies = {r: fold(r.args[0], facts) for r in self.nodes}
        self.owner.compute(bodies.values(), tile, self.nest)
        first = len(self.tile.registers)
        current = dict(zip(self.slots, values, strict=True))
        order = sorted({(u, r): None for r, u, _ in self.slots}, key=lambda k: k[0])
        for extra in tile.replicas(range(first, len(tile.registers))):
            copy = 0
            for register, n in zip(tile.registers[first:], extra[first:], strict=True):
                copy = copy * register.count + n if register.role == "acc" else copy
            for replica, r in order:
                u = (*replica, *extra[first:])
                slot = (r, replica, copy)
                value = self.owner.advance(r, bodies[r], current[slot], tile, u)
                mask = evaluator.lane_mask(tile, u) if self.across else None
                if mask is not None:
                    value = evaluator.emit.apply("select", mask, value, current[slot])
                current[slot] = value
        return list(current.values())


def _vanishes(r: Term, body: Term, c: Term) -> bool:
    """Whether the reduced value is the identity wherever `c` is false."""
    value = fold(body, {c: False})
    return value.op == "const" and value.value == (0 if r.op == "sum" else lowest(r.dtype))
