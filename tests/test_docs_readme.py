"""Every Python snippet of README.md and docs/ runs as it stands; so do the doctests."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import luminal
from tests import gguf_writer as gw
from tests.tiny_models import decoder_bytes

ROOT = Path(__file__).parent.parent
PACKAGES = ("aot", "ir", "frontend", "search", "rewrite", "codegen", "runtime", "llm", "models")
MODULES = [
    *(f"luminal.{n}" for n in ("function", "config", "compiler", "debug", "errors", "torch")),
    *(
        m.name
        for package in PACKAGES
        for m in pkgutil.walk_packages([str(ROOT / "luminal" / package)], f"luminal.{package}.")
    ),
]
WITH_EXAMPLES = [
    m
    for m in MODULES
    if ">>>" in Path(importlib.util.find_spec(m).origin).read_text()  # type: ignore[union-attr]
]
SETUP = {
    "docs/torch.md": "import torch, warnings; warnings.simplefilter('error')\n"
    "model, x = torch.nn.Linear(8, 4), torch.ones(2, 8)\n",
    "docs/tour.md": "import numpy as np, luminal\nx, gain, weight = (np.ones(s, np.float32) "
    "for s in ((8, 32), (32,), (24, 32)))\n",
}


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(code: str, folder: Path) -> str:
    env = os.environ | {"LUMINAL_SEARCH": "off", "LUMINAL_CACHE": str(folder / "cache")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A folder with a small model.gguf."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "model.gguf").write_bytes(
        decoder_bytes(tokenizer_changes={"unknown_token_id": (gw.U32, 0)})
    )
    return folder


def test_snippets_of_the_readme(model_folder):
    torch_part, tensor_part, model_part, aot_part = snippets("README.md")
    shown = run(torch_part, model_folder)
    assert "torch.Size([4, 8])" in shown and "fallback none" in shown
    shown = run(tensor_part, model_folder)
    assert "(8, 512, 64) 1 kernel" in shown
    assert run(model_part, model_folder).strip()
    assert run(aot_part, model_folder).strip() == "(7, 8)"


@pytest.mark.parametrize("page", ["docs/aot.md", "docs/torch.md", "docs/tour.md", "docs/llm.md"])
def test_snippets_of_the_pages(page, model_folder):
    run(SETUP.get(page, "") + "\n".join(snippets(page)), model_folder)


def test_commands_of_the_readme_parse():
    """Names of commands and options in README, docs/llm.md and docs/aot.md exist."""
    pages = [ROOT / "README.md", ROOT / "docs" / "llm.md", ROOT / "docs" / "aot.md"]
    text = "".join(page.read_text() for page in pages)
    for command in sorted(set(re.findall(r"^luminal (\w+)", text, re.MULTILINE))):
        done = subprocess.run(
            [sys.executable, "-m", "luminal.cli", command, "--help"],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for line in re.findall(rf"^luminal {command}\b.*$", text, re.MULTILINE):
            for option in re.findall(r"--[a-z-]+", line):
                assert option in done.stdout, (command, option)


def test_every_setting_in_the_readme_exists():
    variables = {variable for variable, _ in luminal.config.SETTINGS.values()}
    assert set(re.findall(r"LUMINAL_[A-Z]+", (ROOT / "README.md").read_text())) <= variables


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_doctests(module, monkeypatch):
    monkeypatch.setenv("LUMINAL_SEARCH", "off")
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0
