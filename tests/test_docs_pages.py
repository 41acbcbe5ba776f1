"""Links of the docs lead somewhere; the generated pages are current; listings are complete."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import make_tour  # noqa: E402

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    targets = [t for t, _ in LINK.findall(page.read_text()) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_pages_of_the_site_exist_and_all_but_decisions_must_be_in_it():
    named = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    docs = ROOT / "docs"
    pages = {p.relative_to(docs).as_posix() for p in docs.rglob("*.md")} - {"tour.in.md"}
    assert named <= pages
    assert {p for p in pages if not p.startswith("adr/")} <= named


def test_settings_are_current():
    assert (ROOT / "docs" / "settings.md").read_text() == make_tour.settings()


def test_tour_has_the_text_of_its_template():
    """Prose is equal; listings may lag behind the code until the page is written anew."""
    template = (ROOT / "docs" / "tour.in.md").read_text()
    page = (ROOT / "docs" / "tour.md").read_text()
    position = 0
    for part in re.split(r"\{\{\w+\}\}", template):
        assert part in page[position:], f"python docs/make_tour.py; missing: {part[:80]!r}"
        position = page.index(part, position) + len(part)
    assert "{{" not in page


def test_tour_can_be_made_and_tells_what_it_says():
    template = (ROOT / "docs" / "tour.in.md").read_text()
    found = make_tour.listings()
    assert set(re.findall(r"\{\{(\w+)\}\}", template)) == set(found)
    assert all(found.values())
    assert "factor_leaves_sum x1" in found["fired"]
    assert found["plan"].count("kernel(") == 1
    assert "OR   mul(" in found["space"]
    assert found["run"].endswith("True")
    assert "sum_of_powers" in found["attention_fired"]
    assert found["attention_plan"].count("rsum_") == 2
    assert "online over" in found["attention_schedule"]
