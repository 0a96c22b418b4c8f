"""What README tells people to type works, in the order in which it stands there.

Blocks marked `executed` run whole, by bash, in one folder, as a reader would go through them. Those for a cluster are
composed and checked; tests/slurm runs such commands on a real Slurm. `make demo` and `make test` run in CI by
themselves; here their targets must exist.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[str]:
    """The shell blocks that stand under a comment beginning with `mark`."""
    return re.findall(rf"<!-- {mark}[^\n]*-->\n```bash\n(.*?)```", README, re.DOTALL)


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place where a reader could stand: runs/ is empty, corpus/ is there."""
    place = tmp_path_factory.mktemp("reader")
    (place / "corpus").symlink_to(ROOT / "corpus")
    (place / "slurm").symlink_to(ROOT / "slurm")
    return place


@pytest.fixture(scope="module")
def environment():
    """As after `source .venv/bin/activate`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def done(folder, environment):
    """The folder after every executed block, one after the other, and what they printed."""
    script = "\n".join(["set -euo pipefail", *blocks("executed")])
    answer = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return answer.stdout


@pytest.mark.slow
def test_the_use_cases_run_as_they_are_written(done, folder):
    assert (folder / "runs/data/demo/python_docs.json").is_file()
    for name in ("first", "lr_3e-4", "lr_3e-3"):
        verdict = json.loads((folder / "runs" / name / "verdict.json").read_text())
        assert (verdict["state"], verdict["step"]) == ("done", 20)
    assert "the same; " in done


@pytest.mark.slow
def test_the_converted_checkpoint_and_the_export_load_elsewhere(done, folder):
    import torch
    import transformers

    from megatron_ext import checkpoint

    assert checkpoint.damage(folder / "runs/wide/checkpoints/iter_0000020") is None
    exported = folder / "runs/exported"
    model = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    ids = tokenizer("This module provides", return_tensors="pt")["input_ids"]
    assert model(ids).logits.isfinite().all()


@pytest.mark.slow
def test_the_two_arms_of_the_ablation_are_told_apart_by_what_was_changed(done, folder):
    last = [json.loads(line) for line in done.strip().splitlines()[-2:]]
    assert [row["step"] for row in last] == [20, 20]
    curves = {}
    for name in ("lr_3e-4", "lr_3e-3"):
        rows = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        curves[name] = [json.loads(row)["loss"] for row in rows]
    assert curves["lr_3e-4"][0] == curves["lr_3e-3"][0]  # same weights, same text: nothing differs before an update
    assert curves["lr_3e-4"][-1] > curves["lr_3e-3"][-1]


@pytest.mark.slow
def test_the_commands_for_a_cluster_are_accepted(done, folder, environment):
    """--dry-run composes and checks as a launch does, and writes the job script."""
    (block,) = blocks("composed")
    for command in commands(block):
        if command[0] == "sbatch":
            script = next(word for word in command if word.endswith(".sbatch"))
            assert (ROOT / script).is_file()
            command = ["llm-launch", *command[command.index(script) + 1 :]]
        dry = [*command, "--dry-run"]
        answer = subprocess.run(dry, cwd=folder, env=environment, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        assert "num_layers: 32" in answer.stdout


def test_every_block_of_commands_is_marked_or_is_make():
    """A new example cannot stand there untested."""
    everything = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    marked = blocks("executed") + blocks("composed")
    rest = [block for block in everything if block not in marked]
    assert len(marked) == 5
    assert [line.split("#")[0].strip() for block in rest for line in block.splitlines()] == ["make demo", "make test"]


@pytest.mark.parametrize("target", ["demo", "test", "equivalence", "bench"])
def test_the_make_target_exists(target):
    answer = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    local = [link for link in links if "://" not in link]
    assert len(local) >= 6
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_every_folder_of_the_table_exists_and_none_is_left_out():
    named = set(re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE))
    there = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    assert named == {name for name in there if name != "runs" and not name.endswith(".egg-info")}
