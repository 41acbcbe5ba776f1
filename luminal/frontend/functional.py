"""The operations of the tensor API in one namespace, and the methods of `Tensor`.

In: the `functional_*` modules. Out: every public function of theirs under one name, and `Tensor`
with its operators and methods. Nothing is defined here but tables.

>>> tensor([[1.0, 2.0, 3.0]]).softmax(-1).transpose(0, 1).shape
(3, 1)
"""

from __future__ import annotations

from typing import Any

from luminal.errors import ArgumentError, UnsupportedError
from luminal.frontend import (
    evaluate,
    functional_activation,
    functional_conv,
    functional_core,
    functional_create,
    functional_index,
    functional_integer,
    functional_join,
    functional_key,
    functional_linear,
    functional_loss,
    functional_math,
    functional_more,
    functional_norm,
    functional_power,
    functional_reduce,
    functional_resize,
    functional_scan,
    functional_shape,
    functional_sort,
)
from luminal.frontend.evaluate import *  # noqa: F403
from luminal.frontend.functional_activation import *  # noqa: F403
from luminal.frontend.functional_conv import *  # noqa: F403
from luminal.frontend.functional_core import *  # noqa: F403
from luminal.frontend.functional_create import *  # noqa: F403
from luminal.frontend.functional_index import *  # noqa: F403
from luminal.frontend.functional_integer import *  # noqa: F403
from luminal.frontend.functional_join import *  # noqa: F403
from luminal.frontend.functional_key import *  # noqa: F403
from luminal.frontend.functional_linear import *  # noqa: F403
from luminal.frontend.functional_loss import *  # noqa: F403
from luminal.frontend.functional_math import *  # noqa: F403
from luminal.frontend.functional_more import *  # noqa: F403
from luminal.frontend.functional_norm import *  # noqa: F403
from luminal.frontend.functional_power import *  # noqa: F403
from luminal.frontend.functional_reduce import *  # noqa: F403
from luminal.frontend.functional_resize import *  # noqa: F403
from luminal.frontend.functional_scan import *  # noqa: F403
from luminal.frontend.functional_shape import *  # noqa: F403
from luminal.frontend.functional_sort import *  # noqa: F403
from luminal.frontend.tensor import Tensor, cast, dtype_of, fail, tensor, tensor_from_bits, update

_MODULES = (
    evaluate,
    functional_activation,
    functional_conv,
    functional_core,
    functional_create,
    functional_index,
    functional_integer,
    functional_join,
    functional_key,
    functional_linear,
    functional_loss,
    functional_math,
    functional_more,
    functional_norm,
    functional_power,
    functional_reduce,
    functional_resize,
    functional_scan,
    functional_shape,
    functional_sort,
)
_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARISONS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_UNARY = {"neg": "neg", "invert": "bitwise_not", "abs": "abs", "getitem": "getitem"}
_NO_METHODS = {
    "arange", "block_diag", "broadcast_tensors", "cat", "concat", "concatenate", "einsum",
    "embedding", "empty", "eye", "full", "hstack", "linspace", "meshgrid", "ones", "set_realizer",
    "stack", "vstack", "where", "zeros",
}  # fmt: skip
_NAMES = sorted({name for module in _MODULES for name in module.__all__})
__all__ = ["Tensor", "tensor", "tensor_from_bits", "update", *_NAMES]


def _reflected(function: Any) -> Any:
    def operator(self: Tensor, other: Any) -> Tensor:
        return function(other, self)

    return operator


def _to(x: Tensor, dtype: Any) -> Tensor:
    """x converted to another dtype."""
    return cast(x, dtype_of(dtype))


def _where_method(x: Tensor, condition: Tensor, other: Any) -> Tensor:
    """x where the condition holds, else other."""
    return functional_core.where(condition, x, other)


def _truth(x: Tensor) -> bool:
    """The value of a one-element tensor that depends on no input."""
    return bool(evaluate.item(x))


def _array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """What `numpy.asarray` takes."""
    array = evaluate.numpy(x)
    return array if dtype is None else array.astype(dtype)


def _assigned(x: Tensor, key: object, value: object) -> None:
    """Not possible: tensors are values."""
    text = "tensors cannot be changed in place. Got x[key] = v; try index_put or slice_scatter."
    raise fail(UnsupportedError, "setitem", text)


def _transposed(x: Tensor) -> Tensor:
    """x with its last two axes exchanged."""
    if x.ndim < 2:
        raise ArgumentError(f"[mT] needs at least two axes. Got shape {list(x.shape)}.")
    return functional_shape.transpose(x, -1, -2)


def _reversed(x: Tensor) -> Tensor:
    """x with all axes in the opposite order."""
    return functional_shape.permute(x, *range(x.ndim - 1, -1, -1))


def _install() -> None:
    found = {name: getattr(module, name) for module in _MODULES for name in module.__all__}
    for name in _NAMES:
        if name not in _NO_METHODS:
            setattr(Tensor, name, found[name])
    for method, name in (_OPERATORS | _COMPARISONS | _UNARY).items():
        setattr(Tensor, f"__{method}__", found[name])
    for method, name in _OPERATORS.items():
        setattr(Tensor, f"__r{method}__", _reflected(found[name]))
    for name in ("to", "type", "cast", "astype"):
        setattr(Tensor, name, _to)
    for name, dtype in (("float", "f32"), ("double", "f64"), ("half", "f16"), ("bool", "bool"),
                        ("bfloat16", "bf16"), ("long", "i64"), ("int", "i32")):  # fmt: skip
        setattr(Tensor, name, lambda x, dtype=dtype: _to(x, dtype))
    Tensor.where = _where_method  # type: ignore[attr-defined]
    Tensor.__array__ = _array  # type: ignore[attr-defined]
    Tensor.__setitem__ = _assigned  # type: ignore[attr-defined]
    Tensor.__bool__ = _truth  # type: ignore[attr-defined]
    Tensor.T, Tensor.mT = property(_reversed), property(_transposed)  # type: ignore[attr-defined]
    Tensor.size = lambda x, dim=None: x.shape if dim is None else x.shape[dim]  # type: ignore[attr-defined]
    Tensor.contiguous = Tensor.detach = Tensor.clone = lambda x: x  # type: ignore[attr-defined]
    Tensor.dim = lambda x: x.ndim  # type: ignore[attr-defined]


_install()
