"""What slurm/pretrain.sbatch asks llm-launch for, inside a job: the frozen run and shell lines, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ext.config import load, rundir
from slurm import launch
from tests.slurm.conftest import Launcher


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process takes itself for the batch script of a job of one task."""
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    return monkeypatch


def freeze(launcher: Launcher, *more: str) -> int:
    return launch.main([*launcher.overrides("a", *more), "--freeze-only"])


def frozen(launcher: Launcher) -> int:
    return load.read(rundir.run_yaml(Path(launcher.folder("a")))).train.steps


def test_it_names_the_folder(job: pytest.MonkeyPatch, launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    assert freeze(launcher, "train.steps=5") == 0
    assert f"RUN={launcher.folder('a').resolve()}" in capsys.readouterr().out and frozen(launcher) == 5


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("parallel=dp2", "1 tasks for 2 ranks"),
        ("cluster.threads_per_rank=3", "sbatch --cpus-per-task=3"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(
    job: pytest.MonkeyPatch, launcher: Launcher, capsys: pytest.CaptureFixture[str], override: str, said: str
) -> None:
    assert freeze(launcher, override) == rundir.EXIT_BAD_INPUT
    assert said in capsys.readouterr().err


def test_a_requeued_job_goes_on_with_what_it_began_with(job: pytest.MonkeyPatch, launcher: Launcher) -> None:
    """Presets that were edited since must not change a run in the middle of it; a new job by hand may."""
    assert freeze(launcher, "train.steps=5") == 0
    job.setenv("SLURM_RESTART_COUNT", "1")
    assert freeze(launcher, "train.steps=6") == 0 and frozen(launcher) == 5
    job.setenv("SLURM_RESTART_COUNT", "0")
    assert freeze(launcher, "train.steps=6") == 0 and frozen(launcher) == 6
