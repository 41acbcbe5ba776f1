"""luminal.torch.verify: silent on good models; names the kernel where something was broken, for
each way to break it, and its reproduction shows the same fault until that is mended."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import luminal.torch  # noqa: E402
from luminal import checking  # noqa: E402
from luminal.codegen import llvm_math  # noqa: E402
from luminal.frontend import functional  # noqa: E402
from luminal.frontend.torch.aten import table  # noqa: E402
from luminal.ir.dtype import f32, i64  # noqa: E402
from luminal.rewrite import rules  # noqa: E402

ASIDE = {"cache": "off", "search": "off"}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def verify(function, *inputs, **options):
    return luminal.torch.verify(function, inputs, options=ASIDE, **options)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(16)
        self.register_buffer("memory", torch.zeros(4, 16))

    def forward(self, tokens):
        x = self.table(tokens)
        x = self.norm(x + self.attention(x, x, x)[0])
        self.memory[1:3] = x[0, :2]
        return x.bfloat16().softmax(-1), x.argmax(-1), self.memory.sum(), x.transpose(0, 1)


def test_silence_about_a_good_model(capsys):
    assert verify(Model().eval(), torch.randint(0, 10, (2, 5))) is None
    assert verify(torch.compile(torch.nn.Linear(4, 3)), torch.randn(2, 4)) is None
    assert verify(lambda x: torch.fft.fft(x).abs().sin(), torch.randn(8)) is None
    assert capsys.readouterr().out == ""


def waves(x):
    return (x @ x.T).sin().sum(0) / 7


def check_reproduction(folder, mended):
    assert checking.run_again(folder) > 0.01
    mended()
    assert checking.run_again(folder) < 1e-4


def test_broken_machine_code_is_found(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(llvm_math, "_near_sine", lambda x: x)
    fault = verify(waves, torch.randn(5, 8), folder=tmp_path)
    assert fault.cause == "code" and "sin_(" in fault.text and fault.error > 0.01
    assert str(fault) in capsys.readouterr().out
    assert {"kernel.txt", "inputs.npz", "expected.npz"} <= {p.name for p in tmp_path.iterdir()}
    check_reproduction(tmp_path, monkeypatch.undo)


def test_a_broken_rule_is_found(monkeypatch, tmp_path):
    count = rules._count
    monkeypatch.setattr(rules, "_count", lambda axes: count(axes) * 2)
    fault = verify(lambda x: x.exp().unsqueeze(1).expand(8, 5).sum(1), torch.randn(8),
                   folder=tmp_path)  # fmt: skip
    assert fault.cause == "rewriting"
    check_reproduction(tmp_path, monkeypatch.undo)


def test_a_broken_translation_is_found_where_it_is(monkeypatch, tmp_path):
    wrong = {torch.ops.aten.sin.default: lambda call, x: functional.tanh(x)}
    monkeypatch.setattr(table, "_TABLE", table._TABLE | wrong)

    def f(x):
        return (x @ x.T).sin() @ x

    fault = verify(f, torch.randn(64, 64), folder=tmp_path)
    assert fault.cause == "translation" and fault.buffer != "out0"  # not where it shows
    assert (tmp_path / "graph.txt").exists()
    assert checking.run_again(tmp_path) > 0.01


def test_the_command_runs_a_reproduction_again(monkeypatch, tmp_path):
    monkeypatch.setattr(llvm_math, "_near_sine", lambda x: x)
    verify(waves, torch.randn(5, 8), folder=tmp_path)
    done = subprocess.run([sys.executable, "-m", "luminal.checking", str(tmp_path)],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and "error relative" in done.stdout  # mended in another process


def test_tolerance_is_the_callers(monkeypatch):
    monkeypatch.setattr(llvm_math, "_near_sine", lambda x: x)
    assert verify(waves, torch.randn(5, 8), tolerance=100.0) is None


def test_symbolic_sizes_are_checked_at_the_sizes_of_the_call(tmp_path, monkeypatch):
    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    assert verify(waves, x) is None
    monkeypatch.setattr(llvm_math, "_near_sine", lambda x: x)
    torch._dynamo.reset()
    fault = verify(waves, x, folder=tmp_path)
    assert fault.cause == "code" and (tmp_path / "dims.txt").read_text().endswith(" 5\n")
    check_reproduction(tmp_path, monkeypatch.undo)


def test_differences_of_bits():
    def off(a, b, dtype=f32):
        return checking.difference(np.array(a), np.array(b), dtype)

    nan, inf = float("nan"), float("inf")
    assert off(np.float32([1, nan, inf]), np.float32([1, nan, inf])) == 0
    assert off(np.float32([1, 2]), np.float32([1, 4])) == 0.5
    assert off(np.float32([1, nan]), np.float32([1, 4])) == inf
    assert off(np.int64([1, 2]), np.int64([1, 3]), i64) == 0.5
