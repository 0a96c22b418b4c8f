"""dvc.yaml: real `dvc repro` makes the demo dataset, then has nothing to do, then notices a change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from preprocess import manifest, verify
from preprocess.shards import SUFFIXES

REPOSITORY = Path(__file__).resolve().parents[2]
STAGE = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]["demo-data"]


def test_the_stage_names_what_the_command_reads_and_writes():
    """Without DVC too: a file that is moved or added must be named here."""
    data = yaml.safe_load((REPOSITORY / "configs" / "data" / "demo.yaml").read_text())
    assert {*data["source"]["inputs"], "configs/data/demo.yaml", "preprocess"} <= set(STAGE["deps"])
    made = {data["source"]["output"] + suffix for suffix in (*SUFFIXES, ".report.json", ".card.html")}
    assert set(STAGE["outs"]) == {data["tokenizer"]["path"], *made}
    assert all((REPOSITORY / path).exists() for path in STAGE["deps"])


@pytest.fixture
def copy(tmp_path):
    """The repository without what it made, under git and DVC."""
    folder = tmp_path / "copy"
    left_out = shutil.ignore_patterns(".git", ".venv", "runs", ".dvc", "__pycache__", "*.egg-info", ".*_cache", "tests")
    shutil.copytree(REPOSITORY, folder, ignore=left_out)
    (folder / "dvc.lock").unlink(missing_ok=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    dvc(folder, "init", "-q")
    return folder


def dvc(folder, *arguments):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", "HOME": str(folder.parent)}
    made = subprocess.run(["dvc", *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("dvc") is None, reason="dvc is not installed: it is an extra, in an environment of its own"
)
def test_repro_makes_the_dataset_once_and_again_after_a_change(copy):
    assert "Running stage 'demo-data'" in dvc(copy, "repro")
    prefix = str(copy / "runs" / "data" / "demo" / "python_docs")
    assert list(verify.problems(prefix)) == []
    first = manifest.read(prefix)
    assert "didn't change, skipping" in dvc(copy, "repro")

    (copy / "runs" / "data" / "demo" / "python_docs.bin").unlink()
    (copy / "preprocess" / "__pycache__").mkdir(exist_ok=True)
    (copy / "preprocess" / "__pycache__" / "left_behind.pyc").write_bytes(b"no input")
    assert "Running stage" not in dvc(copy, "repro")  # from DVC's cache
    assert manifest.read(prefix) == first and list(verify.problems(prefix)) == []

    with open(copy / "preprocess" / "__init__.py", "a") as file:
        file.write("# another program\n")
    assert "Running stage 'demo-data'" in dvc(copy, "repro")
    assert manifest.read(prefix).fingerprint == first.fingerprint
