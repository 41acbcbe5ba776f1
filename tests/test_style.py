"""The counts of the style guide, as tests: sizes, annotations, docstrings, layering, settings."""

import ast
import re
import statistics
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "luminal"
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {f: ast.parse(f.read_text()) for f in FILES}
CORE = (
    "ir/", "rewrite/", "search/", "codegen/", "runtime/", "compiler.py", "config.py", "errors.py",
    "debug.py", "__init__.py", "frontend/tensor.py", "frontend/functional.py",
)  # fmt: skip
CORE_LIMIT = 10_597
GPU = (
    "codegen/barriers.py", "codegen/blocks.py", "codegen/cstyle", "codegen/cuda.py",
    "codegen/dialects.py", "codegen/gpu.py", "codegen/lanes.py", "codegen/matrix.py",
    "codegen/metal.py", "codegen/opencl.py", "codegen/padding.py", "ir/launch.py", "ir/matrix.py",
    "runtime/cuda", "runtime/gpu.py", "runtime/metal.py", "runtime/nvrtc.py", "runtime/opencl.py",
    "search/lanes.py",
)  # fmt: skip
GPU_LIMIT = 3_078
STAGES = ("frontend", "rewrite", "search", "codegen", "runtime")


def lines(path: Path) -> int:
    return sum(1 for line in path.read_text().splitlines() if line.strip())


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def functions(tree: ast.AST):
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_core_is_small():
    core = [f for f in FILES if relative(f).startswith(CORE) and not relative(f).startswith(GPU)]
    assert sum(map(lines, core)) <= CORE_LIMIT


def test_gpu_code_is_small():
    assert sum(lines(f) for f in FILES if relative(f).startswith(GPU)) <= GPU_LIMIT


def test_files_are_short():
    sizes = {relative(f): lines(f) for f in FILES}
    assert {n: s for n, s in sizes.items() if s > 600} == {}
    assert statistics.median(sizes.values()) <= 200


def test_functions_are_short():
    sizes = {f"{relative(f)}:{n.name}": n.end_lineno - n.lineno + 1
             for f, t in TREES.items() for n in functions(t)}  # fmt: skip
    assert {n: s for n, s in sizes.items() if s > 80} == {}
    assert sum(s > 40 for s in sizes.values()) <= 0.03 * len(sizes)


def test_everything_is_annotated():
    missing = []
    for f, t in TREES.items():
        for n in functions(t):
            args = [a for a in n.args.posonlyargs + n.args.args + n.args.kwonlyargs
                    if a.arg not in ("self", "cls")]  # fmt: skip
            if (
                n.name != "__init__"
                and n.returns is None
                or any(a.annotation is None for a in args)
            ):
                missing.append(f"{relative(f)}:{n.name}")
    assert missing == []


def test_modules_have_docstrings():
    assert [
        relative(f) for f, t in TREES.items() if lines(f) > 3 and not ast.get_docstring(t)
    ] == []


def test_public_names_have_docstrings():
    names, missing = 0, []
    for f, t in TREES.items():
        for node in t.body:
            for sub in [node] + (node.body if isinstance(node, ast.ClassDef) else []):
                if isinstance(sub, ast.FunctionDef | ast.ClassDef) and not sub.name.startswith("_"):
                    names += 1
                    if not ast.get_docstring(sub):
                        missing.append(f"{relative(f)}:{sub.name}")
    assert len(missing) <= 0.1 * names, missing


def imported(node: ast.AST) -> str:
    return node.module or "" if isinstance(node, ast.ImportFrom) else ""


def test_no_late_imports_of_own_modules():
    late = [f"{relative(f)}:{fn.name}" for f, t in TREES.items() for fn in functions(t)
            for n in ast.walk(fn) if imported(n).startswith("luminal")]  # fmt: skip
    assert late == []


@pytest.mark.parametrize("stage", STAGES)
def test_stages_do_not_import_each_other(stage):
    others = tuple(f"luminal.{s}" for s in STAGES if s != stage)
    bad = [f"{relative(f)} -> {imported(n)}" for f, t in TREES.items()
           if relative(f).startswith(stage + "/") and not relative(f).startswith("frontend/torch")
           for n in ast.walk(t) if imported(n).startswith(others)]  # fmt: skip
    assert bad == []


def test_packages_import_each_other_in_no_cycle():
    """Folders and single files directly under luminal/, `__init__.py` aside, form no cycle."""
    edges: dict[str, set[str]] = {}
    for f, tree in TREES.items():
        package = relative(f).split("/")[0].removesuffix(".py")
        found = (imported(n).split(".")[1] for n in ast.walk(tree)
                 if imported(n).startswith("luminal."))  # fmt: skip
        edges.setdefault(package, set()).update(set(found) - {package})

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        stack = [start]
        while stack:
            new = edges.get(stack.pop(), set()) - seen
            seen |= new
            stack += new
        return seen

    assert [p for p in edges if p != "__init__" and p in reached(p)] == []


def test_third_parties_stay_in_their_files():
    allowed = {"llvmlite": ("codegen/llvm", "runtime/cpu.py"), "torch": ("frontend/torch/",),
               "cuda": ("runtime/cuda.py", "runtime/nvrtc.py"),
               "Metal": ("runtime/metal.py",), "objc": ("runtime/metal.py",),
               "pyopencl": ("runtime/opencl.py",)}  # fmt: skip
    bad = []
    for f, t in TREES.items():
        for n in ast.walk(t):
            names = [a.name for a in n.names] if isinstance(n, ast.Import) else [imported(n)]
            for name in names:
                for package, places in allowed.items():
                    if name.split(".")[0] == package and not relative(f).startswith(places):
                        bad.append(f"{relative(f)} imports {name}")
    assert bad == []


def test_frontend_has_no_asserts():
    bad = [f"{relative(f)}:{n.lineno}" for f, t in TREES.items()
           if relative(f).startswith("frontend") for n in ast.walk(t)
           if isinstance(n, ast.Assert)]  # fmt: skip
    assert bad == []


def test_settings_are_few_and_documented():
    found = {m for f in FILES for m in re.findall(r"LUMINAL_[A-Z_]+", f.read_text())}
    assert len(found) <= 12
    from luminal.config import SETTINGS

    assert found == {variable for variable, _ in SETTINGS.values()}


def test_rules_name_no_model_part():
    words = re.compile(
        r"softmax|attention|flash|norm\b|layer_?norm|\brms|gelu|conv|matmul|gemm", re.I
    )
    for f in sorted((PACKAGE / "rewrite" / "rules").glob("*.py")):
        assert not words.search(f.read_text()), f


def test_search_and_codegen_name_no_model_part():
    words = re.compile(r"softmax|attention|flash|gelu|matmul|gemm|layer_?norm", re.I)
    for folder in ("search", "codegen", "runtime"):
        for f in sorted((PACKAGE / folder).glob("*.py")):
            assert not words.search(f.read_text()), f
