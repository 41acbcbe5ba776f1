"""Barriers: where the threads of a block must wait for one another.

In: the body of a kernel and the names of its shared arrays. Out: the same with `Sync` before every
statement that reads or writes what another thread may have written or read since the last one.
IllegalSchedule where that would be inside of a branch that not all threads take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from luminal.codegen.blocks import Copy, Sync
from luminal.codegen.loopir import Block, For, If, Let, Load, Operand, Statement, Store, Value
from luminal.codegen.schedule_rules import IllegalSchedule

Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(frozen=True, slots=True)
class _Since:
    """Shared arrays read and written since the last barrier."""

    reads: Names = NONE
    writes: Names = NONE

    def __or__(self, other: _Since) -> _Since:
        return _Since(self.reads | other.reads, self.writes | other.writes)

    def meets(self, new: _Since) -> bool:
        """Whether a barrier must stand between. Two writes need none: what is written anew
        has been read in between, or was written for nothing."""
        return bool(self.writes & new.reads or self.reads & new.writes)


def with_barriers(body: Block, shared: Names) -> Block:
    """The body with barriers."""
    return _Barriers(shared, body).block(body, _Since())[0] if shared else body


class _Barriers:
    def __init__(self, shared: Names, body: Block) -> None:
        self.shared = shared
        self.varying = {"tid"}
        size = 0
        while size != (size := len(self.varying)):
            self._mark(body)

    def _mark(self, block: Block) -> None:
        """Adds the values that differ between threads."""
        for s in block.body:
            match s:
                case Let(result, op, args) if op not in ("lane_add", "lane_max"):
                    self._derive([result], args)
                case Load(result, _, _, offset, mask):
                    self._derive([result], [offset, *([mask] if mask else [])])
                case For():
                    for (inside, first), last, result in zip(s.carried, s.yields, s.results):
                        self._derive([inside, result], [first, last])
                    self._mark(s.body)
                case If():
                    for a, b, result in zip(s.then_yields, s.else_yields, s.results):
                        self._derive([result], [s.condition, a, b])
                    self._mark(s.then)
                    self._mark(s.orelse)

    def _derive(self, results: Iterable[Value], sources: Iterable[Operand]) -> None:
        if any(isinstance(v, Value) and v.name in self.varying for v in sources):
            self.varying.update(r.name for r in results)

    def touched(self, statement: Statement) -> _Since:
        """What a statement reads and writes, inner ones included."""
        reads, writes = set[str](), set[str]()
        for s in _all(statement):
            if isinstance(s, Load):
                reads.add(s.base)
            elif isinstance(s, Store | Copy):
                writes.add(s.base if isinstance(s, Store) else s.store.base)
        return _Since(self.shared & reads, self.shared & writes)

    def block(self, block: Block, since: _Since) -> tuple[Block, _Since]:
        """A block that all threads run, from a state on; the state at its end."""
        out: list[Statement] = []
        for s in block.body:
            match s:
                case For() if not self._varies(s.lo) and not self._varies(s.hi):
                    if since.meets(self.touched(s)):  # once before, not in every step
                        out.append(Sync())
                        since = _Since()
                    s, since = self._loop(s, since)
                case If() if not self._varies(s.condition):
                    then, a = self.block(s.then, since)
                    orelse, b = self.block(s.orelse, since)
                    s, since = replace(s, then=then, orelse=orelse), a | b
                case _:
                    if isinstance(s, For | If) and any(map(_meets, _all(s))):
                        text = "[schedule] threads would meet in a branch that not all take."
                        raise IllegalSchedule(text)
                    new = self.touched(s)
                    if since.meets(new):
                        out.append(Sync())
                        since = _Since()
                    since = since | new
            out.append(s)
        return Block(out), since

    def _loop(self, loop: For, since: _Since) -> tuple[For, _Since]:
        """The state behind the last step is also the one before the next."""
        for _ in range(4):
            body, end = self.block(loop.body, since)
            if since | end == since:
                break
            since = since | end
        return replace(loop, body=body), end

    def _varies(self, operand: Operand) -> bool:
        return isinstance(operand, Value) and operand.name in self.varying


def _meets(s: Statement) -> bool:
    return isinstance(s, Sync) or (isinstance(s, Let) and s.op in ("lane_add", "lane_max"))


def _all(statement: Statement) -> Iterator[Statement]:
    yield statement
    for block in inner_blocks(statement):
        for s in block.body:
            yield from _all(s)


def inner_blocks(s: Statement) -> tuple[Block, ...]:
    """The blocks inside of a statement."""
    return (s.body,) if isinstance(s, For) else (s.then, s.orelse) if isinstance(s, If) else ()
