"""Evaluation of terms for one replica of a tile: the only place that knows what each op means.

In: a term, a tile, a replica (values of the register variables), a mask. Out: an operand, made once
for every combination of register variables that the term's free axes contain. Lanes that are far
apart are read by whole rows and transposed in registers where that is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from luminal.codegen.emitter import Emitter
from luminal.codegen.loopir import Literal, Operand, Prefetch
from luminal.codegen.memory import Address, Memory, Place, address_of
from luminal.codegen.schedule_rules import IllegalSchedule
from luminal.codegen.terms import in_range
from luminal.codegen.tile import Extent, Nest, Replica, Tile
from luminal.errors import InternalError
from luminal.ir import REDUCTIONS, Data, Reg, Term, accumulator, boolean, data_atoms, i32, i64, u4
from luminal.ir.expr import ZERO, Expr, Var, const, floor_div, is_nonnegative, to_expr

MANY = 32
"""Assumed steps of a loop of which nothing is known."""


class Evaluator:
    """Evaluates terms; reductions must have been put into the tile's memo before."""

    def __init__(self, emit: Emitter, places: dict[str, Place]) -> None:
        self.emit, self.memory = emit, Memory(emit)
        self.places = places
        self.uses: Mapping[Term, int] = {}
        self._blind: dict[Term, bool] = {}
        emit.data_value = self._data

    def extend(self, tile: Tile, regs: Iterable[Reg], prefix: str, nest: Nest) -> Tile:
        """The tile with further register axes, its lane variable known here."""
        new = tile.extend(regs, prefix, nest)
        if new.lane is not None and new.lane is not tile.lane:
            self.emit.variables[new.lane] = self.emit.let("lanes", (), i64, new.lanes)
        return new

    def value(self, t: Term, tile: Tile, u: Replica, mask: Operand | None = None) -> Operand:
        """The value of a term for replica `u`; what `mask` turns off is not read."""
        mask = None if self._needs_no_mask(t) else mask
        key = self.key(t, tile, u, mask)
        found = tile.memo.get(key)
        if found is None or not self.emit.alive(found):
            found = tile.memo[key] = self._value(t, tile, u, mask)
        return found

    def key(self, t: Term, tile: Tile, u: Replica, mask: Operand | None = None) -> object:
        """Where the memo holds this value."""
        return (t, mask, *(u[p] for p in tile.positions(t)))

    def knows(self, t: Term, tile: Tile, u: Replica) -> bool:
        """Whether the value is in the memo."""
        found = tile.memo.get(self.key(t, tile, u))
        return found is not None and self.emit.alive(found)

    def _needs_no_mask(self, t: Term) -> bool:
        """Whether reading the term is right whatever masks stand around it."""
        if t not in self._blind:
            if t.op == "load":
                place = self.places.get(t.buffer)
                found = place is None or place.local or in_range(t, place.shape)
            elif t.op in ("index", "cond"):
                found = not any(data_atoms(*t.exprs))
            else:
                found = t.op in REDUCTIONS or all(map(self._needs_no_mask, t.args))
            self._blind[t] = found
        return self._blind[t]

    def _value(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        match t.op:
            case "const":
                return Literal(t.value, accumulator(t.dtype))  # type: ignore[arg-type]
            case "load":
                return self._load(t, tile, u, mask)
            case "index":
                return self.emit.convert(self._integer(t.expr, tile, u, mask), t.dtype)
            case "cond":
                return self._cond(t.expr, tile, u, mask)
            case "select":
                return self._select(t, tile, u, mask)
            case "cast" if (field := self._field(t, tile, u)) is not None:
                return field
            case op if op in REDUCTIONS:
                raise InternalError(f"[codegen] reduction used before it is computed: {t!r}.")
        op, terms = self._contracted(t)
        args = [self.value(a, tile, u, mask) for a in terms]
        return self._apply(op, t, args)

    def _apply(self, op: str, t: Term, args: list[Operand]) -> Operand:
        if op == "cast":
            result = self.emit.convert(args[0], t.dtype)
            return self.emit.convert(result, accumulator(t.dtype))
        result = self.emit.apply(op, *args)
        exact = op in ("max", "and", "or", "not", "lt")
        return result if exact else self.emit.rounded(result, t.dtype)

    def _contracted(self, t: Term) -> tuple[str, tuple[Term, ...]]:
        """The operation and its operands: a*b + c is an fma, a + b*-1 is a - b, and a * (1/b) a
        division if the reciprocal is made for a alone, as deep as a."""
        for x, y in (t.args, t.args[::-1]) if t.dtype.is_float and t.op in ("mul", "add") else ():
            if t.op == "mul" and y.op == "recip" and self.uses.get(y, 2) < 2:
                if x.free <= y.args[0].free:
                    return "div", (x, y.args[0])
            if t.op == "add" and y.op == "mul":
                a, b = y.args if y.args[0].value != -1.0 else y.args[::-1]
                if b.value == -1.0:
                    return "sub", (x, a)
                # a product of a half type rounds by itself
                if x.free <= y.free and accumulator(t.dtype) == t.dtype:
                    return "fma", (a, b, x)
        return t.op, t.args

    def _select(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        condition = self.value(t.args[0], tile, u, mask)
        if isinstance(condition, Literal):
            return self.value(t.args[1 if condition.value else 2], tile, u, mask)
        sides: list[Operand] = [condition, condition]
        if not self._needs_no_mask(t.args[2]):
            sides[1] = self.emit.apply("not", condition)
        masks = [self.both(mask, side) for side in sides]
        values = [self.value(a, tile, u, m) for a, m in zip(t.args[1:], masks, strict=True)]
        return self.emit.apply("select", condition, *values)

    def both(self, a: Operand | None, b: Operand | None) -> Operand | None:
        """Where both masks let pass; None lets everything pass."""
        return b if a is None else a if b is None else self.emit.apply("and", a, b)

    def prefetch(self, nest: Nest, env: Mapping[Var, Expr], left: Mapping[Var, Extent]) -> None:
        """At one innermost step, hints for a part of what a later step of a loop that looks ahead
        reads: the innermost one that moves a load. The steps inside it share out the vectors.
        Nothing bounds the addresses: a hint reads nothing and cannot fault."""
        lanes = {nest.axes[r.axis] for r in nest.regs if r.role == "vector"}
        inner = {nest.axes[loop.axis] for loop in nest.inner}  # whose steps give their own hints
        for t in nest.reads if nest.ahead else ():
            place = self.places[t.buffer]
            loop = next((a for a in reversed(nest.ahead) if a.axis in t.free), None)
            able = lanes <= t.free and not inner & t.free and not any(data_atoms(*t.indices))
            if loop is None or place.local or not able:
                continue
            number, repeats = ZERO, 1
            for x in (x for x in left if x not in t.free and left[x] != loop.left[x]):
                step = left[x].most or 1
                count = -(-(loop.left[x].most or MANY * step) // step)
                number = number * count + (env[x] - loop.env[x]) // step
                repeats *= count
            regs = ((nest.axes[r.axis], r.tile) for r in nest.regs if r.role in ("unroll", "acc"))
            tiles = [(a, n, -(-(left[a].most or 1) // n)) for a, n in regs if a in t.free]
            total = prod(count for *_, count in tiles)
            each = -(-total // repeats)
            for n in range(each):
                at = {**env, loop.axis: env[loop.axis] + loop.by}
                which = number * each + n if each > 1 else number * total // repeats
                for a, tile, count in tiles:
                    at[a], which = at[a] + which % count * tile, which // count
                offset = self.emit.index(place.address(tuple(e.substitute(at) for e in t.indices)))
                self.emit.effect(Prefetch(place.name, place.dtype, offset))

    # ---- index expressions and masks

    def expression(self, e: Expr, tile: Tile, u: Replica) -> Expr:
        """An index expression over axes in terms of loop variables, for one replica."""
        return e.substitute(tile.env).substitute(tile.substitution(u))

    def _integer(self, e: Expr, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        found = self.expression(e, tile, u)
        if any(data_atoms(found)):
            mask = self.both(mask, self.lane_mask(tile, u))
        return self.emit.index(found, mask)

    def _cond(self, e: Expr, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        found = self.expression(e, tile, u)
        if is_nonnegative(found):
            return Literal(True, boolean)
        if is_nonnegative(-1 - found):
            return Literal(False, boolean)
        stride = found.coefficient(tile.lane) if tile.lane is not None else ZERO
        narrow = found.lo > -(1 << 30) and found.hi < 1 << 30
        if tile.lane is not None and stride is not None and stride.value and narrow:
            if not any(data_atoms(found)):  # lanes as 32-bit numbers
                rest = self.emit.index(stride * to_expr(tile.lane) - found, mask)
                step, numbers = Literal(stride.value, i32), self.lane_numbers(tile.lanes)
                lanes = self.emit.apply("mul", numbers, step)
                return self.emit.apply("le", self.emit.convert(rest, i32), lanes)
        return self.emit.apply("le", Literal(0, i64), self._integer(e, tile, u, mask))

    def lane_numbers(self, lanes: int) -> Operand:
        """0, 1, 2, ... as 32-bit integers."""
        return self.emit.let("lanes", (), i32, lanes)

    def lane_mask(self, tile: Tile, u: Replica) -> Operand | None:
        """Which lanes are inside the axis; None if all are."""
        if tile.lane_axis is None:
            return None
        offset = tile.offset(tile.lane_axis, u)
        found = tile.masks.get(offset)
        if offset not in tile.masks or not (found is None or self.emit.alive(found)):
            rest, found = tile.left[tile.lane_axis].expr - offset, None
            if not is_nonnegative(rest - tile.lanes):
                limit = self.emit.convert(self.emit.index(rest), i32)
                found = self.emit.apply("lt", self.lane_numbers(tile.lanes), limit)
            tile.masks[offset] = found
        return found

    # ---- memory

    def _load(self, t: Term, tile: Tile, u: Replica, mask: Operand | None) -> Operand:
        place = self.places[t.buffer]
        address = self.address(t, place, t.indices, tile, u)
        needed = data_mask = mask
        atoms = list(data_atoms(*t.indices))
        for extent in (a.extent for a in atoms if a.extent is not None and a.extent.lo <= 0):
            some = self.emit.apply("lt", Literal(0, i64), self.emit.index(extent))
            needed = self.both(needed, some)  # an empty dimension has no element to clamp to
        if any(tile.lane_axis in a.variables() for a in atoms):
            data_mask = self.both(mask, self.lane_mask(tile, u))
        if address.stride != 0:
            padded = place.local and address.stride == 1
            needed = self.both(needed, None if padded else self.lane_mask(tile, u))
            if address.stride is None and needed is None:
                found = self._transposed(t, place, tile, u)
                if found is not None:
                    return found
        return self.memory.load(place, address, tile.lanes, needed, data_mask)

    def _field(self, t: Term, tile: Tile, u: Replica) -> Operand | None:
        """A cast of a nibble, the lanes 32 bits apart: some bits of every lane's word."""
        source, dtype = t.args[0], t.args[0].dtype
        if source.op != "load" or dtype.bits != 4 or dtype.is_float or tile.lane is None:
            return None
        place = self.places[source.buffer]
        address = self.address(source, place, source.indices, tile, u)
        base, (word, part) = address.base - to_expr(tile.lane) * 8, divmod(address.constant, 8)
        whole = tile.lane not in base.variables() and not any(c % 8 for _, c in base.terms)
        if address.stride is not None or not whole or not self._needs_no_mask(source):
            return None
        offset, mask = self.emit.index(floor_div(base, 8) + word), self.lane_mask(tile, u)
        value = self.memory.read(place, offset, tile.lanes, mask, i32)
        attr = (part * 4, 4, int(dtype.kind == "i"))
        return self.emit.let("field", (value,), accumulator(t.dtype), tile.lanes, attr)

    def _transposed(self, t: Term, place: Place, tile: Tile, u: Replica) -> Operand | None:
        """A strided load as one of the columns of a square of row loads, if the steps of some
        register axis are neighbours in memory and fill whole vectors."""
        first, steps = tile.affine[t]
        size = tile.lanes
        if steps is None or size < 4 or place.dtype.bits < 8 or _stride(first, tile) is None:
            return None
        for p, (register, step) in enumerate(zip(tile.registers, steps, strict=True)):
            start = u[p] // size * size
            group = (*u[:p], start, *u[p + 1 :])
            end = tile.offset(register.axis, group) + size
            fits = start + size <= register.count and end <= (tile.left[register.axis].value or 0)
            if step == 1 and register.role == "unroll" and register.tile == 1 and fits:
                break
        else:
            return None
        key = (t, place.version, tuple(c * v for c, v in zip(steps, group, strict=True)))
        rows = tile.squares.get(key)
        if rows is None or not all(self.emit.alive(c) for c in rows):
            address = self.address(t, place, t.indices, tile, group)
            rows = tile.squares[key] = self._square(place, address, tile)
        return rows[u[p] - start]

    def _square(self, place: Place, address: Address, tile: Tile) -> list[Operand]:
        """Element i holds lanes 0.. at offset i: rows are loaded, then log2(n) rounds of pairwise
        exchanges transpose them."""
        rows: list[Operand] = []
        span = size = tile.lanes
        for n in range(size):
            base = address.base.substitute({tile.lane: const(n)} if tile.lane is not None else {})
            row = replace(address_of(base, None).moved(address.constant), stride=1)
            rows.append(self.memory.load(place, row, size, None, None))
        while span := span // 2:
            low = tuple(c if not c & span else size + c - span for c in range(size))
            high = tuple(c + span if not c & span else size + c for c in range(size))
            for n in (n for n in range(size) if not n & span):
                pair = (rows[n], rows[n + span])
                rows[n] = self.emit.let("shuffle", pair, pair[0].dtype, size, low)
                rows[n + span] = self.emit.let("shuffle", pair, pair[0].dtype, size, high)
        return rows

    def dot_operand(self, t: Term, tile: Tile, u: Replica) -> tuple[Operand, bool]:
        """A cast load as bytes, four neighbours of the dot axis for every lane; whether it is
        known to be 0..15."""
        source = t.args[0] if t.op == "cast" else t
        if source.op != "load" or source.dtype.bits > 8 or source.dtype.is_float:
            raise IllegalSchedule("[schedule] a dot product needs loads of 8-bit integers.")
        place = self.places[source.buffer]
        address = self.address(source, place, source.indices, tile, u)
        stride, steps = _stride(address, tile), tile.affine[source][1]
        along = [s for s, r in zip(steps or (), tile.registers) if r.role == "dot"]
        if steps is None or set(along) - {1} or stride is None or stride.value not in (0, 4):
            raise IllegalSchedule("[schedule] a dot operand needs groups of 4 in its layout.")
        base, width, mask = address.base + address.constant, 4, None
        if stride.value and tile.lane is not None:
            base, width = base - to_expr(tile.lane) * 4, 4 * tile.lanes
            mask = None if place.local else self.lane_mask(tile, u)
            groups = tuple(n // 4 for n in range(width))
            mask = mask and self.emit.let("shuffle", (mask, mask), boolean, width, groups)
        value = self.memory.read(place, self.emit.index(base), width, mask)
        if width != 4 * tile.lanes:
            each = tuple(range(4)) * tile.lanes
            value = self.emit.let("shuffle", (value, value), value.dtype, len(each), each)
        return value, place.dtype == u4

    def address(
        self, key: object, place: Place, index: tuple[Expr, ...], tile: Tile, u: Replica
    ) -> Address:
        """Where the element at an index over axes lies for one replica; `key` names the index.
        Most addresses are affine in the register variables: then only their constant changes."""
        if key not in tile.affine:
            e = place.address(tuple(i.substitute(tile.env) for i in index))
            slopes = (e.coefficient(r.var) for r in tile.registers)
            steps = tuple(c.value if c is not None else None for c in slopes)
            if None not in steps:
                first = e.substitute({r.var: ZERO for r in tile.registers})
                tile.affine[key] = (address_of(first, tile.lane), steps)
            else:
                tile.affine[key] = (address_of(e, None), None)
        first, steps = tile.affine[key]
        if steps is None:
            e = (first.base + first.constant).substitute(tile.substitution(u))
            return address_of(e, tile.lane)
        return first.moved(sum(c * v for c, v in zip(steps, u, strict=True)))

    # ---- data atoms

    def _data_raw(self, atom: Data, mask: Operand | None) -> Operand:
        known = self.emit.variables
        plain = Tile(
            {}, {}, {}, (), next((v for v in atom.variables() if known[v].lanes > 1), None)
        )
        return self.emit.convert(self.value(atom.term, plain, (), mask), i64)

    def checked(self, atom: Data, mask: Operand | None) -> Operand | None:
        """Whether the value of a data atom is in range, if it is not always; an error is reported
        where it is not."""
        if atom.extent is None:
            return None
        value, extent = self._data_raw(atom, mask), self.emit.index(atom.extent)
        low = self.emit.apply("le", Literal(0, i64), value)
        inside = self.emit.apply("and", low, self.emit.apply("lt", value, extent))
        bad = self.emit.apply("not", inside)
        self.emit.fail(bad if mask is None else self.emit.apply("and", bad, mask))
        return inside

    def _data(self, atom: Data, mask: Operand | None) -> Operand:
        """The checked and clamped value of a data atom over loop variables."""
        value = self._data_raw(atom, mask)
        if atom.extent is None:
            return value
        self.checked(atom, mask)
        last = self.emit.apply("add", self.emit.index(atom.extent), Literal(-1, i64))
        return self.emit.apply("max", self.emit.apply("min", value, last), Literal(0, i64))


def _stride(address: Address, tile: Tile) -> Expr | None:
    """How far apart the lanes are, in elements; None if not always as far."""
    if address.stride is not None or tile.lane is None:
        return const(address.stride or 0)
    return address.base.coefficient(tile.lane)
