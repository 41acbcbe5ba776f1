"""Decompositions of our own against eager: values, dtypes, strides, errors; nothing falls back."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._prims_common import check_significant_strides  # noqa: E402

import luminal.torch  # noqa: E402
from tests.torch_strict import compiled, fresh  # noqa: E402, F401

INF, NAN = float("inf"), float("nan")


def check(function, *inputs, **close):
    with torch.no_grad():
        got, want = compiled(function)(*inputs), function(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True, **close)
    for x, y in zip(*(torch.utils._pytree.tree_leaves(v) for v in (got, want)), strict=True):
        assert check_significant_strides(x, y, only_cuda=False)[0], (x.stride(), y.stride())


def numbers():
    usual = torch.randn(100) * 4
    return torch.cat([usual, torch.tensor([0.0, -0.0, 1, -1, 0.5, 2, -2, 1e20, -1e20, INF, -INF])])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_polygamma(n):
    x = numbers()
    check(lambda v: torch.polygamma(n, v), x[x != 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("letter", "tuvw")
@pytest.mark.parametrize("shifted", ["", "shifted_"])
def test_chebyshev_polynomials_and_where_their_recurrence_overflows(letter, shifted):
    name = f"{shifted}chebyshev_polynomial_{letter}"
    x = numbers()
    for n in (-1, 0, 1, 2, 3, 6, 11):
        want = getattr(torch.special, name)(x.double(), n).float()
        found = compiled(getattr(torch.special, name))(x, n)
        eager = getattr(torch.special, name)(x, n)
        want = torch.where(eager.isfinite(), want, eager)
        torch.testing.assert_close(found, want, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_quantile_of_the_normal_distribution_and_bessel():
    p = torch.cat([torch.rand(50), torch.tensor([0, 1, 0.5, -0.1, 1.1, 1e-30, NAN])])
    check(torch.special.ndtri, p, rtol=1e-5, atol=1e-6)
    check(torch.special.spherical_bessel_j0, numbers(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_powers_and_common_divisors(dtype):
    info = torch.iinfo(dtype)
    low = max(info.min + 1, -(2**62))
    a = torch.randint(low, min(info.max, 2**62), (40,), dtype=dtype)
    b = torch.cat([torch.arange(-3, 30), torch.tensor([info.max] * 7)]).to(dtype)
    check(lambda x, y: (x**y, torch.pow(2, y), torch.pow(-1, y)), a, b)
    check(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), a, b)


def test_parts_and_neighbours_of_floats():
    tiny = torch.finfo(torch.float32).tiny
    x = torch.cat([numbers(), torch.tensor([tiny, tiny / 8, -tiny, 3e38, NAN, 1 - 2**-24, 0.25])])
    usual = x[x.isfinite()]
    check(torch.frexp, usual)
    for y in (
        x.flip(0),
        torch.full_like(x, INF),
        torch.full_like(x, -INF),
        x,
        0 * usual.sum() + 0 * x,
    ):
        check(torch.nextafter, x, y, rtol=0, atol=0)
    for dtype in (torch.bfloat16, torch.float16):
        half = usual.to(dtype)
        half = half[half.isfinite()]
        check(torch.frexp, half)
        if dtype == torch.bfloat16:
            check(torch.nextafter, half, half.flip(0), rtol=0, atol=0)
    check(torch.angle, x)


def test_matrices():
    a, b = torch.randn(2, 4, 4), torch.randn(2, 4, 3)
    positive = a @ a.mT + torch.eye(4)
    check(lambda x: (torch.linalg.det(x), torch.linalg.slogdet(x), torch.linalg.inv(x)), a)
    check(lambda x: torch.linalg.det(x), a.mT)
    check(lambda x, y: (torch.linalg.solve(x, y), torch.linalg.solve(x, y[..., 0])), a, b)
    check(lambda x, y: torch.linalg.solve(x, y, left=False), a, b.mT.contiguous())
    check(lambda x: torch.linalg.cholesky(x), positive)
    check(lambda x: torch.linalg.cholesky_ex(x, upper=True), positive)
    check(lambda x: torch.linalg.cholesky_ex(x), positive - 3 * torch.eye(4))
    check(lambda x: (torch.linalg.lu_factor(x), torch.linalg.lu(x)), a[..., :3])
    low = torch.linalg.cholesky(positive)
    check(lambda x, y: torch.linalg.solve_triangular(x, y, upper=False), low, b)
    check(lambda x, y: (torch.cholesky_solve(y, x), torch.cholesky_inverse(x)), low, b)
    check(lambda x, y: torch.linalg.lu_solve(*x, y), torch.linalg.lu_factor(a), b)


def test_matrices_that_are_singular_raise():
    for function in (torch.linalg.inv, lambda x: torch.linalg.solve(x, x), torch.linalg.cholesky):
        with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.\w+: The input matrix is"):
            compiled(function)(torch.zeros(3, 3))


def test_gradients_through_matrices():
    x = torch.randn(3, 3, requires_grad=True)
    options = {"executor": "oracle", "fallback": "silent"}
    for function in (torch.linalg.det, torch.linalg.inv, lambda v: torch.linalg.solve(v, v[:, :2])):
        want = torch.autograd.grad(function(x).sin().sum(), x)
        torch._dynamo.reset()
        compiled_one = torch.compile(function, backend=luminal.torch.backend, options=options)
        got = torch.autograd.grad(compiled_one(x).sin().sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_pooling_over_uneven_bins_with_indices():
    check(lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), torch.randn(2, 3, 7, 5))
    check(lambda x: F.adaptive_max_pool3d(x, (3, 2, 4), return_indices=True),
          torch.randn(2, 7, 5, 6))  # fmt: skip


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling_volumes(mode, padding):
    x, grid = torch.randn(2, 2, 4, 5, 6), torch.randn(2, 2, 3, 3, 3) * 1.2

    def f(v, g):
        return [F.grid_sample(v, g, mode, padding, align_corners=a) for a in (True, False)]

    check(f, x, grid, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_with_antialias(mode):
    x = torch.randn(2, 3, 10, 13)
    check(lambda v: F.interpolate(v, (4, 7), mode=mode, antialias=True), x)
    check(lambda v: F.interpolate(v, (20, 9), mode=mode, antialias=True),
          x.to(memory_format=torch.channels_last))  # fmt: skip


def test_products_of_three_and_distances():
    check(F.bilinear, torch.randn(4, 5), torch.randn(4, 6), torch.randn(3, 5, 6), torch.randn(3))
    check(lambda x: [F.pdist(x, p) for p in (0.0, 1.0, 2.0, INF)], torch.randn(5, 4))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode):
    table, index = torch.randn(7, 4), torch.tensor([1, 2, 6, 0, 2, 5])
    offsets = torch.tensor([0, 2, 2, 5])
    check(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode), table, index, offsets)
    check(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode, padding_idx=2), table, index, offsets)
    check(lambda t, i: F.embedding_bag(i.view(2, 3), t, mode=mode), table, index)


def test_embedding_renormalises_the_rows_it_reads():
    tables = torch.randn(7, 4).repeat(2, 1, 1) * 3
    index = torch.tensor([[1, 2], [2, 5]])
    got = compiled(lambda t, i: F.embedding(i, t, max_norm=1.0))(tables[0], index)
    want = F.embedding(index, tables[1], max_norm=1.0)
    torch.testing.assert_close((got, tables[0]), (want, tables[1]))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce):
    x, lengths = torch.randn(6, 3), torch.tensor([2, 0, 3, 1])
    for initial in (None, 2.0):
        check(
            lambda v, n, i=initial: torch.segment_reduce(v, reduce, lengths=n, initial=i),
            x,
            lengths,
        )
    with pytest.raises(RuntimeError, match="lengths"):
        compiled(lambda v, n: torch.segment_reduce(v, reduce, lengths=n))(x, lengths + 1)


def test_places_of_true_elements():
    x = torch.randint(0, 2, (3, 4))
    check(lambda v: [torch.nonzero_static(v, size=n, fill_value=9) for n in (1, 5, 20)], x)


def test_masks_as_indices_of_writes():
    x, mask = torch.randn(4, 3), torch.tensor([True, False, True, False])
    values = torch.randn(2, 3)
    for accumulate in (False, True):
        check(lambda v, m, w, a=accumulate: v.index_put((m,), w, a), x, mask, values)
        check(lambda v, m, w, a=accumulate: v.index_put((m,), w[0], a), x, mask, values)
        check(lambda v, m, w, a=accumulate: v.index_put((m,), w[0, 0], a), x, mask, values)
    check(
        lambda v, m, w: v.index_put((m,), w.flatten()[:5]), x, x > x.flatten().sort()[0][6], values
    )
    with pytest.raises(IndexError, match="shape mismatch"):
        compiled(lambda v, m, w: v.index_put((m,), w))(x, ~mask | mask, values)


def test_order_statistics():
    x = torch.randn(3, 7)
    x[0, 2] = x[2, 1:4] = NAN
    check(lambda v: (v.median(), v.nanmedian(), v.median(1), v.nanmedian(1, keepdim=True)), x)
    check(lambda v: (v.kthvalue(2), v.kthvalue(3, 0)), torch.randn(5, 6))
    check(lambda v: (v.median(), v.median(0)[0], v.kthvalue(2)[0]), torch.randint(0, 5, (4, 6)))
    check(lambda v: (v.cummin(0), v.cummax(1)), torch.randint(0, 2, (4, 6)).bool())
    check(lambda v: torch.histc(v, 10, -1, 1), torch.randn(5, 6))


def test_searching_through_a_sorter():
    row, x = torch.randn(3, 6), torch.randn(3, 4)
    check(lambda r, v: torch.searchsorted(r, v, sorter=r.argsort(-1)), row, x)


def test_writes_through_strides():
    check(lambda x, y: torch.as_strided_scatter(x, y, (2, 3), (5, 1), 2), torch.randn(4, 5),
          torch.randn(2, 3))  # fmt: skip


def test_one_hot_checks_its_classes():
    check(lambda i: F.one_hot(i, 5), torch.tensor([0, 4, 2]))
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        compiled(lambda i: F.one_hot(i, 3))(torch.tensor([0, 4, 2]))


def test_margins_of_labels_before_the_first_end():
    labels = torch.tensor([[0, 1, -1, 0, 0], [4, 4, 2, -1, -1], [-1, 2, 0, 0, 0], [4, 3, 2, 1, 0]])
    for reduction in ("none", "sum", "mean"):

        def loss(x, target, r=reduction):
            return F.multilabel_margin_loss(x, target, reduction=r)

        check(loss, torch.randn(4, 5), labels)
        check(loss, torch.randn(5), labels[0])
        x = torch.randn(4, 5).requires_grad_()
        y = x.detach().clone().requires_grad_()
        compiled(loss)(x, labels).sum().backward()
        loss(y, labels).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_operators_on_lists_of_tensors():
    lists = [[torch.rand(2, 3) + k, torch.rand(4) + k, torch.rand(3, 2).t() + k] for k in (1, 2, 3)]

    def together(x, y, z):
        numbers = [2, 0.5, 1.5]
        return (
            torch._foreach_add(x, y, alpha=2), torch._foreach_mul(x, numbers),
            torch._foreach_addcdiv(x, y, z, 0.5), torch._foreach_addcmul(x, y, z, numbers),
            torch._foreach_lerp(x, y, 0.25), torch._foreach_norm(x), torch._foreach_sqrt(x),
            torch._foreach_maximum(x, 1.5), torch._foreach_pow(2.0, y), torch._foreach_div(x, z),
        )  # fmt: skip

    check(together, *lists)


def test_steps_of_optimisers():
    def steps(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimiser = torch.optim.AdamW(model.parameters(), 0.1, foreach=True)
        step = wrap(optimiser.step)
        for k in range(3):
            optimiser.zero_grad()
            model(torch.full((2, 4), k + 1.0)).pow(2).mean().backward()
            step()
        return model.state_dict()

    torch.testing.assert_close(steps(compiled), steps(lambda f: f))
