"""Tiles: the register level of a nest: which axes are replicated, which one is the lanes.

In: a register list, the values of axes so far and what is left of each. Out: `Tile`, which knows
the replicas of a term: a value is held once for every combination of those register variables
that its free axes contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from luminal.codegen.loopir import Operand
from luminal.codegen.memory import Address
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.ir import Expr, Loop, Reg, Term, Var, const, minimum, to_expr

Replica = tuple[int, ...]
STATIC_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Extent:
    """What is left of an axis: an expression, and the values it can take where few are known."""

    expr: Expr
    possible: frozenset[int] = frozenset()

    @property
    def value(self) -> int | None:
        """The extent, if it is a constant."""
        return self.expr.value

    @property
    def most(self) -> int | None:
        """A static upper bound, None where there is no useful one."""
        most = min(max(self.possible, default=self.expr.hi), self.expr.hi)
        return most if self.value is not None or most <= STATIC_LIMIT else None

    def inside(self, tile: int, start: Expr) -> Extent:
        """What is left inside a loop in steps of `tile`, at axis offset `start`."""
        if self.value and self.value % tile == 0:
            return extent_of(tile)
        sizes = {min(p, tile) for p in self.possible if p} | {p % tile for p in self.possible}
        return extent_of(minimum(const(tile), self.expr - start), sizes - {0})


def extent_of(value: Expr | int, possible: Iterable[int] = ()) -> Extent:
    """An extent; a single possible value makes it static."""
    value = to_expr(value)
    found = frozenset(possible) if value.value is None else frozenset((value.value,))
    return Extent(const(*found) if len(found) == 1 else value, found)


@dataclass(frozen=True, slots=True)
class Ahead:
    """A loop whose later step, `by` further along its axis, is prefetched for: where one stands."""

    axis: Var
    by: int
    env: Mapping[Var, Expr]
    left: Mapping[Var, Extent]


@dataclass(frozen=True, slots=True)
class Nest:
    """What a leaf knows of its schedule: loops over reduction axes, registers, lanes, axes; loops
    around that look ahead, for what is read and added to."""

    inner: tuple[Loop, ...]
    regs: tuple[Reg, ...]
    width: int
    axes: Mapping[str, Var]
    ahead: tuple[Ahead, ...] = ()
    reads: tuple[Term, ...] = ()

    def missing(self, axis: Var, left: Extent, loops: Iterable[object]) -> list[Loop]:
        """The loop over an axis that `loops` and registers leave open, or open at run time."""
        tiles = [loop.tile for loop in loops if isinstance(loop, Loop) and loop.axis == axis.name]
        regs = [r for r in self.regs if r.axis == axis.name]
        if not any(r.tile == 1 for r in regs):
            return [] if 1 in tiles else [Loop(axis.name, 1)]
        dynamic = not tiles and left.value is None and all(r.role != "vector" for r in regs)
        return [Loop(axis.name, left.most)] if dynamic and left.most else []


@dataclass(frozen=True, slots=True)
class Register:
    """One entry of the register list: `count` replicas of `axis`, `tile` apart."""

    var: Var
    axis: Var
    count: int
    tile: int
    role: str


@dataclass(slots=True)
class Tile:
    """Axis values in terms of loop variables (`base`), and of register variables too (`env`), and
    the values made so far."""

    base: dict[Var, Expr]
    left: dict[Var, Extent]
    env: dict[Var, Expr]
    registers: tuple[Register, ...] = ()
    lane: Var | None = None
    lane_axis: Var | None = None
    memo: dict[object, Operand] = field(default_factory=dict)
    affine: dict[object, tuple[Address, Replica | None]] = field(default_factory=dict)
    masks: dict[int, Operand | None] = field(default_factory=dict)
    squares: dict[object, list[Operand]] = field(default_factory=dict)
    _positions: dict[Term, tuple[int, ...]] = field(default_factory=dict)

    def positions(self, t: Term) -> tuple[int, ...]:
        """Indices of the registers that the term's value depends on."""
        found = self._positions.get(t)
        if found is None:
            found = self._positions[t] = self.registers_of(t.free)
        return found

    @property
    def lanes(self) -> int:
        """The number of lanes; 1 without."""
        return self.lane.hi + 1 if self.lane is not None else 1

    def registers_of(self, axes: Iterable[Var]) -> tuple[int, ...]:
        """Indices of the registers over any of these axes."""
        wanted = set(axes)
        return tuple(n for n, r in enumerate(self.registers) if r.axis in wanted)

    def offset(self, axis: Var, replica: Replica) -> int:
        """Offset of a replica along an axis, lanes not counted."""
        return sum(u * r.tile for u, r in zip(replica, self.registers) if r.axis == axis)

    def replicas(self, positions: Iterable[int]) -> Iterator[Replica]:
        """All replicas that vary in these registers only, inside the static extents."""
        chosen = set(positions)
        counts = [range(r.count if n in chosen else 1) for n, r in enumerate(self.registers)]
        axes = dict.fromkeys(self.registers[n].axis for n in sorted(chosen))
        limits = [(a, self.left[a].value) for a in axes if self.left[a].value]
        for replica in product(*counts):
            if all(self.offset(a, replica) < (n or 0) for a, n in limits):
                yield replica

    def substitution(self, replica: Replica) -> dict[Var, Expr]:
        """Register variables as constants."""
        return {r.var: const(u) for r, u in zip(self.registers, replica)}

    def child(self, env: Mapping[Var, Expr], left: Mapping[Var, Extent]) -> Tile:
        """The same registers inside a loop; values made there do not leak out."""
        return Tile({**self.base, **env}, {**self.left, **left}, {**self.env, **env},
                    self.registers, self.lane, self.lane_axis, dict(self.memo))  # fmt: skip

    def extend(self, regs: Iterable[Reg], prefix: str, nest: Nest) -> Tile:
        """The tile with further register axes, values kept."""
        new = self.child({}, {})
        spans: dict[Var, int | None] = {}
        for reg in regs:
            axis = nest.axes[reg.axis]
            if reg.role == "vector":
                new.lane, new.lane_axis = Var(f"{prefix}lane", 0, nest.width - 1), axis
                new.env[axis] = new.env[axis] + to_expr(new.lane)
                spans[axis] = 1
                continue
            span = spans.get(axis, self.left[axis].most)
            if span is None:
                text = f"[schedule] axis {axis} has no static tile for its registers."
                raise IllegalSchedule(text)
            count, role = -(-span // reg.tile), reg.role
            if role == "dot":
                whole = span == 4 and reg.tile == 1 and (self.left[axis].value or 1) % 4 == 0
                count, role = (1, role) if whole else (count, "unroll")
            var = Var(f"{prefix}u{len(new.registers)}", 0, max(0, count - 1))
            new.registers += (Register(var, axis, count, reg.tile, role),)
            new.env[axis] = new.env[axis] + to_expr(var) * reg.tile
            spans[axis] = min(span, reg.tile)
        if any(a != new.lane_axis and self.left[a].value is None for a in spans):
            raise IllegalSchedule("[schedule] registers need a static extent, or a loop around.")
        return new
