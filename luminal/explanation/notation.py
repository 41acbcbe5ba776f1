"""Kernels in mathematical notation, schedules as indented trees.

In: a kernel. Out: lines of text. Values that are used twice get a name; nothing is evaluated.
"""

from __future__ import annotations

from luminal.ir.plan import Item, Kernel, Loop, Online, Reg, Schedule, Stage
from luminal.ir.term import Term, postorder

__all__ = ["SIGNS", "formula", "schedule_tree"]

_SYMBOLS = {"add": " + ", "mul": "·", "mod": " mod ", "lt": " < ", "and": " ∧ ", "or": " ∨ "}
_LOOSE = ("add", "lt", "mod", "and", "or")
SIGNS = {"sum": "Σ", "rmax": "max", "rsum": "RSum", "wsum": "WSum"}
_INLINE = 60


def formula(kernel: Kernel) -> list[str]:
    """The stores of a kernel as equations, after the values that they share."""
    lines: list[str] = []
    for store in kernel.stores:
        writer = _Writer(store.value)
        target = f"{store.buffer}[{', '.join(map(repr, store.index))}]"
        value = writer.text(store.value)
        lines += [*writer.lines, f"{target} = {value}"]
    return lines


class _Writer:
    """Writes one value; `lines` defines the names it needs."""

    def __init__(self, root: Term) -> None:
        uses: dict[Term, int] = {}
        for t in postorder(root):
            for a in t.args:
                uses[a] = uses.get(a, 0) + 1
        self.uses, self.lines = uses, list[str]()
        self.memo: dict[Term, str] = {}

    def text(self, t: Term) -> str:
        """The value of a term; named on a line of its own if it is shared or long."""
        if t not in self.memo:
            found = self._plain(t)
            shared = self.uses.get(t, 0) > 1 and t.args
            if shared or (len(found) > _INLINE and self.uses.get(t)):
                name = f"v{len(self.lines)}"
                self.lines.append(f"{name} = {found}")
                found = name
            self.memo[t] = found
        return self.memo[t]

    def _plain(self, t: Term) -> str:
        if t.op == "const":
            return f"{t.value:.7g}" if isinstance(t.value, float) else str(t.value)
        if t.op == "load":
            return f"{t.buffer}[{', '.join(map(repr, t.indices))}]"
        if t.op in ("index", "cond"):
            return f"({t.expr!r})" if t.op == "index" else f"({t.expr!r} ≥ 0)"
        args = [self.text(a) for a in t.args]
        if t.op in _SYMBOLS:
            joined = _SYMBOLS[t.op].join(args)
            return f"({joined})" if t.op in _LOOSE else joined
        if t.op == "select":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if t.op == "cast":
            return f"{t.dtype!r}({args[0]})"
        name = SIGNS.get(t.op, t.op)
        axes = f"[{', '.join(a.name for a in t.axes)}] " if t.axes else ""
        return f"{name}{axes}({', '.join(args)})"


def schedule_tree(schedule: Schedule | None, depth: int = 0) -> list[str]:
    """Loops, stages and online loops from the outermost in, then the registers."""
    if schedule is None:
        return ["one scalar loop an axis"]
    lines: list[str] = []
    for item in schedule.items:
        lines += _item(item, depth)
        depth += isinstance(item, Loop)
    if schedule.regs:
        lines.append("  " * depth + "registers: " + ", ".join(map(_register, schedule.regs)))
    return lines


def _register(reg: Reg) -> str:
    return f"{reg.role} {reg.axis}" + (f" by {reg.tile}" if reg.tile > 1 else "")


def _item(item: Item, depth: int) -> list[str]:
    pad = "  " * depth
    match item:
        case Loop():
            kind = "parallel for" if item.grid else "for"
            split = ", cut where masks change" if item.split else ""
            ahead = f", prefetching {item.ahead} ahead" if item.ahead else ""
            return [f"{pad}{kind} {item.axis} in steps of {item.tile}{split}{ahead}"]
        case Stage():
            inner = schedule_tree(Schedule(item.items, item.regs), depth + 1)
            return [f"{pad}stage value {item.term} in local memory", *inner]
        case Online():
            lines = [f"{pad}online loop over {item.axis} in tiles of {item.tile}"]
            for name, part in (("logits", item.logits), ("weights", item.weights),
                               ("values", item.values)):  # fmt: skip
                lines += [f"{pad}  {name}:", *schedule_tree(part, depth + 2)]
            return lines
