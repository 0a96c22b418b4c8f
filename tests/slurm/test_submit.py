"""The job script that submitit writes for us, word by word, and what is left out of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Cluster, ClusterKind, Parallel, Run
from slurm import submit

GOLDEN = Path(__file__).with_name("golden.sbatch")
FOLDER = Path("/shared/runs/first")


@pytest.fixture(autouse=True)
def _srun_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 2))


def a_run(parallel: Parallel, **cluster: Any) -> Run:
    fields = dict(kind=ClusterKind.slurm, python="/shared/env/bin/python") | cluster
    return dataclasses.replace(Run(name="first"), parallel=parallel, cluster=Cluster(**fields))


def test_golden_script() -> None:
    """After a change on purpose: write the text printed by the failure into golden.sbatch."""
    run = a_run(
        Parallel(data=4, tensor=2, pipeline=2),
        threads_per_rank=12,
        partition="gpu",
        account="lab",
        qos="long",
        constraint="h100",
        gpus_per_node="h100:8",
        mem_per_node="400G",
        time_limit_minutes=1440,
        signal_seconds=300,
        exclusive=True,
        setup=["module load cuda"],
        env={"NCCL_DEBUG": "WARN", "NOTE": "two words"},
    )
    assert submit.sbatch_text(run, FOLDER) == GOLDEN.read_text()


def test_what_is_not_set_is_not_given_to_slurm() -> None:
    text = submit.sbatch_text(a_run(Parallel(data=8)), FOLDER)
    flags = sorted(line.split("--")[1].split("=")[0] for line in text.splitlines() if line.startswith("#SBATCH"))
    assert flags == [
        "cpus-per-task",
        "job-name",
        "nodes",
        "ntasks-per-node",
        "open-mode",
        "output",
        "requeue",
        "signal",
    ]


@pytest.mark.parametrize(
    ("world", "per_node", "nodes", "tasks"), [(8, 4, 2, 4), (2, 8, 1, 2), (8, 8, 1, 8), (1, 8, 1, 1), (64, 8, 8, 8)]
)
def test_layout(world: int, per_node: int, nodes: int, tasks: int) -> None:
    flags = submit.parameters(a_run(Parallel(data=world), ranks_per_node=per_node), FOLDER)
    assert (flags["nodes"], flags["ntasks_per_node"]) == (nodes, tasks)


def test_machine_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: -1))
    with pytest.raises(ConfigError, match="login node"):
        submit.executor(a_run(Parallel()), FOLDER)


def test_job_around_us_is_hidden_from_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    with submit._outside_of_jobs():
        assert "SLURM_MEM_PER_NODE" not in os.environ
        assert os.environ["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert os.environ["SLURM_MEM_PER_NODE"] == "100"
