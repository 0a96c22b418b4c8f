"""The run folder before a start: frozen configuration, continued runs, the record of the code."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any, List

import pytest

from megatron_ext.config import load, rundir
from megatron_ext.config.schema import Cluster, Model, Run, Train
from slurm import folder as folders


def a_run(tmp_path: Path, **fields: Any) -> Run:
    return dataclasses.replace(Run(name="a", root=str(tmp_path)), **fields)


def test_first_start_freezes_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    said: List[str] = []
    run = a_run(tmp_path)
    folder = folders.prepare(run, said.append)
    assert load.read(folder / "run.yaml") == run
    assert said == []
    assert sorted(path.name for path in (folder / "code").iterdir()) == ["commit.txt", "diff.patch", "environment.txt"]
    environment = (folder / "code" / "environment.txt").read_text()
    assert "\nhydra-core==" in environment and "secret" not in environment


def test_same_configuration_continues_without_a_new_file(tmp_path: Path) -> None:
    said: List[str] = []
    folder = folders.prepare(a_run(tmp_path), said.append)
    folders.prepare(a_run(tmp_path), said.append)
    assert said == [f"continues the run in {folder}"]
    assert not (folder / "run.1.yaml").exists()


def test_changes_are_told_and_the_old_files_kept(tmp_path: Path) -> None:
    said: List[str] = []
    for steps in (100, 200, 300):
        folder = folders.prepare(a_run(tmp_path, train=Train(steps=steps)), said.append)
    assert "  train.steps: 100 -> 200" in "\n".join(said) and "  train.steps: 200 -> 300" in "\n".join(said)
    kept = [load.read(folder / name).train.steps for name in ("run.1.yaml", "run.2.yaml", "run.yaml")]
    assert kept == [100, 200, 300]


def test_another_model_is_refused_by_its_fields(tmp_path: Path) -> None:
    folder = folders.prepare(a_run(tmp_path), print)
    with pytest.raises(ValueError, match=r"model.num_layers 4 -> 8"):
        folders.prepare(a_run(tmp_path, model=Model(num_layers=8)), print)
    assert load.read(folder / "run.yaml").model.num_layers == 4


def test_live_lock_is_refused_and_a_dead_one_is_not(tmp_path: Path) -> None:
    folder = folders.prepare(a_run(tmp_path), print)
    owner = {"host": socket.gethostname(), "pid": os.getppid(), "job": ""}
    (folder / "lock.json").write_text(json.dumps(owner))
    with pytest.raises(ValueError, match=f"in use by pid {os.getppid()}"):
        folders.prepare(a_run(tmp_path), print)
    (folder / "lock.json").write_text(json.dumps({**owner, "pid": 2**22 + 1}))  # above the largest pid
    folders.prepare(a_run(tmp_path), print)


def test_changed_code_is_told_and_the_old_record_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: List[str] = []
    folder = folders.prepare(a_run(tmp_path), said.append)
    before = (folder / "code" / "diff.patch").read_text()
    monkeypatch.setattr(folders, "_diff", lambda: "another\n")
    folders.prepare(a_run(tmp_path), said.append)
    assert (folder / "code" / "diff.1.patch").read_text() == before
    assert (folder / "code" / "diff.patch").read_text() == "another\n"
    assert any("code has changed" in line for line in said)


def test_setup_lines_quote_and_clear_what_the_last_start_said(tmp_path: Path) -> None:
    cluster = Cluster(setup=["module load cuda"], env={"A": "b c"}, threads_per_rank=3)
    lines = folders.setup_lines(a_run(tmp_path, cluster=cluster), Path("/runs/a b"))
    assert lines[:3] == ["module load cuda", "export A='b c'", "export OMP_NUM_THREADS=3"]
    assert lines[3] == "rm -f '/runs/a b'/verdict.json '/runs/a b'/failures/rank_*.txt"


def test_rundir_names_are_those_the_setup_clears(tmp_path: Path) -> None:
    """The shell line above and rundir.py must agree on names."""
    rundir.write_verdict(tmp_path, "done", 1, "")
    assert (tmp_path / "verdict.json").exists() and rundir.failures(tmp_path).name == "failures"
