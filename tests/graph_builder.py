"""A builder of graphs, one primitive at a time; equal nodes are shared."""

from __future__ import annotations

from dataclasses import dataclass, field

from luminal.ir.dtype import DType, i64
from luminal.ir.expr import Expr, Var
from luminal.ir.graph import ConstantData, Edge, Graph, Node, Output
from luminal.ir.ops import result_dtype
from luminal.ir.view import Shape, View, identity


@dataclass(slots=True)
class GraphBuilder:
    """Builds a graph; equal nodes are shared.

    >>> from luminal.ir.dtype import f32
    >>> from luminal.ir.expr import const
    >>> g = GraphBuilder()
    >>> x = g.input("x", (const(4),), f32)
    >>> y = g.op("Exp2", (x,))
    >>> g.finish((Output("y", y),)).nodes[1].op
    'Exp2'
    """

    nodes: list[Node] = field(default_factory=list)
    _known: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> Edge:
        """The identity edge of a node, an equal existing one if there is one."""
        number = self._known.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return Edge(number, identity(node.shape))

    def dtype(self, edge: Edge) -> DType:
        """The dtype of an edge."""
        return self.nodes[edge.node].dtype

    def input(self, name: str, shape: Shape, dtype: DType) -> Edge:
        """An input given at each call."""
        return self.add(Node("Input", (), shape, dtype, name=name))

    def scalar(self, value: float | int | bool, dtype: DType) -> Edge:
        """A scalar constant, shape ()."""
        return self.add(Node("Constant", (), (), dtype, name=repr(value), value=value))

    def tensor(self, data: ConstantData, shape: Shape, dtype: DType) -> Edge:
        """A constant tensor."""
        return self.add(Node("Constant", (), shape, dtype, name=data.name, value=data))

    def op(self, op: str, inputs: tuple[Edge, ...]) -> Edge:
        """An elementwise primitive other than Cast; all inputs have one shape and dtype."""
        dtypes = tuple(self.dtype(e) for e in inputs)
        return self.add(Node(op, inputs, inputs[0].view.shape, result_dtype(op, dtypes)))

    def cast(self, x: Edge, dtype: DType) -> Edge:
        """x converted to `dtype`; x itself if it has that dtype."""
        if self.dtype(x) == dtype:
            return x
        return self.add(Node("Cast", (x,), x.view.shape, dtype))

    def reduce(self, op: str, x: Edge, axis: int) -> Edge:
        """SumReduce or MaxReduce along `axis`, which disappears."""
        shape = x.view.shape[:axis] + x.view.shape[axis + 1 :]
        return self.add(Node(op, (x,), shape, self.dtype(x), axis=axis))

    def iota(self, extent: Expr, dtype: DType = i64) -> Edge:
        """0, 1, ..., extent-1 as a vector."""
        return self.add(Node("Iota", (), (extent,), dtype))

    def gather(self, src: Edge, index: Edge, axis: int) -> Edge:
        """out[.., o, ..] = src[.., index[.., o, ..], ..]; see `Node`."""
        return self.add(Node("Gather", (src, index), index.view.shape, self.dtype(src), axis=axis))

    def scatter(self, dest: Edge, index: Edge, src: Edge, axis: int) -> Edge:
        """A copy of dest with dest[.., index[o], ..] = src[o]; the last of duplicates wins."""
        shape = dest.view.shape
        return self.add(Node("Scatter", (dest, index, src), shape, self.dtype(dest), axis=axis))

    def view(self, x: Edge, view: View) -> Edge:
        """x through one more view; a copy is made where two paddings differ."""
        joined = x.view.then(view)
        if joined is not None:
            return Edge(x.node, joined)
        zero = Edge(self.scalar(0, self.dtype(x)).node, View(x.view.shape, (), ()))
        copied = self.op("Add", (x, zero))
        return Edge(copied.node, view)

    def finish(self, outputs: tuple[Output, ...], dims: tuple[Var, ...] = ()) -> Graph:
        """The graph of what has been built."""
        return Graph(tuple(self.nodes), outputs, dims)
