"""llm-launch without Slurm: answers at once, refuses wrong input with exit 2, runs and stops ranks by torchrun."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from tests.slurm.conftest import REPOSITORY, STANDIN, Launcher, wait_until, write_order


def test_launcher_does_not_import_torch() -> None:
    """A launcher on a login node must answer at once."""
    code = (
        "import sys, slurm.launch as l; l.load.usage();"
        "print([m for m in ('torch', 'megatron', 'hydra', 'submitit') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_composing_and_scripting_do_not_import_torch(launcher: Launcher) -> None:
    code = f"""
import sys
from slurm import launch, submit
import submitit
submitit.SlurmExecutor.affinity = classmethod(lambda cls: 2)
assert launch.main({launcher.overrides("a", "cluster=test_slurm", "--dry-run")}) == 0
print("torch" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False"


def test_help_takes_less_than_700_ms_of_cpu() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "slurm.launch", "--help"]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "llm-launch model=llama_tiny" in answer.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.7


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("parallel=tp2_pp9", "tp2_pp2"),
        ("train.stebs=5", "train.steps"),
        ("model.num_heads=7", "model.num_heads=7"),
        ("data.blend=[nowhere/shard]", "llm-preprocess"),
        ("--detach", "cluster.kind=slurm"),
    ],
)
def test_wrong_input_gives_exit_2_and_one_message(launcher: Launcher, override: str, said: str) -> None:
    answer = launcher.run("a", override)
    assert answer.returncode == 2
    assert said in answer.stderr and "Traceback" not in answer.stderr
    assert not launcher.folder("a").exists()


def test_dry_run_writes_nothing(launcher: Launcher) -> None:
    answer = launcher.run("a", "parallel=tp2", "--dry-run")
    assert answer.returncode == 0
    assert "--nproc-per-node=2" in answer.stdout and "hidden_size: 128" in answer.stdout
    assert not launcher.root.exists()


def test_folder_in_use_gives_exit_2(launcher: Launcher) -> None:
    launcher.folder("a").mkdir(parents=True)
    owner = {"host": os.uname().nodename, "pid": os.getpid(), "job": ""}
    (launcher.folder("a") / "lock.json").write_text(json.dumps(owner))
    answer = launcher.run("a")
    assert answer.returncode == 2
    assert f"in use by pid {os.getpid()}" in answer.stderr
    assert not (launcher.folder("a") / "run.yaml").exists()


@pytest.mark.slow
def test_local_run_is_done_and_then_continued(launcher: Launcher) -> None:
    first = launcher.run("a", "parallel=dp2", "train.steps=10", STANDIN)
    assert first.returncode == 0, first.stderr
    assert "step 10" in first.stdout and "done at step 10" in first.stdout
    second = launcher.run("a", "parallel=dp2", "train.steps=20", STANDIN, "--json")
    assert second.returncode == 0, second.stderr
    facts = json.loads(second.stdout)
    assert (facts["state"], facts["step"], facts["job"]) == ("done", 20, None)
    assert "train.steps: 10 -> 20" in second.stderr
    assert "start at step 10" in launcher.log("a")


@pytest.mark.slow
def test_failures_of_an_earlier_start_do_not_end_this_one(launcher: Launcher) -> None:
    """The launcher kills ranks whose peer has failed; the note of an earlier failure must not be taken for one."""
    stale = launcher.folder("a") / "failures" / "rank_00001.txt"
    stale.parent.mkdir(parents=True)
    stale.write_text("2026-01-01T00:00:00\nold\n")
    answer = launcher.run("a", "parallel=dp2", "train.steps=300", STANDIN)
    assert answer.returncode == 0, answer.stderr
    assert not stale.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_signal_while_ranks_still_import_saves_and_stops(launcher: Launcher, number: signal.Signals) -> None:
    """The hardest moment: torchrun would die of USR1, and a rank without a handler of either."""
    process = launcher.start("a", "parallel=dp2", "train.steps=5000", STANDIN)
    wait_until("rank", lambda: launcher.log("a"))
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "stopped at step" in err and f"[{int(number)}]" in err


@pytest.mark.slow
def test_killed_rank_ends_the_run_and_is_named(launcher: Launcher) -> None:
    """Its peers meet closed connections first, and leave tracebacks; the killed one can leave none."""
    write_order(launcher.folder("a"), rank=2, step=3, how="kill")
    answer = launcher.run("a", "parallel=tp2_pp2", "train.steps=5000", STANDIN)
    assert answer.returncode == 1
    assert "rank 2 failed" in answer.stderr and "killed by SIGKILL" in answer.stderr
