"""Products of small matrices by a warp: the register roles 'm', 'n' and 'k'.

In: tiles whose axes have these roles, the target's table of instructions. Out: `mma` in loop IR.
'm' and 'n' spread what is left of an axis over the threads of a warp as the rows and columns of
results; a sum over a 'k' axis is then done by instructions. Knows no shape or layout of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from luminal.codegen.blocks import Copy
from luminal.codegen.emitter import Emitter, Key
from luminal.codegen.evaluate import Evaluator
from luminal.codegen.loopir import Let, Literal, Load, Operand, Statement, Store, Value
from luminal.codegen.memory import Place
from luminal.codegen.reductions import Group, Slot
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import Facts, fold
from luminal.codegen.tile import Extent, Nest, Register, Replica, Tile
from luminal.ir import DType, Expr, Matrix, Split, Term, Var, accumulator, i64, postorder, to_expr
from luminal.ir.expr import ZERO
from luminal.ir.layout import flatten
from luminal.ir.plan import Item, Online, Reg, Schedule, Stage

SIDE = 8
"""Rows and columns of results lie so far apart in a thread."""


def roles(schedule: Schedule) -> dict[str, str]:
    """The axes that a schedule spreads over a warp anywhere: 'm', 'n', or 'k' if only summed."""
    found = {r.axis: r.role for r in schedule.regs if r.role == "k"}
    for item in schedule.items:
        for inner in _nests(item):
            found = {**roles(inner), **found}
            found |= {a: role for a, role in roles(inner).items() if role != "k"}
    return found | {r.axis: r.role for r in schedule.regs if r.role in ("m", "n")}


def _nests(item: Item) -> tuple[Schedule, ...]:
    if isinstance(item, Online):
        return (item.logits, item.weights, item.values)
    return (Schedule(item.items, item.regs),) if isinstance(item, Stage) else ()


def part(number: Expr, split: Split) -> Expr:
    """What a thread's number says of its place."""
    return sum((number // a % b * c for a, b, c in split), ZERO)


@dataclass(slots=True, eq=False)
class Spread(Place):
    """A local array whose elements lie in the threads that hold them as results: of the dimensions
    `along` these, 'm' or 'n'."""

    along: tuple[str, ...] = ()
    rows: Expr = ZERO
    columns: Expr = ZERO

    def address(self, index: tuple[Expr, ...]) -> Expr:
        """As in `Place`, in the thread's own part."""
        own: list[Expr] = []
        for i, start, role in zip(index, self.origin, self.along, strict=True):
            i = i - start
            if role:
                i = i - (self.rows if role == "m" else self.columns * 2)
                i = i // SIDE if role == "m" else i // SIDE * 2 + i % SIDE
            own.append(i)
        found = flatten(tuple(own), self.shape, self.layout)
        if any(v.name == "tid" for v in found.variables()):
            raise IllegalSchedule("[schedule] threads would read what lies in others.")
        return found


@dataclass(slots=True, eq=False)
class Slots(Place):
    """A local array for the tiles of several steps; `slot` is the one in question, over `axes`."""

    axes: tuple[Var, ...] = ()
    slot: Expr = ZERO
    elements: int = 0

    def address(self, index: tuple[Expr, ...]) -> Expr:
        """As in `Place`, in the slot."""
        return Place.address(self, index) + self.slot * self.elements


class LaneEmitter(Emitter):
    """Emits no conversion of what was converted from that type without loss. While it is `early`,
    a store of what is loaded is a copy that may go on."""

    def __init__(self, dims: Iterable[Var] = ()) -> None:
        super().__init__(dims)
        self.narrow: dict[str, Operand] = {}
        self.made: dict[str, Statement] = {}
        self.early = False

    def once(
        self, level: int, key: Key, dtype: DType, lanes: int, make: Callable[[Value], Statement]
    ) -> Value:  # fmt: skip
        """As in `Emitter`."""

        def kept(v: Value) -> Statement:
            made = self.made[v.name] = make(v)
            return made

        return super().once(level, key, dtype, lanes, kept)

    def effect(self, statement: Statement) -> None:
        """As in `Emitter`."""
        load = self._loaded(statement.value) if isinstance(statement, Store) else None
        if self.early and load is not None and isinstance(statement, Store):
            statement = Copy(load, statement)
        super().effect(statement)

    def _loaded(self, value: Operand) -> Load | None:
        """The load that a value comes from as it is, or 0 where it is masked."""
        found = self.made.get(value.name) if isinstance(value, Value) else None
        if isinstance(found, Let) and found.op == "select":
            load, other = self._loaded(found.args[1]), found.args[2]
            zero = isinstance(other, Literal) and repr(other.value) in ("0", "0.0")
            return load if load and load.mask == found.args[0] and zero else None
        return found if isinstance(found, Load) else None

    def convert(self, a: Operand, dtype: DType) -> Operand:
        """As in `Emitter`."""
        source = self.narrow.get(a.name) if isinstance(a, Value) else None
        if source is not None and source.dtype == dtype:
            return source
        made = super().convert(a, dtype)
        if isinstance(made, Value) and a.dtype.kind == dtype.kind and a.dtype.bits < dtype.bits:
            self.narrow[made.name] = a
        return made

    def apply(self, op: str, *args: Operand) -> Operand:
        """As in `Emitter`."""
        made = super().apply(op, *args)
        if op == "select" and isinstance(made, Value) and isinstance(args[1], Value):
            source, other = self.narrow.get(args[1].name), args[2]
            if source is not None and isinstance(other, Literal) and other.value == 0:
                zero = Literal(0, source.dtype)
                self.narrow.setdefault(made.name, super().apply("select", args[0], source, zero))
        return made


class LaneEvaluator(Evaluator):
    """Evaluates terms for tiles whose axes are spread over a warp. `rows` and `columns` are the
    thread's own."""

    def __init__(
        self, emit: Emitter, places: dict[str, Place], table: Sequence[Matrix], number: Expr
    ) -> None:
        super().__init__(emit, places)
        self.table = table
        self.rows, self.columns = (part(number, s) for s in (
            (table[0].rows, table[0].columns) if table else ((), ())))  # fmt: skip

    def extend(self, tile: Tile, regs: Iterable[Reg], prefix: str, nest: Nest) -> Tile:
        """As in `Evaluator`; the products' own axes are left to them."""
        regs = [r for r in regs if r.role != "k"]
        steps = [replace(r, tile=SIDE) if r.role in ("m", "n") else r for r in regs]
        new = super().extend(tile, steps, prefix, nest)
        for reg in (r for r in regs if r.role in ("m", "n")):
            axis = nest.axes[reg.axis]
            if (new.left[axis].value or 1) % SIDE:
                raise IllegalSchedule(f"[schedule] {axis} has no whole squares.")
            new.env[axis] = new.env[axis] + (self.rows if reg.role == "m" else self.columns * 2)
        return new


def _held(t: Term) -> DType:
    """The smallest dtype that is seen to hold a value."""
    while t.op == "select" and t.args[2].value == 0:
        t = t.args[1]
    return t.args[0].dtype if t.op == "cast" else t.dtype


class _Product:
    """One sum of products over a tile."""

    def __init__(self, group: Group, r: Term, facts: Facts, tile: Tile, axis: Var) -> None:
        evaluator = group.owner.eval
        assert isinstance(evaluator, LaneEvaluator)
        self.eval, self.emit, self.tile, self.axis, self.r = (
            evaluator, evaluator.emit, tile, axis, r)  # fmt: skip
        body = fold(r.args[0], facts)
        places = {x.role: n for n, x in enumerate(tile.registers) if x.role in ("m", "n")}
        if r.op != "sum" or body.op != "mul" or len(places) < 2 or axis not in r.axes:
            raise IllegalSchedule("[schedule] no product of matrices.")
        self.rows, self.columns = places["m"], places["n"]
        i, j = (tile.registers[n].axis for n in (self.rows, self.columns))
        self.a, self.b = body.args if i in body.args[0].free else body.args[::-1]
        if i not in self.a.free or j in self.a.free or j not in self.b.free or i in self.b.free:
            raise IllegalSchedule("[schedule] the operands are no rows and columns.")
        held = {_held(self.a), _held(self.b)}
        fits = (m for m in evaluator.table if m.operand in held and m.result == accumulator(r.dtype)
                and (m.operand.is_float or len(held) == 1))  # fmt: skip
        matrix, span = next(fits, None), tile.left[axis].value or 0
        if matrix is None or span % matrix.k:
            raise IllegalSchedule("[schedule] no instruction for these dtypes or sizes.")
        self.matrix, self.steps = matrix, span // matrix.k
        loads = (t for t in postorder(self.a, self.b) if t.op == "load")
        paired = any(isinstance(evaluator.places[t.buffer], Spread) for t in loads)
        # neighbours along the sum in one thread: all in a row, or pairs as results lie
        self.width = 2 if paired or matrix.across else matrix.k // 4
        whole = self.width == matrix.k // 4 and not matrix.across and self.steps % 2 == 0
        self.joint = 2 if whole else 1  # instructions that one access of 16 bytes serves
        self.left, self.right = self._operand(False), self._operand(True)

    def _operand(self, right: bool) -> Tile:
        """The tile in which a factor is evaluated: its threads hold other elements of it."""
        t, e = self.tile, self.eval
        new = Tile(dict(t.base), dict(t.left), dict(t.env), t.registers)
        new.lane, new.lane_axis = t.lane, t.lane_axis
        across = right and self.matrix.across
        for tile, count in (
            (self.matrix.k * self.joint, self.steps // self.joint),
            (SIDE, self.parts),
        ):
            var = Var(f"k{len(new.registers)}", 0, max(0, count - 1))
            new.registers += (Register(var, self.axis, count, tile, "unroll"),)
            new.env[self.axis] = new.env[self.axis] + to_expr(var) * tile
        if across:
            new.env[self.axis] = new.env[self.axis] + e.rows
            return new
        if right and t.lane is not None:
            j = t.registers[self.columns].axis
            new.env[j] = new.env[j] - t.lane - e.columns * 2 + e.rows
        width = self.width * self.joint
        new.lane, new.lane_axis = Var("klane", 0, width - 1), self.axis
        self.emit.variables[new.lane] = self.emit.let("lanes", (), i64, width)
        new.env[self.axis] = new.env[self.axis] + e.columns * width + to_expr(new.lane)
        return new

    @property
    def parts(self) -> int:
        return self.matrix.k // (4 * self.width)

    def words(self, t: Term, tile: Tile, u: Replica, step: int) -> list[Operand]:
        """What a thread holds of a factor for one instruction."""
        step, which = divmod(step, self.joint)
        made = (self.eval.value(t, tile, (*u, step, p)) for p in range(self.parts))
        found = [self.emit.convert(v, self.matrix.operand) for v in made]
        found = [self.emit.splat(v, tile.lanes) for v in found]
        if self.joint == 1:
            return found
        lanes = tuple(range(which * self.width, (which + 1) * self.width))
        return [self.emit.let("shuffle", (v, v), v.dtype, self.width, lanes) for v in found]

    def add(self, sums: dict[Slot, Operand]) -> None:
        """All products of the tile, added to the sums."""
        count = self.matrix.m // SIDE
        for step in range(self.steps):
            for r, u, copy in list(sums):
                if r is not self.r or u[self.rows] % count:
                    continue
                group = [(*u[: self.rows], u[self.rows] + h, *u[self.rows + 1 :])
                         for h in range(count)]  # fmt: skip
                args = [w for v in group for w in self.words(self.a, self.left, v, step)]
                args += self.words(self.b, self.right, u, step)
                args += [self.emit.splat(sums[r, v, copy], 2) for v in group]
                lanes, dtype = 2 * count, self.matrix.result
                made = self.emit.let("mma", args, dtype, lanes, (count, self.parts))
                for h, v in enumerate(group):
                    both = (made, made)
                    pair = (2 * h, 2 * h + 1)
                    sums[r, v, copy] = (
                        made if count == 1 else self.emit.let("shuffle", both, dtype, 2, pair)
                    )


def multiplied(
    group: Group, values: list[Operand], env: Mapping[Var, Expr], left: Mapping[Var, Extent],
    facts: Facts,
) -> list[Operand]:  # fmt: skip
    """The sums of a group after the products of one tile; its sums have a 'k' axis."""
    tile = group.tile.child(env, left)
    sums = dict(zip(group.slots, values, strict=True))
    (axis,) = (group.nest.axes[r.axis] for r in group.regs if r.role == "k")
    products = [_Product(group, r, facts, tile, axis) for r in group.nodes]
    group.owner.compute([x for p in products for x in (p.a, p.b)], tile, group.nest)
    for p in products:
        p.add(sums)
    return list(sums.values())
