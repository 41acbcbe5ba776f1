"""Random programs of the tensor API: layers as models use them, with random sizes and dtypes.

In: a `Picker` as in `random_graphs`. Out: a `Case`: the text of the graph that the frontend makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, Update, cast, iota, tensor_from_bits, to_graph, update
from luminal.ir import dtype as dt
from luminal.ir.dtype import DType, bf16, boolean, f16, f32, f64, i8, i32, i64
from luminal.ir.expr import Expr, Var, prod, to_expr
from luminal.ir.text import graph_text
from tests.random_cases import Case, Pick

__all__ = ["random_program"]


@dataclass
class Program:
    """Inputs so far and the choices that make them."""

    pick: Pick
    large: bool = False
    constants: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    n: Expr = to_expr(Var("n", 0, 70))
    m: Expr = to_expr(Var("m", 2, 40))

    def of(self, *options: Any) -> Any:
        """One of the options."""
        return options[self.pick(0, len(options) - 1)]

    def dim(self, empty: bool = False) -> Any:
        """A size."""
        if self.large:
            return self.of(64, 100, 129, 32, 256, 48, self.m)
        return self.of(3, 1, 16, 17, 8, 5, 33, self.m, self.n if empty else 7)

    def input(self, shape: tuple, dtype: DType, name: str = "x") -> Tensor:
        """A new input."""
        made = Tensor.from_input(f"{name}{len(self.inputs)}", shape, dtype)
        self.inputs.append(made)
        return made

    def weight(self, shape: tuple, dtype: DType) -> Tensor:
        """A constant (whose layout is free), or an input."""
        sizes = [to_expr(d).value for d in shape]
        if None in sizes or not self.pick(0, 1):
            return self.input(shape, dtype)
        self.constants += 1
        return tensor_from_bits(np.zeros(sizes, dtype.np), dtype, f"c{self.constants}")

    def index(self, shape: tuple, limit: Any) -> Tensor:
        """Indices below a limit."""
        name = f"index{len(self.inputs)}_lt_{limit!r}"
        made = Tensor.from_input(name, shape, self.of(i64, i32))
        self.inputs.append(made)
        return made

    def dtype(self) -> DType:
        """A float dtype, mostly f32."""
        return self.of(f32, f32, f32, f16, bf16, f64)

    def activation(self, x: Tensor) -> Tensor:
        """An activation or none."""
        names = (
            "relu",
            "silu",
            "gelu",
            "sigmoid",
            "tanh",
            "softplus",
            "hardswish",
            "abs",
            "leaky_relu",
        )
        return self.of(lambda y: y, *(getattr(F, n) for n in names))(x)

    # Programs: each returns its results.

    def linear(self) -> list:
        t, k = self.dtype(), self.dim()
        lead = self.of((self.dim(True),), (2, self.dim()), (1,), ())
        x = self.input((*lead, k), t)
        for _ in range(1 + self.pick(0, 1)):
            o = self.dim()
            w = self.weight((o, x.dims[-1]), t)
            bias = self.weight((o,), t) if self.pick(0, 1) else None
            x = self.activation(F.linear(x, w, bias))
        return [x]

    def matmul(self) -> list:
        t = self.of(f32, f32, f16, bf16, f64, i32, i64)
        i, j, k = self.dim(True), self.dim(), self.dim()
        lead = self.of(((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (3,)), ((self.m,), (self.m,)))
        a = self.input((*lead[0], i, k), t)
        b = self.weight((*lead[1], j, k), t).transpose(-1, -2) if self.pick(0, 1) else self.weight(
            (*lead[1], k, j), t)  # fmt: skip
        y = F.matmul(a, b)
        if self.pick(0, 1):
            y = y * self.of(2, 3)
        return [y] if self.pick(0, 2) else [y, F.sum(y, self.of(-1, -2))]

    def conv(self) -> list:
        t, n = self.of(f32, f32, f16, f64), self.of(2, 1)
        groups = self.of(1, 1, 2, 4)
        channels, out = groups * self.of(1, 2, 3), groups * self.of(1, 3, 4, 8)
        size = tuple(self.of(*((28, 17, 56) if self.large else (7, 9, 16, 5))) for _ in range(n))
        if self.large:
            channels, out = groups * self.of(16, 3, 24), groups * self.of(32, 16, 20)
        kernel = tuple(self.of(3, 1, 2) for _ in range(n))
        stride, padding = self.of(1, 2, 3), self.of(0, 1, 2)
        dilation = self.of(1, 1, 2)
        x = self.input((self.of(1, 2, self.m), channels, *size), t)
        w = self.weight((out, channels // groups, *kernel), t)
        bias = self.weight((out,), t) if self.pick(0, 1) else None
        if self.pick(0, 4) == 4:
            w = self.weight((channels, out // groups, *kernel), t)
            y = F.conv_transpose(x, w, bias, stride, 0, 0, groups, dilation)
        else:
            y = F.convolution(x, w, bias, stride, padding, dilation, groups)
        if self.pick(0, 1):
            y = F.batch_norm(y, self.input((out,), t), F.abs(self.input((out,), t)),
                             self.input((out,), t), self.input((out,), t))  # fmt: skip
        y = self.activation(y)
        return [F.mean(y, tuple(range(2, y.ndim)))] if self.pick(0, 3) == 3 else [y]

    def pool(self) -> list:
        x = self.input(
            (self.of(1, 2), self.of(1, 3, 17), self.of(7, 8, 9), self.of(6, 9, 17)), self.dtype()
        )
        kind = self.of("max", "avg", "adaptive", "resize", "unpad")
        if kind == "max":
            return [
                F.max_pool2d(
                    x, self.of(2, 3), self.of(None, 1, 2), self.of(0, 1), 1, self.of(False, True)
                )
            ]
        if kind == "avg":
            stride, ceil, counted = self.of(None, 1, 2), self.of(False, True), self.of(True, False)
            return [F.avg_pool2d(x, self.of(2, 3), stride, self.of(0, 1), ceil, counted)]
        if kind == "adaptive":
            return [self.of(F.adaptive_avg_pool2d, F.adaptive_max_pool2d)(x, self.of(1, 3, (2, 5)))]
        if kind == "resize":
            return [
                F.interpolate(
                    x, scale_factor=self.of(2, 2, 3), mode=self.of("nearest", "bilinear", "bicubic")
                )
            ]
        mode = self.of("constant", "reflect", "replicate", "circular")
        return [F.pad(x, [1, 2, 3, self.of(0, 1)], mode)]

    def norm(self) -> list:
        t = self.dtype()
        x = self.input((self.of(2, self.n), self.of(4, 6), self.dim()), t)
        if self.pick(0, 1):
            x = x + self.input(x.shape, t)
        last = x.dims[-1]
        kind = self.of("layer", "rms", "softmax", "log", "group", "logsumexp", "var", "normalize")
        if kind == "layer":
            return [F.layer_norm(x, [last], self.input((last,), t), self.input((last,), t))]
        if kind == "rms":
            return [x, F.rms_norm(x, [last], self.input((last,), t))]
        if kind in ("softmax", "log"):
            return [(F.softmax if kind == "softmax" else F.log_softmax)(x, self.of(-1, 1, 0))]
        if kind == "group":
            return [F.group_norm(x, 2, self.input((x.shape[1],), t), None)]
        if kind == "logsumexp":
            return [F.logsumexp(x, self.of(-1, 1))]
        if kind == "var":
            return [*F.var_mean(x, self.of(1, (1,)))]
        return [F.normalize(x, 2.0, self.of(1, 2))]

    def attention(self) -> list:
        t = self.of(f32, f32, f16, bf16)
        d, s, rows = self.of(8, 16, 5), self.of(7, 17, self.m, 33), self.of(None, 1, 17)
        if self.large:
            d, s, rows = self.of(32, 64, 40), self.of(65, 200, 128, self.m), self.of(None, 1, 70)
        kv = self.of(2, 1)
        heads = kv * self.of(1, 2, 3)
        q = self.input((1, heads, s if rows is None else rows, d), t)
        k, v = (self.input((1, kv, s, d), t) for _ in range(2))
        causal = rows is None and self.of(True, False)
        mask = None
        if not causal and self.pick(0, 2):
            mask_rows = q.shape[2] if self.pick(0, 1) else 1
            mask = self.input((mask_rows, s), self.of(boolean, t), "mask")
        if self.pick(0, 2):
            y = F.scaled_dot_product_attention(
                q, k, v, mask, is_causal=causal, enable_gqa=heads != kv
            )
        else:
            k, v = (F.repeat_interleave(x, heads // kv, 1) for x in (k, v))
            scores = F.matmul(q, k.transpose(-1, -2)) * (d**-0.5)
            if causal:
                keep = iota(s).reshape(1, -1) <= iota(s).reshape(-1, 1)
                scores = F.masked_fill(scores, F.logical_not(keep), self.of(float("-inf"), -1e4))
            elif mask is not None:
                scores = F.where(mask, scores, -1e9) if mask.dtype == boolean else scores + mask
            y = F.matmul(F.softmax(scores, -1), v)
        y = F.permute(y, 0, 2, 1, 3)
        return [y.reshape(1, y.dims[1], heads * d)]

    def indexed(self) -> list:
        t = self.of(f32, f32, f16, i64, bf16)
        rows, d = self.of(10, 17, 3), self.dim()
        table = self.input((rows, d), t)
        kind = self.of(
            "embedding", "select", "scatter_add", "index_add", "gather", "copy", "onehot", "put"
        )
        if kind == "embedding":
            return [F.embedding(self.index((2, self.of(5, self.n)), rows), table)]
        if kind == "select":
            return [F.index_select(table, 0, self.index((self.of(4, self.m),), rows)) + 1]
        if kind == "scatter_add":
            index = self.index((self.of(5, 17), d), rows)
            return [F.scatter_add(table, 0, index, self.input(index.shape, t))]
        if kind == "index_add":
            index = self.index((self.of(5, 9),), rows)
            return [F.index_add(table, 0, index, self.input((index.shape[0], d), t))]
        if kind == "gather":
            return [F.gather(table, 0, self.index((self.of(5, 2), d), rows))]
        if kind == "copy":
            index = self.index((self.of(1, 4, self.m),), rows)
            return [F.index_copy(table, 0, index, self.input((index.shape[0], d), t))]
        if kind == "onehot":
            return [F.one_hot(self.index((self.of(4, self.n),), 6), 6)]
        made = F.index_put(table, (self.index((4,), rows),), self.input((4, d), t))
        return [made, made * 2]

    def scan(self) -> list:
        x = self.input((self.of(3, 5), self.of(7, 17, self.m)), self.of(f32, f16, i64))
        kind = self.of("cumsum", "cummax", "sort", "topk", "argmax", "prod", "tri", "roll", "cross")
        if kind == "cumsum":
            return [F.cumsum(x, self.of(1, 0))]
        if kind == "cummax":
            return [*F.cummax(x, 1)]
        if kind == "sort":
            return [*F.sort(x, 1, self.of(False, True))]
        if kind == "topk":
            return [*F.topk(x, 2, 1)]
        if kind == "argmax":
            return [F.argmax(x, self.of(1, 0, None)), F.amin(x, 0)]
        if kind == "prod":
            return [F.prod(F.sigmoid(x), 0)]
        if kind == "tri":
            return [F.tril(x, self.of(0, 1, -1)), F.triu(x)]
        if kind == "roll":
            return [F.roll(x, self.of(1, 2, -1), 1), F.flip(x, 1)]
        return [F.cross_entropy(cast(x, f32), self.index((x.shape[0],), 7))]

    def quantised(self) -> list:
        rows, blocks, size = self.of(8, 16, 5, 17), self.of(1, 2), self.of(32, 16)
        if self.large:
            rows, blocks = self.of(64, 100, 33), self.of(4, 3)
        kind = self.of(dt.i8, dt.u4, dt.i4, dt.f8e4m3, dt.f4e2m1, dt.u8)
        width = blocks * size
        stored = np.zeros((rows, width // (2 if kind.bits == 4 else 1)), kind.np)
        weight = tensor_from_bits(stored, kind, "w0")
        scales = tensor_from_bits(np.zeros((rows, blocks), np.float16), f16, "s0")
        work = self.of(f32, bf16)
        values = cast(cast(weight, i8 if kind.is_int else f32), work).reshape(rows, blocks, size)
        full = (values * cast(scales, work).reshape(rows, blocks, 1)).reshape(rows, width)
        x = self.input((self.of(1, 4, self.m), width), self.of(work, f32))
        return [F.matmul(x, cast(full, x.dtype).transpose(0, 1))]

    def cache(self) -> list:
        """A cache that is updated in place and read."""
        d, rows = self.of(4, 16), 12
        t = self.of(f32, f16)
        cache = self.input((2, rows, d), t, "cache")
        new = self.weight((2, 1, d), t)
        at = self.index((1,), rows)
        if self.pick(0, 1):
            new = new * 2 + 1
        after = F.index_copy(cache, 1, at, new)
        q = self.input((2, 3, d), t)
        scores = F.matmul(q, after.transpose(-1, -2))
        keep = iota(rows).reshape(1, 1, -1) <= at.reshape(1, 1, 1)
        weights = F.softmax(F.masked_fill(scores, F.logical_not(keep), float("-inf")), -1)
        out = [F.matmul(weights, after), update(cache, after)]
        return out + ([F.sum(cache, 1)] if self.pick(0, 1) else [])

    def joined(self) -> list:
        t = self.of(f32, f16, i64, boolean)
        a = self.input((self.of(3, self.n), self.of(2, 5)), t)
        b = self.input((self.of(4, self.m), a.dims[1]), t)
        both = F.cat([a, b, a], 0)
        if t == boolean:
            return [both, F.any(both, 0), F.all(both, 1)]
        if self.pick(0, 1):
            return [both, F.stack([a, a * 2], self.of(0, 1, 2))]
        half = F.chunk(both, 2, 1) if a.shape[1] == 2 else (both, both)
        return [F.maximum(*half), F.where(half[0] < half[1], half[0], 0)]

    def rotary(self) -> list:
        t, d = self.of(f32, f16, bf16), self.of(8, 6)
        x = self.input((2, self.of(5, self.m), 3, d), t)
        angles = cast(iota(x.dims[1]), f32).reshape(-1, 1) * self.input((d // 2,), f32).reshape(
            1, -1
        )
        cos, sin = (F.cat([f(angles)] * 2, -1).reshape(1, -1, 1, d) for f in (F.cos, F.sin))
        left, right = F.chunk(x, 2, -1)
        turned = F.cat([-right, left], -1)
        return [cast(x * cos + turned * sin, t)]

    def mlp(self) -> list:
        """A pre-norm block."""
        t, d = self.of(f32, bf16, f16), self.of(16, 8, 24) * (4 if self.large else 1)
        x = self.input((self.of(3, self.n), d), t)
        y = F.rms_norm(x, [d], self.weight((d,), t))
        gate, up = (F.linear(y, self.weight((2 * d, d), t)) for _ in range(2))
        y = F.linear(F.silu(gate) * up, self.weight((d, 2 * d), t))
        return [x + y * 0.1]


KINDS = ("linear", "matmul", "conv", "pool", "norm", "attention", "indexed", "scan", "quantised",
         "cache", "joined", "rotary", "mlp")  # fmt: skip


LARGEST = 8_000_000
"""Elements of the largest tensor: the oracle holds all of them, in several versions."""


def random_program(pick: Pick, kind: str = "") -> Case:
    """A random program of one kind; one in five is larger than a register tile everywhere."""
    case = _program(pick, kind, pick(0, 4) == 4)
    return case or _program(pick, kind, False) or random_program(pick, "linear")


def _program(pick: Pick, kind: str, large: bool) -> Case | None:
    """A program; None if it is too large for the oracle."""
    p = Program(pick, large)
    if pick(0, 1):
        p.n, p.m = to_expr(Var("n", 0, 1 << 20)), to_expr(Var("m", 2, 4096))
    results = getattr(p, kind or p.of(*KINDS))()
    graph = to_graph(results, p.inputs, [f"y{n}" for n in range(len(results))])
    assert all(isinstance(r, Tensor | Update) for r in results)
    runs = []
    for _ in range(2 if graph.dims else 1):
        sizes = {"n": p.of(3, 1, 33, 16, 0, 7), "m": p.of(17, 3, 2, 16)}
        runs.append(tuple((v.name, sizes[v.name]) for v in graph.dims))
    shapes = {node.shape for node in graph.nodes}
    if max(prod(s).evaluate(dict(run)) for s in shapes for run in runs) > LARGEST:
        return None
    return Case(graph_text(graph), tuple(dict.fromkeys(runs)), pick(0, 99))
