"""The command line: output, JSON, and one clear line for every problem of the user's."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luminal.cli import main
from tests import gguf_writer as gw
from tests.tiny_models import decoder_bytes


@pytest.fixture(autouse=True)
def quick_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_SEARCH", "off")


def put(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(decoder_bytes(**changes))
    return str(path)


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    code = 0
    try:
        main(arguments)
    except SystemExit as error:
        code = error.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = outcome(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("luminal: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["run", "M"], "--prompt"),
        (["run", "M", "-p", "x", "-n", "0"], "'0'"),
        (["run", "M", "-p", "x", "-n", "many"], "'many'"),
        (["run", "M", "-p", "x", "--threads", "-1"], "'-1'"),
        (["run", "M", "-p", "x", "--numerics", "sloppy"], "sloppy"),
        (["run", "M", "-p", "x", "--top-p", "2"], "top_p"),
        (["run", "M", "-p", "x", "--temperature", "nan"], "temperature"),
        (["run", "M", "-p", "x", "--odd"], "--odd"),
        (["bench", "M", "--pp", "0"], "'0'"),
        (["cache", "burn"], "burn"),
        (["run", "no-such.gguf", "-p", "x"], "no-such.gguf"),
        (["chat", "."], "folder"),
    ],
)
def test_bad_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], hint: str
) -> None:
    model = put(tmp_path)
    line = refused(capsys, *(model if argument == "M" else argument for argument in arguments))
    assert hint in line


def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = Path(put(tmp_path)).read_bytes()
    bad = tmp_path / "bad.gguf"
    for data, hint in (
        (good[:-100], "past the end"),
        (b"GGML" + good[4:], "magic"),
        (b"", "empty"),
    ):
        bad.write_bytes(data)
        assert hint in refused(capsys, "run", str(bad), "-p", "x", "-n", "1")


def test_missing_tokenizer_and_template(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "template" in refused(capsys, "chat", put(tmp_path))
    assert "tokenizer" in refused(capsys, "run", put(tmp_path, tokenizer=False), "-p", "x")


def test_prompt_that_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = refused(capsys, "run", put(tmp_path), "-p", "A" * 70, "-n", "4")
    assert "71" in line
    assert "64" in line
    assert "128" in refused(capsys, "bench", put(tmp_path), "--pp", "128", "--tg", "1")


def test_empty_prompt(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = put(tmp_path, tokenizer_changes={"add_bos_token": (gw.BOOL, 0)})
    assert "empty" in refused(capsys, "run", model, "-p", "")


def test_run_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["run", put(tmp_path), "-p", "AB", "-n", "4", "--greedy", "--ignore-eos", "--json"]
    code, out, _ = outcome(capsys, *arguments)
    assert code == 0
    result = json.loads(out)
    assert result["prompt_tokens"] == 3
    assert len(result["tokens"]) == 4
    assert {"text", "prompt_tokens_per_s", "decode_tokens_per_s", "compile_s"} <= set(result)
    assert isinstance(result["plan_cached"], bool)


def test_run_streams_text_and_says_when_the_context_is_full(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", put(tmp_path), "-p", "AB", "-n", "40", "--greedy", "--ignore-eos"]
    code, out, err = outcome(capsys, *arguments, "--n-ctx", "8")
    assert code == 0
    assert out.endswith("\n")
    assert "context of 8 tokens is full" in err


def test_chat(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = put(tmp_path, template=template)
    monkeypatch.setattr("sys.stdin", io.StringIO("HI\nYOU\n"))
    code, out, _ = outcome(capsys, "chat", model, "-n", "3", "--greedy")
    assert code == 0
    assert out.count("\n") >= 2


def test_bench(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["bench", put(tmp_path), "--pp", "16", "--tg", "4", "--repeat", "1", "--json"]
    code, out, _ = outcome(capsys, *arguments)
    result = json.loads(out)
    assert code == 0
    for name in ("pp_tps", "tg_tps", "weights_bytes", "read_bandwidth_fraction"):
        assert result[name] > 0


def test_devices_and_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = outcome(capsys, "devices")
    assert code == 0
    assert "cpu" in out
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))
    assert json.loads(outcome(capsys, "cache", "info", "--json")[1])["files"] == 0
    assert outcome(capsys, "cache", "clear")[0] == 0


@pytest.mark.parametrize("after", [0, 2])
def test_interrupt_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any, after: int
) -> None:
    from luminal.llm import commands

    seen: list[str] = []

    def interrupted(text: str) -> None:
        seen.append(text)
        if len(seen) > after:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(commands, "write_text", interrupted)
    arguments = ["run", put(tmp_path), "-p", "A", "-n", "8", "--greedy", "--ignore-eos"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of shells ignore it
    try:
        code, _, err = outcome(capsys, *arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err) == (130, "luminal: interrupted\n")


@pytest.mark.parametrize(("ending", "expected"), [(">&-", 0), (">/dev/full", 2), ("| true", 0)])
def test_standard_output_that_takes_nothing(ending: str, expected: int) -> None:
    if "/dev/full" in ending and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    command = f"{shlex.quote(sys.executable)} -m luminal devices {ending}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == expected, done.stderr
    assert "bug" not in done.stderr and "Traceback" not in done.stderr
    assert ("cannot write" in done.stderr) == (expected == 2)
