"""What may be summed inside of another sum: never beside integers that run as dot products."""

import torch

import luminal.frontend.functional as F
from luminal.frontend.tensor import Tensor
from luminal.ir.dtype import by_name
from luminal.search.schedule import candidates
from luminal.search.tasks import prepare
from tests.codegen_case import HOST
from tests.rewrite_programs import check, graph_of, plans_of

ROWS, BLOCKS, SIZE = 192, 18, 32


def quantised(x: Tensor, w: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """x, quantised per block, times a matrix of bytes with a scale and a minimum per block."""
    top = F.amax(F.abs(x), -1, keepdim=True)
    q = F.cast(F.cast(F.round(x * 127.0 / (top + 1e-9)), by_name("i8")), by_name("i32"))
    dot = F.cast(F.sum(q * F.cast(w, by_name("i32")), -1), by_name("f32"))
    total = F.cast(F.sum(q, -1), by_name("f32"))
    return F.sum((dot * scale + total * minimum) * F.squeeze(top, -1), -1)


def specs(rows: int, blocks: int, size: int) -> list:
    return [((blocks, size), "f32"), ((rows, blocks, size), "i8"), *[((rows, blocks), "f32")] * 2]


def test_sums_of_integers_stay_dot_products() -> None:
    plan = plans_of(graph_of(quantised, *specs(ROWS, BLOCKS, SIZE)))[0]
    (product,) = [k for k in plan.kernels if "x1" in k.reads()]
    sums = [t for t in product.subterms() if t.axes and [a.hi + 1 for a in t.axes] == [SIZE]]
    assert [t.dtype.name for t in sums] == ["i32"]  # no maximum of x, no sum of x
    found = prepare(plan, HOST, {}, {})
    regs = candidates(product, {b.name: b for b in found.plan.buffers}, HOST,
                      free_layout=frozenset(["x1"]))[0].schedule.regs  # fmt: skip
    assert any(r.role == "dot" for r in regs)


def test_the_plans_are_right() -> None:
    check(quantised, *specs(5, 3, SIZE), tolerance=1e-2)


def test_scores_under_a_mask_of_the_lowest_number_stay_stored() -> None:
    """Taken apart inside of the softmax the mask would leave the sum and overflow."""

    def attend(q, k, v, keep):
        s = q @ k.transpose(-1, -2) / 8**0.5 + (1 - keep) * torch.finfo(q.dtype).min
        return s.softmax(-1) @ v, s.softmax(-1)

    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 3, 6, 8) for _ in range(3))
    run = torch.compile(attend, backend="luminal", options={"search": "off"})
    for keep in (torch.tensor([1.0, 1, 1, 0, 0, 0]), torch.zeros(6)):
        for found, expected in zip(run(q, k, v, keep), attend(q, k, v, keep), strict=True):
            torch.testing.assert_close(found, expected)
