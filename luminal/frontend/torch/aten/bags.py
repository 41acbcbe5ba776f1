"""Embedding bags of ATen: rows of a table, combined by bag.

In: luminal tensors. Out: the combined rows. Each bag is compared with each index, hence a limit.
"""

from __future__ import annotations

from luminal.errors import UnsupportedError
from luminal.frontend import functional as F
from luminal.frontend.tensor import Tensor, cast, iota
from luminal.frontend.torch.aten.elementwise import wide
from luminal.frontend.torch.aten.table import Call, op
from luminal.ir.dtype import i64

__all__: list[str] = []

MOST_PAIRS = 1 << 22


@op("_embedding_bag_forward_only", "_embedding_bag")
def _embedding_bag(
    call: Call, weight: Tensor, index: Tensor, offsets: Tensor, by_frequency: bool = False,
    mode: int = 0, sparse: bool = False, scales: Tensor | None = None, last: bool = False,
    padding: int = -1,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if any(call.wanted(k) for k in (1, 2, 3)):
        raise UnsupportedError("[torch] what an embedding bag keeps for its gradient.")
    bags = call.dims[0]
    if call.size(bags) * call.size(index.dims[0]) * call.size(weight.dims[1]) > MOST_PAIRS:
        raise UnsupportedError("[torch] many bags of many rows.")
    place, starts = F.reshape(iota(index.dims[0]), 1, -1), F.reshape(cast(offsets, i64), -1, 1)
    begun = F.le(starts, place)  # [offsets, indices]
    home = F.sub(F.sum(cast(begun, i64), [0], True), 1)
    hits = F.eq(home, F.reshape(iota(bags), bags, 1))
    if padding >= 0:
        hits = F.logical_and(hits, F.ne(F.reshape(index, 1, -1), padding))
    rows = wide(F.index_select(weight, 0, index))
    if scales is not None:
        rows = F.mul(rows, F.reshape(wide(scales), -1, 1))
    return F.squeeze(_combined(rows, hits, mode), 1), None, None, None


def _combined(rows: Tensor, hits: Tensor, mode: int) -> Tensor:
    spread, rows = F.unsqueeze(hits, 2), F.unsqueeze(rows, 0)
    some = F.any(F.unsqueeze(hits, 2), [1], True)
    if mode == 2:
        return F.where(some, F.amax(F.where(spread, rows, float("-inf")), [1], True), 0.0)
    total = F.sum(F.where(spread, rows, 0.0), [1], True)
    if mode == 0:
        return total
    count = F.sum(cast(spread, i64), [1], True)
    return F.div(total, cast(F.maximum(count, 1), total.dtype))
