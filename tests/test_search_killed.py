"""Processes that share one cache and are killed at any moment leave it usable, and no child; one
that is interrupted goes on with the best found."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
import sys
import numpy as np
import luminal
a = np.random.default_rng(0).standard_normal((192, 256)).astype(np.float32) / 16
b = np.random.default_rng(1).standard_normal((256, 320)).astype(np.float32)
print("start", flush=True)
fast = luminal.compile(lambda x, y: luminal.softmax(x @ y, -1), [a, b], search=4.0)
print("compiled", fast.stats.cache, flush=True)
np.save(sys.argv[1], fast(a, b))
"""
INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of shells ignore it
import numpy as np
import luminal
a = np.random.default_rng(0).standard_normal((192, 256)).astype(np.float32) / 16
b = np.random.default_rng(1).standard_normal((256, 320)).astype(np.float32)
fast = luminal.compile(lambda x, y: luminal.softmax(x @ y, -1), [a, b], search=200.0,
                       progress=lambda text, share: print(text, flush=True))
print("notes", *fast.plan.notes, flush=True)
np.save(sys.argv[1], fast(a, b))
"""


def start(folder: Path, name: str, program: str = PROGRAM) -> subprocess.Popen[bytes]:
    env = os.environ | {"LUMINAL_CACHE": str(folder / "cache"), "LUMINAL_PROGRESS": "off"}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder / name)], cwd=ROOT, env=env,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def expected() -> np.ndarray:
    a = np.random.default_rng(0).standard_normal((192, 256)).astype(np.float32) / 16
    b = np.random.default_rng(1).standard_normal((256, 320)).astype(np.float32)
    x = a.astype(np.float64) @ b
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def survivors(group: int) -> bool:
    """Whether a process of this group still runs; they get a moment to end."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def kill_and_use(folder: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(times):
        pair = [start(folder, f"killed{n}.npy") for n in range(1 + number % 2)]
        for process in pair:
            assert process.stdout is not None
            assert process.stdout.readline() == b"start\n"
        time.sleep(rng.uniform(0, 5) ** 2 / 5)
        for process in pair:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert not any(survivors(p.pid) for p in pair)
    for name in ("first.npy", "second.npy"):
        process = start(folder, name)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        np.testing.assert_allclose(np.load(folder / name), expected(), rtol=1e-5, atol=1e-7)
    assert out.split()[-1] == b"hit"


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_killed_a_few_times(tmp_path: Path) -> None:
    kill_and_use(tmp_path, 6, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_fifty_times(tmp_path: Path) -> None:
    kill_and_use(tmp_path, 50, seed=1)


def test_two_at_once_share_the_cache(tmp_path: Path) -> None:
    pair = [start(tmp_path, f"both{n}.npy") for n in range(2)]
    assert [p.wait(timeout=180) for p in pair] == [0, 0]
    for n in range(2):
        np.testing.assert_allclose(
            np.load(tmp_path / f"both{n}.npy"), expected(), rtol=1e-5, atol=1e-7
        )


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_ends_the_search_with_the_best_found(tmp_path: Path) -> None:
    for number, reports in enumerate((3, 12)):
        process = start(tmp_path, f"{number}.npy", INTERRUPTED)
        assert process.stdout is not None
        heard = [b""]
        while sum(line.startswith(b"search: kernel") for line in heard) < reports:
            heard.append(process.stdout.readline())
            assert heard[-1], "the search ended too soon"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and b"the search was interrupted" in rest
        assert b"best" in heard[-1] and b"s left" in heard[-1]
        np.testing.assert_allclose(
            np.load(tmp_path / f"{number}.npy"), expected(), rtol=1e-5, atol=1e-7
        )
        assert not survivors(process.pid)
    assert not list((tmp_path / "cache").glob("program/*/*"))  # the next one searches on
