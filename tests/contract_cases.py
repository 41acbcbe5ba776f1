"""Small real graphs for the contract tests, and their texts at every stage for one fixed target.

In: a name of `CASES`. Out: graph, plan and LLVM text. Run as a script, it prints a digest of all.
"""

import hashlib
import sys

import luminal
from luminal import nn
from luminal.codegen.generate import generate
from luminal.config import Config
from luminal.frontend.tensor import Tensor, to_graph
from luminal.ir.dtype import f32, i64
from luminal.ir.expr import dim
from luminal.ir.graph import Graph
from luminal.ir.plan import Plan
from luminal.ir.target import Target
from luminal.ir.text import graph_text, plan_text
from luminal.rewrite import rewrite
from luminal.search.extract import extract
from luminal.search.strategy import choose

TARGET = Target(
    cpu="x86-64-v3", features="+avx,+avx2,+fma", vector_bits=256, vector_registers=16,
    fma=True, int8_dot="maddubs", cores=2,
)  # fmt: skip


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / 8
    rows, keys = luminal.arange(q.shape[-2]), luminal.arange(k.shape[-2])
    hidden = keys.reshape(1, -1) > rows.reshape(-1, 1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def norm_linear(x, gain, weight):
    scale = ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (x * scale * gain) @ weight.transpose(0, 1)


def convolution(x, w, b):
    return luminal.conv2d(x, w, b, padding=1).relu()


def lookup(table, ids):
    return luminal.softmax(table[ids].layer_norm((16,)), -1)


def encoder_layer(x):
    nn.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)(x)


s = dim("s", 1, 64)
CASES = {
    "attention": (attention, [(f32, (2, 64, 16))] * 3),
    "symbolic_attention": (attention, [(f32, (2, s, 16))] * 3),
    "norm_linear": (norm_linear, [(f32, (8, 32)), (f32, (32,)), (f32, (24, 32))]),
    "convolution": (convolution, [(f32, (1, 4, 9, 9)), (f32, (8, 4, 3, 3)), (f32, (8,))]),
    "matmul": (lambda a, b: a @ b, [(f32, (32, 48)), (f32, (48, 40))]),
    "softmax": (lambda x: x.softmax(-1), [(f32, (6, 50))]),
    "lookup": (lookup, [(f32, (20, 16)), (i64, (7,))]),
    "encoder_layer": (encoder_layer, [(f32, (2, s, 16))]),
    "sort": (lambda x: x.sort(-1), [(f32, (3, 9))]),
}


def graph_of(name: str) -> Graph:
    fn, specs = CASES[name]
    inputs = [Tensor.from_input(f"x{n}", shape, d) for n, (d, shape) in enumerate(specs)]
    found = fn(*inputs)
    leaves = list(found) if isinstance(found, tuple) else [found]
    return to_graph(leaves, inputs, [f"y{n}" for n in range(len(leaves))])


def plan_of(graph: Graph) -> Plan:
    space = rewrite(graph, numerics="exact")
    return choose(extract(space, TARGET, hints={}, k=1), TARGET, Config(search="off"))


def stages(name: str) -> dict[str, str]:
    graph = graph_of(name)
    program = generate(plan_of(graph), TARGET)
    texts = {"graph": graph_text(graph), "plan": plan_text(program.plan)}
    return texts | {"llvm": "\n".join(code.source for code in program.codes)}


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        for stage, text in stages(case).items():
            print(case, stage, hashlib.sha256(text.encode()).hexdigest()[:16])
