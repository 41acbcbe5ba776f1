"""The prepass on Dynamo's graph: repairs what AOTAutograd would get wrong.

In: the GraphModule that Dynamo gives. Out: the same module, changed in place, or the reason why
it must run in eager as a whole.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node

from luminal.frontend.torch import sdpa
from luminal.frontend.torch.losses import multilabel_margin_loss
from luminal.frontend.torch.positions import keep_positions, put
from luminal.frontend.torch.strides import laid_out_like

__all__ = ["interpolate", "prepass", "writes"]

_DROPOUTS = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
}  # fmt: skip
_IN_PLACE = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift,
    operator.irshift, operator.imatmul, operator.setitem, put,
}  # fmt: skip


_ALIKE = ("fill_", "zero_")
_METADATA = (
    "detach_", "requires_grad_", "resize_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_",
    "transpose_", "unsqueeze_",
)  # fmt: skip


def prepass(gm: GraphModule) -> str | None:
    """Changes `gm` in place; returns why it must run in eager as a whole, or None."""
    mutates = writes(gm)
    for node in list(gm.graph.nodes):
        keep_positions(node)
        if node.op == "call_method" and node.target == "unfold" and mutates:
            return "in-place write in a graph with Tensor.unfold"
        if node.op == "call_method" and node.target == "set_" and _of_input(gm, node.args[-1]):
            if any(_writes(n) for n in gm.graph.nodes if n is not node):
                return "a write in a graph where set_ takes an input's memory"
        if _writes(node) and node.target not in _METADATA:
            spread = _is_spread(node.args[0])
            if spread and (node.op != "call_method" or node.target not in _ALIKE):
                return "a write into an expanded tensor"
            if _reaches_several(gm, node.args[0], spread):
                return "a write into an input with several elements in one place"
            if spread:
                _write_once(gm, node)
        if node.op == "call_method" and node.target == "masked_fill_":
            _keep_strides(gm, node)
        if node.op != "call_function":
            continue
        if _is_inactive_dropout(node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        elif node.target in _OURS:
            node.target = _OURS[node.target]
        elif node.target is F.scaled_dot_product_attention and _is_elsewhere(node):
            node.target = attention
        elif node.target is F.one_hot:
            _make_contiguous(gm, node)
    gm.recompile()
    return None


def _of_input(gm: GraphModule, source: object) -> bool:
    """True of an input, or a view that may be one of an input."""
    example = source.meta.get("example_value") if isinstance(source, Node) else None
    if not isinstance(example, Tensor) or example.layout != torch.strided:
        return False
    known = source.op == "placeholder" or example._is_view()  # type: ignore[union-attr]
    return known and bool(_inputs_at(gm, example))


def _inputs_at(gm: GraphModule, example: Tensor) -> list[Tensor]:
    """The inputs that lie in the storage of `example`."""
    places = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    strided = (t for t in places if isinstance(t, Tensor) and t.layout == torch.strided)
    storage = example.untyped_storage()._cdata
    return [t for t in strided if t.untyped_storage()._cdata == storage]


def _reaches_several(gm: GraphModule, target: object, spread: bool) -> bool:
    """True where a write changes elements of inputs that its functional form does not reach."""
    example = target.meta.get("example_value") if isinstance(target, Node) else None
    if not isinstance(example, Tensor) or example.layout != torch.strided:
        return False
    inputs = _inputs_at(gm, example)
    return len(inputs) > spread and any(_overlaps_itself(t) for t in inputs)


def _overlaps_itself(x: Tensor) -> bool:
    """True if several elements may lie in one place, for the sizes that are traced: to compare
    symbols would make the graph one of these sizes."""
    extent = 1
    for stride, size in sorted(zip(map(_hint, x.stride()), map(_hint, x.shape), strict=True)):
        if size != 1 and stride < extent:
            return True
        extent += (size - 1) * stride
    return False


def _hint(value: int | torch.SymInt) -> int:
    return value if isinstance(value, int) else getattr(value.node, "hint", None) or 0


def _is_spread(target: object) -> bool:
    """True of a tensor with several elements in one place: functional writes into it go wrong."""
    example = target.meta.get("example_value") if isinstance(target, Node) else None
    if not isinstance(example, Tensor) or example.layout != torch.strided:
        return False
    return any(n != 1 and s == 0 for n, s in zip(example.shape, example.stride(), strict=True))


def _write_once(gm: GraphModule, node: Node) -> None:
    """A write of one value everywhere, as one into each place once."""
    target = node.args[0]
    example, once = target.meta["example_value"], target
    with gm.graph.inserting_before(node):
        for dim, stride in enumerate(example.stride()):
            if stride == 0 and example.shape[dim] != 0:
                once = gm.graph.call_method("narrow", (once, dim, 0, 1))
    node.replace_all_uses_with(target)
    node.args = (once, *node.args[1:])


def _make_contiguous(gm: GraphModule, node: Node) -> None:
    """The result in the order that ATen's kernel gives it, where tracing has the operand's."""
    with gm.graph.inserting_after(node):
        dense = gm.graph.call_method("contiguous", (node,))
    node.replace_all_uses_with(dense, delete_user_cb=lambda user: user is not dense)
    dense.meta = dict(node.meta)


def _keep_strides(gm: GraphModule, node: Node) -> None:
    """x.masked_fill_(..) as x.copy_(x.masked_fill(..)): the former's functional form, which is the
    latter's argument, does not have x's strides."""
    example = node.args[0].meta.get("example_value")
    if example is None or 0 in example.stride():
        return
    node.target, target = "copy_", node.args[0]
    with gm.graph.inserting_before(node):
        filled = gm.graph.call_method("masked_fill", node.args, node.kwargs)
    filled.meta = {k: v for k, v in node.meta.items() if k != "example_value"}
    node.args, node.kwargs = (target, filled), {}


def writes(gm: GraphModule) -> bool:
    """True if some node writes a tensor in place."""
    return any(_writes(n) for n in gm.graph.nodes)


def _writes(node: Node) -> bool:
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__")
    return node.op == "call_function" and node.target in _IN_PLACE


def _argument(node: Node, position: int, name: str, default: object) -> object:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _is_inactive_dropout(node: Node) -> bool:
    if node.target is torch.dropout:
        return not node.args[2] or node.args[1] == 0
    return node.target in _DROPOUTS and _inactive(node)


def _inactive(node: Node) -> bool:
    p, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", True)
    in_place = _argument(node, 3, "inplace", False)
    valid = isinstance(p, (int, float)) and 0 <= p <= 1
    return valid and not in_place and (training is False or p == 0) and bool(node.args)


def _is_elsewhere(node: Node) -> bool:
    """True on a GPU, where ATen would choose one of its own kernels."""
    example = node.args[0].meta.get("example_value") if node.args else None
    return isinstance(example, Tensor) and example.device.type == "cuda" and example.dim() > 2


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Scaled-dot-product attention of elementary operators; ATen's where something is dropped."""
    if dropout_p:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return sdpa.forward(
        query, key, value, is_causal=is_causal, attn_mask=attn_mask, scale=scale
    )[0]  # fmt: skip


def interpolate(
    x: Tensor, size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Interpolation; nearest with the index arithmetic, all with the strides of ATen's kernels."""
    rank, out = x.dim() - 2, x
    scaled = size is None and not recompute_scale_factor and scale_factor is not None
    if mode == "nearest" and scaled and rank > 0:
        per_dim = isinstance(scale_factor, Sequence)
        factors = list(scale_factor) if per_dim else [scale_factor] * rank
        for d, factor in enumerate(factors):
            extent = x.shape[2 + d]
            whole = float(factor).is_integer()  # a size that is symbolic stays so
            count = extent * int(factor) if whole else int(extent * factor)
            if count != extent:
                out = out.index_select(2 + d, _sources(count, 1.0 / factor, extent, x.device))
        return laid_out_like(out, x)
    out = F.interpolate(
        x, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
    return out.contiguous(memory_format=suggest_memory_format(x))


def _sources(count: int, step: float, extent: int, device: torch.device) -> Tensor:
    positions = torch.arange(count, device=device, dtype=torch.float32) * step
    return positions.floor().to(torch.int64).clamp(max=extent - 1)


_OURS = {F.interpolate: interpolate, F.multilabel_margin_loss: multilabel_margin_loss}
