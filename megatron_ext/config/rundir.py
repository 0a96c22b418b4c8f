"""What a run folder holds and under which names; the one place that launcher, ranks and tools share.

    run.yaml          the frozen configuration           metrics.jsonl   one line a logged step
    verdict.json      how the last attempt ended         tensorboard/    event files
    lock.json         who is writing now                 checkpoints/    iter_0000100/ ... and the name of the latest
    failures/         one traceback per failed rank      logs/           output of the ranks

Standard library only: a login node reads it at once.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Optional

LATEST = "latest_checkpointed_iteration.txt"  # Megatron's own name, so that its tools find our checkpoints

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: saved on a signal, wants to be started again


def folder(root: str, name: str) -> Path:
    return Path(root) / name


def run_yaml(run: Path) -> Path:
    return run / "run.yaml"


def checkpoints(run: Path) -> Path:
    return run / "checkpoints"


def failures(run: Path) -> Path:
    return run / "failures"


def logs(run: Path) -> Path:
    return run / "logs"


def metrics(run: Path) -> Path:
    return run / "metrics.jsonl"


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old content or the new one, never a part; survives a power loss."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_verdict(run: Path, state: str, step: int, reason: str) -> None:
    """state: done, stopped (saved, wants to go on) or failed. srun rewrites exit codes; this file it does not."""
    write_atomically(run / "verdict.json", json.dumps({"state": state, "step": step, "reason": reason}) + "\n")


def read_verdict(run: Path) -> Optional[dict[str, Any]]:
    try:
        return json.loads((run / "verdict.json").read_text())
    except FileNotFoundError:
        return None


class Lock:
    """One writer per run folder. Taken by rank 0; a lock whose owner is gone is taken over.

    A file created with O_EXCL rather than flock: parallel file systems are often mounted without working flock.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / "lock.json"
        self.owner = {"host": socket.gethostname(), "pid": os.getpid(), "job": os.environ.get("SLURM_JOB_ID", "")}

    def acquire(self) -> None:
        """Raises ValueError, naming the owner, when another live job holds the folder."""
        for _ in range(2):
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                if owner := lock_owner(self.path.parent):
                    raise ValueError(
                        f"run folder {self.path.parent} is in use by pid {owner['pid']} on {owner['host']}"
                        f"{' (job ' + owner['job'] + ')' if owner['job'] else ''}; "
                        f"wait for it, stop it, or choose another name=..."
                    ) from None
                self.path.unlink(missing_ok=True)
                continue
            with os.fdopen(descriptor, "w") as file:
                json.dump(self.owner, file)
            return
        raise ValueError(f"run folder {self.path.parent} is being taken by another job at this moment; try again")

    def release(self) -> None:
        try:
            if json.loads(self.path.read_text()) == self.owner:
                self.path.unlink()
        except (FileNotFoundError, json.JSONDecodeError):
            pass


def lock_owner(run: Path) -> Optional[dict[str, Any]]:
    """The live owner of the run folder, or None when it is free or its owner is gone."""
    try:
        owner = json.loads((run / "lock.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if owner["job"]:
        if owner["job"] == os.environ.get("SLURM_JOB_ID"):
            return None  # an earlier attempt of this very job: Slurm requeues only when that one has ended
        return owner if _job_is_alive(owner["job"]) else None
    if owner["host"] == socket.gethostname():
        return owner if owner["pid"] != os.getpid() and Path(f"/proc/{owner['pid']}").exists() else None
    return owner  # another host without Slurm: we cannot know, so we do not overwrite


def _job_is_alive(job: str) -> bool:
    try:
        answer = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return True
    return answer.stdout.strip() in {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
