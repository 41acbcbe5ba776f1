"""`luminal.explain` of what torch.compile made: reports of one part, of many, from the cache."""

import gc

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import luminal  # noqa: E402
import luminal.torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    luminal.torch.clear()


def compiled(function):
    options = {"search": "off", "fallback": "silent"}
    return torch.compile(function, backend="luminal", dynamic=False, options=options)


def test_a_report_is_explained_like_a_function(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1))
    run = compiled(model)
    with torch.no_grad():
        want = run(torch.ones(32, 64))
    (report,) = luminal.torch.reports()
    text = luminal.explain(report, tmp_path / "page.html", title="from torch")
    assert text.startswith(f"{report.kernels} kernel") and "RSum" in text
    page = (tmp_path / "page.html").read_text()
    assert "from torch" in page and "<h3>1 kernel</h3>" not in page and "primitives</h3>" in page
    with torch.no_grad():  # measuring wrote to no tensor of the caller
        assert torch.equal(run(torch.ones(32, 64)), want)


def test_parts_and_reports_are_shown_together(tmp_path):
    def function(x):
        return (torch.histc(x * 2, 4) + 1).sin()  # histc runs in eager

    run = compiled(function)
    run(torch.ones(8))
    (report,) = luminal.torch.reports()
    assert report.parts == 2 and len(report.programs()) == 2
    text = luminal.explain([report], tmp_path / "page.html")
    assert "p0.k0" in text and "p1.k0" in text
    assert (tmp_path / "page.html").read_text().count("primitives</h3>") == 2


def test_a_recalled_report_has_kernels_but_no_graph(tmp_path):
    model = nn.Linear(12, 24)
    with torch.no_grad():
        compiled(model)(torch.ones(3, 12))
        torch._dynamo.reset()
        run = compiled(model)
        run(torch.ones(3, 12))
    report = luminal.torch.reports()[-1]
    assert report.recalled
    assert luminal.explain(report, tmp_path / "page.html").startswith("1 kernel in all")
    assert "came from the cache" in (tmp_path / "page.html").read_text()


def test_a_report_keeps_nothing_alive():
    run = compiled(nn.Linear(4, 4))
    with torch.no_grad():
        run(torch.ones(2, 4))
    (report,) = luminal.torch.reports()
    assert len(report.programs()) == 1
    del run
    torch._dynamo.reset()
    gc.collect()
    assert report.programs() == []
    with pytest.raises(luminal.LuminalError, match="nothing compiled is left"):
        luminal.explain(report)


def test_a_backward_graph_is_explained(tmp_path):
    model = nn.Linear(4, 4)
    run = compiled(model)
    run(torch.ones(2, 4)).sum().backward()
    kinds = {r.kind: r for r in luminal.torch.reports()}
    assert "kernel" in luminal.explain(kinds["backward"])
