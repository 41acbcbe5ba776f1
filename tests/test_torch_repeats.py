"""Layers that repeat in Dynamo's graph are found, traced once, and still do what eager does."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import luminal.torch  # noqa: E402
from luminal.frontend.torch import tracing  # noqa: E402
from luminal.frontend.torch.repeats import repeats  # noqa: E402

OPTIONS = {"search": "off", "fallback": "silent", "cache": "off"}


class Layer(nn.Module):
    def __init__(self, width=8, act=F.gelu, p=0.0):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 16),
            nn.Linear(16, width),
        )
        self.act, self.p = act, p

    def forward(self, x, mask):
        h = self.act(self.up(self.norm(x))).masked_fill(mask, 0.0)
        q = self.down(h).unflatten(-1, (2, -1)).transpose(1, 2)
        h = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)
        return x + F.dropout(h, self.p, self.training) * torch.sigmoid(h).mean(-1, keepdim=True)


class Stack(nn.Module):
    def __init__(self, *layers, collect=False):
        super().__init__()
        self.layers, self.collect = nn.ModuleList(layers), collect

    def forward(self, x, mask):
        x, seen = x * 2, []
        for layer in self.layers:
            x = layer(x, mask)
            seen.append(x)
        return (x.tanh(), *seen) if self.collect else x.tanh()


def inputs():
    torch.manual_seed(3)
    return torch.randn(2, 5, 8), torch.rand(2, 5, 1) > 0.8


@pytest.fixture
def folds(monkeypatch):
    """For every graph that is traced, how many bodies stand for repeated layers."""
    seen, fold = [], tracing.fold

    def watched(gm, trace):
        found = fold(gm, trace)
        seen.append(len(found.bodies) if found is not None else 0)
        return found

    monkeypatch.setattr(tracing, "fold", watched)
    return seen


def check(model, grad=False, tolerance=1e-5):
    """Two calls: results, strides, aliasing, written inputs and random state are eager's."""
    torch._dynamo.reset()
    luminal.torch.clear()
    compiled = torch.compile(model, backend="luminal", options=OPTIONS, dynamic=False)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            mine, theirs = inputs(), inputs()
            state = {k: v.clone() for k, v in model.state_dict().items()}
            torch.manual_seed(1)
            want = model(*theirs)
            after = {k: v.clone() for k, v in model.state_dict().items()}
            model.load_state_dict(state)
            torch.manual_seed(1)
            got = compiled(*mine)
            now = model.state_dict()
            pairs = zip([got, *mine, *now.values()], [want, *theirs, *after.values()], strict=True)
            for x, y in pairs:
                torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
            flat = [torch.utils._pytree.tree_leaves(v) for v in (got, want)]
            assert [t.stride() for t in flat[0]] == [t.stride() for t in flat[1]]
            places = [[t.untyped_storage().data_ptr() for t in f] for f in flat]
            first = [[p.index(a) for a in p] for p in places]
            assert first[0] == first[1]


def test_equal_layers_are_traced_once(folds):
    check(Stack(*[Layer() for _ in range(6)]).eval())
    assert folds == [1]
    report = luminal.torch.reports()[-1]
    assert report.kind == "inference" and not report.fallback


def test_results_of_every_layer(folds):
    check(Stack(*[Layer() for _ in range(5)], collect=True).eval())
    assert folds == [1]


def test_two_runs_and_two_kinds(folds):
    pairs = [[Layer(), Layer(act=F.silu)] for _ in range(4)]
    check(Stack(*sum(pairs, []), *[Layer(act=F.relu) for _ in range(4)]).eval())
    assert folds == [2]


def test_constants_and_shapes_tell_layers_apart(folds):
    layers = [Layer(act=lambda x, slope=slope: F.leaky_relu(x, slope)) for slope in (0.1, 0.2, 0.3)]
    check(Stack(*layers).eval())
    assert folds == [0]


def test_one_layer_reads_another_operand(folds):
    class Reading(Layer):
        def forward(self, x, mask):
            return super().forward(x, mask) + super().forward(x, ~mask)

    check(Stack(*[Layer() for _ in range(4)], Reading(), *[Layer() for _ in range(4)]).eval())
    assert folds == [1]


def test_gradients_take_the_usual_way(folds):
    model = Stack(*[Layer() for _ in range(4)]).eval()
    check(model, grad=True)
    assert folds == []
    assert luminal.torch.reports()[-1].kind == "forward"


def test_random_numbers_are_those_of_eager(folds):
    check(Stack(*[Layer(p=0.4) for _ in range(4)]).train())
    assert folds == [0]


class Writing(Layer):
    def forward(self, x, mask):
        out = super().forward(x, mask)
        x.mul_(0.5)  # the next layer's operand is the last one's result, seen again by `collect`
        return out


class Counting(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x, mask):
        self.seen.add_(x.sum((0, 1)))
        return super().forward(x, mask) + self.seen


class Viewing(Layer):
    def forward(self, x, mask):
        out = super().forward(x, mask)
        return out.transpose(0, 1).contiguous().transpose(0, 1)[:, :, :]


class Passing(Layer):
    def forward(self, x, mask):
        self.out = super().forward(x, mask)
        return x[:, :5]  # a view of the operand


class Casting(Layer):
    def forward(self, x, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x, mask).float()


class Normalising(Layer):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(5)

    def forward(self, x, mask):
        return self.bn(super().forward(x, mask))


@pytest.mark.parametrize("kind", [Writing, Counting, Viewing, Passing, Casting, Normalising])
@pytest.mark.parametrize("train", [False, True])
def test_layers_with_effects(kind, train):
    model = Stack(*[kind() for _ in range(4)], collect=kind is not Casting).train(train)
    check(model, tolerance=2e-2 if kind is Casting else 1e-5)


def test_marked_regions_are_compiled():
    layer = torch.compiler.nested_compile_region(lambda f, x, m: f(x, m))

    class Marked(Stack):
        def forward(self, x, mask):
            for one in self.layers:
                x = layer(one, x, mask)
            return x + 1

    check(Marked(*[Layer() for _ in range(3)]).eval())
    report = luminal.torch.reports()[-1]
    assert not report.fallback and report.kernels


def test_what_changes_modes_is_not_folded():
    graph = torch.fx.symbolic_trace(lambda x: x.sin().cos().sin().cos())
    with graph.graph.inserting_before(next(iter(graph.graph.nodes)).next):
        graph.graph.call_function(torch._C._set_grad_enabled, (True,))
    assert repeats(graph) == []
