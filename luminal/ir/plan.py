"""Plan: what search hands to code generation: kernels over named axes, buffers, schedules.

In: terms and buffers. Out: frozen values with text (`text.py`) and checks (`verify.py`). A kernel
is one launch: for every point of its free axes it stores the value of a term. A schedule says how
its axes are split, ordered and mapped to the machine, and never what is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from luminal.ir.dtype import DType
from luminal.ir.expr import Expr, Var
from luminal.ir.graph import ConstantData
from luminal.ir.term import Term, index, postorder
from luminal.ir.view import Shape


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense tensor in memory, row-major unless `layout` says otherwise.

    `kind` is 'input', 'constant', 'output' or 'temp'. `layout` lists (dimension, tile) from the
    outermost to the innermost level, each dimension with falling tiles that divide one another and
    end in 1; sizes are padded up to the first tile. ((0, 16), (1, 1), (0, 1)) packs rows by 16.
    `alias` names a buffer whose memory this one takes over (in-place update). `data` is the value
    of a constant."""

    name: str
    shape: Shape
    dtype: DType
    kind: str
    layout: tuple[tuple[int, int], ...] = ()
    alias: str = ""
    data: ConstantData | None = None


Buffers = Mapping[str, Buffer]


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, for every point of the kernel's axes."""

    buffer: str
    index: tuple[Expr, ...]
    value: Term


@dataclass(frozen=True, slots=True)
class Loop:
    """Iterate over what is left of an axis in steps of `tile`; `tile` of it is left inside.

    `split` cuts the range where a mask changes its truth, so that no mask is left inside;
    `grid` hands the iterations to threads, on GPUs to blocks (outermost loops over free axes
    only); `lanes` deals them to so many threads of a GPU's block (a power of two). While a step
    runs, what sums of the one `ahead` steps later read or are added to is prefetched (0: not)."""

    axis: str
    tile: int
    split: bool = False
    grid: bool = False
    lanes: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Reg:
    """What is left of an axis inside all loops, in steps of `tile`.

    `role`: 'unroll' replicate, 'vector' lanes of a register (tile 1, at most one per nest), 'acc'
    own accumulators, 'dot' a dot product; 'm', 'n', 'k' a GPU's products (codegen/matrix.py)."""

    axis: str
    tile: int
    role: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Compute a subterm here, over its axes that are still open, into local memory.

    `term` is its number in `Kernel.subterms()`. Afterwards it is read from there. One mechanism
    for operand packing, row statistics and producer tiles. `layout` as in `Buffer`, over the open
    axes in the order of the kernel's axis list. `same` lists numbers of subterms that are the
    same value under another name of a bound axis."""

    term: int
    items: tuple[Item, ...]
    regs: tuple[Reg, ...] = ()
    layout: tuple[tuple[int, int], ...] = ()
    same: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Online:
    """A tile loop over the axis of rsum reductions, their states in local memory.

    All rsums over `axis` that share x advance together. `logits`, `weights` and `values` are the
    loop lists of the three nests inside a tile: x into a tile, exp2(x - max) in place, and the
    accumulation of Σ p·v."""

    axis: str
    tile: int
    logits: Schedule
    weights: Schedule
    values: Schedule
    split: bool = False


Item = Loop | Stage | Online


@dataclass(frozen=True, slots=True)
class Schedule:
    """Loops, stages and online loops from the outermost in, then the register list."""

    items: tuple[Item, ...] = ()
    regs: tuple[Reg, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: `stores` for every point of the free `axes`.

    `ordered` names axes whose points must be stored in rising order by one thread (a scatter).
    `sizes` are symbolic dimensions of its buffers' shapes, whose strides it needs."""

    name: str
    axes: tuple[Var, ...]
    stores: tuple[Store, ...]
    schedule: Schedule | None = None
    ordered: tuple[str, ...] = ()
    sizes: tuple[Var, ...] = ()

    def reads(self) -> tuple[str, ...]:
        """Buffers that the kernel loads from, in order of first use."""
        from_terms = (t.buffer for t in self.subterms() if t.op == "load")
        return tuple(dict.fromkeys(from_terms))

    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.buffer for s in self.stores))

    def arguments(self) -> tuple[str, ...]:
        """The buffers of the native argument block: what is read, then what is only written."""
        return tuple(dict.fromkeys((*self.reads(), *self.writes())))

    def dims(self) -> tuple[Var, ...]:
        """The symbolic dimensions of the argument block, by name: variables that are not axes."""
        bound = set(self.all_axes())
        found = {v for a in bound if a.bound is not None for v in a.bound.variables()}
        for store in self.stores:
            found |= store.value.free.union(*(e.variables() for e in store.index))
        return tuple(sorted((found | set(self.sizes)) - bound, key=lambda v: v.name))

    def all_axes(self) -> tuple[Var, ...]:
        """The free axes, then those that reductions bind, in order of first use."""
        bound = (a for t in self.subterms() for a in t.axes)
        return tuple(dict.fromkeys((*self.axes, *bound)))

    def subterms(self) -> tuple[Term, ...]:
        """All subterms of values and indices in a fixed order; `Stage.term` counts here."""
        return _subterms(self.stores)


@lru_cache(maxsize=4096)
def _subterms(stores: tuple[Store, ...]) -> tuple[Term, ...]:
    roots = [t for s in stores for t in (*(index(e) for e in s.index), s.value)]
    return tuple(postorder(*roots))


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels in order, their buffers, symbolic dimensions, and the calling convention.

    `inputs` and `outputs` are buffer names in the caller's order; an output may be an input's
    buffer (in-place) or appear twice. `costs_us` estimates each kernel's time, `tried` holds
    what the search measured for it, in canonical names: schedule, best time, what is wrong."""

    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dims: tuple[Var, ...] = ()
    costs_us: tuple[float, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    tried: tuple[tuple[tuple[Schedule, float, str], ...], ...] = field(default=(), compare=False)

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`; KeyError if there is none."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise KeyError(name)


def with_sizes(plan: Plan) -> Plan:
    """The plan in which every kernel knows the symbolic dimensions of its buffers' shapes."""
    shown = {b.name: {v for e in b.shape for v in e.variables()} for b in plan.buffers}
    kernels = []
    for kernel in plan.kernels:
        found = {v for name in kernel.arguments() for v in shown[name]}
        kernels.append(replace(kernel, sizes=tuple(sorted(found, key=lambda v: v.name))))
    return replace(plan, kernels=tuple(kernels))
