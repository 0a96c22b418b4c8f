"""Wait for a job through all its restarts, showing what rank 0 prints.

The state is asked of squeue: neither sbatch --wait (whose back-off comes half a minute late) nor accounting, which
many sites lack.
"""

from __future__ import annotations

import dataclasses
import subprocess
import time
from typing import Callable, Optional

from slurm.tail import Tail

POLL_S = 1.0
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
# Slurm usually requeues a job that shows one of these; it has ended when the state stays.
UNSETTLED = {"PREEMPTED", "NODE_FAIL", "REQUEUED"}
UNSETTLED_S = 60.0


@dataclasses.dataclass(frozen=True)
class JobState:
    name: str  # RUNNING, PENDING, ...
    detail: str  # the reason for waiting, or the nodes


def job_state(job: str) -> Optional[JobState]:
    """None when Slurm has forgotten the job, which it does minutes after the end."""
    command = ["squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%T|%R"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return JobState("UNKNOWN", "squeue does not answer")
    if answer.returncode or not answer.stdout.strip():
        if answer.returncode and "Invalid job id" not in answer.stderr:
            return JobState("UNKNOWN", answer.stderr.strip())  # the controller is away: jobs run on meanwhile
        return None
    name, _, detail = answer.stdout.splitlines()[0].partition("|")
    return JobState(name, detail)


def follow(job: str, tail: Tail, show: Callable[[str], None], say: Callable[[str], None]) -> str:
    """-> the job's last state."""
    last, since = JobState("", ""), time.monotonic()
    while True:
        state = job_state(job)
        show(tail.read())
        if state is None:
            return last.name or "UNKNOWN"
        if state != last:
            say(f"job {job}: {state.name.lower()} {state.detail}".rstrip())
            since = since if state.name == last.name else time.monotonic()
            last = state
        if state.name in ENDED or (state.name in UNSETTLED and time.monotonic() - since > UNSETTLED_S):
            show(tail.read())
            return state.name
        time.sleep(POLL_S)
