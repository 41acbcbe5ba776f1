"""The benchmark of search levels: curves fall, tables hold every model, failures say why."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from levels import Level, compare, curve_plot, level_lines  # noqa: E402
from timing import Row  # noqa: E402


@torch.no_grad()
def test_a_model_is_compared_at_each_level(capsys):
    model, x = torch.nn.Linear(512, 512), torch.ones(256, 512)
    row, levels = compare("linear", lambda: (model, (x,)), 0.1, 8.0, ("off", "full"))
    assert set(row.ms) == {"off", "full"} and all(not v.problem for v in levels.values())
    points = levels["full"].curve
    assert len(levels["off"].curve) == 1 and points[0][0] == 0
    assert all(a[0] <= b[0] and a[1] > b[1] > 0 for a, b in zip(points, points[1:], strict=False))
    assert 0 < levels["full"].warm_s < levels["full"].cold_s
    assert "full: cold" in capsys.readouterr().out


def test_failures_are_rows_with_a_reason(tmp_path):
    good = {"off": Level(1.0), "fast": Level(2.0, 0.5, 1.5, [(0.0, 4.0), (1.0, 2.0)]),
            "full": Level(9.0, 0.5, 8.0, [(0.0, 4.0), (3.0, 1.0)])}  # fmt: skip
    bad = {"off": Level(1.0), "fast": Level(problem="ValueError: no")}
    results = [
        (Row("a", {"off": 4.0, "fast": 2.0, "full": 1.0}), good),
        (Row("b", {"off": 3.0}), bad),
    ]
    lines = list(level_lines(results))
    assert "| a | 4.000 | 2.000 | 1.000 | 2.00 | 4.00 | 2.0 | 0.5 | 8 |" in lines
    assert "- fast: 2.00 x off (geometric mean of 1)" in lines
    assert "- b, fast: ValueError: no" in lines
    pytest.importorskip("matplotlib")
    curve_plot(results, tmp_path / "chart.svg")
    assert "<svg" in (tmp_path / "chart.svg").read_text()
