"""The operations of the tensor API in one namespace, and the methods of `Tensor`.

In: the `functional_*` modules. Out: every public function of theirs under one name, and `Tensor`
with its operators and methods. Nothing is defined here but tables.

>>> tensor([[1.0, 2.0, 3.0]]).softmax(-1).transpose(0, 1).shape
(3, 1)
"""

from collections.abc import Iterator
from typing import Any

from luminal.errors import ArgumentError, UnsupportedError
from luminal.frontend import evaluate
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

_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_OTHERS = {
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne", "neg": "neg",
    "invert": "bitwise_not", "abs": "abs", "getitem": "getitem",
}  # fmt: skip
_DTYPES = {
    "float": "f32", "double": "f64", "half": "f16", "bool": "bool", "bfloat16": "bf16",
    "long": "i64", "int": "i32",
}  # fmt: skip
_NO_METHODS = {
    "arange", "block_diag", "broadcast_tensors", "cat", "concat", "concatenate", "einsum",
    "embedding", "empty", "eye", "full", "hstack", "linspace", "meshgrid", "ones", "set_realizer",
    "stack", "vstack", "where", "zeros",
}  # fmt: skip
_FOUND = {
    name: value for name, value in sorted(globals().items())
    if getattr(value, "__module__", "").startswith((f"{__name__}_", evaluate.__name__))
}  # fmt: skip
__all__ = ["Tensor", "tensor", "tensor_from_bits", "update", *_FOUND]


def _to(x: Tensor, dtype: Any) -> Tensor:
    return cast(x, dtype_of(dtype))


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
    if x.ndim < 2:
        raise ArgumentError(f"[mT] needs at least two axes. Got shape {list(x.shape)}.")
    return _FOUND["transpose"](x, -1, -2)


def _methods() -> Iterator[tuple[str, Any]]:
    """Every method, operator and property that the functions give to `Tensor`."""
    yield from ((name, f) for name, f in _FOUND.items() if name not in _NO_METHODS)
    for name, function in _OPERATORS.items():
        yield f"__{name}__", _FOUND[function]
        yield f"__r{name}__", lambda x, other, f=_FOUND[function]: f(other, x)
    yield from ((f"__{name}__", _FOUND[function]) for name, function in _OTHERS.items())
    yield from ((name, lambda x, dtype=dtype: _to(x, dtype)) for name, dtype in _DTYPES.items())
    yield from ((name, _to) for name in ("to", "type", "cast", "astype"))
    yield from ((name, lambda x: x) for name in ("contiguous", "detach", "clone"))
    yield "where", lambda x, condition, other: _FOUND["where"](condition, x, other)
    yield "size", lambda x, dim=None: x.shape if dim is None else x.shape[dim]
    yield "dim", lambda x: x.ndim
    yield "T", property(lambda x: _FOUND["permute"](x, *range(x.ndim - 1, -1, -1)))
    yield "mT", property(_transposed)
    yield from (("__array__", _array), ("__setitem__", _assigned), ("__bool__", _truth))


for _name, _method in _methods():
    setattr(Tensor, _name, _method)
