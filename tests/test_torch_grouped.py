"""Grouped matrix products, as mixtures of experts use them, against one product for each expert."""

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402
from luminal.frontend.torch import grouped  # noqa: E402


@pytest.mark.parametrize("ends", [[0, 2, 2, 5], [1, 1, 3, 3], [6, 6, 6, 6], [0, 0, 0, 0]])
def test_grouped_products(ends):
    rows, matrices = torch.randn(6, 8), torch.randn(4, 8, 5)
    want, start = torch.zeros(6, 5), 0
    for matrix, end in zip(matrices, ends, strict=True):
        want[start:end] = rows[start:end] @ matrix
        start = end
    torch._dynamo.reset()
    run = torch.compile(grouped.product, backend=luminal.torch.backend, options={"search": "off"})
    got = run(rows, matrices, torch.tensor(ends, dtype=torch.int32))
    torch.testing.assert_close(got, want)
    assert not luminal.torch.reports()[-1].fallback


def test_many_grouped_rows_stay_in_eager():
    assert grouped.product(torch.ones(17, 2), torch.ones(1, 2, 2), torch.ones(1)) is NotImplemented
