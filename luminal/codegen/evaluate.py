"""Evaluation of terms for one replica of a tile: the only place that knows what each op means.

In: a term, a tile, a replica (values of the register variables), a mask. Out: an operand, made once
for every combination of register variables that the term's free axes contain.
"""

from __future__ import annotations

from collections.abc import Mapping

from luminal.codegen.arith import Arithmetic
from luminal.codegen.integers import Integers
from luminal.codegen.loopir import Literal, Operand
from luminal.codegen.memory import Address, Memory, Place, address_of
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import in_range
from luminal.codegen.tile import Replica, Tile
from luminal.codegen.transpose import dot_operand, row_register, transposed
from luminal.errors import InternalError
from luminal.ir.dtype import accumulator, boolean, i32, i64
from luminal.ir.expr import Expr, Var, const, is_nonnegative
from luminal.ir.term import REDUCTIONS, UNARY, Data, Term, data_atoms

__all__ = ["Evaluator"]


class Evaluator:
    """Evaluates terms; reductions must have been put into the tile's memo before."""

    def __init__(self, arith: Arithmetic, integers: Integers, places: Mapping[str, Place]) -> None:
        self.arith, self.emit, self.integers = arith, arith.emit, integers
        self.memory = Memory(arith, integers)
        self.places = places
        self.uses: dict[Term, int] = {}
        self.lane_vars: dict[Var, int] = {}
        self._safe: dict[Term, bool] = {}
        self._blind: dict[Term, bool] = {}
        integers.data_value = self._data

    def register(self, tile: Tile) -> None:
        """Makes the lane variable of a new tile known."""
        if tile.lane is not None and tile.lane not in self.lane_vars:
            self.lane_vars[tile.lane] = tile.lanes
            self.integers.variables[tile.lane] = self.emit.let("lanes", (), i64, tile.lanes)

    def value(self, t: Term, tile: Tile, u: Replica, mask: Operand | None = None) -> Operand:
        """The value of a term for replica `u`; what `mask` turns off is not read."""
        if mask is not None and self._needs_no_mask(t):
            mask = None
        key = self.key(t, tile, u, mask)
        found = tile.memo.get(key)
        if found is None or not self.emit.alive(found):
            found = tile.memo[key] = self._value(t, tile, u, mask)
        return found

    def key(
        self, t: Term, tile: Tile, u: Replica, mask: Operand | None = None
    ) -> tuple[object, ...]:
        """Where the memo holds this value."""
        return (t, mask, *(u[p] for p in tile.positions(t)))

    def _needs_no_mask(self, t: Term) -> bool:
        found = self._blind.get(t)
        if found is None:
            if t.op == "load":
                found = t.buffer not in self.places or self.is_safe(t)
            elif t.op in ("index", "cond"):
                found = not any(True for _ in data_atoms(t.expr))
            else:
                found = t.op in REDUCTIONS or all(self._needs_no_mask(a) for a in t.args)
            self._blind[t] = found
        return found

    def is_safe(self, t: Term) -> bool:
        """Whether a load is in range whatever its mask says."""
        if t not in self._safe:
            place = self.places[t.buffer]
            self._safe[t] = place.local or in_range(t, place.shape)
        return self._safe[t]

    def _value(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        match t.op:
            case "const":
                return Literal(t.value, accumulator(t.dtype))  # type: ignore[arg-type]
            case "load":
                return self._load(t, tile, u, mask)
            case "index":
                return self.arith.convert(self._integer(t.expr, tile, u, mask), t.dtype)
            case "cond":
                return self._cond(t.expr, tile, u, mask)
            case "select":
                return self._select(t, tile, u, mask)
            case "cast":
                return self._cast(t, tile, u, mask)
            case "mul" | "add":
                found = self._contracted(t, tile, u, mask)
                if found is not None:
                    return found
        if t.op in REDUCTIONS:
            raise InternalError(f"[codegen] reduction used before it is computed: {t!r}.")
        args = [self.value(a, tile, u, mask) for a in t.args]
        return self._apply(t, args)

    def _apply(self, t: Term, args: list[Operand]) -> Operand:
        a = args[0]
        match t.op:
            case "add":
                add = self.arith.either if t.dtype == boolean else self.arith.add
                result = add(a, args[1])
            case "mul":
                result = self.arith.mul(a, args[1])
            case "max":
                result = self.arith.larger(a, args[1])
            case "lt":
                return self.arith.apply("lt", a, args[1])
            case "and":
                return self.arith.both(a, args[1])
            case "or":
                return self.arith.either(a, args[1])
            case "not":
                return self.arith.negate(a)
            case "mod":
                result = self.arith.apply("mod", a, args[1])
            case op if op in UNARY:
                result = self.arith.apply(op, a)
            case _:
                raise InternalError(f"[codegen] unknown term {t.op}.")
        return result if t.op == "max" else self.arith.rounded(result, t.dtype)

    def _contracted(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand | None:
        """a*b + c as fma, a + b*-1 as a - b, a * (1/b) as a division."""
        if not t.dtype.is_float:
            return None
        for x, y in (t.args, t.args[::-1]):
            if t.op == "mul" and self._is_divisor(y, x):
                pair = (self.value(x, tile, u, mask), self.value(y.args[0], tile, u, mask))
                return self.arith.rounded(self.arith.apply("div", *pair), t.dtype)
            if t.op == "add" and y.op == "mul" and self._may_fuse(t, y):
                a, b = y.args
                if a.value == -1.0 or b.value == -1.0:
                    pair = (x, b if a.value == -1.0 else a)
                    left, right = (self.value(v, tile, u, mask) for v in pair)
                    return self.arith.rounded(self.arith.apply("sub", left, right), t.dtype)
                if x.free <= y.free:
                    parts = [self.value(v, tile, u, mask) for v in (a, b, x)]
                    return self.arith.rounded(self.arith.fma(*parts), t.dtype)
        return None

    def _is_divisor(self, y: Term, x: Term) -> bool:
        """Whether x * y is better divided: y is a reciprocal made for x alone, as deep as x."""
        return y.op == "recip" and self.uses.get(y, 2) < 2 and x.free <= y.args[0].free

    def _may_fuse(self, t: Term, product: Term) -> bool:
        """A product of a half type rounds by itself, and is exact only with -1."""
        exact = any(a.value == -1.0 for a in product.args)
        return exact or accumulator(t.dtype) == t.dtype

    def _cast(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        source = self.value(t.args[0], tile, u, mask)
        return self.arith.convert(self.arith.convert(source, t.dtype), accumulator(t.dtype))

    def _select(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        c, a, b = t.args
        condition = self.value(c, tile, u, mask)
        if isinstance(condition, Literal):
            return self.value(a if condition.value else b, tile, u, mask)
        yes, no = mask, mask
        if not self._needs_no_mask(a):
            yes = condition if mask is None else self.arith.both(mask, condition)
        if not self._needs_no_mask(b):
            no = self.arith.negate(condition)
            no = no if mask is None else self.arith.both(mask, no)
        return self.arith.choose(condition, self.value(a, tile, u, yes), self.value(b, tile, u, no))

    # ---- index expressions

    def expression(self, e: Expr, tile: Tile, u: Replica) -> Expr:
        """An index expression over axes in terms of loop variables, for one replica."""
        return e.substitute(tile.env).substitute(tile.substitution(u))

    def _integer(self, e: Expr, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        found = self.expression(e, tile, u)
        if any(True for _ in data_atoms(found)):
            mask = self._all_masks(tile, u, mask)
        return self.integers.operand(found, mask)

    def _cond(self, e: Expr, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        found = self.expression(e, tile, u)
        if is_nonnegative(found):
            return Literal(True, boolean)
        if is_nonnegative(-1 - found):
            return Literal(False, boolean)
        stride = found.coefficient(tile.lane) if tile.lane is not None else const(0)
        if stride is not None and stride.value and tile.lane is not None and _narrow(found):
            rest = self.integers.operand(-(found - stride * Expr((((tile.lane,), 1),))), mask)
            lanes = self.arith.mul(self.lane_numbers(tile.lanes), Literal(stride.value, i32))
            return self.arith.apply("le", self.arith.convert(rest, i32), lanes)
        return self.arith.apply("le", Literal(0, i64), self._integer(e, tile, u, mask))

    def lane_numbers(self, lanes: int) -> Operand:
        """0, 1, 2, ... as 32-bit integers."""
        return self.emit.let("lanes", (), i32, lanes)

    def lane_mask(self, tile: Tile, u: Replica) -> Operand | None:
        """Which lanes are inside the axis; None if all are."""
        if tile.lane_axis is None:
            return None
        offset = tile.offset(tile.lane_axis, u)
        found = tile.masks.get(offset, self)
        if found is self or not (found is None or self.emit.alive(found)):
            found = tile.masks[offset] = self._new_lane_mask(tile, tile.lane_axis, offset)
        return found

    def _new_lane_mask(self, tile: Tile, axis: Var, offset: int) -> Operand | None:
        rest = tile.left[axis].expr - offset
        if is_nonnegative(rest - tile.lanes):
            return None
        limit = self.arith.convert(self.integers.operand(rest), i32)
        return self.arith.apply("lt", self.lane_numbers(tile.lanes), limit)

    def _all_masks(self, tile: Tile, u: Replica, mask: Operand | None) -> Operand | None:
        lanes = self.lane_mask(tile, u)
        return mask if lanes is None else lanes if mask is None else self.arith.both(mask, lanes)

    def _load(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        place = self.places[t.buffer]
        address = self.address(t, place, t.indices, tile, u)
        needed = None if self.is_safe(t) else mask
        needed = self._not_empty(t, tile, u, mask, needed)
        data_mask = mask
        if address.stride != 0:
            lanes = None if place.local else self.lane_mask(tile, u)
            if lanes is not None:
                needed = lanes if needed is None else self.arith.both(needed, lanes)
            atoms = (a for e in t.indices for a in data_atoms(e))
            if any(tile.lane_axis in a.variables() for a in atoms):
                data_mask = self._all_masks(tile, u, mask)
            if address.stride is None and needed is None:
                found = self._transposed(t, place, tile, u)
                if found is not None:
                    return found
        self.memory.prefetch(place, address)
        return self.memory.load(place, address, tile.lanes, needed, data_mask)

    def _transposed(self, t: Term, place: Place, tile: Tile, u: Replica) -> Operand | None:
        """A strided load as one of the columns of a square of row loads, if there is one."""
        base, _, steps = tile.affine[t]
        stride = base.coefficient(tile.lane) if tile.lane is not None else None
        if steps is None or stride is None or tile.lanes < 4 or place.dtype.bits < 8:
            return None
        p = row_register(tile, steps, u)
        if p is None:
            return None
        first = u[p] // tile.lanes * tile.lanes
        group = (*u[:p], first, *u[p + 1 :])
        offsets = tile.clamped_offsets(u)
        key = ("square", t, place.version, offsets, tuple(c * v for c, v in zip(steps, group)))
        columns = tile.squares.get(key)
        if columns is None or not all(self.emit.alive(c) for c in columns):
            extra = sum(c * v for c, v in zip(steps, group))
            columns = transposed(self.memory, place, tile.clamped_base(base, u), extra, tile)
            tile.squares[key] = columns
        return columns[u[p] - first]

    def dot_operand(self, t: Term, tile: Tile, u: Replica) -> Operand:
        """A cast load as bytes, four for every lane (see `Reductions`)."""
        source = t.args[0] if t.op == "cast" else t
        if source.op != "load" or source.dtype.bits > 8 or source.dtype.is_float:
            raise IllegalSchedule("[schedule] a dot product needs loads of 8-bit integers.")
        place = self.places[source.buffer]
        self.address(source, place, source.indices, tile, u)
        base, _, steps = tile.affine[source]
        if steps is None or any(s != 1 for s, r in zip(steps, tile.registers) if r.role == "dot"):
            raise IllegalSchedule("[schedule] a dot operand needs groups of 4 in its layout.")
        extra = sum(c * v for c, v in zip(steps, u))
        mask = None if place.local else self.lane_mask(tile, u)
        return dot_operand(self.memory, place, tile.clamped_base(base, u), extra, tile, mask)

    def _not_empty(
        self, t: Term, tile: Tile, u: Replica, mask: Operand | None, needed: Operand | None
    ) -> Operand | None:
        """Where a gather may read of a dimension that may have no element to clamp to."""
        for e in t.indices:
            if all(a.extent is None or a.extent.lo > 0 for a in data_atoms(e)):
                continue
            for atom in data_atoms(self.expression(e, tile, u)):
                inside = self.data_inside(atom, self._all_masks(tile, u, mask))
                needed = inside if needed is None else self.arith.both(needed, inside)
        return needed

    def address(
        self, key: object, place: Place, index: tuple[Expr, ...], tile: Tile, u: Replica
    ) -> Address:
        """Where the element at an index over axes lies for one replica; `key` names the index."""
        found = tile.affine.get(key)
        if found is None:
            e = place.address(tuple(i.substitute(tile.env) for i in index))
            base, steps = _split(e, tile)
            found = tile.affine[key] = (base, address_of(base, tile.lane), steps)
        base, address, steps = found
        if steps is None:
            return address_of(base.substitute(tile.substitution(u)), tile.lane)
        if tile.clamps:
            offsets = (key, tile.clamped_offsets(u))
            if offsets not in tile.clamped:
                tile.clamped[offsets] = address_of(tile.clamped_base(base, u), tile.lane)
            address = tile.clamped[offsets]
        return address.moved(sum(c * v for c, v in zip(steps, u)))

    def data_inside(self, atom: Data, mask: Operand | None) -> Operand:
        """Whether the value of a data atom is in range."""
        value = self._data_raw(atom, mask)
        if atom.extent is None:
            return Literal(True, boolean)
        extent = self.integers.operand(atom.extent)
        low = self.arith.apply("le", Literal(0, i64), value)
        return self.arith.both(low, self.arith.apply("lt", value, extent))

    def _data_raw(self, atom: Data, mask: Operand | None) -> Operand:
        lane = next((v for v in atom.variables() if v in self.lane_vars), None)
        plain = Tile({}, {}, (), lane, None, self.lane_vars[lane] if lane else 1)
        return self.arith.convert(self.value(atom.term, plain, (), mask), i64)

    def checked(self, atom: Data, mask: Operand | None) -> Operand:
        """Whether the value of a data atom is in range; an error is reported where it is not."""
        inside = self.data_inside(atom, mask)
        bad = self.arith.negate(inside)
        self.emit.fail(bad if mask is None else self.arith.both(bad, mask))
        return inside

    def _data(self, atom: Data, mask: Operand | None) -> Operand:
        """The checked and clamped value of a data atom over loop variables."""
        value = self._data_raw(atom, mask)
        if atom.extent is None:
            return value
        self.checked(atom, mask)
        last = self.arith.add(self.integers.operand(atom.extent), Literal(-1, i64))
        return self.arith.apply("max", self.arith.apply("min", value, last), Literal(0, i64))


def _split(address: Expr, tile: Tile) -> tuple[Expr, tuple[int, ...] | None]:
    """address == base + Σ step * register variable; steps are None where that does not hold."""
    steps: list[int] = []
    for register in tile.registers:
        step = address.coefficient(register.var)
        if step is None or step.value is None:
            return address, None
        steps.append(step.value)
    return address.substitute({r.var: const(0) for r in tile.registers}), tuple(steps)


def _narrow(e: Expr) -> bool:
    """Whether the values fit 32 bits."""
    return e.lo > -(1 << 30) and e.hi < 1 << 30 and not any(True for _ in data_atoms(e))
