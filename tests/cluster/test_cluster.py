"""The test cluster itself: one at a time, and what a killed run leaves is cleared away by the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import settings
from tests.cluster.cluster import DAEMONS, RECORD, Cluster, exclusive

REPOSITORY = Path(__file__).resolve().parents[2]

# A test session in small: takes the lock, brings the cluster up, tells its folder, and waits to be killed.
SESSION = """
import time
from tests.cluster.cluster import Cluster, exclusive, temporary_root
with exclusive(wait_s=900):
    cluster = Cluster(temporary_root())
    cluster.up()
    print("up", cluster.root, flush=True)
    time.sleep(600)
"""


def session() -> tuple[subprocess.Popen[str], Path, str]:
    """-> the process, the cluster's folder, what was said before."""
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("up "):
            return process, Path(line.split()[1]), said
        said += line
    raise AssertionError(f"the cluster did not come up: {said}")


@pytest.mark.slow
def test_leftovers_of_a_killed_session_are_taken_down() -> None:
    """Takes the machine's only cluster, so it must run before the session's own is up, as the folders' names see to."""
    first, left, _ = session()
    busy = subprocess.run(
        [sys.executable, "-m", "tests.cluster", "up"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert busy.returncode == 1 and "another test session" in busy.stderr
    first.kill()
    first.wait()
    pids = [int((left / "run" / f"{name}.pid").read_text()) for name in (*DAEMONS, "node.n1", "node.n4")]
    assert all(runs(pid) for pid in pids)  # they outlive the session: that is the leftover

    second, root, said = session()
    second.kill()
    second.wait()
    assert f"taking down the cluster left in {left}" in said
    assert not left.exists() and not any(runs(pid) for pid in pids)
    idle = ["sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D"]
    answer = subprocess.run(idle, env=Cluster(root).environment(), capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "4"

    with exclusive(wait_s=60):
        Cluster(root).down()
    assert not root.exists() and not RECORD.exists()
    assert settings.BRIDGE not in output("ip", "link") and "llm_n" not in output("ip", "netns", "list")
    assert not list(Path("/sys/fs/cgroup").glob("*/slurm_n[0-9]*"))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
