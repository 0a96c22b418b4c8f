"""What Slurm tells a task -> torch's variables; what the trainer's end means for the job. Slurm is faked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Callable

import pytest

from megatron_ext.config import load, rundir
from megatron_ext.config.schema import Cluster, Run
from slurm import rank

FakeSlurm = Callable[[str, str], None]
TASK = {
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "123",
    "SLURM_TASKS_PER_NODE": "4,1",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}


@pytest.mark.parametrize(
    ("text", "layout"), [("4", [4]), ("4(x2)", [4, 4]), ("4(x2),1", [4, 4, 1]), ("8,4(x3),2", [8, 4, 4, 4, 2])]
)
def test_tasks_per_node(text: str, layout: list[int]) -> None:
    assert rank.tasks_per_node(text) == layout


def test_torch_environment_of_an_uneven_layout(fake_slurm: FakeSlurm) -> None:
    fake_slurm("scontrol", '[ "$3" = "gpu[07-08]" ] && printf "gpu07\\ngpu08\\n"')
    assert rank.torch_environment(TASK) == {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": str(rank.master_port(123, 0)),
    }


def test_outside_of_srun_is_refused() -> None:
    with pytest.raises(ValueError, match="SLURM_PROCID is not set"):
        rank.torch_environment({})


def test_ports_differ_between_jobs_and_between_starts() -> None:
    ports = {rank.master_port(job, restart) for job in range(1000, 1100) for restart in range(8)}
    assert len(ports) == 800
    assert min(ports) >= 1024 and max(ports) < 32768  # above: the kernel hands them out to anybody


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm) -> Path:
    """A run folder, and the environment of the only task of a job."""
    one = {**TASK, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "1"}
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in one.items():
        monkeypatch.setenv(name, value)
    fake_slurm("scontrol", f'if [ "$1" = show ]; then echo n1; else echo "$*" >> {tmp_path}/asked; fi')
    fake_slurm("squeue", "echo RUNNING")
    monkeypatch.setattr(rank, "KILLED_SOON_S", 0.2)
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    run = tmp_path / "run"
    run.mkdir()
    load.freeze(dataclasses.replace(Run(), cluster=Cluster(max_restarts=3)), run / "run.yaml")
    return run


def run_module(task: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Has the child run `code`; its signal handlers go back to what they were."""
    (task.parent / "child_module.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(task.parent))
    monkeypatch.setattr(rank.Relay, "listen", lambda self: self)
    return rank.run_rank(task, "child_module")


def test_done_ends_the_task_and_logs_the_output(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys; print(sys.argv[1], os.environ['MASTER_ADDR'], os.environ['RANK'])"
    assert run_module(task, code, monkeypatch) == 0
    log = (task / "logs" / "rank_00000.log").read_text()
    assert log.startswith("--- ") and log.endswith(f"{task} n1 0\n")
    assert not (task.parent / "asked").exists()


def test_stopped_has_the_job_requeued(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_module(task, f"raise SystemExit({rundir.EXIT_STOPPED})", monkeypatch)
    assert (task.parent / "asked").read_text() == "requeue 123\n"


def test_stopped_on_another_rank_waits_and_asks_nothing(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    run_module(task, f"raise SystemExit({rundir.EXIT_STOPPED})", monkeypatch)
    assert not (task.parent / "asked").exists()


def test_cancelled_job_is_not_brought_back(task: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """scontrol requeue would accept it: finished jobs can be requeued."""
    fake_slurm("squeue", "echo COMPLETING")
    assert run_module(task, f"raise SystemExit({rundir.EXIT_STOPPED})", monkeypatch) == rundir.EXIT_STOPPED
    assert not (task.parent / "asked").exists()


def test_restarts_are_bounded(task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert run_module(task, f"raise SystemExit({rundir.EXIT_STOPPED})", monkeypatch) == rundir.EXIT_STOPPED
    assert not (task.parent / "asked").exists()
    assert "raise cluster.max_restarts=3" in capsys.readouterr().out


def test_refused_requeue_is_told(
    task: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_slurm("scontrol", 'if [ "$1" = show ]; then echo n1; else echo "not allowed" >&2; exit 1; fi')
    assert run_module(task, f"raise SystemExit({rundir.EXIT_STOPPED})", monkeypatch) == rundir.EXIT_STOPPED
    assert "not allowed" in capsys.readouterr().out


def test_killed_child_is_recorded_with_its_last_words(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"
    assert run_module(task, code, monkeypatch) == rundir.EXIT_FAILED
    record = (task / "failures" / "rank_00000.txt").read_text()
    assert "killed by SIGKILL" in record and "last words" in record


def test_traceback_of_the_trainer_is_not_overwritten(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import pathlib, sys; f = pathlib.Path(sys.argv[1], 'failures'); f.mkdir();"
        "(f / 'rank_00000.txt').write_text('2030-01-01T00:00:00\\nTraceback\\n'); sys.exit(1)"
    )
    assert run_module(task, code, monkeypatch) == rundir.EXIT_FAILED
    assert (task / "failures" / "rank_00000.txt").read_text() == "2030-01-01T00:00:00\nTraceback\n"


def test_under_torchrun_slurm_is_not_asked(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cluster=local inside an allocation: that job must not be requeued."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "0")
    assert run_module(task, f"raise SystemExit({rundir.EXIT_STOPPED})", monkeypatch) == rundir.EXIT_STOPPED
    assert not (task.parent / "asked").exists()


def test_task_for_submitit_survives_pickling_by_name_only() -> None:
    from submitit.core.utils import pickle  # what submitit reads it back with

    task = pickle.loads(pickle.dumps(rank.Task("/runs/a", "some.module")))
    assert vars(task) == {"run": "/runs/a", "module": "some.module"}
