"""A chain of Slurm job arrays: each starts when all tasks of the one before have ended well.

For work that needs no ranks. A task that Slurm requeues (its node died) runs again from the start and must itself know
what it had finished.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Sequence

from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Cluster
from slurm.follow import ENDED, POLL_S

_GONE_S = 15.0  # a controller that restarts forgets nothing, but says "invalid job" while it reads its state


@dataclass(frozen=True)
class Array:
    """`command` is run by a shell once a task, with $SLURM_ARRAY_TASK_ID from 0."""

    name: str
    command: List[str]
    tasks: int


def script(array: Array, cluster: Cluster, folder: Path, after: str = "") -> str:
    """The job script; flags that the user left at None are not there."""
    flags = {
        "job-name": array.name,
        "array": f"0-{array.tasks - 1}",
        "ntasks": 1,
        "cpus-per-task": cluster.threads_per_rank,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "mem": cluster.mem_per_node,
        "time": cluster.time_limit_minutes,
        "output": folder / f"{array.name}_%a.log",
        "open-mode": "append",
        "dependency": f"afterok:{after}" if after else None,
        "kill-on-invalid-dep": "yes" if after else None,
    }
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in flags.items() if value is not None]
    lines += ["#SBATCH --requeue"] + (["#SBATCH --exclusive"] if cluster.exclusive else [])
    exports = [f"export {name}={shlex.quote(value)}" for name, value in {**cluster.env, "OMP_NUM_THREADS": "1"}.items()]
    command = f"exec {shlex.join(array.command)} --task $SLURM_ARRAY_TASK_ID"
    return "\n".join(["#!/bin/bash", *lines, *cluster.setup, *exports, command, ""])


def submit(
    arrays: Sequence[Array], cluster: Cluster, folder: Path, note: Callable[[List[str]], None], after: str = ""
) -> List[str]:
    """-> their job ids. Scripts and logs are in `folder`; `note` is told the ids so far after each, so that a chain
    outlives a kill in the middle. Raises ConfigError with Slurm's words when it refuses one."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs: List[str] = []
    for array in arrays:
        path = folder / f"{array.name}.sbatch"
        path.write_text(script(array, cluster, folder, jobs[-1] if jobs else after))
        try:
            jobs.append(_sbatch(path))
            note(jobs)
        except BaseException:  # an error, an interrupt: a part of a chain is of no use
            cancel(jobs)
            raise
    return jobs


def cancel(jobs: Sequence[str]) -> None:
    if jobs:
        subprocess.run(["scancel", *jobs], capture_output=True, timeout=60)


def alive(jobs: Sequence[str]) -> bool:
    """Is any of them waiting or running?"""
    states = _states(jobs)
    return states is None or any(state not in ENDED for state in states)


def wait(jobs: Sequence[str], tell: Callable[[Dict[str, int]], None], poll_s: float = POLL_S) -> None:
    """Until Slurm has none of the jobs in work or waiting. `tell` gets the number of tasks in each state."""
    gone_since = None
    while True:
        states = _states(jobs)
        if states is not None:
            tell(states)
            if all(state in ENDED for state in states):
                if states or gone_since is not None and time.monotonic() - gone_since > _GONE_S:
                    return
                gone_since = gone_since or time.monotonic()
            else:
                gone_since = None
        time.sleep(poll_s)


def _states(jobs: Sequence[str]) -> "Dict[str, int] | None":
    """Tasks by state; None when the controller does not answer. A job that Slurm has forgotten is not there."""
    command = ["squeue", "--noheader", "--states=all", "--array", "--jobs", ",".join(jobs), "--format", "%T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None
    if answer.returncode:
        return {} if "Invalid job id" in answer.stderr else None
    found = answer.stdout.split()
    return {state: found.count(state) for state in sorted(set(found))}


def _sbatch(path: Path) -> str:
    command = ["sbatch", "--parsable", str(path)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    except FileNotFoundError:
        raise ConfigError(
            "cluster.kind=slurm, but there is no sbatch on this machine; run on a login node, or use cluster=local"
        ) from None
    if answer.returncode:
        reason = answer.stderr.replace("sbatch: error: ", "").strip()
        raise ConfigError(f"Slurm refuses the job: {reason}; see the cluster.* fields, and {path}")
    return answer.stdout.strip().split(";")[0]
