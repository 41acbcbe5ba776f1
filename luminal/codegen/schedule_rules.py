"""What makes a schedule legal, the error for those that are not, and the grid of a kernel."""

from __future__ import annotations

from collections.abc import Iterable

from luminal.errors import LuminalError
from luminal.ir import Expr, Kernel, Loop, Schedule, maximum, minimum, prod


class IllegalSchedule(LuminalError):
    """This schedule cannot be lowered; the text says which rule it breaks.

    1. Axes. What the lists leave open is looped over in steps of 1: free axes behind the given
       items in the kernel's order, reduction axes innermost. The empty schedule is legal.
    2. Registers. 'vector' occurs once per nest with tile 1; its lane count is the tile of the entry
       (or loop) before it on the same axis, a power of two up to 64. The other entries need a
       static bound on what is left.
    3. Reduction loops at the end of the list keep their sums in registers. A reduction loop with
       loops over free axes inside keeps them in the output: then one store, one sum or maximum
       with all axes of the store, a store of the reduction's own dtype (not f16, bf16, bool), at
       no index data, of a buffer that the kernel does not read.
    4. Grid loops come first, over distinct free axes that are not in `Kernel.ordered`.
    5. Stage. Every axis of the term that has no enclosing loop of tile 1 (also axes of extent 1)
       becomes a dimension of the local array, in the order of kernel axes, then bound axes by first
       use; `layout` counts these dimensions. What is left of each needs a static bound. No loop
       around the stage iterates over an axis that the term itself reduces over.
    6. Online. The outputs hold rsums over exactly this axis, all with the same x. `weights` names
       axes of x only, `logits` also what x sums over, `values` the axes of the values. Loops over
       the online axis inside refer to one tile.
    7. Split. On loops over free axes (the last of their axis, no grid loops) and online loops the
       range is cut where a condition, linear in the loop, changes. On a reduction loop of tile 1
       the bounds shrink to where the masks hold, if the summand is proved 0 elsewhere and no
       register axis occurs in the mask.
    8. The register rule (accumulators and live operands fit the register file) is not an error:
       search must keep to it.

    Reductions that a loop would repeat and whose open axes are bounded are staged unasked."""


def grid_loops(kernel: Kernel, schedule: Schedule) -> list[Loop]:
    """Its loops over chunks; IllegalSchedule where they may not be."""
    grid = [i for i in schedule.items if isinstance(i, Loop) and i.grid]
    names = {g.axis for g in grid}
    first = schedule.items[: len(grid)] == tuple(grid) and len(names) == len(grid)
    if not first or not names <= {a.name for a in kernel.axes} - set(kernel.ordered):
        text = "[schedule] grid loops come first, over distinct free axes that are not ordered."
        raise IllegalSchedule(text)
    return grid


def chunk_count(kernel: Kernel, counts: Iterable[Expr]) -> Expr:
    """The number of chunks: 0 where an axis is empty."""
    total = prod(tuple(counts))
    for extent in (a.extent for a in kernel.axes if a.extent.lo <= 0):
        total = total * minimum(maximum(extent, 0), 1)
    return total
