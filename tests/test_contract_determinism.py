"""Same graph, same seed: the same plan and the same code, whatever the hash seed of the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract_cases import CASES, stages

ROOT = Path(__file__).parent.parent


def digests(hash_seed: int) -> list[str]:
    env = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract_cases"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_two_processes_agree():
    first, second = digests(0), digests(4242)
    assert len(first) == 3 * len(CASES)
    assert first == second


@pytest.mark.parametrize("name", ["attention", "norm_linear"])
def test_one_process_agrees_with_itself(name):
    assert stages(name) == stages(name)
