"""The launcher on a real Slurm cluster of four nodes, with a stand-in for the trainer (standin.py).

Every node has a network of its own, so ranks that meet have found each other as on a cluster.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.slurm.conftest import REPOSITORY, STANDIN, Launcher, slurm, wait_until, write_order

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_cluster")]

FOUR_RANKS = (
    "cluster=test_slurm",
    "parallel=tp2_pp2",
    "cluster.ranks_per_node=2",
    STANDIN,
)  # two nodes, two tasks each


def starts(launcher: Launcher, name: str) -> list[int]:
    """The step at which each start of the run began."""
    return [int(step) for step in re.findall(r"^start at step (\d+)", launcher.log(name), re.MULTILINE)]


def submit_by_hand(flags: list[str], overrides: list[str]) -> str:
    environment = {**os.environ, "PYTHON": sys.executable, "MODULE": "tests.slurm.standin"}
    command = ["sbatch", "--parsable", *flags, str(REPOSITORY / "slurm" / "pretrain.sbatch"), *overrides]
    answer = subprocess.run(
        command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return answer.stdout.strip()


def test_eight_ranks_meet_across_two_nodes(launcher: Launcher) -> None:
    more = ["cluster.gpus_per_node=4", 'cluster.setup=["export NOTE=$(hostname)"]']
    answer = launcher.run(
        "a", "cluster=test_slurm", "parallel=tp2_pp2_dp2", "train.steps=10", STANDIN, *more
    )  # every step's all-reduce checks that eight ranks took part
    assert answer.returncode == 0, answer.stderr
    assert "start at step 0 on n1 n1 n1 n1 n2 n2 n2 n2 by n1" in answer.stdout
    assert "NOTE=n1 GPUS=0,1,2,3" in answer.stdout
    assert "done at step 10" in answer.stdout
    assert (
        slurm("squeue", "-h", "-t", "all", "-o", "%T", "-j", (launcher.folder("a") / "job").read_text()) == "COMPLETED"
    )


def test_raising_rank_fails_the_job_at_once_and_its_traceback_is_printed(launcher: Launcher) -> None:
    write_order(launcher.folder("a"), rank=3, step=5, how="raise")
    answer = launcher.run("a", "train.steps=9999", *FOUR_RANKS)
    seen = time.time()
    assert answer.returncode == 1
    assert "rank 3 failed" in answer.stderr and "RuntimeError: rank 3 was told to fail" in answer.stderr
    assert "job" in answer.stderr and ": failed" in answer.stderr
    raised = (launcher.folder("a") / "failures" / "rank_00003.txt").stat().st_mtime
    assert seen - raised < 15


def test_batch_script_by_hand_is_requeued_before_its_time_limit(launcher: Launcher) -> None:
    """slurm/pretrain.sbatch: same ranks, same requeue, no launcher that waits.

    A minute is the shortest limit there is. Slurm looks every half minute and signals half a minute early.
    """
    launcher.root.mkdir()
    flags = [f"--output={launcher.root}/hand-%j.out", "--partition=low", "--time=1", "--signal=USR2@30"]
    layout = ["--nodes=2", "--ntasks-per-node=2"]
    job = submit_by_hand([*flags, *layout], launcher.overrides("a", "parallel=tp2_pp2", "train.steps=320"))
    wait_until("end", lambda: slurm("squeue", "-h", "-t", "all", "-o", "%T", "-j", job) == "COMPLETED", 300)
    first, second, *more = starts(launcher, "a")
    assert first == 0 < second < 320  # saved on the signal
    assert "done at step 320" in (launcher.root / f"hand-{job}.out").read_text()


def test_batch_script_with_wrong_task_count_says_so(launcher: Launcher) -> None:
    launcher.root.mkdir()
    output = launcher.root / "hand.out"
    submit_by_hand([f"--output={output}", "--ntasks=3"], launcher.overrides("a", "parallel=tp2_pp2"))
    text = wait_until("refusal", lambda: output.exists() and output.read_text(), 60)
    assert "the job has 3 tasks for 4 ranks" in text


def test_cancelled_job_saves_and_does_not_come_back(launcher: Launcher) -> None:
    process = launcher.start("a", "train.steps=9999", *FOUR_RANKS)
    wait_until("ten steps", lambda: "step 10" in launcher.log("a"))
    job = (launcher.folder("a") / "job").read_text().strip()
    second = launcher.run("a", "train.steps=9999", *FOUR_RANKS)
    assert second.returncode == 2 and f"has job {job} in the queue" in second.stderr
    slurm("scancel", job)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "stopped at step" in err and f"[{int(signal.SIGTERM)}]" in err
    assert slurm("squeue", "-h", "-o", "%T", "-j", job) == ""


@pytest.fixture
def second_node(quiet_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose second node comes back after the test."""
    yield quiet_cluster
    quiet_cluster.node("n2", "on")
    quiet_cluster.resume("n2")


def test_power_loss_of_a_node_moves_the_run_to_others(launcher: Launcher, second_node: Cluster) -> None:
    """Ranks on the living node fail within a second; Slurm learns of the loss later, and requeues all the same."""
    process = launcher.start("a", "train.steps=40", *FOUR_RANKS)
    wait_until("ten steps", lambda: "step 10" in launcher.log("a"))
    second_node.node("n2", "off")
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert starts(launcher, "a") == [0, 0]  # nothing had been saved
    assert "on n1 n1 n3 n3 by n1" in out or "on n3 n3 n4 n4 by n3" in out
    assert not list((launcher.folder("a") / "failures").iterdir())


def test_refusal_by_slurm_gives_exit_2_in_its_words(launcher: Launcher) -> None:
    answer = launcher.run("a", "cluster=test_slurm", "cluster.time_limit_minutes=100", STANDIN)
    assert answer.returncode == 2
    assert "Slurm refuses the job" in answer.stderr and "time limit" in answer.stderr


def test_ranks_that_cannot_start_are_explained(launcher: Launcher) -> None:
    """No rank lives long enough to leave a traceback; what the node's shell said is shown instead."""
    answer = launcher.run("a", "cluster=test_slurm", "cluster.python=/nowhere/python", STANDIN)
    assert answer.returncode == 1
    assert "Slurm says FAILED" in answer.stderr
    assert re.search("/nowhere/python.*(not found|No such file)", answer.stderr)
