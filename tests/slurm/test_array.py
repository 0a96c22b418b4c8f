"""Job scripts of arrays: what Slurm is asked for, and nothing that the user left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Cluster
from slurm.array import Array, script, submit, wait


def test_script_in_full() -> None:
    cluster = Cluster(
        threads_per_rank=4, partition="cpu", time_limit_minutes=30, setup=["module load x"], env={"A": "b c"}
    )
    text = script(Array("map-0", ["python", "-m", "x", "a b"], 7), cluster, Path("/logs"), after="12")
    assert text.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=map-0",
        "#SBATCH --array=0-6",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --partition=cpu",
        "#SBATCH --time=30",
        "#SBATCH --output=/logs/map-0_%a.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --dependency=afterok:12",
        "#SBATCH --kill-on-invalid-dep=yes",
        "#SBATCH --requeue",
        "module load x",
        "export A='b c'",
        "export OMP_NUM_THREADS=1",
        "exec python -m x 'a b' --task $SLURM_ARRAY_TASK_ID",
    ]


def test_without_slurm_the_remedy_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no sbatch on this machine.*cluster=local"):
        submit([Array("a", ["true"], 1)], Cluster(), tmp_path, print)


def test_a_refusal_cancels_what_was_submitted(tmp_path, fake_slurm) -> None:
    fake_slurm("sbatch", 'grep -q "job-name=bad" "$2" && echo "sbatch: error: no" >&2 && exit 1; echo 77')
    fake_slurm("scancel", f"echo $@ > {tmp_path}/cancelled")
    known = []
    with pytest.raises(ConfigError, match="Slurm refuses the job: no"):
        arrays = [Array("good", ["true"], 1), Array("bad", ["true"], 1)]
        submit(arrays, Cluster(), tmp_path / "jobs", lambda jobs: known.append(list(jobs)))
    assert known == [["77"]], "told at once, and not only when the chain is whole"
    assert (tmp_path / "cancelled").read_text().strip() == "77"


def test_waiting_outlasts_a_controller_that_does_not_answer(tmp_path, fake_slurm) -> None:
    """squeue fails twice, then shows a task that runs, then its end."""
    fake_slurm("squeue", f'n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n; '
                         'case $n in 0|1) exit 1;; 2) echo RUNNING;; *) echo COMPLETED;; esac')  # fmt: skip
    told = []
    wait(["1"], told.append, poll_s=0.01)
    assert told == [{"RUNNING": 1}, {"COMPLETED": 1}]
