"""The device script: says that there is no GPU, runs at toy size, survives what may go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.compiler import search_plan
from luminal.config import Config
from luminal.function import trace_function
from luminal.programs import ProgramCache
from tests.gpu_case import needs_compiler

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "device"
SCRIPT = FOLDER / "run.sh"


@pytest.fixture
def device(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    monkeypatch.syspath_prepend(str(FOLDER))
    import device

    return device


def test_without_a_gpu_it_says_so(tmp_path):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    env = {**os.environ, "PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out")}
    start = time.monotonic()
    done = subprocess.run([SCRIPT], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0 and "nothing was run" in done.stdout
    assert time.monotonic() - start < 20 and not (tmp_path / "out").exists()


@needs_compiler
@pytest.mark.slow
def test_at_toy_size(tmp_path):
    env = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path)}
    done = subprocess.run([SCRIPT, "--dry"], capture_output=True, text=True, env=env, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {r["part"] for r in rows} == {"ceilings", "small", "suite", "llama"}
    assert [r for r in rows if "problem" in r] == [], done.stdout
    assert all(r["ms"] for r in rows)
    assert (tmp_path / "table.md").read_text().strip() in done.stdout


def fake_parts(device, monkeypatch, tmp_path, text: str) -> None:
    """A part whose process runs this text; `name` and `write(row)` are there."""
    head = ("import json, os, sys, time\nfile, part, *names = sys.argv[1:]\n"
            "def write(row): open(file, 'a').write(json.dumps(row) + '\\n')\n"
            "for name in names:\n    write({'start': name})\n")  # fmt: skip
    tail = "    write({'part': part, 'name': name, 'ms': {'luminal': 1.0}})\n"
    (tmp_path / "parts.py").write_text(head + text + tail)
    monkeypatch.setattr(device, "HERE", tmp_path)
    monkeypatch.setattr(device, "PARTS", {"p": (60, 1.5, lambda dry: ["a", "b", "c"])})


@pytest.mark.parametrize(
    "text, problem",
    [("    if name == 'b': os._exit(7)\n", "the process ended with 7"),
     ("    if name == 'b': time.sleep(99)\n", "more than 2 s")],
)  # fmt: skip
def test_an_item_that_fails_loses_no_other(device, monkeypatch, tmp_path, text, problem):
    fake_parts(device, monkeypatch, tmp_path, text)
    rows = device.run("p", tmp_path, time.monotonic() + 30, False)
    assert [r["name"] for r in rows] == ["a", "b", "c"]
    assert [r.get("problem", "") for r in rows] == ["", problem, ""]


def test_a_part_ends_when_its_time_is_over(device, monkeypatch, tmp_path):
    fake_parts(device, monkeypatch, tmp_path, "    time.sleep(0.7)\n")
    rows = device.run("p", tmp_path, time.monotonic() + 1.2, False)
    assert [r["name"] for r in rows] == ["a", "b", "c"]
    assert rows[-1]["problem"] == "no time left"


def test_a_part_that_cannot_start(device, monkeypatch, tmp_path):
    fake_parts(device, monkeypatch, tmp_path, "")
    (tmp_path / "parts.py").write_text("raise SystemExit(5)")
    rows = device.run("p", tmp_path, time.monotonic() + 30, False)
    assert [r["problem"] for r in rows] == ["the process ended with 5"] * 3


def test_parts_fit_into_the_whole(device):
    assert sum(limit for limit, _, _ in device.PARTS.values()) <= 480
    assert device.TOTAL_S <= 475


def test_the_model_predicts_what_bytes_and_operations_say(device):
    import timing_model

    plan = timing_model.llama_plan(single=True, shape="1B")
    sizes = {"n_past": 100, "n_q": 1, "n_rows": 1}
    moved = sum(timing_model.moved_bytes(k, plan, sizes) for k in plan.kernels)
    weights = 16 * (2 * 2048**2 + 2 * 512 * 2048 + 3 * 5632 * 2048) + 32000 * 2048
    assert weights < moved < 1.4 * weights  # a byte a weight, scales, the cache; no whole table
    chips = timing_model.CHIPS
    times = [timing_model.predict_ms(plan, sizes, chips[c]) for c in ("H100", "H200")]
    assert times[0] > times[1] > moved / chips["H200"].bandwidth_gbs / 1e6


@needs_compiler
def test_the_model_counts_what_each_kernel_asks_for(device):
    import timing_model

    x, weights = np.ones((4, 256), np.float32), [np.ones((256, 256), np.float32)] * 2
    graph = trace_function(lambda x, a, b: x @ a @ b, [x, *weights]).graph
    config = Config(device="cuda-emulated", search="off", cache="off")
    cache = ProgramCache(config, timing_model.H100)
    plan = search_plan(graph, config, timing_model.H100, cache, {}, lambda text, share: None)
    counts, chip = timing_model.counted(plan, {}), timing_model.CHIPS["H200"]
    assert len(counts) == len(plan.kernels) >= 2
    for kernel, found in zip(plan.kernels, counts, strict=True):
        moved = timing_model.moved_bytes(kernel, plan, {})
        assert (found.sectors_read + found.sectors_written) * 32 >= moved
        slow = replace(found, sectors_read=10**9)
        least, most = (timing_model.kernel_us(kernel, plan, {}, chip, n) for n in (None, slow))
        assert most > 100 * least
    assert counts[-1].sectors_written * 32 >= 4 * 256 * 4
