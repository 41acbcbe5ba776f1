"""What Dynamo or AOTAutograd refuse though eager does it runs in eager, and errors are eager's."""

import operator
import warnings

import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402


def compiled(function, **more):
    torch._dynamo.reset()
    luminal.torch.clear()
    options = {"search": "off", "fallback": "silent", **more.pop("options", {})}
    return torch.compile(function, backend="luminal", options=options, **more)


def copies(x):
    y = x[:].copy_(x)  # onto itself: nothing to do, but Dynamo's stand-in refuses
    return y * 2


def expanded():
    return torch.arange(3.0)[:1].expand(3)


def test_a_frame_that_dynamo_refuses_runs_in_eager():
    fast = compiled(copies)
    for _ in range(5):
        assert torch.equal(fast(expanded()), copies(expanded()))
    report = luminal.torch.reports()[-1]
    assert report.kind == "whole" and "copies" in report.fallback


def test_other_frames_of_the_program_are_compiled():
    def calls(x, y):
        return copies(x) + (y.sin() * 2 + y.cos()).sum()

    fast = compiled(calls)
    y = torch.randn(7)
    torch.testing.assert_close(fast(expanded(), y), calls(expanded(), y))


@pytest.mark.parametrize("more", [{"fullgraph": True}, {"options": {"fallback": "error"}}])
def test_who_asks_for_one_graph_gets_the_error(more):
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="single memory location"):
        compiled(copies, **more)(expanded())


def test_a_wrong_call_raises_eager_s_error_and_the_next_one_is_compiled():
    fast = compiled(lambda x, y: (x + y).relu())
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        fast(torch.ones(3), torch.ones(4))
    assert not luminal.torch.reports() or luminal.torch.reports()[-1].kind == "whole"
    assert torch.equal(fast(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    assert luminal.torch.reports()[-1].kind == "inference"


def test_a_graph_that_autograd_s_tracing_refuses_runs_in_eager():
    def fills(x):
        v = x.expand(3)
        w = v[0].view(torch.int32)
        w.fill_(-1)
        return v * 2

    with torch.no_grad():
        got = compiled(fills)(torch.tensor(5, dtype=torch.int32))
        assert torch.equal(got, fills(torch.tensor(5, dtype=torch.int32)))


def test_views_of_inputs_that_overlap_and_are_written():
    def turns(x, y):
        y.add_(1)
        return x.t(), y.mul(2), y.diagonal()

    def call(function):
        base = torch.arange(12.0).view(3, 4)
        out = function(base, base[1:])
        return *out, base

    with torch.no_grad():
        for _ in range(2):
            for got, want in zip(call(compiled(turns)), call(turns), strict=True):
                assert torch.equal(got, want) and got.stride() == want.stride()


EXPANDED = {
    "fill_": lambda x: (x.expand(3, 4).fill_(2.0), x + 0),
    "zero_ of a view": lambda x: (x.expand(3, 4)[1:, ::2].zero_(), x + 0),
    "masked_fill_": lambda x: (x.expand(3, 4).masked_fill_(x > 0, 5.0), x + 0),
    "of one row": lambda x: (x.expand(3, 4)[0].add_(1), x + 0),
    "setitem": lambda x: (operator.setitem(x.expand(3, 4), 0, 7.0), x + 0),
    "fill_ of an intermediate": lambda x: (y := x * 2, y.expand(3, 4).fill_(1.0), y + 0),
    "columns": lambda x: (x[:, None].expand(4, 3).T.fill_(3.0), x + 0),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_writes_into_expanded_tensors(name):
    x, y = torch.arange(-2.0, 2.0), torch.arange(-2.0, 2.0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, want = compiled(EXPANDED[name])(x), EXPANDED[name](y)
    torch.testing.assert_close((*got, x), (*want, y))


TURNS = {
    "unsqueeze_": lambda y: y.unsqueeze_(0),
    "squeeze_": lambda y: y.squeeze_(),
    "t_": lambda y: y.t_(),
    "transpose_": lambda y: y.transpose_(0, 1),
    "swapaxes_": lambda y: y.swapaxes_(0, 1),
}


@pytest.mark.parametrize("name", TURNS)
def test_shapes_after_the_shape_was_changed_in_place(name):
    def turned(x):
        y = x * 2
        TURNS[name](y)
        return y.expand(3, *y.shape), y.shape, torch.zeros(y.shape), y.dim(), y.size(0), y + 1

    with torch.no_grad():
        got, want = compiled(turned)(torch.ones(4, 1)), turned(torch.ones(4, 1))
    assert got[1] == want[1] and got[3:5] == want[3:5]
    torch.testing.assert_close(got, want)
