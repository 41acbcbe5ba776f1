"""A second process starts from the cache: no search, no code generation, no LLVM work."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = """
import numpy as np
import luminal
from tests.contract_cases import attention
q = np.random.default_rng(0).standard_normal((2, 32, 16)).astype(np.float32)
fast = luminal.compile(attention, [q, q, q])
print(fast.stats.cache, float(np.abs(fast(q, q, q)).sum()))
"""
BROKEN = """
import luminal.compiler, luminal.programs, luminal.runtime.cpu
def refuse(*args, **options):
    raise SystemExit("no work was expected")
for module in (luminal.runtime.cpu, luminal.programs):
    module.compile_object = refuse
luminal.compiler.rewrite = luminal.compiler.generate = refuse
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"LUMINAL_CACHE": str(folder), "LUMINAL_SEARCH": "off"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )


def test_second_process_does_no_work(tmp_path):
    first = run(PROGRAM, tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("miss")
    second = run(BROKEN + PROGRAM, tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout.split() == ["hit", first.stdout.split()[1]]


def test_the_refusal_is_real(tmp_path):
    assert "no work was expected" in run(BROKEN + PROGRAM, tmp_path).stderr


def test_damaged_entries_count_as_missing(tmp_path):
    assert run(PROGRAM, tmp_path).returncode == 0
    entries = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert entries
    for path in entries:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = run(PROGRAM, tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("miss")
