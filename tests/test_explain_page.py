"""`luminal.explain`: the text tree, and a page that a browser can read without anything else."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import luminal
from luminal.explanation.facts import KernelFacts, Limits, kernel_facts
from luminal.explanation.figures import Box, layered, plan_picture, roofline
from luminal.explanation.notation import formula, schedule_tree
from luminal.explanation.page import time_bars

VOID = {"meta", "br", "img"}
OPTIONAL = {"tr", "td", "th"}


class Balance(HTMLParser):
    """Fails on elements that do not nest; keeps ids, and links to them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found["id"]} if "id" in found else set()
        self.links |= {found["href"]} if "href" in found else set()
        assert "src" not in found
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in OPTIONAL:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def attention():
    def fn(q, k, v, w):
        return luminal.softmax(q @ k.T * 0.125, -1) @ v @ w.T

    examples = [np.zeros((64, 32), np.float32)] * 3 + [np.zeros((96, 32), np.float32)]
    return luminal.compile(fn, examples, search="off")


def test_text_names_every_kernel_and_what_it_computes(attention):
    text = luminal.explain(attention)
    for kernel in attention.plan.kernels:
        assert f"─ {kernel.name}: " in text
    assert "RSum[" in text and "exp2" not in text
    assert "of the roofline" in text and "rule sum_of_powers" in text


def test_page_is_one_file_whose_links_lead_somewhere(attention, tmp_path: Path):
    path = tmp_path / "page.html"
    luminal.explain(attention, path, title="a < b")
    page = path.read_text()
    assert "a &lt; b" in page and "<script" not in page and "http" not in page
    parser = Balance()
    parser.feed(page)
    assert not parser.open
    names = {k.name for k in attention.plan.kernels}
    assert names <= parser.ids
    assert parser.links == {f"#{n}" for n in names}
    for code in attention.compiled.program.codes:
        assert f"@{code.name}" in page


def test_facts_count_the_work(attention):
    (first, second) = kernel_facts(attention.compiled)
    assert second.flops == pytest.approx(2 * 64 * 96 * 32, rel=0.01)
    assert first.flops > 2 * 2 * 64 * 64 * 32
    assert second.size_bytes == 4 * (64 * 32 + 96 * 32 + 64 * 96)
    assert first.time_us > 0 and first.writes[0] in second.reads


def test_dynamic_sizes_scale_the_work():
    f = luminal.compile(
        lambda x: x * 2 + 1, [np.zeros((4, 8), np.float32)], dynamic_shapes={0: {0: "n"}},
        search="off",
    )  # fmt: skip
    small, large = (kernel_facts(f.compiled, {"n": n})[0] for n in (10, 40))
    assert (small.flops, large.flops) == (160, 640)
    assert large.size_bytes == 4 * small.size_bytes


def test_roofline_share_is_the_nearer_limit():
    limits = Limits(bandwidth_gbs=10.0, gflops=100.0)

    def facts(flops, size_bytes):
        return KernelFacts("k", "c", 1, 100.0, flops, size_bytes, (), ("y",), (), (), "", "")

    assert facts(1e6, 5e5).share(limits) == pytest.approx(0.5)
    assert facts(8e6, 5e5).share(limits) == pytest.approx(0.8)


def test_pictures_stand_empty_plans():
    limits = Limits(10.0, 100.0)
    for picture in (roofline([], limits), plan_picture([], limits)):
        assert picture.startswith("<svg") and picture.endswith("</svg>")
    assert time_bars([], limits).startswith("<div")


def test_a_picture_draws_every_edge_downwards():
    reads = {1: [0], 2: [0], 3: [1, 2], 5: [3, 4]}
    picture = layered([Box(tip=f"node {n}") for n in range(6)], reads, "a graph")
    at = {int(m[3]): (float(m[1]), float(m[2])) for m in
          re.finditer(r'cx="(\d+)" cy="(\d+)" r="5"[^>]*><title>node (\d)', picture)}  # fmt: skip
    assert picture.count("<path") == 6 and len(at) == 6 and len(set(at.values())) == 6
    assert all(at[m][1] < at[n][1] for n, before in reads.items() for m in before)
    assert at[4][1] == at[3][1]  # a leaf stands right above its reader
    assert "… and 2 more" in layered([Box()] * 6, {1: [0]}, "a graph", most=4)


def test_shared_values_get_a_name():
    f = luminal.compile(lambda x: (x + 1) * (x + 1), [np.zeros(3, np.float32)], search="off")
    assert formula(f.plan.kernels[0])[0] == "v0 = (x0[x0_0] + 1)"
    assert schedule_tree(None) == ["one scalar loop an axis"]


def test_bad_input_is_said_plainly(attention, tmp_path: Path):
    with pytest.raises(luminal.LuminalError, match="not compiled by luminal. Got int"):
        luminal.explain(3)
    with pytest.raises(luminal.LuminalError, match="cannot write"):
        luminal.explain(attention, tmp_path / "none" / "page.html")


def test_runners_up_say_why_they_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))
    x = np.ones((256, 256), np.float32)
    product = luminal.compile(lambda a, b: a @ b, [x, x], search=4.0)
    (facts,) = kernel_facts(product.compiled)
    assert facts.tried and all(t.schedule != facts.schedule for t in facts.tried)
    assert any("times the winner" in t.why for t in facts.tried)
    axes = {a.name for a in product.plan.kernels[0].all_axes()}
    assert any(name in line for t in facts.tried for line in t.schedule for name in axes)
    text = luminal.explain(product, tmp_path / "page.html")
    assert "beat a schedule of" in text and facts.tried[0].why in text
    page = (tmp_path / "page.html").read_text()
    assert f"Runners-up ({len(facts.tried)})" in page
    parser = Balance()
    parser.feed(page)
    again = luminal.compile(lambda a, b: a @ b, [x, x], search=4.0)
    assert again.stats.cache == "hit" and again.plan.tried == product.plan.tried


def test_fast_kernels_lift_the_roof(attention, monkeypatch: pytest.MonkeyPatch):
    slow = Limits(bandwidth_gbs=1e6, gflops=1e-6)  # as if measured in a very busy moment
    monkeypatch.setitem(luminal.explain.__globals__, "machine_limits", lambda: slow)
    shares = re.findall(r"(\d+)% of the roofline", luminal.explain(attention))
    assert len(shares) == 2 and max(map(int, shares)) == 100
