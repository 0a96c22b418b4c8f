"""cluster.kind=slurm: a run -> one Slurm job, through submitit.

submitit writes the job script and carries the pickled callable `rank.Task` to every task. Its own handling of signals
and requeues is not used: it calls only rank 0 back, and takes every preemption of a short job for a timeout.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, Optional

from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Run, world_size
from slurm import folder as folders
from slurm.processes import SHIELD
from slurm.rank import Task

# One rank's exit ends the job at once, or the others would wait for it in a collective until the time limit.
SRUN_ARGUMENTS = ["--kill-on-bad-exit=1", "--wait=60"]


def parameters(run: Run, folder: Path) -> dict[str, Any]:
    """submitit's names for the job's flags. Those the user left at None are not there, for sites that refuse them."""
    cluster, world = run.cluster, world_size(run.parallel)
    tasks = min(cluster.ranks_per_node, world)
    flags = dict(
        job_name=run.name,
        nodes=world // tasks,
        ntasks_per_node=tasks,
        cpus_per_task=cluster.threads_per_rank,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        constraint=cluster.constraint,
        gpus_per_node=cluster.gpus_per_node,
        mem=cluster.mem_per_node,
        exclusive=cluster.exclusive or None,
    )
    return dict(
        {name: value for name, value in flags.items() if value is not None},
        time=cluster.time_limit_minutes,  # None must be said, here and for wckey: submitit has defaults of its own
        wckey=None,
        signal_delay_s=cluster.signal_seconds,
        stderr_to_stdout=True,
        setup=folders.setup_lines(run, folder),
        # Slurm 22.05 to 23.02 do not hand the job's cpus-per-task on to srun
        srun_args=[*SRUN_ARGUMENTS, f"--cpus-per-task={cluster.threads_per_rank}"],
        additional_parameters={"requeue": True},
    )


def executor(run: Run, folder: Path) -> Any:
    """Raises ConfigError on a machine without Slurm."""
    import submitit

    python = shlex.join([*SHIELD, run.cluster.python or sys.executable])
    try:
        slurm = submitit.SlurmExecutor(folder=jobs(folder), python=python)
    except RuntimeError as error:
        raise ConfigError(
            f"cluster.kind=slurm, but {error}; launch on a login node of the cluster, or use cluster=local"
        ) from None
    slurm.update_parameters(**parameters(run, folder))
    return slurm


def sbatch_text(run: Run, folder: Path) -> str:
    """The job script, as submitit will write it."""
    slurm = executor(run, folder)
    return str(slurm._make_submission_file_text(slurm._submitit_command_str, "0"))


def submit(run: Run, folder: Path, module: str) -> str:
    """-> job id. Raises ConfigError with Slurm's words when it refuses the job."""
    from submitit.core.utils import FailedJobError

    slurm = executor(run, folder)
    with _outside_of_jobs():
        try:
            job = slurm.submit(Task(str(folder), module))
        except (FailedJobError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"Slurm refuses the job: {_reason(str(error))}; see the cluster.* fields") from None
    (folder / "job").write_text(f"{job.job_id}\n")
    return str(job.job_id)


def jobs(folder: Path) -> Path:
    """Job scripts, pickles and the output of the tasks' parents; the ranks' own output is in logs/."""
    return folder / "slurm"


def log_of(folder: Path, job: str) -> Path:
    """What the job script and the first task's parent said."""
    return jobs(folder) / f"{job}_0_log.out"


def waiting_job(folder: Path) -> Optional[str]:
    """A job of this folder that is queued or runs: before its first rank starts nothing else tells of it."""
    from slurm.follow import ENDED, job_state

    try:
        job = (folder / "job").read_text().strip()
    except FileNotFoundError:
        return None
    state = job_state(job)
    return None if job == os.environ.get("SLURM_JOB_ID") or state is None or state.name in ENDED else job


def _reason(text: str) -> str:
    """Slurm's own lines out of submitit's message."""
    lines = re.findall(r"^sbatch: error: (.*)$", text, re.MULTILINE)
    return "; ".join(lines) if lines else text.strip()


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Submitted from inside a job, sbatch would take over that job's memory, GPUs and layout."""
    prefixes = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(prefixes)}
    if "SLURM_CONF" in hidden:  # where the cluster is; all others tell about the job around us
        os.environ["SLURM_CONF"] = hidden["SLURM_CONF"]
    try:
        yield
    finally:
        os.environ.update(hidden)
