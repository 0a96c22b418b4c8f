"""What torchrun or Slurm starts for each rank: a small parent that runs the trainer as its child.

    srun python -m slurm.rank RUN_FOLDER              one task a rank
    torchrun ... -m slurm.rank RUN_FOLDER             on one machine

The parent gives the child torch's variables and a log file, passes stop signals on, writes down how a child died that
could not say so itself, and, under Slurm, has the job started again when the run was saved on a signal. That must be
asked for: Slurm counts a job that exits by itself, even within the grace time of a preemption, as failed. The child is
another process because a signal handler must not import, save or exit in the middle of a collective.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import List, Mapping, Optional

from megatron_ext.config import rundir
from slurm import report
from slurm.processes import Relay, shielded

TRAINER = "megatron_ext.train"
POLL_S = 0.1
KILLED_SOON_S = 300  # after a requeue Slurm ends the tasks; longer than any site's KillWait
FIRST_PORT, PORTS = 15000, 15000  # below the kernel's ephemeral range, which starts at 32768


class Task:
    """The callable that submitit pickles: only names, so that a later start finds the newest state on disk."""

    def __init__(self, run: str, module: str = TRAINER) -> None:
        self.run, self.module = run, module

    def __call__(self) -> None:
        if code := run_rank(Path(self.run), self.module):
            sys.exit(code)  # not an exception: submitit would print its own traceback above the trainer's


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.rank",
        description="Runs one rank of a run; llm-launch and slurm/pretrain.sbatch start it.",
        epilog="example: srun --kill-on-bad-exit=1 python -m slurm.rank runs/first",
    )
    parser.add_argument("run", type=Path, help="run folder, with the run.yaml that llm-launch wrote")
    parser.add_argument("--module", default=TRAINER, help="what the child runs (default: %(default)s)")
    parsed = parser.parse_args(arguments)
    return run_rank(parsed.run, parsed.module)


def run_rank(run: Path, module: str) -> int:
    """-> exit code of this task: 0 done, 75 stopped and not to be started again, 1 failed."""
    relay = Relay().listen()
    environment = dict(os.environ)
    under_slurm = "TORCHELASTIC_RUN_ID" not in environment
    if under_slurm:
        environment.update(torch_environment(environment))
    rank = int(environment["RANK"])
    started = time.time()
    code = _run_child(run, module, rank, environment, relay)
    if code == rundir.EXIT_STOPPED and under_slurm:
        return _start_again(run, rank, relay)
    if code not in (rundir.EXIT_DONE, rundir.EXIT_STOPPED):
        _record_failure(run, rank, code, started)
        return rundir.EXIT_FAILED
    return code


def torch_environment(slurm: Mapping[str, str]) -> dict[str, str]:
    """SLURM_* of a task -> what torch's env:// rendezvous reads. Raises ValueError outside an srun task."""
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"):
        if name not in slurm:
            raise ValueError(f"{name} is not set: start slurm.rank by srun, one task a rank, or by torchrun")
    layout = tasks_per_node(slurm.get("SLURM_STEP_TASKS_PER_NODE") or slurm["SLURM_TASKS_PER_NODE"])
    nodes = slurm.get("SLURM_STEP_NODELIST") or slurm["SLURM_JOB_NODELIST"]
    return {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_NTASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(layout[int(slurm["SLURM_NODEID"])]),
        "NODE_RANK": slurm["SLURM_NODEID"],
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(master_port(int(slurm["SLURM_JOB_ID"]), int(slurm.get("SLURM_RESTART_COUNT", "0")))),
    }


def tasks_per_node(text: str) -> List[int]:
    """Slurm's "4(x2),1" -> [4, 4, 1]: nodes need not hold equally many tasks."""
    layout: List[int] = []
    for part in text.split(","):
        tasks, _, repeat = part.partition("(x")
        layout += [int(tasks)] * int(repeat.rstrip(")") or 1)
    return layout


def master_port(job: int, restart: int) -> int:
    """Another for each job and start: jobs may share a node, and the last start's port may not be free yet."""
    return FIRST_PORT + (job * 16 + restart % 16) % PORTS


def first_host(nodes: str) -> str:
    """ "n[1-2,7]" -> "n1". scontrol knows every form of a node list; it asks no server for this."""
    answer = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    return answer.stdout.split()[0]


def _run_child(run: Path, module: str, rank: int, environment: Mapping[str, str], relay: Relay) -> int:
    """-> the child's exit code, negative for a signal."""
    path = report.rank_log(run, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as log:
        job = f", job {environment['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in environment else ""
        log.write(f"--- {datetime.now():%Y-%m-%d %H:%M:%S} rank {rank} on {socket.gethostname()}{job}\n".encode())
        child = subprocess.Popen(
            [sys.executable, "-u", "-m", module, str(run)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=shielded,
        )
        while child.poll() is None:
            relay.deliver([child.pid])
            time.sleep(POLL_S)
    return child.returncode


def _record_failure(run: Path, rank: int, code: int, started: float) -> None:
    """The trainer writes its own traceback; a killed or crashed process cannot, so its parent does."""
    path = rundir.failures(run) / f"rank_{rank:05d}.txt"
    if path.exists() and path.stat().st_mtime >= started - 1:
        return
    how = f"exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name
        how = f"killed by {name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
    tail = report.last_lines(report.rank_log(run, rank))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"{datetime.now().isoformat()}\nrank {rank} on {socket.gethostname()}: {how}; its last output:\n{tail}\n"
    rundir.write_atomically(path, text)


def _start_again(run: Path, rank: int, relay: Relay) -> int:
    """Every rank has saved. Rank 0 has the job requeued; all then wait, since the first exit would end the job."""
    before = relay.noted.count(signal.SIGTERM)
    refusal = _requeue(run) if rank == 0 else None
    if refusal is None:
        deadline = time.monotonic() + KILLED_SOON_S
        while relay.noted.count(signal.SIGTERM) == before and time.monotonic() < deadline:
            time.sleep(POLL_S)
        refusal = "Slurm ends this task, as it does after a requeue"
    if rank == 0:
        print(f"saved, then: {refusal}", flush=True)
    return rundir.EXIT_STOPPED


def _requeue(run: Path) -> Optional[str]:
    """Ask Slurm to start this job again. -> None, or why it was not asked or did not agree."""
    from megatron_ext.config import load

    job, restarts = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    limit = load.read(rundir.run_yaml(run)).cluster.max_restarts
    if restarts >= limit:
        return f"it has been started again {restarts} times; raise cluster.max_restarts={limit} and launch it again"
    try:
        state = _answer(["squeue", "--noheader", "--jobs", job, "--format", "%T"])
        if state == "COMPLETING":  # a finished job can be requeued too, so a cancelled one would come back
            return "the job was cancelled or has reached its time limit"
        _answer(["scontrol", "requeue", job])
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}; launch it again"
    return None


def _answer(command: List[str]) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if answer.returncode:
        raise subprocess.SubprocessError(f"{' '.join(command)}: {answer.stderr.strip()}")
    return answer.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
