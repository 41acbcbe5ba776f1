"""The torch backend: phases, fallback, strides, aliasing, mutation, reports (by the oracle)."""

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402
from luminal.errors import LuminalError  # noqa: E402

ORACLE = {"executor": "oracle", "fallback": "silent"}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    luminal.torch.clear()
    torch.manual_seed(0)


def compiled(function, **options):
    return torch.compile(function, backend=luminal.torch.backend, options=ORACLE | options)


def same(got, want):
    torch.testing.assert_close(got, want)
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in leaves(v)]


def report():
    return luminal.torch.reports()[-1]


def test_fallback_between_compiled_parts_is_counted():
    def f(x):
        y = torch.linalg.matrix_exp(x * 2)
        return (y + 1).exp()

    x = torch.eye(3) + 0.1
    with torch.no_grad():
        same(compiled(f)(x), f(x))
    assert report().parts == 2
    assert report().fallback["aten.linalg_matrix_exp.default"] == 1
    assert "not in the table" in report().reasons["aten.linalg_matrix_exp.default"]


def test_strict_mode_names_the_operator():
    with pytest.raises(Exception, match="linalg_matrix_exp"):
        compiled(lambda x: torch.linalg.matrix_exp(x), fallback="error")(torch.eye(2))


def test_unknown_option_is_refused():
    with pytest.raises(Exception, match="unknown options"):
        compiled(lambda x: x + 1, nonsense=1)(torch.ones(1))


def test_whole_graph_fallback_is_reported():
    def f(x):
        x.unfold(0, 2, 3).add_(1)
        return x * 2

    a, b = torch.zeros(8), torch.zeros(8)
    same(compiled(f)(a), f(b))
    same(a, b)
    assert report().kind == "whole"


def test_errors_of_ours_are_luminal_errors():
    with pytest.raises(LuminalError):
        luminal.torch.backend(None, (), options={"fallback": "loud"})


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x * 2).t(),
        lambda x: ((x + 1)[1:], x[0]),
        lambda x: (x.exp().view(-1), x.view(3, 4)),
        lambda x: (x + 1, x, x.t()),
        lambda x: x.t().contiguous() + 1,
        lambda x: torch.relu(x.t()),
        lambda x: x.expand(2, 4, 3) * 1.0,
        lambda x: x[::2, 1:].sum(1, keepdim=True),
    ],
)
def test_views_strides_and_aliases(f):
    x = torch.randn(4, 3)
    got, want = compiled(f)(x), f(x)
    same(got, want)
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert (a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == (
            b.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(6, 8)[::2, 1::2],
        lambda: torch.randn(1, 4).expand(3, 4),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(()),
        lambda: torch.randn(0, 3),
    ],
)
def test_inputs_of_any_layout(make):
    x = make()

    def f(x):
        return torch.relu(x) + 1, x.sum()

    same(compiled(f)(x), f(x))
    assert not report().fallback


def test_input_mutation_through_views():
    def f(x, y):
        x[1].mul_(2)
        x.t()[0] += y
        return x.sum()

    a, b, y = torch.ones(3, 4), torch.ones(3, 4), torch.randn(3)
    g = compiled(f)
    for _ in range(2):
        same(g(a, y), f(b, y))
        same(a, b)


def test_key_value_cache_update_has_no_copy():
    def f(cache, new, place):
        cache.index_copy_(1, place, new)
        return cache.sum(1)

    def g(cache, new, place):
        cache[:, place] = new
        return cache.sum(1)

    for function in (f, g):
        a, b = torch.zeros(2, 8, 4), torch.zeros(2, 8, 4)
        run = compiled(function)
        for step in range(3):
            new, place = torch.randn(2, 1, 4), torch.tensor([step])
            same(run(a, new, place), function(b, new, place))
            same(a, b)


def test_overlapping_inputs_of_a_later_call():
    def f(x, y):
        x.add_(1)
        return x * y

    run = compiled(f)
    a, b = torch.ones(4), torch.ones(4)
    same(run(a, b), f(torch.ones(4), b))
    both, want = torch.ones(4), torch.ones(4)
    same(run(both, both), f(want, want))


def test_inactive_dropout_is_the_input_itself():
    def f(x):
        y = torch.nn.functional.dropout(x, 0.5, False)
        y.add_(1)
        return y

    a, b = torch.zeros(3), torch.zeros(3)
    same(compiled(f)(a), f(b))
    same(a, b)


def test_random_numbers_are_those_of_eager():
    def f(x):
        return (x + torch.rand_like(x)) * torch.bernoulli(x.sigmoid())

    x = torch.randn(5)
    torch.manual_seed(3)
    want = f(x)
    torch.manual_seed(3)
    same(compiled(f)(x), want)


def test_one_compilation_for_sizes_from_two():
    def f(x):
        return torch.softmax(x @ x.transpose(-1, -2), -1).mean(-1), x.shape[1] * 2

    run = torch.compile(f, backend=luminal.torch.backend, options=ORACLE, dynamic=True)
    for b, s in ((2, 3), (3, 9), (9, 2), (5, 7)):
        x = torch.randn(b, s, 4)
        got, want = run(x), f(x)
        same(got[0], want[0])
        assert got[1] == want[1]
    assert len(luminal.torch.reports()) == 1
    x = torch.randn(1, 3, 4)
    same(run(x)[0], f(x)[0])


def test_half_precision_rounds_once():
    def f(x, y):
        return x @ y, torch.softmax(x, -1), x * 1.1

    for dtype in (torch.float16, torch.bfloat16):
        x, y = torch.randn(4, 8, dtype=dtype), torch.randn(8, 4, dtype=dtype)
        same(compiled(f)(x, y), f(x, y))
        assert not report().fallback


def test_attention_gradients():
    from torch.nn.functional import scaled_dot_product_attention as attention

    mask = torch.rand(5, 5) > 0.3
    mask.fill_diagonal_(True)
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"enable_gqa": True}):
        heads = 1 if "enable_gqa" in options else 2
        grads = []
        q, k = torch.randn(2, 2, 5, 8), torch.randn(2, heads, 5, 8)
        for wrap in (lambda f: f, compiled):
            a, b = q.clone().requires_grad_(), k.clone().requires_grad_()
            wrap(lambda q, k, o=options: attention(q, k, k, **o))(a, b).square().sum().backward()
            grads.append((a.grad, b.grad))
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


def test_gradients_of_a_small_network():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
    )
    x = torch.randn(3, 4)
    compiled(model)(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)
    assert {r.kind for r in luminal.torch.reports()} == {"forward", "backward"}


def test_storage_of_large_results_is_used_again_only_when_free():
    def f(x):
        return x + 1

    run, x = compiled(f), torch.zeros(3 << 20)
    first = run(x)
    place = first.data_ptr()
    view = first[5:]
    del first
    second = run(x)
    assert second.data_ptr() != place
    view.fill_(7)
    del view, second
    third = run(x)
    assert (third == 1).all()
    place = third.data_ptr()
    del third
    assert run(x).data_ptr() == place
