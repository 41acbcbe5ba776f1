"""What `import luminal` may load, and that nothing loads PyTorch unasked."""

import subprocess
import sys

import pytest

HEAVY = ("llvmlite", "torch", "rich", "typer", "tokenizers", "transformers", "jinja2", "gguf")
FIRST = {
    "the package": ("import luminal", HEAVY),
    "readers of weights": ("import luminal.weights", HEAVY),
    "the command line": ("import luminal.cli", HEAVY),
    "settings": ("import luminal; luminal.Config()", HEAVY),
    "a lazy tensor": ("import luminal; luminal.arange(3) + 1", HEAVY),
    "a tokenizer's module": ("import luminal.llm", ("torch", "transformers", "gguf", "typer")),
    "opening exported models": ("import luminal; luminal.load", HEAVY),
    "a compiled function": (
        "import luminal, numpy as np\n"
        "luminal.compile(lambda x: x + 1, [np.ones(3, np.float32)], search='off')",
        ("torch", "rich", "typer", "tokenizers"),
    ),
}


@pytest.mark.parametrize("name", FIRST)
def test_heavy_packages_stay_out(name):
    code, heavy = FIRST[name]
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {m.split(".")[0] for m in done.stdout.split()}
    assert loaded.isdisjoint(heavy)


def test_import_of_the_package_adds_few_modules():
    """The modules that `import luminal` adds to `import numpy` are its own and few."""
    code = (
        "import sys, numpy; before = set(sys.modules); import luminal; print(*sys.modules - before)"
    )
    code = code.replace("*sys.modules - before", "*set(sys.modules) - before")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added = done.stdout.split()
    assert "luminal" in added
    assert len(added) <= 5, added
