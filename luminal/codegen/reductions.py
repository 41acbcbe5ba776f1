"""Reductions at the register level: loops with accumulators, nested groups, lanes combined.

In: the values a tile needs, the loops over reduction axes, the register list. Out: every reduction
of those values in the tile's memo. Reductions over the same axes that do not need one another
share one loop; those that depend on no enclosing reduction axis are computed before its loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from luminal.codegen.arith import Arithmetic, lowest
from luminal.codegen.evaluate import Evaluator
from luminal.codegen.loopir import Literal, Operand
from luminal.codegen.loops import LoopBuilder
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.segments import restricted
from luminal.codegen.terms import Facts, fold, outer_reductions
from luminal.codegen.tile import Extent, Replica, Tile, extend, extent_of
from luminal.ir.dtype import accumulator, boolean, i32, u8
from luminal.ir.expr import Expr, Var, to_expr
from luminal.ir.plan import Loop, Reg
from luminal.ir.term import Term, postorder, rebuild

__all__ = ["Nest", "Reductions", "identity"]

Initial = Mapping[tuple[Term, Replica], Operand]


@dataclass(frozen=True, slots=True)
class Nest:
    """What a leaf knows of its schedule: loops over reduction axes, registers, lanes, axes."""

    inner: tuple[Loop, ...]
    regs: tuple[Reg, ...]
    width: int
    axes: Mapping[str, Var]


@dataclass(frozen=True, slots=True)
class _Slot:
    """One accumulator: which reduction, which replica, which of its own copies."""

    term: Term
    replica: Replica
    copy: int


class Reductions:
    """Computes reductions through an evaluator."""

    def __init__(self, evaluator: Evaluator, loops: LoopBuilder) -> None:
        self.eval, self.loops = evaluator, loops
        self.arith: Arithmetic = evaluator.arith

    def compute(
        self, values: Iterable[Term], tile: Tile, nest: Nest, initial: Initial | None = None
    ) -> None:
        """Puts every reduction in `values` into the tile's memo, what others need first."""
        nodes = [r for r in outer_reductions(*values) if not self._is_known(r, tile)]
        ranks: dict[Term, int] = {}
        groups: dict[tuple[int, frozenset[Var]], list[Term]] = {}
        if any(r.op not in ("sum", "rmax") for r in nodes):
            raise IllegalSchedule("[schedule] an rsum or wsum is not reached by its online loop.")
        for r in nodes:
            within = set(postorder(*r.args))
            ranks[r] = 1 + max((ranks[s] for s in nodes if s in within and s in ranks), default=0)
            groups.setdefault((ranks[r], frozenset(r.axes)), []).append(r)
        for key in sorted(groups, key=lambda k: k[0]):
            self._group(groups[key], tile, nest, initial or {})

    def _is_known(self, r: Term, tile: Tile) -> bool:
        first = (0,) * len(tile.registers)
        found = tile.memo.get(self.eval.key(r, tile, first))
        return found is not None and self.eval.emit.alive(found)

    def _group(self, nodes: list[Term], tile: Tile, nest: Nest, initial: Initial) -> None:
        axes = tuple(dict.fromkeys(a for r in nodes for a in r.axes))
        names = {a.name for a in axes}
        regs = tuple(r for r in nest.regs if r.axis in names)
        own = [loop for loop in nest.inner if loop.axis in names]
        for axis in axes:
            if not any(r.axis == axis.name and r.tile == 1 for r in regs):
                if not any(loop.axis == axis.name and loop.tile == 1 for loop in own):
                    own.append(Loop(axis.name, 1))
        rest = tuple(loop for loop in nest.inner if loop.axis not in names)
        lanes_inside = any(r.role == "vector" for r in regs)
        slots, start = self._slots(nodes, tile, regs, own, lanes_inside, nest, initial)
        walk = _Walk(self, nodes, tile, Nest(rest, nest.regs, nest.width, nest.axes), regs, slots,
                     lanes_inside)  # fmt: skip
        results = walk.descend(tuple(own), start, {}, {}, {})
        self._finish(nodes, tile, slots, results, lanes_inside)

    def _slots(
        self, nodes: list[Term], tile: Tile, regs: tuple[Reg, ...], own: list[Loop],
        lanes_inside: bool, nest: Nest, initial: Initial,
    ) -> tuple[list[_Slot], list[Operand]]:  # fmt: skip
        copies = 1
        for reg in regs:
            if reg.role == "acc":
                before = [r.tile for r in regs[: regs.index(reg)] if r.axis == reg.axis]
                before = before or [loop.tile for loop in own if loop.axis == reg.axis]
                whole = before[-1] if before else tile.left[nest.axes[reg.axis]].most or 1
                copies *= -(-whole // reg.tile)
        slots: list[_Slot] = []
        start: list[Operand] = []
        for r in nodes:
            lanes = nest.width if lanes_inside or tile.varies(r.free) else 1
            for u in tile.replicas(tile.positions(r)):
                for copy in range(copies):
                    slots.append(_Slot(r, u, copy))
                    given = initial.get((r, u)) if copy == 0 else None
                    start.append(given if given is not None else identity(r, lanes))
        return slots, start

    def _finish(
        self, nodes: list[Term], tile: Tile, slots: list[_Slot], results: Sequence[Operand],
        lanes_inside: bool,
    ) -> None:  # fmt: skip
        found: dict[tuple[Term, Replica], list[Operand]] = {}
        for slot, value in zip(slots, results, strict=True):
            found.setdefault((slot.term, slot.replica), []).append(value)
        for (r, u), parts in found.items():
            while len(parts) > 1:
                pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
                parts = [self.combine(r, *p) if len(p) == 2 else p[0] for p in pairs]
            value = self.arith.across(r.op, parts[0]) if lanes_inside else parts[0]
            tile.memo[self.eval.key(r, tile, u)] = self.arith.rounded(value, r.dtype)

    def combine(self, r: Term, a: Operand, b: Operand) -> Operand:
        """Two partial results of a reduction as one."""
        if r.dtype == boolean:
            return self.arith.either(a, b)
        return self.arith.larger(a, b) if r.op == "rmax" else self.arith.add(a, b)

    def advance(self, r: Term, body: Term, acc: Operand, tile: Tile, u: Replica) -> Operand:
        """The accumulator after one more value."""
        if r.op == "sum" and body.op == "const" and not body.value:
            return acc
        if any(g.role == "dot" and g.axis in r.axes for g in tile.registers):
            return self._dot(r, body, acc, tile, u)
        wide = accumulator(r.dtype) == r.dtype and r.dtype.is_float
        if r.op == "sum" and body.op == "mul" and wide:
            a, b = (self.eval.value(x, tile, u) for x in body.args)
            return self.arith.fma(a, b, acc)
        value = self.eval.value(body, tile, u)
        if isinstance(acc, Literal) and r.op == "sum" and acc.value == 0 and r.dtype != boolean:
            return self.arith.splat(value, acc.lanes)
        return self.combine(r, acc, value)

    def _dot(self, r: Term, body: Term, acc: Operand, tile: Tile, u: Replica) -> Operand:
        """Four more products for every lane, of bytes."""
        if r.op != "sum" or body.op != "mul" or r.dtype != i32:
            raise IllegalSchedule("[schedule] a dot product is a sum of i32 products of bytes.")
        a, b = (self.eval.dot_operand(x, tile, u) for x in body.args)
        if b.dtype == u8:
            a, b = b, a
        if b.dtype == u8 or acc.lanes != tile.lanes:
            raise IllegalSchedule("[schedule] a dot product needs lanes and a signed operand.")
        return self.eval.emit.let("dot4", (a, b, acc), i32, acc.lanes)


def identity(r: Term, lanes: int) -> Literal:
    """What an accumulator starts from."""
    wide = accumulator(r.dtype)
    if r.op == "rmax" or wide == boolean:
        return Literal(lowest(wide), wide, lanes)
    return Literal(0.0 if wide.is_float else 0, wide, lanes)


class _Walk:
    """The loops of one group of reductions, down to the register level."""

    def __init__(
        self, owner: Reductions, nodes: list[Term], tile: Tile, nest: Nest, regs: tuple[Reg, ...],
        slots: list[_Slot], lanes_inside: bool,
    ) -> None:  # fmt: skip
        self.owner, self.nodes, self.tile, self.nest = owner, nodes, tile, nest
        self.regs, self.slots, self.lanes_inside = regs, slots, lanes_inside
        self.loops, self.eval = owner.loops, owner.eval

    def descend(
        self, own: tuple[Loop, ...], values: list[Operand], env: Mapping[Var, Expr],
        left: Mapping[Var, Extent], facts: Facts,
    ) -> list[Operand]:  # fmt: skip
        """The loops `own` around the register level; carried values in, carried values out."""
        if not own:
            return self._registers(values, env, left, facts)
        loop, rest = own[0], own[1:]
        axis = self.nest.axes[loop.axis]
        base, whole = env.get(axis, self.tile.env[axis]), left.get(axis, self.tile.left[axis])

        def body(offset: Expr, extent: Extent, inner: list[Operand]) -> list[Operand]:
            return self.descend(
                rest, inner, {**env, axis: base + offset}, {**left, axis: extent}, facts
            )

        if any(other.axis == loop.axis for other in rest):
            return self.loops.outer_tiles(whole, loop.tile, values, body, loop.axis)
        if loop.split and loop.tile == 1:
            return self._restricted(loop, rest, values, env, left, facts)
        values = self.loops.full_tiles(whole, loop.tile, values, body, loop.axis)
        vector = any(r.axis == loop.axis and r.role == "vector" for r in self.regs)
        return self.loops.tail(whole, loop.tile, values, body, vector, loop.axis)

    def _restricted(
        self, loop: Loop, rest: tuple[Loop, ...], values: list[Operand], env: Mapping[Var, Expr],
        left: Mapping[Var, Extent], facts: Facts,
    ) -> list[Operand]:  # fmt: skip
        """A loop over those steps only at which its masks let something through."""
        axis = self.nest.axes[loop.axis]
        here, open_ = {**self.tile.env, **env}, {**self.tile.left, **left}
        hidden = {r.var for r in self.tile.registers} | {self.tile.lane, *self.tile.clamps.values()}
        own = {a for r in self.nodes for a in r.axes} - {axis}

        def resolve(c: Term, step: Var) -> Expr | None:
            if any(x in own and open_[x].value != 1 for x in c.free):
                return None
            e = c.expr.substitute({**here, axis: here[axis] + to_expr(step)})
            return None if e.variables() & hidden else e

        bodies = [rebuild(r, tuple(fold(a, facts) for a in r.args)) for r in self.nodes]
        lo, hi, more = restricted(bodies, axis, open_[axis].expr, resolve)

        def body(v: Expr, inner: list[Operand]) -> list[Operand]:
            return self.descend(
                rest, inner, {**env, axis: here[axis] + v}, {**left, axis: extent_of(1)},
                {**facts, **more},
            )  # fmt: skip

        return self.loops.run(lo, hi, values, body, loop.axis)

    def _registers(
        self, values: list[Operand], env: Mapping[Var, Expr], left: Mapping[Var, Extent],
        facts: Facts,
    ) -> list[Operand]:  # fmt: skip
        outer = self.tile.child(env, left)
        prefix = self.loops.unique("r")
        tile = extend(outer, self.regs, self.nest.axes, prefix, self.nest.width)
        self.eval.register(tile)
        bodies = {r: fold(r.args[0], facts) for r in self.nodes}
        self.owner.compute(bodies.values(), tile, self.nest)
        first = len(self.tile.registers)
        new = range(first, len(tile.registers))
        current = dict(zip(self.slots, values, strict=True))
        order = sorted({(s.replica, s.term): None for s in self.slots}, key=lambda k: k[0])
        for extra in tile.replicas(new):
            copy = 0
            for p in new:
                if tile.registers[p].role == "acc":
                    copy = copy * tile.registers[p].count + extra[p]
            for replica, r in order:
                u = (*replica, *extra[first:])
                slot = _Slot(r, replica, copy)
                acc = current[slot]
                value = self.owner.advance(r, bodies[r], acc, tile, u)
                mask = self.eval.lane_mask(tile, u) if self.lanes_inside else None
                current[slot] = value if mask is None else self.owner.arith.choose(mask, value, acc)
        return [current[s] for s in self.slots]
