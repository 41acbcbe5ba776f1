"""Random programs of ATen operators with views and in-place writes, as Python text.

In: a picker `pick(lo, hi)` of whole numbers. Out: a `Program`, whose text can be kept in a file. A
program is run in eager while it grows: a line that raises, or gives values too large to compare, is
left out. Rounding differs between compilers, so operators that jump (comparisons, floor, argmax)
read only values that are exact: whole eighths, not yet touched by a rounding operator.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

__all__ = ["Program", "parse", "random_program"]

Pick = Callable[[int, int], int]
SHAPES = ((4, 6), (6,), (3, 4, 6), (1, 6), (5, 5), (2, 1, 6), (), (4, 1), (0, 3), (2, 3, 4, 5))
LAYOUTS = ("plain", "turned", "gapped", "expanded")

VIEWS = (
    "{a}.transpose({i}, {j})", "{a}.flatten()", "{a}.unsqueeze({i})", "{a}.squeeze()", "{a}[1:]",
    "{a}[..., 0]", "{a}[::2]", "{a}[..., :-1]", "{a}.reshape(-1)", "{a}.T", "{a}.flip({i})",
    "{a}.expand(3, *{a}.shape)", "{a}.select({i}, -1)", "{a}.diagonal()", "{a}.detach()",
    "{a}.narrow({i}, 1, 2)", "{a}.chunk(2, {i})[1]", "{a}.unfold({i}, 2, 1)", "{a}.movedim({i}, 0)",
    "{a}.view(-1, 2)", "{a}.unbind({i})[0]", "{a}.split(2, {i})[0]", "{a}[None]",
    "{a}.view_as({a})", "{a}.contiguous()", "{a}.view({a}.dtype)", "{a}.swapaxes({i}, {j})",
)  # fmt: skip
EXACT = (
    "-{a}", "{a}.abs()", "{a}.relu()", "{a}.clone()", "{a} + {b}", "{a} - {b}", "{a} * {b}",
    "torch.maximum({a}, {b})", "torch.minimum({a}, {b})", "{a} + {n}", "{a} * {n}", "{n} - {a}",
    "{a}.clamp(-1, 2)", "{a}.sum({i})", "{a}.sum()", "{a}.amax({i})", "{a}.cumsum({i})",
    "torch.cat([{a}, {b}], {i})", "torch.stack([{a}, {a}], {i})", "{a}.repeat(2, *[1] * {a}.dim())",
    "{a}.to(torch.float32)", "{a}.to(torch.int64)", "{a}.double()", "{a}.float()", "{a}.tril()",
    "torch.zeros_like({a})", "torch.roll({a}, 1, {i})", "F.pad({a}, (1, 2))", "{a}.new_ones(2, 3)",
    "{a}.masked_fill({a} > {n}, {n})", "torch.where({a} > {b}, {a}, {b})", "{a}.gt({b})",
    "{a} == {b}", "{a}.argmax({i})", "{a}.sort({i})[0]", "{a}.floor()", "{a}.sign()", "{a}.bool()",
    "{a}[[0, -1, 0]]", "{a}[..., [1, 0]]", "{a}.index_select({i}, torch.tensor([1, 0, 1]))",
    "{a}.gather({i}, torch.zeros_like({a}, dtype=torch.int64))", "{a}.logical_not()", "{a} // 3",
    "{a} % 5", "{a}.any({i})", "{a}.max({i})[0]", "{a} & {b}", "{a} ^ {b}", "~{a}", "{a}.int()",
    "torch.arange(6) + {a}", "{a}.prod({i})", "{a}.topk(2, {i})[0]", 
    "{a}.index_fill(0, torch.tensor([0]), 2)",
    "{a}.scatter_add({i}, torch.zeros_like({a}, dtype=torch.int64), {a})", "torch.outer({a}, {b})",
    "torch.full((2,), 3) + {a}", "{a}.median({i})[0]", "{a}.count_nonzero()", "{a}.trace()",
)  # fmt: skip
ROUNDING = (
    "{a}.exp()", "{a}.sigmoid()", "{a}.tanh()", "{a}.sin()", "F.gelu({a})", "F.silu({a})",
    "{a}.softmax({i})", "{a}.abs().sqrt()", "({a}.abs() + 1).log()", "{a}.mean({i})", "{a} / {b}",
    "{a} / 3", "{a}.var({i})", "{a} @ {b}", "{a} @ {a}.mT", "F.layer_norm({a}, {a}.shape[-1:])",
    "{a}.logsumexp({i})", "{a}.half().float()", "{a}.bfloat16()", "{a}.erf()", "{a}.norm()",
    "torch.addcmul({a}, {a}, {b})", "torch.lerp({a}, {b}, 0.25)", "F.linear({a}, {b})",
    "{a}.log_softmax({i})", "({a} * {a} + 1).rsqrt()", "F.softplus({a})", "{a}.std()", "{a} ** 2",
    "torch.atan2({a}, {b})", "F.avg_pool1d({a}, 2)", "torch.hypot({a}, {b})", "{a}.sinh()",
)  # fmt: skip
WRITES = (
    "{a}.add_({b})", "{a}.mul_({n})", "{a}.copy_({b})", "{a}.zero_()", "{a}.fill_({n})",
    "{a}.clamp_(-2, 2)", "{a}.neg_()", "{a}.relu_()", "{a}[0] = {n}", "{a}[1:] = {b}",
    "{a}[..., 0] = {n}", "{a}[..., -1] += {b}", "{a}.masked_fill_({a} > 1, {n})", "{a}.sub_({b})",
    "{a}[[0, 2]] = {n}", "{a}.index_add_({i}, torch.tensor([0, 1]), {b})", "{a}[{a} > 1] = {n}",
    "{a}.transpose({i}, {j}).add_(1)", "{a}.T.copy_({b})", "{a} += {b}", "{a}.t_()",
    "{a}.unsqueeze_({i})", "{a}.squeeze_()", "{a}.logical_not_()", "{a}.diagonal().fill_({n})",
    "torch.add({a}, {b}, out={a})", "{a}.flatten()[1:3].mul_(2)", "{a}.set_({a}.clone())",
)  # fmt: skip
JUMPS = re.compile(
    r">|gt\(|==|argmax|sort|floor|sign|bool|int|//|%|any|max\(|logical|median|topk|count"
)
ONE_VALUE = re.compile(r"\.fill_|\.zero_|\[[^{]*\] = \{n\}|squeeze_|\.t_|\.set_")


@dataclass
class Program:
    """Inputs (shape, dtype, layout) and lines; the last line returns."""

    inputs: list[tuple[tuple[int, ...], str, str]]
    lines: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        body = "".join(f"    {line}\n" for line in self.lines)
        result = ", ".join(self.returned)
        return f"# {json.dumps(self.inputs)}\ndef f({names}):\n{body}    return {result},\n"

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The program as a function."""
        space: dict[str, object] = {"torch": torch, "F": F}
        exec(compile(str(self), "<program>", "exec"), space)
        return space["f"]  # type: ignore[return-value]

    def tensors(self, seed: int) -> list[torch.Tensor]:
        """Fresh inputs."""
        made = torch.Generator().manual_seed(seed)
        return [_tensor(made, *spec) for spec in self.inputs]


def parse(text: str) -> Program:
    """The program of a text."""
    first, _, *body, last = text.strip().splitlines()
    inputs = [(tuple(s), d, layout) for s, d, layout in json.loads(first[2:])]
    returned = last.strip().removeprefix("return").rstrip(",").split(",")
    return Program(inputs, [line.strip() for line in body], [r.strip() for r in returned])


def _tensor(made: torch.Generator, shape: tuple[int, ...], dtype: str, layout: str) -> torch.Tensor:
    full = shape
    if layout == "turned":
        full = shape[::-1]
    elif layout == "gapped" and shape:
        full = (*shape[:-1], 2 * shape[-1])
    elif layout == "expanded" and shape and shape[0]:
        full = (1, *shape[1:])
    values = torch.randint(-16, 17, full, generator=made)
    kind = getattr(torch, dtype)
    x = (
        values > 0
        if kind == torch.bool
        else (values / 8 if kind.is_floating_point else values // 4)
    )
    x = x.to(kind)
    if layout == "turned":
        return x.permute(tuple(reversed(range(x.dim()))))
    if layout == "gapped" and shape:
        return x[..., ::2]
    return x.expand(shape) if layout == "expanded" and shape and shape[0] else x.reshape(shape)


class _Growing:
    """A program, the values of its variables in eager, and which of them are exact."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        dtypes = ("float32", "float32", "float32", "int64", "bool", "float64", "int32")
        count = pick(1, 3)
        specs = [(self.of(SHAPES), self.of(dtypes), self.of(LAYOUTS)) for _ in range(count)]
        # Dynamo itself loses writes into f64 inputs without dimensions
        specs = [(s, d if s or d != "float64" else "float32", layout) for s, d, layout in specs]
        self.program = Program(specs)
        self.values: dict[str, torch.Tensor] = {}
        self.rounded: set[str] = set()
        self._replay()

    def of(self, options: tuple) -> object:
        return options[self.pick(0, len(options) - 1)]

    def _replay(self) -> None:
        space = {f"x{i}": t for i, t in enumerate(self.program.tensors(0))}
        for line in self.program.lines:
            exec(line, {"torch": torch, "F": F}, space)
        self.values = space

    def aliases(self, name: str) -> set[str]:
        place = self.values[name].untyped_storage().data_ptr()
        return {n for n, t in self.values.items() if t.untyped_storage().data_ptr() == place}

    def step(self) -> None:
        group = self.of((VIEWS, VIEWS, EXACT, EXACT, EXACT, ROUNDING, WRITES, WRITES))
        text = str(self.of(group))
        names = tuple(self.values)
        a = str(self.of(names))
        fitting = tuple(n for n in names if _fits(self.values[n], self.values[a]))
        b = str(self.of(fitting))
        rank = max(self.values[a].dim(), 1)
        line = text.format(a=a, b=b, i=self.pick(0, rank - 1), j=-1, n=self.of((2, -1, 0, 3)))
        used = {a, b} if "{b}" in text else {a}
        if group is ROUNDING and any(self.values[n].dtype == torch.bool for n in used):
            return
        if JUMPS.search(text) and used & self.rounded:
            return
        if _undefined(text, self.values[a], self.values[b]):
            return
        target = a if group is WRITES else f"v{len(self.program.lines)}"
        self._try(line if group is WRITES else f"{target} = {line}", target, group, used)

    def _try(self, line: str, target: str, group: tuple, used: set[str]) -> None:
        self.program.lines.append(line)
        try:
            exec(line, {"torch": torch, "F": F}, self.values)
            good = all(isinstance(v, torch.Tensor) and _comparable(v) for v in self.values.values())
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            good = False
        if not good:
            self.program.lines.pop()
            self._replay()
        elif group is ROUNDING or used & self.rounded:
            self.rounded |= self.aliases(target) if group is WRITES else {target}


def _undefined(text: str, a: torch.Tensor, b: torch.Tensor) -> bool:
    """True where eager's result depends on what lies in memory or on the order of writes."""
    if "median" in text:
        return 0 in a.stride()  # PyTorch reads beyond the values
    unequal = text in WRITES and not ONE_VALUE.search(text) and 0 not in a.stride()
    if unequal and len(_places(a)) < a.numel():
        return True  # an element may be read before or after its neighbour's write to it
    if text not in WRITES or "{b}" not in text or not _places(a) & _places(b):
        return False
    equal = (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())
    return not equal or (".T.copy_" in text and a.dim() > 1)


def _places(x: torch.Tensor) -> set[int]:
    """The addresses of all elements."""
    steps = (range(0, n * s, s) if s else (0,) for n, s in zip(x.shape, x.stride(), strict=True))
    return {x.data_ptr() + x.element_size() * sum(at) for at in itertools.product(*steps)}


def _fits(x: torch.Tensor, y: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return x.dim() == y.dim() == 2
    return True


def _comparable(x: torch.Tensor) -> bool:
    small = x.numel() <= 2000 and not x.is_complex()
    return (
        small
        and bool(x.isfinite().all())
        and bool((x.abs() < 1e4).all() if x.dtype != torch.bool else True)
    )


def random_program(pick: Pick, steps: int = 30) -> Program:
    """A program of 3 to `steps` tries; it returns its last values and one of its inputs."""
    growing = _Growing(pick)
    for _ in range(pick(3, steps)):
        growing.step()
    names = list(growing.values)
    extra = growing.of(tuple(names))
    growing.program.returned = list(dict.fromkeys([*names[-3:], extra, "x0"][: pick(1, 5)]))
    return growing.program
