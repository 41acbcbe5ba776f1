"""Quantised weights inside a graph: declared as inputs, decoded where they are used.

In: weights as planes. Out: lazy tensors, and the arrays to bind to the compiled graph. Decoding is
written in primitives, so that it fuses into whatever reads the weights. With integer dots the
activations too are quantised, per block of weights that share a scale (numerics "fast").
"""

from typing import cast

import numpy as np

from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor
from luminal.frontend.weights import Plane
from luminal.ir.dtype import by_name
from luminal.models.decoder_weights import Weight

__all__ = ["WeightInputs"]

_INT8_MAX = 127


class WeightInputs:
    """The weights that a graph reads, by input name; `arrays` grows as they are used."""

    __slots__ = ("_integer_dots", "_tensors", "arrays")

    def __init__(self, integer_dots: bool = False) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._tensors: dict[str, Tensor] = {}
        self._integer_dots = integer_dots

    def vector(self, weight: Weight) -> Tensor:
        """An unquantised weight as it is stored."""
        return self._plane(weight.name, weight.planes.quants).cast("f32")

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x [n, columns] times the transposed matrix [rows, columns], in f32."""
        if self._integer_dots and weight.planes.scale is not None:
            return self._integer_linear(x, weight)
        blocks = self._blocks(weight)
        split = blocks.dims[1:]
        product = x.reshape(x.dims[0], 1, *split) * blocks
        return product.sum(tuple(range(2, product.ndim)))

    def _integer_linear(self, x: Tensor, weight: Weight) -> Tensor:
        """`linear` with x rounded to 8 bits per group of weights that share a scale."""
        planes, (rows, columns) = weight.planes, weight.shape
        blocks, groups = _split(weight)
        size = columns // blocks // groups
        x = x.reshape(x.dims[0], blocks, groups, size)
        step = F.amax(F.abs(x), -1, keepdim=True) * (1 / _INT8_MAX)
        inverse = F.where(step > 0, 1 / step, 0.0)
        shifted = x * inverse + (_INT8_MAX + 1.5)  # positive, so that the cast rounds to nearest
        rounded = (shifted.cast("i32") - (_INT8_MAX + 1)).cast("i8").cast("i32")
        quants = self._plane(weight.name, planes.quants).cast("i32")
        quants = quants.reshape(rows, blocks, groups, size)
        dots = (rounded[:, None] * quants).sum(-1, dtype="i32").cast("f32")
        total = dots * self._scale(weight, "scale").reshape(rows, blocks, groups)
        if planes.minimum is not None:
            sums = rounded.sum(-1, dtype="i32").cast("f32")[:, None]
            total = total + sums * self._scale(weight, "minimum").reshape(rows, blocks, groups)
        return (total * step.reshape(x.dims[0], 1, blocks, groups)).sum((2, 3))

    def rows(self, weight: Weight, ids: Tensor) -> Tensor:
        """The rows `ids` [n] of a matrix, f32 [n, columns]."""
        return F.embedding(ids, self._blocks(weight)).reshape(ids.dims[0], weight.shape[1])

    def _blocks(self, weight: Weight) -> Tensor:
        """The decoded matrix f32 [rows, *split], where every scale belongs to one index."""
        planes, (rows, columns) = weight.planes, weight.shape
        quants = self._plane(weight.name, planes.quants).cast("f32")
        if planes.scale is None:
            return quants
        blocks, groups = _split(weight)
        split = (blocks, columns // blocks) if groups == 1 else (blocks, groups, -1)
        decoded = quants.reshape(rows, *split) * self._scale(weight, "scale")
        if planes.minimum is not None:
            decoded = decoded + self._scale(weight, "minimum")
        return decoded

    def _scale(self, weight: Weight, name: str) -> Tensor:
        """scale·sub_scale, or minimum·sub_minimum, with a trailing axis of 1."""
        planes = weight.planes.present()
        plane = planes[name]
        rows, blocks = plane.shape
        scale = self._plane(f"{weight.name}.{name}", plane).cast("f32")
        if f"sub_{name}" not in planes:
            return scale.reshape(rows, blocks, 1)
        sub = self._plane(f"{weight.name}.sub_{name}", planes[f"sub_{name}"]).cast("f32")
        return scale.reshape(rows, blocks, 1, 1) * sub.reshape(rows, blocks, -1, 1)

    def _plane(self, name: str, plane: Plane) -> Tensor:
        """A plane in its storage type, declared once."""
        if name not in self._tensors:
            self.arrays[name] = cast(np.ndarray, plane.data)  # or what NumPy makes one of
            self._tensors[name] = Tensor.from_input(name, plane.shape, by_name(plane.dtype))
        return self._tensors[name]


def _split(weight: Weight) -> tuple[int, int]:
    """How many blocks a row has, and how many groups with a sub-scale a block has."""
    scale, sub_scale = weight.planes.scale, weight.planes.sub_scale
    blocks = 1 if scale is None else scale.shape[-1]
    return blocks, 1 if sub_scale is None else sub_scale.shape[-1] // blocks
