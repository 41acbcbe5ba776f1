"""Tiles: the register level of a nest: which axes are replicated, which one is the lanes.

In: a register list, the values of axes so far and what is left of each. Out: `Tile`, which knows
the replicas of a term: a value is held once for every combination of those register variables
that its free axes contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from luminal.codegen.loopir import Operand
from luminal.codegen.memory import Address
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.ir.expr import ONE, ZERO, Expr, Var, ceil_div, const, minimum, to_expr
from luminal.ir.plan import Reg
from luminal.ir.term import Term

__all__ = ["Extent", "Register", "Replica", "Tile", "extend", "extent_of", "inner_extent", "steps"]

Replica = tuple[int, ...]
MemoKey = tuple[object, ...]
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
        if self.value is not None:
            return self.value
        bounds = [b for b in (max(self.possible, default=None), self.expr.hi) if b is not None]
        return min(bounds) if min(bounds) <= STATIC_LIMIT else None


def extent_of(value: Expr | int, possible: Iterable[int] = ()) -> Extent:
    """An extent; a single possible value makes it static."""
    value = to_expr(value)
    found = frozenset((value.value,)) if value.value is not None else frozenset(possible)
    if len(found) == 1 and value.value is None:
        (single,) = found
        value = const(single)
    return Extent(value, found)


def inner_extent(whole: Extent, tile: int, start: Expr) -> Extent:
    """What is left inside a loop in steps of `tile`, at axis offset `start`."""
    if whole.value and whole.value % tile == 0:
        return extent_of(tile)
    possible: set[int] = set()
    for p in whole.possible:
        possible |= {tile} if p >= tile else set()
        possible |= {p % tile} if p % tile else set()
    return extent_of(minimum(const(tile), whole.expr - start), possible)


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
    """Axis values in terms of loop and register variables, and the values made so far."""

    env: dict[Var, Expr]
    left: dict[Var, Extent]
    registers: tuple[Register, ...] = ()
    lane: Var | None = None
    lane_axis: Var | None = None
    lanes: int = 1
    memo: dict[MemoKey, Operand] = field(default_factory=dict)
    clamps: dict[Var, Var] = field(default_factory=dict)
    affine: dict[object, tuple[Expr, Address, Replica | None]] = field(default_factory=dict)
    clamped: dict[object, Address] = field(default_factory=dict)
    masks: dict[int, Operand | None] = field(default_factory=dict)
    squares: dict[object, list[Operand]] = field(default_factory=dict)
    _positions: dict[Term, tuple[int, ...]] = field(default_factory=dict)

    def positions(self, free: Term) -> tuple[int, ...]:
        """Indices of the registers that the term's value depends on."""
        found = self._positions.get(free)
        if found is None:
            found = self._positions[free] = self.registers_of(free.free)
        return found

    def registers_of(self, axes: Iterable[Var]) -> tuple[int, ...]:
        """Indices of the registers over any of these axes."""
        wanted = set(axes)
        return tuple(n for n, r in enumerate(self.registers) if r.axis in wanted)

    def varies(self, axes: frozenset[Var]) -> bool:
        """Whether the lanes run over one of these axes."""
        return self.lane_axis is not None and self.lane_axis in axes

    def offset(self, axis: Var, replica: Replica) -> int:
        """Offset of a replica along an axis, lanes not counted."""
        return sum(u * r.tile for u, r in zip(replica, self.registers) if r.axis == axis)

    def replicas(self, positions: Iterable[int], base: Replica | None = None) -> Iterator[Replica]:
        """All replicas that vary in these registers, inside the static extents."""
        chosen = sorted(positions)
        start = base if base is not None else (0,) * len(self.registers)
        start += (0,) * (len(self.registers) - len(start))
        limits = [
            (axis, self.left[axis].value)
            for axis in dict.fromkeys(self.registers[p].axis for p in chosen)
        ]
        for values in product(*(range(self.registers[p].count) for p in chosen)):
            replica = list(start)
            for p, v in zip(chosen, values):
                replica[p] = v
            found = tuple(replica)
            if all(n is None or self.offset(a, found) < n or n == 0 for a, n in limits):
                yield found

    def substitution(self, replica: Replica) -> dict[Var, Expr]:
        """Register variables as constants."""
        found = {r.var: const(u) for r, u in zip(self.registers, replica)}
        for axis, var in self.clamps.items():
            found[var] = self.clamp(axis, replica)
        return found

    def clamp(self, axis: Var, replica: Replica) -> Expr:
        """The offset of a replica along an axis of run-time extent, kept inside."""
        offset = self.offset(axis, replica)
        return minimum(const(offset), self.left[axis].expr - ONE) if offset else ZERO

    def clamped_base(self, base: Expr, replica: Replica) -> Expr:
        """An address with its clamps put in."""
        return base.substitute({var: self.clamp(a, replica) for a, var in self.clamps.items()})

    def clamped_offsets(self, replica: Replica) -> Replica:
        """The offsets that decide the clamps."""
        return tuple(self.offset(a, replica) for a in self.clamps)

    def is_dynamic(self, axis: Var) -> bool:
        """Whether the number of valid replicas along the axis is known at run time only."""
        return axis in self.left and self.left[axis].value is None

    def child(self, env: Mapping[Var, Expr], left: Mapping[Var, Extent]) -> Tile:
        """The same registers inside a loop; values made there do not leak out."""
        return Tile({**self.env, **env}, {**self.left, **left}, self.registers, self.lane,
                    self.lane_axis, self.lanes, dict(self.memo), self.clamps)  # fmt: skip


def extend(
    tile: Tile, regs: Iterable[Reg], axes: Mapping[str, Var], prefix: str, width: int
) -> Tile:
    """The tile with further register axes, values kept; `width` is the lane count of its nest."""
    registers = list(tile.registers)
    env, lane, lane_axis, lanes = dict(tile.env), tile.lane, tile.lane_axis, tile.lanes
    shift: dict[Var, Expr] = {}
    clamps = dict(tile.clamps)
    rest: dict[Var, int] = {}
    for reg in regs:
        axis = axes[reg.axis]
        if reg.role == "vector":
            lane, lane_axis, lanes = Var(f"{prefix}lane", 0, width - 1), axis, width
            shift[axis] = shift.get(axis, const(0)) + to_expr(lane)
            rest[axis] = 1
            continue
        span = rest.get(axis, tile.left[axis].most)
        if span is None:
            raise IllegalSchedule(f"[schedule] axis {axis} has no static tile for its registers.")
        count, role = -(-span // reg.tile), reg.role
        if role == "dot":
            whole = span == 4 and reg.tile == 1 and (tile.left[axis].value or 1) % 4 == 0
            count, role = (1, role) if whole else (count, "unroll")
        var = Var(f"{prefix}u{len(registers)}", 0, max(0, count - 1))
        registers.append(Register(var, axis, count, reg.tile, role))
        shift[axis] = shift.get(axis, const(0)) + to_expr(var) * reg.tile
        rest[axis] = min(span, reg.tile)
    for axis, offset in shift.items():
        whole = tile.left[axis]
        if whole.value is None and axis != lane_axis:
            clamps[axis] = Var(f"{prefix}min{len(clamps)}", 0, (whole.most or 1) - 1)
            offset = to_expr(clamps[axis])
        env[axis] = env[axis] + offset
    return Tile(
        env, dict(tile.left), tuple(registers), lane, lane_axis, lanes, dict(tile.memo), clamps
    )


def steps(whole: Extent, tile: int) -> Expr:
    """Number of tiles that cover an extent, the last one perhaps in part."""
    return ceil_div(whole.expr, tile)
