"""House rules that a machine can check: imports point one way, one module knows the device, files are short."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("megatron_ext", "preprocess", "slurm", "checkpoints_tools")
OURS = (*PACKAGES, "benchmarks", "demo", "tests")
FILES = sorted(path for package in OURS for path in (REPOSITORY / package).rglob("*.py"))
IDS = [str(path.relative_to(REPOSITORY)) for path in FILES]
DEVICE = REPOSITORY / "megatron_ext" / "runtime" / "device.py"


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree):
    """Full names that a module imports anywhere: `from a import b` is a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name is from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(path):
    return path.relative_to(REPOSITORY).parts[0]


def is_in(name, allowed):
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


# What a package may import of the others, and of what is heavy. Everything else that is installed is free.
ALLOWED = {
    "megatron_ext": ("megatron_ext", "torch", "megatron"),
    "checkpoints_tools": ("checkpoints_tools", "megatron_ext", "torch", "megatron"),
    "preprocess": ("preprocess", "megatron_ext.config", "slurm.array"),  # the last in cluster.py
    "slurm": ("slurm", "megatron_ext.config"),
}


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_point_one_way(path):
    package = package_of(path)
    if package not in ALLOWED:
        return
    for name in imported(tree_of(path)):
        if is_in(name, (*OURS, "torch", "megatron")):
            assert is_in(name, ALLOWED[package]), f"{path} imports {name}"


def test_the_launcher_needs_nothing_but_the_configuration_submitit_and_the_standard_library():
    for path in (REPOSITORY / "slurm").rglob("*.py"):
        for name in imported(tree_of(path)):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top in ("slurm", "submitit", "megatron_ext"), f"{path}: {name}"


def test_hydra_is_imported_in_one_place():
    found = {path for path in FILES for name in imported(tree_of(path)) if is_in(name, ("hydra", "omegaconf"))}
    assert found == {REPOSITORY / "megatron_ext" / "config" / "load.py"}


def test_configuration_knows_no_torch():
    """config/megatron.py alone does: there our names become Megatron's."""
    for path in (REPOSITORY / "megatron_ext" / "config").glob("*.py"):
        heavy = [name for name in imported(tree_of(path)) if is_in(name, ("torch", "megatron", "numpy"))]
        assert not heavy or path.name == "megatron.py", f"{path}: {heavy}"


# --- one module knows the device ---------------------------------------------------------------------------------


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            yield node.body[0].value


def mentions_of_cuda(tree):
    """Lines with a string that names the device, or an attribute torch.cuda."""
    skipped = {id(node) for node in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "cuda":
            yield node.lineno
        text = node.value if isinstance(node, ast.Constant) and id(node) not in skipped else None
        if isinstance(text, str) and (text == "cuda" or text.startswith("cuda:")):
            yield node.lineno


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) in PACKAGES and p != DEVICE],
                         ids=[i for p, i in zip(FILES, IDS) if package_of(p) in PACKAGES and p != DEVICE])  # fmt: skip
def test_only_the_device_module_names_cuda(path):
    lines = list(mentions_of_cuda(tree_of(path)))
    assert not lines, f"{path}:{lines}"


def test_the_search_for_cuda_finds_it():
    assert len(list(mentions_of_cuda(tree_of(DEVICE)))) > 10
    assert list(mentions_of_cuda(ast.parse("x.cuda()"))) == [1]
    assert list(mentions_of_cuda(ast.parse("f(device='cuda:0')"))) == [1]
    assert list(mentions_of_cuda(ast.parse("'''About cuda.'''\nget_cuda_rng_tracker()"))) == []


# --- sizes, and what an import does ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_one_file_holds_one_idea(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{lines} lines; split it"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines; split it"


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) in PACKAGES],
                         ids=[i for p, i in zip(FILES, IDS) if package_of(p) in PACKAGES])  # fmt: skip
def test_a_module_says_what_it_is_and_does_nothing_when_imported(path):
    tree = tree_of(path)
    if not tree.body:
        return
    assert ast.get_docstring(tree), "no docstring"
    assert path.stem not in ("utils", "helpers", "common", "misc", "manager")
    for node in tree.body:
        if isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant), f"line {node.lineno}: a statement at import"
        elif isinstance(node, ast.If):
            assert "__name__" in ast.unparse(node.test) or "TYPE_CHECKING" in ast.unparse(node.test), node.lineno
        else:
            kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.Try)
            assert isinstance(node, kinds), f"line {node.lineno}: {ast.unparse(node)[:60]}"
